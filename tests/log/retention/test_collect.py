"""L5, L6: what nobody needs any more goes, what somebody needs stays, at every step."""

from __future__ import annotations

import itertools
import random

import pytest

from remuda.log.disk import MemoryDisk
from remuda.log.log import Log
from remuda.log.readers.reader import Reader
from remuda.log.retention.collect import collect
from remuda.log.retention.drop import Collected, drop_settled
from remuda.log.sealed.seal import seal
from remuda.log.state import ledger
from remuda.log.tail.writer import LogOptions
from remuda.model.records import Record
from tests.log.samples import appended, commit, event_rows, events, fill, message_rows, open_log
from tests.log.simulated import PowerLoss, SimulatedDisk

TINY = LogOptions(segment_bytes=900, reserve_bytes=300, spare_bytes=50)


def sealed_log(rounds: int = 60) -> tuple[MemoryDisk, Log, list[Record]]:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, TINY)
    given = fill(log, rounds)
    log.write_checkpoint(log.mark(), b"state")
    seal(log)
    return disk, log, given


def tail_start(log: Log) -> int:
    return min(segment.first.offset for segment in log.catalog.files().tail)


def test_l6_nothing_to_keep_removes_the_files() -> None:
    disk, log, given = sealed_log()
    before = sum(disk.size(name) for name in disk.list() if name != ledger.NAME)
    collected = collect(log, lambda first, last: [])
    assert collected.messages == tail_start(log)
    assert collected.events > 0
    assert collected.segments > 2
    assert collected.bytes_freed == before - sum(disk.size(name) for name in disk.list() if name != ledger.NAME)
    assert "messages and" in collected.describe()
    assert not [name for name in disk.list() if name.startswith("sealed/messages")]
    reader = Reader(disk)
    assert message_rows(reader.messages()) == message_rows(given)[tail_start(log) :]
    assert collect(log, lambda first, last: []) == Collected()
    log, _, _ = open_log(disk)
    assert log.next_offset == len(message_rows(given))


def test_l6_all_to_keep_changes_nothing() -> None:
    disk, log, _ = sealed_log()
    before = {name: disk.read(name) for name in disk.list()}
    assert collect(log, lambda first, last: [(first, last - first + 1)]) == Collected()
    assert {name: disk.read(name) for name in disk.list()} == before


def test_l5_files_shrink_when_less_than_three_quarters_must_stay() -> None:
    disk, log, given = sealed_log()
    rows = message_rows(given)
    collect(log, lambda first, last: [(offset, 1) for offset in range(first, last + 1) if offset % 2])
    reader = Reader(disk)
    kept = message_rows(reader.messages())
    start = tail_start(log)
    assert [row for row in kept if row[0] < start] == [row for row in rows[:start] if row[0] % 2]
    assert {number for gap in reader.gaps for number in gap} == set(range(0, start, 2))
    assert collect(log, lambda first, last: [(o, 1) for o in range(first, last + 1) if o % 2]) == Collected()


def test_l6_events_go_with_the_last_of_their_messages() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, TINY)
    commit(log, [appended(log, [b"x"] * 10)])
    commit(log, [events(log, 0, 10), events_after(log, 0, 3), events_after(log, 3, 1)])
    while log.mark().segment < 3:
        commit(log, [appended(log, [b"z" * 50])])
    log.write_checkpoint(log.mark(), b"")
    seal(log)
    collect(log, lambda first, last: [(3, 1)] if first == 0 else [])
    left = [(event.first, event.count) for _, _, event in event_rows(Reader(disk).events())]
    assert left == [(0, 10), (3, 1)]
    assert [event.count for _, event in log.events_of(3)] == [10, 1]


def events_after(log: Log, first: int, count: int) -> Record:
    """Events at a position that follows those about to be appended before them."""
    record = events(log, first, count)
    following = {3: 1, 1: 2}[count]
    return type(record)(record.first + following, record.time, record.rows)


def keep_some(first: int, last: int) -> list[tuple[int, int]]:
    return [(offset, 1) for offset in range(first, last + 1) if offset % 3 == 0 and offset > 20]


@pytest.mark.parametrize("power", [False, True])
def test_l5_a_crash_at_any_step_of_collecting_keeps_what_must_stay(power: bool) -> None:
    base = SimulatedDisk()
    log, _, _ = open_log(base, TINY)
    rows = {row[0]: row for row in message_rows(fill(log, 24))}
    log.write_checkpoint(log.mark(), b"state")
    assert len(seal(log)) > 3
    for steps in itertools.count(1):
        disk = base.after_kill()
        log, _, _ = open_log(disk, TINY)
        disk.dies_at = disk.operations + steps
        try:
            collect(log, keep_some)
            break
        except PowerLoss:
            pass
        left = disk.after_power_loss(random.Random(steps)) if power else disk.after_kill()
        log, _, recovery = open_log(left, TINY)
        assert recovery.report.clean
        found = message_rows(Reader(left).messages())
        assert all(rows[row[0]] == row for row in found)
        assert {offset for offset in rows if offset % 3 == 0 and offset > 20} <= {row[0] for row in found}
        assert event_rows(Reader(left).events())
        collect(log, keep_some)
        assert not [name for name in left.list() if name.endswith(".tmp")]
        assert log.next_offset == len(rows)
    assert steps > 20


def test_closed_segments_without_anything_to_keep_are_dropped_from_memory() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, TINY)
    fill(log, 60)
    assert drop_settled(log, lambda first, last: []) == Collected(), "a checkpoint must hold their state first"
    log.write_checkpoint(log.mark(), b"")
    kept = log.catalog.files().tail[1].first.offset
    dropped = drop_settled(log, lambda first, last: [(kept, 1)] if first <= kept <= last else [])
    assert dropped.segments > 2
    assert dropped.bytes_freed > 1000
    assert log.fetch([(kept, 1)]).missing == []
    assert log.fetch([(0, 1)]).missing == [(0, 1)]
    commit(log, [appended(log, [b"goes on"])])
    assert log.fetch([(log.next_offset - 1, 1)]).messages.bodies == [b"goes on"]


def test_a_damaged_sealed_file_is_left_for_mending() -> None:
    disk, log, _ = sealed_log()
    file = log.catalog.files().messages[0]
    data = bytearray(disk.read(file.name))
    data[len(data) // 3] ^= 0xFF
    disk.write_atomic(file.name, bytes(data))
    collect(log, lambda first, last: [(first, 1)])
    assert disk.read(file.name) == bytes(data)
