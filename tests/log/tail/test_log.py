"""L1, L2: what was written comes back, in order, however the process ended."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remuda.log.disk import AppendFile, DirectoryDisk, MemoryDisk
from remuda.log.log import Log
from remuda.log.segments import HEADER_BYTES
from remuda.log.tail.writer import LogOptions
from remuda.model.errors import DiskFull, StorageError
from remuda.model.records import Appended, Record
from tests.log.samples import (
    SMALL,
    appended,
    change,
    commit,
    event_rows,
    events,
    fill,
    light,
    message_rows,
    open_log,
    others,
    segments_of,
)
from tests.log.simulated import PowerLoss, SimulatedDisk

NOTE = 4096
"""What the note of the newest segment takes of a disk."""


def same(found: list[Record], given: list[Record]) -> None:
    assert message_rows(found) == light(message_rows(given))
    assert event_rows(found) == event_rows(given)
    assert others(found) == others(given)
    assert [type(record) for record in found] == [type(record) for record in given]


def test_l2_a_killed_process_loses_nothing_it_wrote(tmp_path: Path) -> None:
    log, found, _ = open_log(DirectoryDisk(tmp_path))
    assert found == []
    given = fill(log, 200)
    log.disk.unlock()  # as the end of a process does
    log, found, recovery = open_log(DirectoryDisk(tmp_path))
    same(found, given)
    assert recovery.report.clean, recovery.report.describe()
    assert recovery.snapshot is None
    assert (log.next_offset, log.next_position) == (len(message_rows(given)), len(event_rows(given)))
    assert len([name for name in log.disk.list() if name.startswith("tail/")]) > 5
    log.close()


def test_every_opening_starts_a_new_segment_and_goes_on_counting(tmp_path: Path) -> None:
    given: list[Record] = []
    for turn in range(5):
        log, found, recovery = open_log(DirectoryDisk(tmp_path))
        assert recovery.report.clean
        same(found, given)
        given += fill(log, 10, seed=turn)
        log.close()
    assert len(os.listdir(tmp_path / "tail")) >= 5


def test_opening_and_closing_leaves_no_trace() -> None:
    disk = MemoryDisk()
    for _ in range(3):
        log, _, _ = open_log(disk)
        log.close()
    assert disk.list() == []


def test_nothing_is_written_before_a_batch_is() -> None:
    disk = SimulatedDisk()
    log, _, _ = open_log(disk)
    size = log.append(appended(log, [b"a", b"b"]))
    assert log.next_offset == 2
    assert size == log.mark().byte - HEADER_BYTES
    assert disk.operations == 0
    assert log.take()
    batch = log.take()
    assert batch, "what an error kept from being written is taken once more"
    assert disk.operations == 0
    batch.write()
    assert not log.take()
    begun = disk.writes, disk.syncs
    assert begun == (3, 2), "the header, its note, and the record"
    batch.sync()
    assert (disk.writes, disk.syncs) == (3, 3)


def test_l2_many_records_go_to_the_disk_in_one_write_and_one_sync() -> None:
    disk = SimulatedDisk()
    log, _, _ = open_log(disk, LogOptions())
    commit(log, [change()])
    before = disk.writes, disk.syncs
    for _ in range(500):
        log.append(appended(log, [b"x" * 20]))
    commit(log)
    assert (disk.writes - before[0], disk.syncs - before[1]) == (1, 1)


def test_a_batch_is_written_while_others_append() -> None:
    log, _, _ = open_log(MemoryDisk())
    given: list[Record] = [appended(log, [b"first"])]
    log.append(given[0])
    batch = log.take()
    given.append(appended(log, [b"second"]))
    log.append(given[1])
    batch.write()
    batch.sync()
    commit(log)
    assert log.fetch([(0, 2)]).messages.bodies == [b"first", b"second"]


def test_a_record_out_of_order_is_refused() -> None:
    log, _, _ = open_log(MemoryDisk())
    record = appended(log, [b"a"])
    log.append(record)
    with pytest.raises(StorageError, match="begins at 0 where the log expects 1; nothing was stored"):
        log.append(record)
    with pytest.raises(StorageError, match="nothing was stored"):
        log.append(Appended(5, 0, record.messages, ()))


def test_nothing_can_be_appended_before_all_was_read() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    fill(log, 5)
    log.close()
    log, recovery = Log.open(disk)
    with pytest.raises(StorageError, match=r"take Recovery\.records to their end first"):
        log.append(change())
    list(recovery.records)
    log.append(change())


def test_l4_only_what_came_after_the_checkpoint_is_read() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    fill(log, 50)
    before = log.bytes_since_checkpoint
    log.append(change(1))
    mark = log.mark()
    log.append(change(2))
    commit(log)
    log.write_checkpoint(mark, b"state")
    assert 0 < log.bytes_since_checkpoint < before
    log, found, recovery = open_log(disk)
    assert recovery.snapshot == b"state"
    assert found == [change(2)]
    assert recovery.report.clean
    same(found, [change(2)])
    assert log.next_offset == mark.next_offset


def test_l4_a_checkpoint_right_after_opening_replays_what_follows() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    given = fill(log, 5)
    log.close()
    log, _, _ = open_log(disk)
    log.write_checkpoint(log.mark(), b"s")
    given = fill(log, 20, seed=3)
    log, found, recovery = open_log(disk)
    same(found, given)
    assert recovery.snapshot == b"s"
    assert recovery.report.clean, recovery.report.describe()


@pytest.mark.parametrize("power", [False, True])
def test_l2_a_crash_at_any_operation_loses_nothing_that_was_synced(power: bool) -> None:
    """The process dies at its n-th operation, for every n: all that was committed before comes back."""
    total = SimulatedDisk()
    _play(total, [])
    for dies_at in range(1, total.operations + 1):
        disk = SimulatedDisk(dies_at=dies_at)
        committed: list[Record] = []
        with pytest.raises(PowerLoss):
            _play(disk, committed)
        left = disk.after_power_loss(random.Random(dies_at)) if power else disk.after_kill()
        log, found, recovery = open_log(left)
        seen = message_rows(found)
        assert seen[: len(message_rows(committed))] == light(message_rows(committed)), dies_at
        assert event_rows(found)[: len(event_rows(committed))] == event_rows(committed)
        assert recovery.report.damages == (), recovery.report.describe()
        assert log.next_offset == len(seen)
        more = fill(log, 5, seed=9)
        log, found_again, recovery = open_log(left.after_kill())
        assert message_rows(found_again) == seen + light(message_rows(more))
        assert recovery.report.clean, recovery.report.describe()


def _play(disk: SimulatedDisk, committed: list[Record]) -> None:
    log, _, _ = open_log(disk, LogOptions(segment_bytes=600, reserve_bytes=200, spare_bytes=50))
    for turn in range(12):
        log.reserve(100)
        given: list[Record] = [appended(log, [b"x" * 30] * 3), events(log, turn), change(turn)]
        commit(log, given)
        committed += given
    log.close()


def until_full(*steps: Callable[[], object]) -> int:
    """How often the steps could be taken before the disk was full."""
    for count in itertools.count():
        try:
            for step in steps:
                step()
        except DiskFull:
            return count
    raise AssertionError


def test_l7_a_full_disk_refuses_publishing_first_and_answers_last() -> None:
    disk = SimulatedDisk(capacity=6000 + NOTE)
    log, _, _ = open_log(disk, LogOptions(segment_bytes=1 << 20, reserve_bytes=1000, spare_bytes=1000))
    published = until_full(lambda: log.reserve(400), lambda: commit(log, [appended(log, [b"x" * 300])]))
    assert published >= 10
    answered = until_full(lambda: log.reserve(80, use_spare=True), lambda: commit(log, [events(log, 0)]))
    assert answered >= 5
    assert len(log.fetch([(0, published)]).messages) == published
    log, _, recovery = open_log(disk.after_kill())
    assert recovery.report.clean
    assert (log.next_offset, log.next_position) == (published, answered)


def test_l7_a_full_disk_leaves_room_for_answers_when_a_segment_ends() -> None:
    """Wherever in it, or between two, the disk turns out to be full."""
    for capacity in range(5000, 14000, 150):
        disk = SimulatedDisk(capacity=capacity + NOTE)
        log, _, _ = open_log(disk, LogOptions(segment_bytes=4000, reserve_bytes=4000, spare_bytes=1000))

        def publish(log: Log = log) -> None:
            log.reserve(300)
            commit(log, [appended(log, [b"x" * 200])])

        def answer(log: Log = log) -> None:
            log.reserve(80, use_spare=True)
            commit(log, [events(log, 0)])

        published, answered = until_full(publish), until_full(answer)
        assert (published > 5, answered > 5) == (True, True), capacity
        disk.capacity = None
        log.reserve(300)
        commit(log, [appended(log, [b"y" * 200] * 30)])
        log, _, recovery = open_log(disk.after_kill())
        assert recovery.report.clean, capacity
        assert (log.next_offset, log.next_position) == (published + 30, answered)


def test_l7_a_disk_that_fills_without_warning_stops_the_log_and_keeps_what_was_confirmed() -> None:
    disk = SimulatedDisk(capacity=3000 + NOTE)
    log, _, _ = open_log(disk, LogOptions())
    confirmed: list[Record] = []

    def publish() -> None:
        record = appended(log, [b"x" * 300])
        commit(log, [record])
        confirmed.append(record)

    assert until_full(publish) > 5
    for call in (
        lambda: log.append(change()),
        log.take,
        lambda: log.reserve(1),
        lambda: log.write_checkpoint(log.mark(), b""),
    ):
        with pytest.raises(StorageError, match=r"everything confirmed before is kept.*open again"):
            call()
    disk.capacity = None
    log, found, _ = open_log(disk.after_kill())
    assert message_rows(found) == light(message_rows(confirmed))


def test_room_is_taken_ahead_and_given_back(tmp_path: Path) -> None:
    disk = DirectoryDisk(tmp_path)
    log, _, _ = open_log(disk, LogOptions(segment_bytes=1 << 20, reserve_bytes=1 << 16, spare_bytes=1 << 14))
    log.reserve(100)
    commit(log, [appended(log, [b"x"])])
    (name,) = segments_of(disk)
    assert disk.size(name) == 1 << 16
    log.close()
    assert disk.size(name) < 200


def test_marks_reach_across_segments() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    for turn in range(40):
        commit(log, [appended(log, [b"x" * 100] * 3)])
        if turn % 7 == 0:
            log.write_checkpoint(log.mark(), str(log.next_offset).encode())
            _, found, recovery = open_log(disk)
            assert recovery.snapshot == str(log.next_offset).encode()
            assert found == []


def test_threads_may_fetch_while_one_appends() -> None:
    log, _, _ = open_log(MemoryDisk(), SMALL)
    done = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                end = len(written)
                if end:
                    fetched = log.fetch([(0, end)])
                    assert fetched.messages.bodies == written[:end]
        except BaseException as error:
            errors.append(error)

    written: list[bytes] = []
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(300):
        body = str(turn).encode() * 9
        commit(log, [appended(log, [body])])
        written.append(body)
    done.set()
    for reader in readers:
        reader.join()
    assert errors == []


class _FullFile:
    def __init__(self, disk: _FullDisk, file: AppendFile) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: bytes) -> None:
        if self._disk.full:
            raise DiskFull("no room on the disk")
        self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _FullDisk(DirectoryDisk):
    full = False

    def open_append(self, name: str, position: int = 0) -> Any:
        return _FullFile(self, super().open_append(name, position))


def test_l7_what_could_not_be_written_is_written_later_before_what_came_since(tmp_path: Path) -> None:
    disk = _FullDisk(tmp_path)
    options = LogOptions(segment_bytes=1500)
    log, _, _ = open_log(disk, options)
    given: list[Record] = []

    def append(*bodies: bytes) -> None:
        for body in bodies:
            given.append(appended(log, [body * 100]))
            log.append(given[-1])

    append(b"1", b"2")
    batch = log.take()
    append(b"3", b"4", b"5", b"6")
    disk.full = True
    with pytest.raises(DiskFull):
        batch.write(final=False)
    log.take_back(batch)
    append(b"7")
    disk.full = False
    commit(log)
    append(b"8")
    commit(log)
    log.close()
    _, found, recovery = open_log(DirectoryDisk(tmp_path), options)
    assert recovery.report.clean
    same(found, given)


def test_l2_a_segment_is_on_the_disk_before_the_next_one_is_begun() -> None:
    """Else a power loss could keep the new one and tear the old: damage in the middle, though none was confirmed."""
    disk = SimulatedDisk()
    log, _, _ = open_log(disk, LogOptions(segment_bytes=1500))
    commit(log, [change()])
    before = disk.syncs
    for _ in range(10):
        log.append(appended(log, [b"x" * 400]))
    segments = len(log.catalog.files().tail)
    assert segments > 2
    log.take().write()
    assert disk.syncs - before == 3 * (segments - 1), "the old segment, the header of the new one, and its note"
