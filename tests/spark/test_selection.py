"""Options choose rows, and a wrong option is named where it is written."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from remuda.model.errors import InvalidOption
from remuda.spark.source.read_options import ReadOptions
from remuda.spark.source.selection import Selection, parse_time

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MICROS = 1769860800000000


@pytest.mark.parametrize(
    "text", ["2026-01-31T12:00", "2026-01-31 13:00+01:00", "2026-01-31T12:00:00Z", "1769860800000000"]
)
def test_times_are_utc_unless_they_say_otherwise(text: str) -> None:
    assert parse_time(text) == NOON_MICROS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say where the log is"),
        ({"tabel": "events"}, r"unknown option 'tabel'; did you mean 'table'\?"),
        ({"table": "queues"}, "there is no table 'queues'; the tables are messages, events, lifecycle"),
        ({"fromOffset": "-1"}, "fromOffset must be a whole number from 0 on, not '-1'"),
        ({"toOffset": "ten"}, "toOffset must be"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger must be a whole number from 1 on"),
        ({"since": "yesterday"}, "since must be a time such as"),
        ({"until": "9" * 30}, "until must be a time such as"),
        ({"startingOffsets": "9" * 30}, "startingOffsets must be earliest, latest or a time"),
        ({"table": "events", "states": "F,Z"}, r"there is no state 'Z'; the states are L \(logged\)"),
        ({"states": "F"}, "messages have no states of their own"),
        ({"table": "events", "topics": "x"}, "events carry no topics"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], message: str) -> None:
    where = {} if not options else {"path": "x"}
    with pytest.raises(InvalidOption, match=message):
        ReadOptions.parse({**where, **options})


def test_options_are_read_whatever_their_case() -> None:
    options = ReadOptions.parse({"path": "x", "FROMOFFSET": "3", "queues": "a, b,", "Since": str(NOON_MICROS)})
    assert options.selection == Selection(start=3, queues=frozenset({"a", "b"}), since=NOON_MICROS)


def test_names_with_commas_are_given_as_a_list() -> None:
    wanted = Selection(queues=frozenset({"a,b", " c", "[d"}))
    assert ReadOptions.parse({"path": "x", "queues": '["a,b", " c", "[d"]'}).selection == wanted
    with pytest.raises(InvalidOption, match="or a JSON list"):  # a name that begins so is given in a list, too
        ReadOptions.parse({"path": "x", "queues": "[d], e"})


def test_numbers_beyond_all_are_no_limit() -> None:
    far = "9" * 30
    options = ReadOptions.parse({"path": "x", "fromOffset": far, "toOffset": far, "maxRowsPerTrigger": far})
    assert options.selection.start == options.selection.stop == options.max_rows == Selection().stop


def test_topics_choose_by_prefix_and_by_name_where_no_topic_is_listed() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "name": ["fruit.sour", "fruits.x", "stone.b", "fruit"],
            "topics": pa.array([[], [], ["fruit.a", "x"], ["stone.c"]], pa.list_(pa.string())),
            "queues": pa.array([["fruit"], [], ["stone", "fruit"], ["stone"]], pa.list_(pa.string())),
        }
    )
    below = Selection(topics=("fruit.*",)).apply("messages", rows)
    assert below.column("name").to_pylist() == ["fruit.sour", "stone.b"]
    queued = Selection(queues=frozenset({"fruit"})).apply("messages", rows)
    assert queued.column("name").to_pylist() == ["fruit.sour", "stone.b"]
