"""P7: a topic is a table with its bodies as columns, for every engine; what does not fit stops nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from remuda.lake import read as read_lake
from remuda.lake.commands import app as lake_app
from remuda.model.errors import Conflict, InvalidOption
from remuda.model.message import Message
from remuda.spark import read
from remuda.spark.pipelines.jobs import JOBS, lake_table
from remuda.spark.pipelines.streaming_queries import Place
from tests.spark.samples import broker_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from remuda.broker.threads import EmbeddedBroker

SCHEMA = "id bigint, total double, lines array<struct<sku string, count int>>, at timestamp"
BAD = {
    b"": "the body is not JSON",
    b"{": "the body is not JSON",
    b"\xff\xfe": "the body is not JSON",
    b"[1]": "the body does not fit the schema",
    b"null": "the body does not fit the schema",
    b"5": "the body does not fit the schema",
    b'{"id": "seven"}': "the body does not fit the schema",
    b'{"id": 1, "lines": {"sku": "a"}}': "the body does not fit the schema",
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(url=str(tmp_path / "data"), lake=str(tmp_path / "lake"))


def run(spark: SparkSession, place: Place, **options: str) -> None:
    JOBS["typed"](spark, Place(url=place.url, lake=place.lake, options={"topic": "orders", **options}))


def order(number: int) -> bytes:
    lines = [{"sku": f"s{number}", "count": number}]
    body = {"id": number, "total": number + 0.25, "lines": lines, "at": "2026-01-31T12:00:00Z", "more": {"x": 1}}
    return json.dumps(body).encode()


def publish(broker: EmbeddedBroker, *bodies: bytes, name: str = "orders") -> None:
    broker.publish([Message(name, body) for body in bodies])
    broker.runtime.sync()


def test_p7_a_topic_is_a_typed_table_and_bad_bodies_are_in_another(spark: SparkSession, place: Place) -> None:
    with broker_at(Path(place.url)) as broker:
        publish(broker, *map(order, range(5)), *BAD)
        publish(broker, order(5), name="orders.late")
        publish(broker, b"not ours", name="other")
        run(spark, place, schema=SCHEMA, maxRows="4")
        publish(broker, order(6), b"{}", b'{"id": null}')
        run(spark, place)  # by the schema that the table has kept
        run(spark, place, schema=SCHEMA)
    rows = sorted(
        (row["body"] for row in read_lake(spark, place.lake, "orders").collect()),
        key=lambda one: -1 if one.id is None else one.id,
    )
    assert [row.id for row in rows] == [None, None, 0, 1, 2, 3, 4, 5, 6]
    assert [row.total for row in rows[2:]] == [number + 0.25 for number in range(7)]
    assert rows[4].lines[0].asDict() == {"sku": "s2", "count": 2}
    bad = read_lake(spark, place.lake, "bad_rows").collect()
    assert {bytes(row["body"]): row["fault"] for row in bad} == BAD
    assert {row["table"] for row in bad} == {"orders"}
    assert len(bad) == len(BAD)
    found = polars.scan_delta(f"{place.lake}/orders").select(polars.col("body").struct.field("total").sum()).collect()
    assert found.item() == sum(number + 0.25 for number in range(7))
    with duckdb.connect() as connection:
        connection.register("orders", DeltaTable(f"{place.lake}/orders").to_pyarrow_dataset())
        asked = "select sum(body.id), max(body.lines[1].sku), min(epoch(body.at)) from orders"
        assert connection.execute(asked).fetchall() == [(21, "s6", 1769860800.0)]
    assert CliRunner().invoke(lake_app, ["vacuum", place.lake]).exit_code == 0
    gone, made = lake_table(place.lake, "orders").optimize(spark)
    assert gone > made == 1
    assert read_lake(spark, place.lake, "orders").count() == 9


def test_p7_a_schema_is_found_and_kept(spark: SparkSession, place: Place) -> None:
    with broker_at(Path(place.url)) as broker:
        run(spark, place)
        assert not (Path(place.lake) / "orders").exists(), "nothing is known of it yet"
        publish(broker, b'{"id": 1, "total": 2.5, "who": {"name": "a"}, "mixed": 1, "none": null}', b"no JSON")
        publish(broker, b'{"id": 3000000000, "total": 2, "mixed": "b", "tags": ["x"]}')
        run(spark, place)
        body = read_lake(spark, place.lake, "orders").schema["body"].dataType
        assert body.simpleString() == (
            "struct<id:bigint,mixed:string,none:string,tags:array<string>,total:double,who:struct<name:string>>"
        )
        publish(broker, b'{"id": 2, "total": 123456.789, "mixed": true, "new": 1}', b'{"id": 2.5}')
        run(spark, place)
        assert read_lake(spark, place.lake, "orders").schema["body"].dataType == body
        totals = sorted(row["body"]["total"] for row in read_lake(spark, place.lake, "orders").collect())
        assert totals == [2.0, 2.5, 123456.789]
        assert read_lake(spark, place.lake, "bad_rows").count() == 2
        with pytest.raises(Conflict, match=r"the bodies in table 'orders' are struct<id:bigint.*nothing was written"):
            run(spark, place, schema="id string")


def test_p7_bodies_are_structs_for_readers_of_the_log_too(spark: SparkSession, place: Place) -> None:
    with broker_at(Path(place.url)) as broker:
        publish(broker, order(1), b"{")
    told = read(spark, place.url, topics=["orders"], schema="id bigint, total double").orderBy("offset").collect()
    assert [(row["body"], row["fault"]) for row in told[1:]] == [(None, "the body is not JSON")]
    assert told[0]["body"].asDict() == {"id": 1, "total": 1.25}
    with pytest.raises(InvalidOption, match="schema is for the bodies of messages"):
        read(spark, place.url, "events", schema="id bigint")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"schema": "id bigin"}, r"schema='id bigin' is not a schema .*write it as"),
        ({"schema": ""}, r"is not a schema|names its fields"),
        ({"schema": "id bigint, ID int"}, "names its fields, each once|is not a schema"),
        ({"schema": "span interval day to second"}, "no engine reads interval"),
        ({"schema": "any variant"}, "no engine reads variant"),
        ({"table": "messages"}, "'messages' cannot be a table of this lake"),
        ({"table": "Bad_Rows"}, "'Bad_Rows' cannot be a table"),
        ({"table": "../up"}, "cannot be a table"),
        ({"topic": "…"}, "name another: table="),
        ({"topik": "x"}, "topik"),
    ],
)
def test_p7_what_cannot_be_a_typed_table_is_said_at_once(
    spark: SparkSession, place: Place, options: dict[str, Any], told: str
) -> None:
    with broker_at(Path(place.url)):
        pass
    with pytest.raises((InvalidOption, PySparkException), match=told):
        run(spark, place, **options)
    assert not Path(place.lake).exists()
