"""P7: a lake is Delta in an object store too, by the same writer, and whoever shares it there sees one table."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from remuda import open_broker
from remuda.model.errors import InvalidOption, StorageError
from remuda.spark.lake import delta
from remuda.spark.lake.coverage import archived
from remuda.spark.lake.delta import DeltaLog
from remuda.spark.lake.store import Bucket, Disk, Store, lake_place, local_side, table_names
from remuda.spark.lake.versions import LakeFile, Step, StreamBatch
from remuda.spark.progress import progress
from remuda.spark.source.directory_log import EmbeddedLog
from tests.spark.buckets import s3_server
from tests.spark.kills import kill_at_commits
from tests.spark.samples import broker_at, finish, publish, seal

COLUMNS = [{"name": "number", "type": "long", "nullable": True, "metadata": {}}]


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as environment:
        yield environment


@pytest.fixture(params=["disk", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "disk":
        return Disk(tmp_path / "table")
    request.getfixturevalue("s3")
    return Bucket(f"s3://bucket/{tmp_path.name}/table")


def step(number: int, app: str = "app") -> Step:
    return Step(added=(LakeFile(f"{app}-{number}.parquet", {}, 10, 1),), batch=StreamBatch(app, number))


def test_p7_of_many_writers_each_makes_every_version_once(store: Store) -> None:
    """Each with a log of its own, as in processes of their own; a checkpoint falls in between."""

    def write(app: str) -> None:
        log = DeltaLog(store, COLUMNS)
        for number in range(30):
            while not log.newest().commit(step(number, app)):
                pass

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, "abcd"))
    newest = DeltaLog(store, COLUMNS).newest()
    assert newest.version == 120
    assert sorted(file.path for file in newest.files) == sorted(f"{a}-{n}.parquet" for a in "abcd" for n in range(30))
    assert [newest.last_batch(app) for app in "abcd"] == [29] * 4
    assert store.names("_delta_log", f"{100:020d}.checkpoint")[0] == f"{100:020d}.checkpoint.parquet"
    elsewhere = DeltaTable(store.place)
    assert elsewhere.version() == 119
    assert elsewhere.transaction_version("c") == 29
    assert len(elsewhere.file_uris()) == 120


def test_p7_a_commit_costs_what_it_changes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the table holds: one look, one file."""
    log = DeltaLog(store, COLUMNS)
    assert log.newest().commit(Step(added=tuple(LakeFile(f"{n}.parquet", {}, 1, 1) for n in range(5000))))
    asked: list[str] = []
    for name in ("read", "names", "create", "entries", "replace"):
        real = getattr(type(store), name)

        def counting(self: Store, *args: object, name: str = name, real: object = real) -> object:
            asked.append(name)
            return real(self, *args)  # type: ignore[operator]

        monkeypatch.setattr(type(store), name, counting)
    for number in range(10):
        assert log.newest().commit(step(number))
    assert sorted(set(asked)) == ["create", "names"]
    assert len(asked) == 20
    commit = f"_delta_log/{5:020d}.json"
    assert len(store.read(commit)) < 1000


def test_p7_what_others_commit_and_cut_is_followed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that has slept long finds neither a place among cut versions nor an old table."""
    monkeypatch.setattr(delta, "CHECKPOINT_EVERY", 5)
    sleeper, other = DeltaLog(store, COLUMNS), DeltaLog(store, COLUMNS)
    assert sleeper.newest().commit(step(0))
    for number in range(1, 13):
        assert other.newest().commit(step(number))
    store.remove(f"_delta_log/{version:020d}.json" for version in range(10))
    assert sleeper.newest().version == DeltaLog(store, COLUMNS).newest().version == 13
    assert sleeper.newest().commit(step(13))
    assert len(other.newest().files) == len(DeltaLog(store, COLUMNS).newest().files) == 14
    store.remove(f"_delta_log/{name}" for name in store.names("_delta_log") if "checkpoint" in name)
    with pytest.raises(StorageError, match=r"cannot be read .*nothing was changed"):
        DeltaLog(store, COLUMNS).newest()


def test_p7_what_was_dropped_is_removed_once_and_strays_after_a_day(tmp_path: Path) -> None:
    store = Disk(tmp_path)
    log = DeltaLog(store, COLUMNS)
    files = tuple(LakeFile(f"{name}.parquet", {}, 1, 1) for name in "ab")
    for file in files:
        (tmp_path / file.path).write_bytes(b"1")
    (tmp_path / "stray.parquet").write_bytes(b"1")
    (tmp_path / "young.parquet").write_bytes(b"1")
    os.utime(tmp_path / "stray.parquet", (1, 1))
    log.newest().commit(Step(added=files))
    log.newest().commit(Step(dropped=files[:1]))
    assert log.vacuum(3600) == 0
    assert log.vacuum(0) == 1
    assert log.vacuum(0) == 0
    assert log.vacuum(0, full=True) == 1
    assert {path.name for path in tmp_path.glob("*.parquet")} == {"b.parquet", "young.parquet", delta.PLAIN_READERS}


def test_p7_places_are_told_apart_and_what_is_wrong_is_said(s3: dict[str, str], tmp_path: Path) -> None:
    assert lake_place("s3a://bucket/lake/") == "s3://bucket/lake"
    assert lake_place(f"file://{tmp_path}") == str(tmp_path)
    assert local_side(str(tmp_path)) == tmp_path
    assert local_side("s3://bucket/lake") == local_side("s3a://bucket/lake/") != local_side("s3://bucket/other")
    with pytest.raises(InvalidOption, match=r"names no bucket; write s3://bucket/lake"):
        lake_place("s3:///lake")
    with pytest.raises(InvalidOption, match="there is no log or lake at ftp://"):
        lake_place("ftp://host/lake")
    with pytest.raises(StorageError, match=r"'s3://nowhere/lake' refuses or cannot be reached.*AWS_ACCESS_KEY_ID"):
        DeltaLog(Bucket("s3://nowhere/lake"), COLUMNS).newest().commit(step(1))
    assert table_names("s3://bucket/none") == []
    with open_broker(tmp_path / "data", collect_after_archive="s3a://bucket/lake") as broker:
        assert broker.collect().messages == 0, "nothing is archived there"


def _asks(url: str, answer: multiprocessing.SimpleQueue[str]) -> None:
    try:
        DeltaLog(Bucket(url), COLUMNS).newest()
        answer.put("it answers")
    except StorageError as error:
        answer.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_p7_a_forked_process_is_told_instead_of_waiting_for_ever(s3: dict[str, str]) -> None:
    DeltaLog(Bucket("s3://bucket/forked"), COLUMNS).newest()
    forking = multiprocessing.get_context("fork")
    answer = forking.SimpleQueue()
    child = forking.Process(target=_asks, args=("s3://bucket/forked", answer))
    child.start()
    assert "was forked from one that uses" in answer.get()
    child.join()


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(900)
def test_p7_the_lake_in_a_bucket_under_kills_is_the_log(
    s3: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archive and lives by real Spark, its driver killed, with collection after what S3 holds."""
    data, lake = tmp_path / "data", f"s3://bucket/{tmp_path.name}"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    kept = {"success_retention": "1ms", "collect_after_archive": lake}
    with broker_at(data, **kept) as broker:
        publish(broker, 2000)
        finish(broker)
        publish(broker, 700, "waiting", start=2000)
        seal(broker)
        kill_at_commits(data, lake, "archive,lifecycle", [2], random.Random(7), rows=300)
        broker.collect()
        _run(data, lake, "archive")
        broker.collect()
        _run(data, lake, "lifecycle")
        assert archived(lake, EmbeddedLog(str(data))) == EmbeddedLog(str(data)).cut()
        assert broker.collect().messages >= 0
        publish(broker, 300, "later", start=2700)
        _run(data, lake, "archive")
    told = {row["pipeline"]: row["behind"] for row in progress(str(data), lake)}
    assert told["archive-messages"] == 0
    messages = pa.table(DeltaTable(f"{lake}/messages").to_pyarrow_table(columns=["offset", "queue", "body"]))
    assert sorted(int(body.split()[0]) for body in messages["body"].to_pylist()) == list(range(3000))
    assert sorted(messages["offset"].to_pylist()) == list(range(3000))
    by_polars = polars.scan_delta(f"{lake}/messages").group_by("queue").len().collect()
    assert dict(by_polars.iter_rows()) == {"orders": 2000, "waiting": 700, "later": 300}
    with duckdb.connect() as connection:
        connection.register("messages", DeltaTable(f"{lake}/messages").to_pyarrow_dataset())
        asked = "select count(distinct \"offset\"), count(*) from messages where queue = 'orders'"
        assert connection.execute(asked).fetchall() == [(2000, 2000)]
    lives = polars.scan_delta(f"{lake}/lifecycle").group_by("queue", "state").len().collect()
    assert {row[:2]: row[2] for row in lives.iter_rows()} == {("orders", "X"): 2000, ("waiting", "Q"): 700}
    ran = _remuda("lake", "optimize", lake)
    assert "messages: " in ran
    _remuda("lake", "vacuum", lake, "--older-than", "1ms")
    assert DeltaTable(f"{lake}/messages").to_pyarrow_table().num_rows == 3000


def _run(data: Path, lake: str, name: str) -> None:
    _remuda("pipeline", "run", name, str(data), "--lake", lake)


def _remuda(*arguments: str) -> str:
    ran = subprocess.run([sys.executable, "-m", "remuda", *arguments], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
