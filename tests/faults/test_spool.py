"""P2, L2: a batch leaves the spool only when its rows are kept."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

from remuda.broker.embedded.runtime import Runtime
from remuda.broker.embedded.upkeep.spool_reader import SpoolReader
from remuda.broker.options import BrokerOptions, Sync
from remuda.log import spool
from remuda.model.errors import StorageError
from tests.begun import begun
from tests.conformance.kit import eventually
from tests.faults.disks import FailingDisk, input_output_error
from tests.faults.stalling import StallingDisk

pytestmark = pytest.mark.faults

SCHEMA = spool.SPOOL_SCHEMA


def take_in_on_a_failing_disk(path: Path, failing: str) -> list[spool.SpoolBatch]:
    """What is left in the spool when the rows of its batch could not be kept."""
    disk = FailingDisk(path)
    host = Runtime(disk, BrokerOptions(sync=Sync.ALWAYS, worker=1))
    try:
        host.upkeep.stop()
        setattr(disk, f"{failing}_error", input_output_error())
        rows = pa.RecordBatch.from_pylist([{"name": "q", "body": b"row"}], SCHEMA)
        place = spool.prepare(str(begun(path)))
        spool.lay(place, "app", 1, [spool.stage(place, [rows])[0]])
        with contextlib.suppress(StorageError):
            SpoolReader(host).run()
        return spool.waiting(place)
    finally:
        setattr(disk, f"{failing}_error", None)
        host.close()


@pytest.mark.parametrize("failing", ["write", "sync"])
def test_p2_a_batch_stays_until_its_rows_are_kept(tmp_path: Path, failing: str) -> None:
    (left,) = take_in_on_a_failing_disk(tmp_path / "log", failing)
    assert (left.app, left.number) == ("app", 1)


def test_p2_a_batch_stays_while_the_disk_is_full(tmp_path: Path) -> None:
    """However often it is looked at meanwhile; and its rows are taken in once."""
    disk = StallingDisk(tmp_path / "log", reserves=False)
    host = Runtime(disk, BrokerOptions(sync=Sync.ALWAYS, worker=1))
    try:
        host.upkeep.stop()
        rows = pa.RecordBatch.from_pylist([{"name": "q", "body": b"%d" % number} for number in range(5)], SCHEMA)
        place = spool.prepare(str(tmp_path / "log"))
        spool.lay(place, "app", 1, [spool.stage(place, [rows])[0]])
        disk.failing = {"write"}
        intake = SpoolReader(host)
        for _ in range(3):
            with pytest.raises(disk.error):
                intake.run()
            assert len(spool.waiting(place)) == 1
        disk.failing.clear()
        eventually(lambda: host.health().ready)
        intake.run()
        assert spool.waiting(place) == []
        assert host.info("q").size == 5
    finally:
        disk.failing.clear()
        host.close()


@pytest.mark.source
def test_a_batch_that_is_removed_too_early_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: nobody waits for the rows to be kept."""
    monkeypatch.setattr(Runtime, "wait", lambda host, ticket: None)
    assert take_in_on_a_failing_disk(tmp_path / "log", "sync") == []
