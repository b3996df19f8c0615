"""P6: a broker keeps its lakehouse tables itself, at each seal, shrink and expiry; their trouble stops nothing."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from remuda import lake, open_broker
from remuda.lake import iceberg
from remuda.lake.avro import decode_file, encode_file
from remuda.lake.delta import DeltaLakehouse
from remuda.lake.files import folder_of
from remuda.lake.iceberg import IcebergLakehouse
from remuda.lake.publishing import TablePublisher, version_at
from remuda.model.errors import Conflict, InvalidOption, StorageError
from remuda.spark.lake import delta
from tests.lake.test_tables import READERS, by_delta, by_iceberg, finish_and_expire
from tests.spark.samples import broker_at, half_sealed, publish, seal


def eventually(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it did not come to be in time"
        time.sleep(0.05)


def safely(read: Callable[[Path], list[int]], root: Path) -> list[int]:
    """What a reader sees while the table may not be there yet."""
    try:
        return read(root)
    except Exception:
        return []


def _shows(kind: str, root: Path, numbers: list[int]) -> bool:
    return safely(READERS[kind], root) == numbers


def _shows_fewer(kind: str, root: Path, count: int) -> bool:
    return len(READERS[kind](root)) < count


@pytest.mark.parametrize("option", ["delta", "iceberg", "both"])
def test_a_broker_publishes_what_it_seals_and_lets_go(tmp_path: Path, option: str) -> None:
    kinds = [option] if option != "both" else ["delta", "iceberg"]
    with broker_at(tmp_path, success_retention="1ms", lake=option) as broker:
        publish(broker, 20, "keep")
        publish(broker, 700)
        seal(broker)
        end = max(file.last for file in broker.runtime.engine.log.catalog.files().messages) + 1
        for kind in kinds:
            eventually(partial(_shows, kind, tmp_path, list(range(end))))
        finish_and_expire(broker)
        for kind in kinds:
            eventually(partial(_shows_fewer, kind, tmp_path, end))
        publish(broker, 700)
        seal(broker)
    sealed = _sealed_offsets(tmp_path)
    for kind in ("delta", "iceberg"):
        assert (safely(READERS[kind], tmp_path) == sealed) is (kind in kinds), "closing publishes what is left"


def _sealed_offsets(root: Path) -> list[int]:
    files = sorted((root / "sealed").glob("messages-*.parquet"))
    return [number for file in files for number in pq.read_table(file, columns=["offset"])["offset"].to_pylist()]


def test_sealed_files_carry_the_ids_of_fields(tmp_path: Path) -> None:
    half_sealed(tmp_path, 600)
    lake.publish(tmp_path, formats=["iceberg"])
    table = iceberg.catalog(tmp_path).load_table("remuda.messages")
    known = {field.name: field.field_id for field in table.schema().fields}
    file = next((tmp_path / "sealed").glob("messages-*.parquet"))
    found = {one.name: int(one.metadata[b"PARQUET:field_id"]) for one in pq.read_schema(file)}
    assert found == known
    assert table.schema().find_field("queues.element").field_id == 100 * known["queues"]


def test_trouble_with_the_tables_is_told_and_stops_nothing(tmp_path: Path) -> None:
    with broker_at(tmp_path):
        pass
    (tmp_path / "tables").write_bytes(b"in the way")
    with broker_at(tmp_path, lake="both") as broker:
        publish(broker, 700)
        seal(broker)
        eventually(lambda: "lakehouse tables" in broker.runtime.upkeep.troubles)
        publish(broker, 10, start=700)
        assert broker.queue("orders").waiting == 710
        (tmp_path / "tables").unlink()
    assert by_delta(tmp_path) == by_iceberg(tmp_path) == _sealed_offsets(tmp_path)


KILLED = """
import sys, time
from remuda import open_broker
from remuda.broker.embedded import upkeep
from tests.spark.samples import broker_at, publish, seal
with broker_at(sys.argv[1], lake="both") as broker:
    broker.runtime.upkeep._publish_tables = lambda: None
    publish(broker, 700)
    seal(broker)
    print("sealed", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_broker_did_not_publish_the_next_one_does(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "sealed\n"
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate(timeout=100)
    with broker_at(tmp_path / "data", lake="both"):
        pass
    assert by_delta(tmp_path / "data") == by_iceberg(tmp_path / "data") == _sealed_offsets(tmp_path / "data") != []


@pytest.mark.parametrize("value", ["hudi", "", 1, True, ["delta"], b"delta"])
def test_other_values_are_refused_by_name(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InvalidOption, match="lake must be delta, iceberg, both or none, not"):
        open_broker(tmp_path, lake=value)
    with pytest.raises(InvalidOption, match="lake needs a directory"):
        open_broker("memory://", lake="delta")


def test_many_versions_stay_readable_and_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints, full manifests and versions let go: readers see every row, and no commit grows with the number."""
    monkeypatch.setattr(delta, "CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(iceberg, "VERSIONS", 4)
    monkeypatch.setattr(iceberg, "FILES_PER_MANIFEST", 3)
    with broker_at(tmp_path) as broker:
        publisher = TablePublisher(tmp_path, ["delta", "iceberg"])
        for turn in range(17):
            publish(broker, 400, start=400 * turn)
            seal(broker)
            publisher.publish()
            if turn % 6 == 5:
                publisher = TablePublisher(tmp_path, ["delta", "iceberg"])  # as after a restart
    assert by_delta(tmp_path) == by_iceberg(tmp_path) == _sealed_offsets(tmp_path)
    log = folder_of(tmp_path, "messages") / "_delta_log"
    assert (log / "_last_checkpoint").exists()
    metadata = folder_of(tmp_path, "messages") / "metadata"
    table = iceberg.catalog(tmp_path).load_table("remuda.messages")
    assert len(table.snapshots()) == 4
    assert len(list(metadata.glob("*.metadata.json"))) <= 6
    needed = {one.manifest_path.rpartition("/")[2] for s in table.snapshots() for one in s.manifests(table.io)}
    assert {path.name for path in metadata.glob("*-m0.avro")} == needed
    assert sum(path.stat().st_size for path in metadata.glob("v*.metadata.json")) < 6 * 3000
    first = version_at(tmp_path, "messages", "iceberg", 0)
    assert first == table.snapshots()[0].snapshot_id


def test_files_that_go_leave_their_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nearly all have gone: manifests with few files are put together."""
    monkeypatch.setattr(iceberg, "FILES_PER_MANIFEST", 2)
    with broker_at(tmp_path) as broker:
        publish(broker, 16_000)
        seal(broker)
    TablePublisher(tmp_path, ["iceberg"]).publish()
    table = IcebergLakehouse(tmp_path, "messages")
    table.refresh()
    files = sorted(table.listed())
    assert len(files) > 25
    for at in range(len(files)):
        if at % 3:
            table.commit([], [files[at]], 16_000)
    kept = files[::3]
    again = IcebergLakehouse(tmp_path, "messages")
    again.refresh()
    assert again.listed() == table.listed() == frozenset(kept)
    scanned = iceberg.catalog(tmp_path).load_table("remuda.messages").scan().plan_files()
    assert sorted(f"data/{one.file.file_path.rpartition('/')[2]}" for one in scanned) == kept
    assert len(table._manifests) < 2 * len(kept) // 2 + 12


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_another_program_was_first(tmp_path: Path, kind: str) -> None:
    """The second of two that began from one version is told, changes nothing, and then finds the other's."""
    half_sealed(tmp_path, 1500)
    tables: list[DeltaLakehouse | IcebergLakehouse] = [
        DeltaLakehouse(tmp_path, "messages") if kind == "delta" else IcebergLakehouse(tmp_path, "messages")
        for _ in range(2)
    ]
    lake.publish(tmp_path, formats=[kind])
    for table in tables:
        table.refresh()
    gone = sorted(tables[0].listed())[0]
    tables[0].commit([], [gone], 1500)
    with pytest.raises(Conflict, match="another program has changed the table"):
        tables[1].commit([], [gone], 1500)
    tables[1].refresh()
    assert tables[1].listed() == tables[0].listed()
    (told,) = (one for one in lake.publish(tmp_path, formats=[kind]) if one.table == "messages")
    assert (told.added, told.dropped) == (1, 0), "a table is what is sealed, whatever others did to it"


def test_a_process_that_never_ends_its_publishing_is_not_waited_for(tmp_path: Path) -> None:
    half_sealed(tmp_path, 700)
    lake.publish(tmp_path, formats=["delta"])
    with open(tmp_path / "tables" / "lock") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="another process is publishing the tables"):
            TablePublisher(tmp_path, ["delta"]).publish(patience=0.1)


def test_a_moved_log_and_damaged_metadata_begin_anew(tmp_path: Path) -> None:
    half_sealed(tmp_path / "before", 1500)
    lake.publish(tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    root = tmp_path / "after"
    lake.publish(root)
    assert by_delta(root) == by_iceberg(root) == _sealed_offsets(root)
    metadata = folder_of(root, "messages") / "metadata"
    for path in metadata.glob("*-m0.avro"):
        path.write_bytes(path.read_bytes()[:-20])
    lake.publish(root)
    assert by_iceberg(root) == _sealed_offsets(root)
    commit = folder_of(root, "messages") / "_delta_log" / f"{0:020d}.json"
    commit.write_bytes(b'{"add": ')
    with pytest.raises(StorageError, match=r"cannot be read .* no row is lost"):
        lake.publish(root)
    commit.unlink()
    lake.publish(root)
    assert DeltaTable(folder_of(root, "messages")).version() == 0
    assert by_delta(root) == _sealed_offsets(root)


@pytest.mark.parametrize("harm", ["cut", "overwritten"])
def test_p6_iceberg_metadata_that_cannot_be_unpacked_starts_over(tmp_path: Path, harm: str) -> None:
    """P6: the table is a view of the log, so damaged metadata costs its earlier versions and nothing else."""
    half_sealed(tmp_path, 700)
    lake.publish(tmp_path, formats=["iceberg"])
    (newest,) = (folder_of(tmp_path, "messages") / "metadata").glob("v*.gz.metadata.json")
    data = newest.read_bytes()
    newest.write_bytes(data[:-20] if harm == "cut" else data[:20] + b"\xff" * 20 + data[40:])
    lake.publish(tmp_path, formats=["iceberg"])
    assert by_iceberg(tmp_path) == _sealed_offsets(tmp_path)


def test_avro_is_read_as_it_was_written() -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "number", "type": "long"},
            {"name": "maybe", "type": ["null", "string"]},
            {"name": "many", "type": {"type": "array", "items": "bytes"}},
        ],
    }
    rows = [
        {"number": number, "maybe": text, "many": many}
        for number in (0, -1, 63, 64, -64, -65, 2**31, 2**63 - 1, -(2**63))
        for text in (None, "", "naïve")
        for many in ([], [b"", b"\0" * 300])
    ]
    data = encode_file(schema, rows, {"content": "data"})
    assert decode_file(data) == rows
    assert decode_file(encode_file(schema, [], {})) == []
    header = len(encode_file(schema, [], {"content": "data"}))
    for cut in {*range(0, len(data) - 1, 7), header - 1, header + 1} - {header}:
        with pytest.raises(ValueError, match="it "):
            decode_file(data[:cut])
