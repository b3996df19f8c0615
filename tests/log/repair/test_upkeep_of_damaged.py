"""One bad file costs a report and that file; a full disk or a lack of handles costs time alone (L5, L6, L7)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from remuda.log.disk import MemoryDisk
from remuda.log.disk.directory import DirectoryDisk
from remuda.log.retention.collect import collect
from remuda.log.sealed.seal import seal
from remuda.log.tail.writer import LogOptions
from remuda.model.errors import DiskFull, StorageError, TooManyFiles
from tests.log.samples import appended, commit, fill, message_rows, open_log
from tests.log.simulated import SimulatedDisk


def test_l5_a_segment_that_is_gone_is_reported_and_those_behind_it_wait() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    fill(log, 80)
    for _ in range(2):
        log.write_checkpoint(log.mark(), b"")
    tail = [name for name in disk.list() if name.startswith("tail/")]
    disk.remove(tail[1])
    sealed = seal(log)
    assert [one.failure is not None for one in sealed] == [False, True]


def test_l6_a_sealed_file_that_is_gone_keeps_no_other_from_being_collected() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    fill(log, 80)
    for _ in range(2):
        log.write_checkpoint(log.mark(), b"")
    seal(log)
    names = [name for name in disk.list() if name.startswith("sealed/messages")]
    disk.remove(names[1])
    keep = log.catalog.files().messages[1].first
    collected = collect(log, lambda first, last: [(first, 1)] if first <= keep <= last else [])
    assert len(collected.failures) == 1
    assert names[1] in collected.failures[0]
    assert [name for name in disk.list() if name.startswith("sealed/messages")] == []


def test_l7_a_batch_is_written_again_when_the_disk_has_room() -> None:
    disk = SimulatedDisk()
    log, _, _ = open_log(disk, LogOptions(segment_bytes=600, reserve_bytes=0, spare_bytes=0))
    commit(log, [appended(log, [b"before"])])
    disk.capacity = sum(file.room for file in disk.files.values()) + 450
    for number in range(6):
        log.append(appended(log, [b"%d" % number * 90]))
    batch = log.take()
    for _ in range(3):
        with pytest.raises(DiskFull):
            batch.write(final=False)
    log.append(appended(log, [b"meanwhile"]))
    disk.capacity = None
    batch.write(final=False)
    batch.sync()
    commit(log)
    _, found, recovery = open_log(disk.after_kill())
    assert recovery.report.clean, recovery.report.describe()
    assert [row[0] for row in message_rows(found)] == list(range(8))


def test_l7_a_failure_is_final_where_it_is_not_passing() -> None:
    disk = SimulatedDisk(capacity=400)
    log, _, _ = open_log(disk, LogOptions(segment_bytes=600, reserve_bytes=0, spare_bytes=0))
    log.append(appended(log, [bytes(1000)]))
    with pytest.raises(DiskFull):
        log.take().write()
    with pytest.raises(StorageError, match="a write failed"):
        log.append(appended(log, [b""]))


def test_l7_no_handle_left_is_told_as_passing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DirectoryDisk(tmp_path)
    disk.lock()

    def none_left(*args: object, **more: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        with pytest.raises(TooManyFiles, match="ulimit") as told:
            disk.open_append("tail/x.log")
    assert told.value.passing
    assert DiskFull("").passing
    assert not StorageError("").passing
    disk.open_append("tail/x.log").close()
    disk.unlock()
