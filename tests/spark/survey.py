"""What the source, `read`, the sink, streams and a pipeline give, wherever Spark runs; also as a program of its own.

A process that has had a session on one Spark can have none on another, hence the program: it prints what it found.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remuda.spark import read, session
from remuda.spark.pipelines.archive import lifecycle_table
from remuda.spark.pipelines.jobs import lifecycle
from remuda.spark.pipelines.streaming_queries import Place
from remuda.spark.session.forking import forking_python
from remuda.spark.source import snapshots
from tests.begun import begun
from tests.spark.clients import run_survey
from tests.spark.samples import broker_at, load, numbers, offsets, plain, play, publish, seal
from tests.spark.servers import cluster_settings
from tests.spark.test_sink import published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def eventful(data: Path) -> list[int]:
    """A log in which much has happened, sealed for the greater part; the numbers of its orders."""
    with broker_at(data) as broker:
        play(broker)
        publish(broker, 700)
        seal(broker)
        publish(broker, 100, start=700)
        records = broker.spectate().messages()
        return numbers(body for record in records for body in record.messages.bodies if bytes(body)[:1].isdigit())


def look(spark: SparkSession, data: Path) -> dict[str, list[Any]]:
    """The log in every way."""
    found: dict[str, list[Any]] = {
        "messages": _digest(load(spark, data, rowsPerPartition=300)),
        "lifecycle": _digest(load(spark, data, "lifecycle", rowsPerPartition=500)),
        "filtered": offsets(load(spark, data).where("offset >= 7 and offset < 11")),
        "read": _digest(read(spark, data)),
    }
    snapshots.release()
    return found


def copy(spark: SparkSession, data: Path, target: Path) -> None:
    """Its orders into another log, by a batch, and into a third, by a stream."""
    rows = load(spark, data).where("name = 'orders'").repartition(2).selectExpr("'copies' as name", "body")
    rows.write.format("remuda").mode("append").save(str(begun(target / "batch")))
    stream = spark.readStream.format("remuda").option("topics", "orders").load(str(data))
    stream = stream.selectExpr("'copies' as name", "body")
    writer = stream.writeStream.format("remuda").option("checkpointLocation", str(target / "checkpoint"))
    writer.trigger(availableNow=True).start(str(begun(target / "stream"))).awaitTermination()


def check_elsewhere(
    spark: SparkSession,
    folder: Path,
    serve: Callable[[Path, Path], AbstractContextManager[str]],
    meanwhile: Callable[[str], None],
) -> None:
    """The Spark that is served gives what the local session gives; while it is, something more may be asked of it."""
    data, target = folder / "data", folder / "there"
    orders = eventful(data)
    here = look(spark, data)
    place = folder / "python"
    with forking_python(place) as python, serve(folder / "served", python) as url:
        there = run_survey(folder, python, url)
        meanwhile(url)
    assert there == here
    assert there["read"] == there["messages"]
    for way in ("batch", "stream"):
        assert published(target / way) == orders
    lives = lifecycle_table(str(target / "lake")).read(spark)
    assert plain(lives.drop("date", "log")) == plain(load(spark, data, "lifecycle"))


def _digest(frame: DataFrame) -> list[int | str]:
    texts = plain(frame)
    return [len(texts), hashlib.sha256("\n".join(texts).encode()).hexdigest()]


def main(url: str, data: str, target: str) -> None:
    """Over Spark Connect paths are those of the server, and so given in full; else as people write them."""
    log, copies = Path(data), Path(target)
    if url.startswith("sc:"):
        spark = session(remote=url)
        log, copies = log.resolve(), copies.resolve()
    else:
        spark = session(master=url, quick=True, config=cluster_settings())
    found = look(spark, log)
    copy(spark, log, copies)
    lifecycle(spark, Place(url=str(log), lake=str(copies / "lake")))
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
