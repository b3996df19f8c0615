"""L3, L6, L9: what retention removed is noted before it goes, so that what somebody else removed is missed."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import msgspec
import pytest

from remuda.log.disk import DirectoryDisk, MemoryDisk
from remuda.log.disk.directory import MARKER
from remuda.log.log import Log
from remuda.log.repair.check import check
from remuda.log.repair.recovery import RecoveryReport
from remuda.log.retention.collect import collect
from remuda.log.retention.drop import drop_settled
from remuda.log.sealed.seal import seal
from remuda.log.state import checkpoint, ledger
from remuda.log.state.ledger import Ledger, Missed
from remuda.log.tail.record_scan import Damage
from remuda.log.tail.writer import LogOptions
from remuda.model.errors import DiskFull, StorageError
from tests.log.samples import appended, commit, events, fill, open_log
from tests.log.simulated import PowerLoss, SimulatedDisk

TINY = LogOptions(segment_bytes=900, reserve_bytes=300, spare_bytes=50)


def sealed_log(disk: MemoryDisk | SimulatedDisk, rounds: int = 60) -> Log:
    log, _, _ = open_log(disk, TINY)
    fill(log, rounds)
    log.write_checkpoint(log.mark(), b"state")
    seal(log)
    return log


def reopened(disk: MemoryDisk | SimulatedDisk) -> tuple[Log, RecoveryReport]:
    log, _, recovery = open_log(disk, TINY)
    return log, recovery.report


def lost(damages: tuple[Damage, ...], table: str) -> set[int]:
    return {n for one in damages for n in getattr(one, table) or ()}


def numbers(spans: list[tuple[int, int]] | tuple[tuple[int, int], ...]) -> set[int]:
    return {n for first, stop in spans for n in range(first, stop)}


def test_spans_are_sets_of_numbers() -> None:
    rng = random.Random(5)
    for _ in range(300):
        one, other = (
            [(first, first + rng.randrange(6)) for first in rng.choices(range(40), k=rng.randrange(8))] for _ in "ab"
        )
        assert numbers(ledger.merged(one)) == numbers(one)
        assert numbers(ledger.without(one, other)) == numbers(one) - numbers(other)
        assert numbers(ledger.both(one, other)) == numbers(one) & numbers(other)
        joined = ledger.merged(one)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(joined))


def test_a_note_comes_back_as_it_was_or_not_at_all() -> None:
    disk = MemoryDisk()
    assert ledger.read(disk) is None
    noted = Ledger(((0, 10), (12, 400)), ((3, 4),), (Missed(1, 2, 3),))
    ledger.write(disk, noted)
    assert ledger.read(disk) == noted
    data = disk.read(ledger.NAME)
    for at in range(len(data)):
        disk.write_atomic(ledger.NAME, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(StorageError, match="is damaged"):
            ledger.read(disk)
        disk.write_atomic(ledger.NAME, data[:at])
        with pytest.raises(StorageError, match="is damaged"):
            ledger.read(disk)


@pytest.mark.parametrize("table", ["messages", "events"])
def test_l9_a_sealed_file_that_was_removed_is_told_from_one_that_was_collected(table: str) -> None:
    disk = MemoryDisk()
    log = sealed_log(disk)
    middle = log.catalog.files().messages[3].first
    collect(log, lambda first, last: [(first, last - first + 1)] if last >= middle else [])
    assert log.catalog.files().messages[0].first != 0
    log, report = reopened(disk)
    assert report.clean, "what was collected is not missed"
    assert check(disk).clean
    files = log.catalog.files()
    gone = (files.messages if table == "messages" else files.events)[1]
    disk.remove(gone.name)
    expected = set(range(gone.first, gone.last + 1))
    for _ in range(2):
        log, report = reopened(disk)
        assert lost(report.damages, table) == expected
        assert not lost(report.damages, "events" if table == "messages" else "messages")
        assert "was not collected" in report.describe()
        (finding,) = check(disk).findings
        assert getattr(finding, table) == (gone.first, gone.last)
        log.write_checkpoint(log.mark(), b"state")


@pytest.mark.parametrize("table", ["messages", "events"])
def test_l6_what_is_missing_is_called_so_until_retention_would_have_removed_it(table: str) -> None:
    disk = MemoryDisk()
    log = sealed_log(disk)
    files = log.catalog.files()
    gone = (files.messages if table == "messages" else files.events)[1]
    disk.remove(gone.name)
    log, report = reopened(disk)
    assert lost(report.damages, table)
    oldest = files.messages[0]
    for keep_from in (0, oldest.last):
        collect(log, lambda first, last: [(first, last - first + 1)] if last >= keep_from else [])  # noqa: B023
        assert check(disk).findings
        assert reopened(disk)[1].damages
    log, _ = reopened(disk)
    collect(log, lambda first, last: [])
    if table == "events":
        assert check(disk).findings, "messages that the events may tell of are in the tail"
        while log.mark().segment < 40:
            commit(log, [appended(log, [b"z" * 300]), events(log, 0, 1)])
        log.write_checkpoint(log.mark(), b"state")
        log.write_checkpoint(log.mark(), b"state")
        seal(log)
        collect(log, lambda first, last: [])
    assert check(disk).clean
    assert reopened(disk)[1].clean


@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_l9_a_note_that_is_lost_is_told(harm: str) -> None:
    disk = MemoryDisk()
    log = sealed_log(disk)
    collect(log, lambda first, last: [])
    end = log.catalog.files().tail[0].first.offset
    if harm == "missing":
        disk.remove(ledger.NAME)
    else:
        disk.write_atomic(ledger.NAME, b"nonsense")
    assert [one.file for one in check(disk).findings] == [ledger.NAME]
    log, report = reopened(disk)
    assert report.describe().startswith(f"{ledger.NAME} is {harm}")
    assert report.uncovered == (range(end),)
    log.write_checkpoint(log.mark(), b"state")
    assert reopened(disk)[1].clean, "it is begun anew"
    assert check(disk).clean


def test_l9_a_log_of_an_earlier_version_has_no_note_and_nothing_is_missed() -> None:
    disk = MemoryDisk()
    log = sealed_log(disk)
    collect(log, lambda first, last: [])
    for found in checkpoint.read_all(disk).valid:
        checkpoint.write(disk, found.sequence, msgspec.structs.replace(found.mark, ledger=False), [found.snapshot])
    for noted in (True, False):  # also where that version has collected beside the note of a later one
        ledger.write(disk, Ledger())
        if not noted:
            disk.remove(ledger.NAME)
        assert check(disk).clean
        assert reopened(disk)[1].clean
    log, _ = reopened(disk)
    log.write_checkpoint(log.mark(), b"state")
    assert reopened(disk)[1].clean
    assert ledger.read(disk) == log.ledger.known
    assert log.ledger.known is not None
    assert log.ledger.known.messages


@pytest.mark.parametrize("power", [False, True])
def test_l5_a_crash_at_any_step_of_dropping_leaves_nothing_that_is_missed(power: bool) -> None:
    base = SimulatedDisk()
    log, _, _ = open_log(base, TINY)
    fill(log, 40)
    log.write_checkpoint(log.mark(), b"state")
    steps = 0
    while True:
        steps += 1
        disk = base.after_kill()
        log, _, _ = open_log(disk, TINY)
        disk.dies_at = disk.operations + steps
        try:
            drop_settled(log, lambda first, last: [], oldest_first=True)
            break
        except PowerLoss:
            pass
        left = disk.after_power_loss(random.Random(steps)) if power else disk.after_kill()
        _, report = reopened(left)
        assert report.clean, report.describe()
    assert steps > 5


def test_l7_retention_frees_a_disk_that_is_too_full_for_its_note() -> None:
    disk = SimulatedDisk()
    log = sealed_log(disk)
    files = log.catalog.files()
    disk.capacity = sum(disk.size(name) for name in disk.list())
    with pytest.raises(DiskFull):
        disk.write_atomic("tail/other", b"x" * 100)
    collected = collect(log, lambda first, last: [])
    assert collected.segments == len(files.messages) + len(files.events)
    assert not collected.failures
    disk.capacity = None
    assert reopened(disk)[1].clean


def test_l9_a_first_segment_of_the_tail_that_was_removed_is_missed() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, TINY)
    fill(log, 40)
    log.write_checkpoint(log.mark(), b"state")
    first, second, *_ = log.catalog.files().tail
    disk.remove(first.name)
    _, report = reopened(disk)
    assert lost(report.damages, "messages") == set(range(second.first.offset))
    assert lost(report.damages, "events") == set(range(second.first.position))
    assert {(one.messages, one.events) for one in check(disk).findings} >= {((0, second.first.offset - 1), None)}


def test_l4_a_note_that_cannot_be_written_keeps_no_checkpoint_from_being_made(tmp_path: Path) -> None:
    (tmp_path / ledger.NAME).mkdir(parents=True)
    (tmp_path / MARKER).write_bytes(b'{"remuda": 1}')
    for _ in range(2):
        log, found, _ = open_log(DirectoryDisk(tmp_path), TINY)
        assert len(found) == 0
        log.write_checkpoint(log.mark(), b"state")
        log.close()
    told = check(DirectoryDisk(tmp_path, create=False))
    assert {one.file for one in told.findings} == {ledger.NAME}
