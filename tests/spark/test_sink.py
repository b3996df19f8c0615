"""P2: rows become messages, and nothing is published twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import StructType

from remuda.log import spool
from remuda.model.errors import InvalidMessage, InvalidOption
from remuda.spark.sink import BatchSink, check_columns, to_spool
from tests.begun import begun
from tests.spark.samples import broker_at, column, half_sealed, load, numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def orders(spark: SparkSession, count: int, parts: int = 2) -> DataFrame:
    return spark.range(0, count, 1, parts).selectExpr("'orders' as name", "cast(id as string) as body")


def write(frame: DataFrame, path: Path, **options: Any) -> None:
    frame.write.format("remuda").mode("append").options(**options).save(str(begun(path)))


def published(path: Path) -> list[int]:
    """The numbers of all messages, once everything is taken in."""
    with broker_at(path) as broker:
        broker.runtime.upkeep.take_in()
        assert not spool.waiting(path / "spool")
        return numbers(body for record in broker.spectate().messages() for body in record.messages.bodies)


def test_rows_are_published_when_a_broker_next_opens_the_log(spark: SparkSession, tmp_path: Path) -> None:
    write(orders(spark, 100), tmp_path / "data")
    assert published(tmp_path / "data") == list(range(100))
    assert not list((tmp_path / "data" / "spool" / "staging").iterdir())


def test_the_same_batch_is_published_once_however_often_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    for _ in range(2):
        write(orders(spark, 20), tmp_path, appId="nightly", batchId=7)
        assert published(tmp_path) == list(range(20))
    write(orders(spark, 20), tmp_path, appId="nightly", batchId=8)
    assert len(published(tmp_path)) == 40


def test_columns_of_a_message_can_be_any_of_its_fields(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        "select array('fruit.sour', 'stone.x') as topics, 'tree' as Object, '7' as KEY, map('a', '1') as headers, "
        "cast('body' as binary) as body, 1 as priority, 'text/plain' as mime_type, 'mine' as id, "
        "timestamp'2026-01-31 12:00:00' as timestamp"
    )
    write(frame, tmp_path)
    with broker_at(tmp_path) as broker:
        broker.runtime.upkeep.take_in()
        row = load(spark, tmp_path).collect()[0]
    assert (row["name"], row["topics"], row["queues"]) == ("fruit.sour", ["fruit.sour", "stone.x"], ["fruit", "stone"])
    assert (row["object"], row["key"], row["headers"], row["id"]) == ("tree", "7", {"a": "1"}, "mine")
    assert (row["priority"], row["mime_type"], bytes(row["body"])) == (1, "text/plain", b"body")


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("select 'a' as name", {}, "a message needs a body and a name or topics"),
        ("select 'a' as name, 'b' as body, 1 as offset", {}, "column 'offset' is not part of a message; drop it"),
        ("select 'a' as name, 'b' as bodies", {}, r"did you mean 'body'\?"),
        ("select 'a' as name, 5 as body", {}, "column 'body' must be binary or string, not int"),
        ("select 'a' as name, 'b' as body", {"appId": "x"}, "appId and batchId belong together"),
        ("select 'a' as name, 'b' as body", {"appId": "a b", "batchId": "1"}, "letters, digits"),
        ("select 'a' as name, 'b' as body", {"appId": "once-a", "batchId": "1"}, "choose another than 'once-a'"),
        ("select 'a' as name, 'b' as body", {"appId": "a", "batchId": str(10**20)}, "batchId must be .* up to 9223"),
        ("select 'a' as name, 'b' as body", {"app": "x"}, r"did you mean 'appId'\?"),
    ],
)
def test_rows_that_can_be_no_messages_are_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, query: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(spark.sql(query), tmp_path / "data", **options)
    assert not (tmp_path / "data" / "spool").exists()


@pytest.mark.parametrize("queue", ["", "line\nbreak", "x" * 256])
def test_a_queue_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path, queue: str) -> None:
    rows = StructType().add("name", "string").add("body", "string")
    with pytest.raises(InvalidOption, match=r"queue .*255 bytes"):
        BatchSink({"path": str(tmp_path), "queue": queue}, rows, overwrite=False)


def test_a_column_that_is_there_twice_is_refused() -> None:
    """As may be where names have a case."""
    schema = StructType().add("name", "string").add("body", "string").add("BODY", "string")
    with pytest.raises(InvalidOption, match="there are two columns 'body'"):
        check_columns(schema)


def test_a_value_that_a_column_cannot_hold_is_named() -> None:
    rows = pa.RecordBatch.from_pydict({"name": ["a"], "body": [b"x"], "priority": [1000]})
    with pytest.raises(InvalidMessage, match=r"column 'priority': .*1000.*; nothing was published"):
        to_spool(rows)


def test_messages_cannot_be_overwritten(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        orders(spark, 1).write.format("remuda").mode("overwrite").save(str(tmp_path))


def test_a_task_that_fails_half_way_publishes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    frame = orders(spark, 1000, 2).selectExpr("name", "if(body = '900', raise_error('half-way'), body) as body")
    with pytest.raises(PySparkException, match="half-way"):
        write(frame, tmp_path)
    assert published(tmp_path) == []


class Copying:
    """A query that copies one log into another."""

    def __init__(self, spark: SparkSession, tmp_path: Path) -> None:
        self._spark = spark
        self.source, self.target, self.checkpoint = (tmp_path / name for name in ("source", "target", "checkpoint"))
        half_sealed(self.source, 300)

    def run(self, body: str = "body", **options: Any) -> None:
        stream = self._spark.readStream.format("remuda").option("maxRowsPerTrigger", 250).load(str(self.source))
        rows = stream.selectExpr("'copies' as name", f"{body} as body")
        writer = rows.writeStream.format("remuda").options(**options).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.checkpoint)).start(str(begun(self.target))).awaitTermination()


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "waiting"])
def test_a_query_that_died_after_its_sink_committed_publishes_nothing_twice(
    spark: SparkSession, tmp_path: Path, taken: bool
) -> None:
    copying = Copying(spark, tmp_path)
    copying.run()
    if taken:
        assert published(copying.target) == list(range(400))
    (copying.checkpoint / "commits" / "1").unlink()
    (copying.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    copying.run()
    assert published(copying.target) == list(range(400))


def test_a_query_whose_task_fails_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    copying = Copying(spark, tmp_path)
    failing = "if(offset = 390, raise_error('half-way'), cast(body as string))"
    with pytest.raises(StreamingQueryException, match="half-way"):
        copying.run(failing)
    assert published(copying.target) == list(range(250))
    copying.run("cast(body as string)")
    assert published(copying.target) == list(range(400))


def test_what_a_sink_wrote_can_be_read_by_the_source(spark: SparkSession, tmp_path: Path) -> None:
    write(orders(spark, 10), tmp_path)
    with broker_at(tmp_path) as broker:
        broker.runtime.upkeep.take_in()
        assert numbers(column(load(spark, tmp_path), "body")) == list(range(10))
