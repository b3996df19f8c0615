"""P6: a place that tasks cannot reach, or that is empty, is never taken for a log, and never for missing rows."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

import remuda
from remuda.log.repair.backup import backup
from remuda.model.errors import RemudaError, StorageError
from remuda.spark import read, session
from remuda.spark.commands import _reason
from remuda.spark.lake.coverage import archived, lacks
from remuda.spark.pipelines.jobs import JOBS
from remuda.spark.pipelines.streaming_queries import Place
from remuda.spark.progress import progress
from remuda.spark.source.data_source import RemudaSource
from remuda.spark.source.directory_log import EmbeddedLog
from tests.begun import begun
from tests.spark.clients import run_program
from tests.spark.samples import broker_at, finish, half_sealed, load, publish, seal
from tests.spark.servers import cluster_settings, standalone_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession


def _rows(reader: Any, parts: Sequence[Any]) -> int:
    return sum(batch.num_rows for part in parts for batch in reader.read(part))


def _emptied(data: Path) -> None:
    shutil.rmtree(data)
    data.mkdir()


def _another(data: Path) -> None:
    shutil.rmtree(data)
    half_sealed(data, 5000)


def _shorter(data: Path) -> None:
    for file in (data / "sealed").iterdir():
        file.unlink()
    for folder in ("tail", "checkpoint"):
        shutil.rmtree(data / folder)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize(
    ("become", "told"),
    [
        (shutil.rmtree, "there is no directory"),
        (_emptied, "holds no log"),
        (_another, "there is another log in its place"),
        (_shorter, "its messages end at 0 there, and the rows to be read go to"),
    ],
)
def test_p6_a_task_that_does_not_see_the_log_refuses(
    tmp_path: Path, become: Callable[[Path], None], told: str, fail: str
) -> None:
    data = tmp_path / "data"
    half_sealed(data, 600)
    for table in ("messages", "lifecycle"):
        source = RemudaSource({"path": str(data), "table": table, "failOnDataLoss": fail})
        reader = source.reader(source.schema())
        parts = reader.partitions()
        kept = tmp_path / f"kept-{table}"
        shutil.copytree(data, kept)
        become(data)
        with pytest.raises(StorageError, match=rf"(?s){told}.*Is the log's volume mounted on every host") as raised:
            _rows(reader, parts)
        assert "failOnDataLoss" not in str(raised.value), "the way out is to mount it"
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(kept, data)
        assert _rows(reader, reader.partitions()) == 700


@pytest.mark.parametrize("become", [shutil.rmtree, _emptied, _another])
def test_p6_a_log_that_is_gone_is_not_a_quiet_one(tmp_path: Path, become: Callable[[Path], None]) -> None:
    """Or a stream would wait for ever without a word."""
    half_sealed(tmp_path / "data", 300)
    source = RemudaSource({"path": str(tmp_path / "data")})
    stream = source.streamReader(source.schema())
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    become(tmp_path / "data")
    with pytest.raises(StorageError, match=r"there is no directory|holds no log|holds another log than before"):
        stream.latestOffset(end, ReadAllAvailable())


def test_p6_a_copy_is_the_same_log(tmp_path: Path) -> None:
    """Such as an executor may have of it."""
    half_sealed(tmp_path / "data", 600)
    source = RemudaSource({"path": str(tmp_path / "data")})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    backup(tmp_path / "data", tmp_path / "copy", link=False)
    shutil.rmtree(tmp_path / "data")
    os.rename(tmp_path / "copy", tmp_path / "data")
    assert _rows(reader, parts) == 700


def test_p6_an_empty_directory_is_no_log_for_any_reader_or_writer(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(url=str(tmp_path), lake=str(tmp_path.with_name("lake")))
    needed = {"replay": {"where": "true"}, "ingest": {"source": "files", "order": "number"}}
    rows = spark.sql("select 'a' as name, 'b' as body")
    ways: list[Callable[[], Any]] = [
        lambda: load(spark, tmp_path).count(),
        lambda: read(spark, tmp_path),
        lambda: rows.write.format("remuda").mode("append").save(str(tmp_path)),
        *(
            lambda name=name: JOBS[name](spark, Place(url=place.url, lake=place.lake, options=needed.get(name, {})))
            for name in ("archive", "lifecycle", "history", "metrics", "index")
        ),
        lambda: progress(str(tmp_path), place.lake),
    ]
    for way in ways:
        with pytest.raises((RemudaError, PySparkException), match="holds no log"):
            way()
    assert not list(tmp_path.iterdir()), "nothing was made in it"


def test_p2_p6_a_row_without_a_body_is_refused_or_published_empty(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("select 'a' as name, cast(body as binary) as body from values ('x'), (null), (null) as t(body)")
    writer = rows.coalesce(1).write.format("remuda").mode("append")
    with pytest.raises(
        PySparkException, match=r"the body is null in 2 of these rows.*nothing was published.*nullBody=empty"
    ):
        writer.save(str(begun(tmp_path)))
    with broker_at(tmp_path) as broker:
        broker.runtime.upkeep.take_in()
        assert not list(broker.spectate().messages())
        writer.option("nullBody", "empty").save(str(tmp_path))
        broker.runtime.upkeep.take_in()
        assert sorted(bytes(body) for one in broker.spectate().messages() for body in one.messages.bodies) == [
            b"", b"", b"x",
        ]  # fmt: skip


def test_p3_p6_the_archive_counts_its_rows_and_notes_what_it_went_on_without(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, lake = tmp_path / "data", str(tmp_path / "lake")
    half_sealed(data, 3000)
    first = sorted((data / "sealed").glob("messages-*"))[1]
    lost = range(*(int(part) for part in first.stem.split("-")[1:]))
    lost = range(lost.start, lost.stop + 1)
    first.unlink()
    place = Place(url=str(data), lake=lake)
    with pytest.raises(RemudaError, match="rows are missing"):
        _told(lambda: JOBS["archive"](spark, place))
    JOBS["archive"](spark, Place(url=str(data), lake=lake, options={"failOnDataLoss": "false"}))
    log = EmbeddedLog(str(data))
    assert [(one.table, one.start, one.stop, one.cause) for one in lacks(lake, log.identity)] == [
        ("messages", lost.start, lost.stop, "damaged")
    ]
    assert archived(lake, log) == log.cut(), "what nobody can read holds nothing back"
    (told,) = (row for row in progress(str(data), lake) if row["pipeline"] == "archive-messages")
    assert told["missing"] == len(lost)
    assert told["gaps"] == [[lost.start, lost.stop - 1, "damaged"]]
    with broker_at(data) as broker:
        publish(broker, 50, start=3100)
    JOBS["archive"](spark, place)
    assert archived(lake, EmbeddedLog(str(data))).offset == 3150


def _told(act: Callable[[], object]) -> None:
    """Raise what a pipeline's query ended with as the command shows it."""
    try:
        act()
    except PySparkException as error:
        raise RemudaError(_reason(str(error))) from error


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_p6_an_unmounted_volume_on_a_cluster_loses_nothing(tmp_path: Path) -> None:
    """Executors see an empty directory where the driver has the log: by all ways each refuses, whatever is chosen."""
    data, python = tmp_path / "data", Path(sys.executable)
    with broker_at(data) as broker:
        publish(broker, 6000)
        finish(broker)
        publish(broker, 500, "filler")
        seal(broker)
    with standalone_cluster(tmp_path / "served", python, hidden=data) as url:
        ran = run_program(tmp_path, python, "tests.spark.test_unreachable", url, str(data))
    assert ran.returncode == 0, ran.stderr
    errors = json.loads(ran.stdout.splitlines()[-1])
    for way, error in errors.items():
        assert re.search("holds no log|does not exist|there is no directory", error), (way, error)
        assert "failOnDataLoss" not in error, way
    assert len(errors) == 6
    lake = tmp_path / "lake"
    assert not list((lake / "messages").rglob("[0-9a-f]*.parquet"))
    with broker_at(data, success_retention="1ms", collect_after_archive=lake) as broker:
        assert broker.collect().messages == 0
    assert remuda.arrow(data, columns=["offset"]).table().num_rows == 6500


def main(url: str, data: str) -> None:
    spark = session(master=url, quick=True, config={**cluster_settings(), "spark.task.maxFailures": "1"})
    lake = str(Path(data).with_name("lake"))
    place = Place(url=data, lake=lake)
    forgiving = Place(url=data, lake=lake, options={"failOnDataLoss": "false"})
    rows = spark.sql("select 'a' as name, 'b' as body")
    ways: dict[str, Callable[[], object]] = {
        "source": lambda: load(spark, Path(data)).count(),
        "source, forgiving": lambda: load(spark, Path(data), failOnDataLoss="false").count(),
        "read": lambda: read(spark, data).agg({"offset": "sum"}).collect(),
        "archive": lambda: JOBS["archive"](spark, place),
        "archive, forgiving": lambda: JOBS["archive"](spark, forgiving),
        "sink": lambda: rows.write.format("remuda").mode("append").save(data),
    }
    errors = {}
    for name, way in ways.items():
        try:
            way()
        except Exception as error:
            errors[name] = _reason(str(error))
    spark.stop()
    print(json.dumps(errors))


if __name__ == "__main__":
    main(*sys.argv[1:])
