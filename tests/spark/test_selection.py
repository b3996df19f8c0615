"""Options and pushed filters choose rows, and a wrong option is named where it is written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from remuda.model.errors import InvalidOption
from remuda.spark.options import ReadOptions
from remuda.spark.selection import Selection, parse_time, push

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


@pytest.mark.parametrize(
    ("table", "filters", "expected"),
    [
        ("messages", [GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 9)], {"start": 5, "stop": 9}),
        ("messages", [GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 9)], {"start": 6, "stop": 10}),
        ("messages", [EqualTo(("offset",), 5)], {"start": 5, "stop": 6}),
        ("events", [EqualTo(("position",), 5)], {"start": 5, "stop": 6}),
        ("events", [EqualTo(("offset",), 5)], {}),
        ("messages", [GreaterThan(("created",), NOON)], {"since": NOON_MICROS + 1}),
        ("events", [LessThanOrEqual(("time",), NOON)], {"until": NOON_MICROS + 1}),
        ("events", [EqualTo(("queue",), "a"), In(("state",), ("F", "S"))], {"queues": {"a"}, "states": {"F", "S"}}),
        ("events", [In(("queue",), ("a", "b")), In(("queue",), ("b", "c"))], {"queues": {"b"}}),
        ("messages", [EqualTo(("name",), "x.y"), EqualTo(("queue",), "a")], {"names": {"x.y"}}),
        ("messages", [IsNotNull(("offset",)), EqualTo(("offset", "x"), 1)], {}),
    ],
)
def test_filters_narrow_what_is_read(table: str, filters: list[Filter], expected: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {
        name: frozenset(value) if isinstance(value, set) else value for name, value in expected.items()
    }
    assert push(table, Selection(), filters) == Selection(**wanted)


def test_filters_never_widen_what_options_chose() -> None:
    asked = Selection(start=10, stop=20, queues=frozenset({"a"}))
    pushed = push("events", asked, [GreaterThan(("position",), 3), In(("queue",), ("a", "b"))])
    assert pushed == asked


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
