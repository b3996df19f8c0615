"""P3: data as it comes: skewed, late, out of order, of another schema, half collected, or not there at all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from remuda.log.disk.directory import DirectoryDisk
from remuda.log.sealed.parquet import write_sealed
from remuda.model.document import document
from remuda.model.errors import InvalidOption
from remuda.model.message import Message
from remuda.model.records import Event
from remuda.model.state import State
from remuda.spark import read
from remuda.spark.lake.table import LakeTable
from remuda.spark.pipelines.archive import lifecycle_table
from remuda.spark.pipelines.history import history
from remuda.spark.pipelines.ingest import messages_of
from remuda.spark.pipelines.jobs import JOBS, history_table, metrics_table
from remuda.spark.pipelines.lifecycle import lifecycle
from remuda.spark.pipelines.metrics import fuller, metrics, spans
from remuda.spark.pipelines.streaming_queries import Place
from remuda.spark.source import snapshots
from remuda.spark.source.data_source import table_schema
from tests.spark.samples import broker_at, load, numbers, plain, play, publish, seal, to_micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
DAY = 86_400


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    snapshots.release()


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def frame(spark: SparkSession, table: str, rows: list[dict[str, Any]]) -> DataFrame:
    schema = table_schema(table)
    return spark.createDataFrame([tuple(row.get(name) for name in schema.fieldNames()) for row in rows], schema)


def message(offset: int, *queues: str) -> dict[str, Any]:
    return {"offset": offset, "id": str(offset), "name": "q", "created": NOON, "queues": list(queues or ("q",))}


def event(position: int, state: State, seconds: float, first: int = 0, count: int = 1, **more: Any) -> dict[str, Any]:
    whole = {"position": position, "time": after(seconds), "queue": "q", "state": state.value, "attempt": 0}
    return whole | {"first": first, "count": count} | more


def fetch(position: int, seconds: float, consumer: str = "c", attempt: int = 1, **more: Any) -> dict[str, Any]:
    return event(position, State.FETCHED, seconds, consumer=consumer, attempt=attempt, **more)


def lives(spark: SparkSession, messages: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = lifecycle(frame(spark, "messages", messages), frame(spark, "events", events))
    return [row.asDict(recursive=True) for row in told.orderBy("offset", "queue").collect()]


def as_told(messages: list[dict[str, Any]], events: list[dict[str, Any]], offset: int) -> list[tuple[Any, ...]]:
    """State, times and meetings of a message as the broker tells them."""
    (one,) = [row for row in messages if row["offset"] == offset]
    story = [
        (
            to_micros(row["time"]) or 0,
            Event(row["queue"], State(row["state"]), row["first"], row["count"], row.get("consumer"), row["attempt"],
                  reason=row.get("reason"), detail=row.get("detail")),
        )
        for row in sorted(events, key=lambda row: row["position"])
        if row["first"] <= offset < row["first"] + row["count"]
    ]  # fmt: skip
    told = document(offset, Message("q", b"", created=to_micros(one["created"]) or 0), one["queues"], story)
    return [
        (view.queue, view.state, view.modified, view.consumed, view.processed, view.completed, view.attempts,
         view.reason, [(entry.consumer, entry.fetched, entry.confirmed, entry.duration) for entry in view.consumed_by])
        for view in told.queues
    ]  # fmt: skip


def as_row(life: dict[str, Any]) -> tuple[Any, ...]:
    times = (to_micros(life[name]) for name in ("modified", "consumed", "processed", "completed"))
    met = [
        (entry["consumer"], to_micros(entry["fetched"]), to_micros(entry["confirmed"]), entry["duration"])
        for entry in life["consumed_by"]
    ]
    return (life["queue"], life["state"], *times, life["attempts"], life["reason"], met)


# Skew


def test_history_of_one_key_with_nearly_all_rows(spark: SparkSession) -> None:
    hot = spark.range(9_000).selectExpr("id as offset", "'o' as object", "'hot' as key", "id div 3 as said")
    cold = spark.range(9_000, 9_050).selectExpr("id as offset", "'o' as object", "string(id) as key", "id as said")
    rows = hot.union(cold).selectExpr(
        "offset", "object", "key", "cast(string(said) as binary) as digest", "timestamp_micros(offset) as created"
    )
    told = {row["key"]: (row["version"], row["messages"], row["offset"]) for row in history(rows).collect()}
    assert told["hot"] == (3_000, 9_000, 8_999)
    assert len(told) == 51
    early, late = rows.where("offset < 3000"), rows.where("offset >= 3000")
    whole, before = plain(history(rows)), history(early).persist()
    assert plain(history(late, before)) == whole
    assert plain(history(rows, before)) == whole, "what was told of is not counted again"
    before.unpersist()


def test_lives_and_metrics_of_one_queue_with_nearly_all_rows(spark: SparkSession) -> None:
    """All but a few messages are in one event row each time, and one message was retried 300 times."""
    messages = [message(offset, "q") for offset in range(200)] + [message(200, "rare")]
    tries = [
        row
        for number in range(300)
        for row in (
            fetch(2 + 3 * number, number, f"c{number}", number + 1, first=7),
            event(3 + 3 * number, State.RETRY, number, 7, reason=f"no {number}"),
            event(4 + 3 * number, State.QUEUED, number, 7, attempt=number + 1),
        )
    ]
    rows = lives(
        spark, messages, [fetch(0, 1, first=8, count=192), event(1, State.SUCCESS, 2, 8, 192, consumer="c"), *tries]
    )
    assert len(rows) == 201
    assert (rows[7]["attempts"], len(rows[7]["consumed_by"]), rows[7]["state"]) == (300, 300, "Q")
    assert {row["state"] for row in rows[8:200]} == {"S"}
    counted = metrics(frame(spark, "lifecycle", rows)).collect()
    assert sorted((row["queue"], row["published"], row["succeeded"]) for row in counted) == [
        ("q", 200, 192),
        ("rare", 1, 0),
    ]


# Late and out of order

CASES = {
    "a confirmation days later": [
        fetch(0, 1), event(1, State.SUCCESS, 9 * DAY, consumer="c"), event(2, State.COMPLETED, 9 * DAY),
    ],
    "the clock was set back": [fetch(0, 50), event(1, State.SUCCESS, 20, consumer="c"), event(2, State.COMPLETED, 10)],
    "the clock was set back between two attempts": [
        fetch(0, 50, "a"), event(1, State.RETRY, 49, consumer="a", reason="no"), event(2, State.QUEUED, 48),
        fetch(3, 3, "b", 2), event(4, State.SUCCESS, 2, consumer="b"),
    ],
    "rows in any order": [event(2, State.COMPLETED, 3), event(1, State.SUCCESS, 2, consumer="c"), fetch(0, 1)],
    "a reason that stands, and one that does not": [
        fetch(0, 1), event(1, State.DEAD, 2, reason="broken", detail="story"), event(2, State.QUEUED, 3),
        fetch(3, 4), event(4, State.DEAD, 5, reason="again"),
    ],
    "two at once": [
        fetch(0, 1, "a, b"), event(1, State.SUCCESS, 2, consumer="b"), event(2, State.SUCCESS, 3, consumer="a"),
    ],
    "confirmed by another": [fetch(0, 1, "a"), event(1, State.SUCCESS, 2, consumer="b")],
    "nobody has a name": [fetch(0, 1, ""), event(1, State.SUCCESS, 2)],
    "before 1970": [fetch(0, -60 * 365 * DAY), event(1, State.SUCCESS, -60 * 365 * DAY + 1, consumer="c")],
}  # fmt: skip


def test_a_place_in_the_log_decides_and_not_the_clock(spark: SparkSession) -> None:
    """Each case is the life of a message of its own."""
    messages = [message(offset) for offset in range(len(CASES))]
    events = [
        {**one, "position": 100 * offset + one["position"], "first": offset}
        for offset, case in enumerate(CASES.values())
        for one in case
    ]
    found = lives(spark, messages, events)
    assert [life["offset"] for life in found] == list(range(len(CASES)))
    assert {case: [as_row(life)] for case, life in zip(CASES, found, strict=True)} == {
        case: as_told(messages, events, offset) for offset, case in enumerate(CASES)
    }


def test_events_of_messages_that_the_stream_has_not_come_to(spark: SparkSession, tmp_path: Path) -> None:
    """Positions and offsets go forward by the same number each batch: events run ahead of their messages, or behind."""
    place = Place(url=str(tmp_path / "data"), lake=str(tmp_path / "lake"), options={"maxRows": "12"})
    with broker_at(Path(place.url)) as broker:
        broker.create_queue("orders", type="pull")
        publish(broker, 10)
        for _ in range(10):
            delivery = broker.pull("orders", 1)
            assert delivery is not None
            delivery.ack()
        publish(broker, 10, start=10)
        broker.runtime.sync()
        JOBS["lifecycle"](spark, place)
        JOBS["metrics"](spark, place)
    expected = load(spark, Path(place.url), "lifecycle")
    assert plain(lifecycle_table(place.lake).read(spark).drop("date", "log")) == plain(expected)
    assert plain(metrics_table(place.lake).read(spark).drop("date", "log")) == plain(metrics(expected))


# Collected


def test_events_of_messages_that_are_gone_tell_nothing(spark: SparkSession) -> None:
    events = [fetch(0, 1, count=5), event(1, State.DEAD, 2, 0, 2, reason="broken"), fetch(2, 3, first=9)]
    rows = lives(spark, [message(1), message(4)], events)
    assert [(row["offset"], row["state"], row["reason"]) for row in rows] == [(1, "E", "broken"), (4, "F", None)]


def test_a_window_of_which_messages_were_collected_stays_as_it_was(spark: SparkSession) -> None:
    schema = metrics_table("unused").schema
    blank = dict.fromkeys(schema.fieldNames())

    def windows(*rows: tuple[int, int]) -> DataFrame:
        values = [{**blank, "start": after(start), "queue": "q", "published": count} for start, count in rows]
        return spark.createDataFrame([tuple(row.values()) for row in values], schema)

    told = fuller(windows((0, 5), (60, 5), (120, 5)), windows((0, 4), (60, 5), (180, 1)))
    assert sorted((to_micros(row["start"]), row["published"]) for row in told.collect()) == [
        (to_micros(after(start)), count) for start, count in ((0, 5), (60, 5), (120, 5), (180, 1))
    ]


def test_windows_that_touch_are_read_together() -> None:
    minute = 60_000_000
    assert spans([0, minute, 3 * minute], "1 minute") == [(0, 2 * minute), (3 * minute, 4 * minute)]
    assert spans([number * 2 * minute for number in range(20)], "1 minute") == [(0, 39 * minute)]
    with pytest.raises(InvalidOption, match="is not a window; write it like '1 minute' or 30s"):
        spans([0], "a while")


# Another schema


def test_a_table_of_the_lake_outlives_columns_that_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    """What an older Remuda wrote lacks a column, which is null; what a newer one wrote has one more, left out."""
    place = Place(url=str(tmp_path / "data"), lake=str(tmp_path / "lake"))
    whole = history_table(place.lake)
    older = StructType([field for field in whole.schema.fields if field.name != "first"])
    newer = StructType([*whole.schema.fields[:-1], *StructType().add("mood", "string").fields, whole.schema.fields[-1]])
    with broker_at(Path(place.url)) as broker:
        for name, schema in (("old", older), ("new", newer)):
            row = {"object": "o", "key": name, "digest": b"x", "version": 2, "messages": 5, "offset": -1, "part": 0}
            rows = [tuple(row.get(field) for field in schema.fieldNames())]
            LakeTable(place.lake, "history", schema, ("part",)).append(spark.createDataFrame(rows, schema))
        broker.publish(
            [Message("things", b"1", object="o", key="fresh"), Message("things", b"1", object="o", key="old")]
        )
        broker.runtime.sync()
        JOBS["history"](spark, place)
    told = history_table(place.lake).read(spark).groupBy("key").agg(F.sum("messages").alias("messages")).collect()
    assert {row["key"]: row["messages"] for row in told} == {"old": 6, "new": 5, "fresh": 1}


def test_a_sealed_segment_of_an_older_schema_is_read_with_nulls(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path) as broker:
        play(broker)
        publish(broker, 800)
        seal(broker)
    before = plain(read(spark, tmp_path, "lifecycle").drop("detail"))
    (file, *_) = sorted((tmp_path / "sealed").glob("events-*.parquet"))
    whole = pq.read_table(file)
    narrow = whole.drop_columns(["detail"])
    file.unlink()
    write_sealed(DirectoryDisk(tmp_path), f"sealed/{file.name}", narrow.to_batches(), narrow.schema, "events")
    told = read(spark, tmp_path, "events").where(F.col("position") <= whole["position"][-1].as_py())
    assert told.count() == whole.num_rows
    assert told.where("detail is not null").count() == 0
    assert plain(load(spark, tmp_path, "events")) == plain(read(spark, tmp_path, "events"))
    assert plain(read(spark, tmp_path, "lifecycle").drop("detail")) == before


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("id as number, 'a' as name", "a message needs a body, and a name or topics"),
        ("id as number, 'a' as body", "a message needs a body, and a name or topics"),
        ("id as number, 'a' as name, id as body", "column 'body' must be binary or string, not bigint"),
        ("id as number, 'a' as topics, 'b' as body", "column 'topics' must be array<string>, not string"),
        ("'a' as name, 'b' as body", "the rows have no column 'number' to be ordered by; they have name, body"),
    ],
)
def test_rows_that_can_be_no_messages_are_refused(spark: SparkSession, columns: str, complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        messages_of(spark.range(2).selectExpr(*columns.split(", ")), "number")


def test_columns_that_a_message_has_not_are_left_out(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr(
        "-id as number", "array('a.b', 'c') as topics", "string(id) as body", "id as colour"
    )
    made = messages_of(rows, "number")
    assert set(made.columns) == {"name", "topics", "body"}
    assert numbers(row["body"] for row in made.collect()) == [0, 1, 2]
    assert {row["name"] for row in made.collect()} == {"a.b"}


# Nothing


def test_an_empty_log_through_every_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(url=str(tmp_path / "data"), lake=str(tmp_path / "lake"))
    with broker_at(Path(place.url)):
        pass
    no_rows = tmp_path / "files"
    spark.range(0).selectExpr("id as number", "'a' as name", "'b' as body").write.parquet(str(no_rows))
    needed = {
        "replay": {"where": "true"},
        "typed": {"topic": "a"},
        "ingest": {"source": str(no_rows), "order": "number"},
    }
    for name, job in JOBS.items():
        job(spark, Place(url=place.url, lake=place.lake, options=needed.get(name, {})))
    for table in (lifecycle_table(place.lake), history_table(place.lake), metrics_table(place.lake)):
        assert table.read(spark).count() == 0
