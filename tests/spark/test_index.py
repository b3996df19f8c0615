"""P3: the pipeline `index` fills a search index with what a follower would put there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from remuda import Message
from remuda.index import Query, open_index
from remuda.spark.commands import app
from remuda.spark.pipelines.jobs import JOBS
from remuda.spark.pipelines.streaming_queries import Place
from tests.index.kit import caught_up, every
from tests.index.naive import Naive
from tests.spark.samples import broker_at, play, seal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)  # a server starts in them too


@pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        pytest.param("opensearch", marks=pytest.mark.thorough("SQLite here; OpenSearch by the suite of indexes")),
    ],
)
def test_index_is_filled_in_bulk(
    kind: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """P3, T4"""
    path, where = tmp_path / "data", str(tmp_path / "elsewhere")
    if kind == "opensearch":
        where = f"{request.getfixturevalue('opensearch').replace('http', 'opensearch')}/spark-{uuid4().hex[:8]}"
    place = Place(url=str(path), lake=str(tmp_path / "lake"), options={"index": where})
    with broker_at(path) as broker:
        play(broker)
        seal(broker)
        broker.publish(Message("orders", b'{"text": ["some words"]}', mime_type="application/json"))
        broker.runtime.sync()
        JOBS["index"](spark, place)
        index = open_index(where)
        truth = Naive(path)
        index.refresh()
        assert every(index, Query(), 100) == truth.search(Query())
        assert index.counts() == truth.counts()
        assert len(index.search(Query(text="words")).messages) == 1

        broker.publish(Message("orders", b"later", mime_type="text/plain"))
        if delivery := broker.pull("orders", 3):
            delivery.ack()
        caught_up(index, path)
        assert every(index, Query(), 100) == Naive(path).search(Query())
        JOBS["index"](spark, place)
        index.refresh()
        assert every(index, Query(), 100) == Naive(path).search(Query())
    index.drop()
    index.close()


def test_index_goes_on_until_stopped(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with broker_at(path) as broker:
        broker.publish(Message("orders", b"first"))
        broker.runtime.sync()
        queries = JOBS["index"](spark, Place(url=str(path), lake=str(tmp_path / "lake"), continuous=True))
        broker.publish(Message("orders", b"second", mime_type="text/plain"))
        index = open_index(path / "index")
        deadline = time.monotonic() + 100
        while not index.search(Query(text="second")).messages:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        for query in queries:
            query.stop()
        index.close()


def test_index_is_a_command(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with broker_at(path) as broker:
        broker.publish(Message("orders", b"first", mime_type="text/plain"))
        broker.runtime.sync()
    done = CliRunner().invoke(app, ["run", "index", str(path), "--lake", str(tmp_path / "lake"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output.splitlines()[-1])["pipeline"] == "index"
    assert len(open_index(path / "index").search(Query(text="first")).messages) == 1
