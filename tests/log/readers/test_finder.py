"""Finding one message costs the same however long the log is (M7)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from remuda.log.disk import DirectoryDisk, MemoryDisk
from remuda.log.log import Log
from remuda.log.readers.reader import Reader
from remuda.log.retention.collect import collect
from remuda.log.sealed import id_index
from remuda.log.sealed.seal import seal
from remuda.log.segments import SealedFile
from remuda.log.tail.writer import LogOptions
from remuda.model.messages import Messages
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State
from tests.log.samples import commit, open_log


class CountingDisk(MemoryDisk):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().read(name, start, length)
        self.bytes_read += len(data)
        return data


def fill(log: Log, rounds: int, *, own_ids: bool, seed: int = 0) -> None:
    rng = random.Random(seed)
    for _ in range(rounds):
        first = log.next_offset
        ids = (
            [f"{rng.getrandbits(64):016x}" for _ in range(100)]
            if own_ids
            else range(first * 1024, (first + 100) * 1024, 1024)
        )
        log.append(Appended(first, 1000 + first, Messages(bodies=[b"x" * 100] * 100, name="n", ids=ids), ("q",)))
        log.append(Events(log.next_position, 1000 + first, [Event("q", State.FETCHED, first, 100, consumer="c")]))
        for offset in range(first, first + 100, 10):
            log.append(Events(log.next_position, 2000 + first, [Event("q", State.SUCCESS, offset, 10)]))
    commit(log)


@pytest.mark.parametrize("own_ids", [False, True])
def test_m7_a_message_in_the_tail_is_found_without_walking_through_it(own_ids: bool) -> None:
    costs = []
    for rounds in (20, 400):
        disk = CountingDisk()
        log, _, _ = open_log(disk, LogOptions(segment_bytes=64 << 20))
        fill(log, rounds, own_ids=own_ids)
        wanted = log.next_offset // 2
        disk.bytes_read = 0
        found = log.record_of(wanted)
        assert found is not None
        assert log.find_id(found[0].id) == wanted
        assert [event.state for _, event in log.events_of(wanted)] == [State.FETCHED, State.SUCCESS]
        costs.append(disk.bytes_read)
    assert costs[1] < 2 * costs[0] + 300_000


@pytest.mark.parametrize("own_ids", [False, True])
def test_m7_every_message_is_found_in_the_tail_and_sealed_by_writer_and_reader(tmp_path: Path, own_ids: bool) -> None:
    disk = DirectoryDisk(tmp_path)
    log, _, _ = open_log(disk, LogOptions(segment_bytes=100_000))
    fill(log, 60, own_ids=own_ids)
    for _ in range(2):
        log.write_checkpoint(log.mark(), b"")
    assert len(seal(log)) >= 5
    fill(log, 5, own_ids=own_ids, seed=1)
    reader = Reader(DirectoryDisk(tmp_path, create=False))
    ids = [record.messages.id(row) for record in reader.messages() for row in range(len(record))]
    assert len(ids) == 6500
    for wanted in [*range(0, 6500, 197), 6499]:
        for find in (log.find_id, reader.offset_of):
            assert find(ids[wanted]) == wanted
        for message in (log.record_of(wanted), reader.message(wanted)):
            assert message is not None
            assert message[0].id == ids[wanted]
        for events in (log.events_of(wanted), reader.events_of(wanted)):
            assert [event.state for _, event in events] == [State.FETCHED, State.SUCCESS]
    for find in (log.find_id, reader.offset_of):
        assert find("never used") is None
        assert find("123") is None
    log.close()


def test_m7_nothing_is_remembered_of_files_that_were_collected() -> None:
    log, _, _ = open_log(MemoryDisk(), LogOptions(segment_bytes=100_000))
    fill(log, 60, own_ids=True)
    for _ in range(2):
        log.write_checkpoint(log.mark(), b"")
    assert len(seal(log)) >= 5
    assert log.find_id("never used") is None
    assert log.events_of(150)
    assert len(log._finder._covered) >= 5
    assert len(log._finder._ids) >= 5
    collect(log, lambda first, last: [])
    assert log.find_id("never used") is None
    assert (log._finder._covered, log._finder._ids) == ({}, {})


def test_m7_a_lost_or_damaged_index_is_done_without() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, LogOptions(segment_bytes=100_000))
    fill(log, 40, own_ids=True)
    for _ in range(2):
        log.write_checkpoint(log.mark(), b"")
    seal(log)
    found = log.record_of(150)
    assert found is not None
    (name, *others) = [name for name in disk.list() if name.startswith("index/")]
    disk.remove(others[0])
    data = bytearray(disk.read(name))
    for place in range(0, len(data), 50):
        data[place] ^= 1
    disk.write_atomic(name, bytes(data))
    assert log.find_id(found[0].id) == 150
    assert log.find_id("never used") is None
    last = log.record_of(1500)
    assert last is not None
    assert log.find_id(last[0].id) == 1500


def test_an_index_finds_all_rows_of_an_id_newest_first() -> None:
    disk, file = MemoryDisk(), SealedFile(1000, 99_999, "messages")
    rng = random.Random(5)
    ids = [f"id-{rng.randrange(20_000)}" for _ in range(50_000)]
    id_index.write(disk, file, (id_index.entry(id, row) for row, id in enumerate(ids)))
    for wanted in ids[:300]:
        rows = [1000 + row for row, id in enumerate(ids) if id == wanted]
        assert set(rows) <= set(id_index.offsets(disk, file, wanted))
        assert id_index.offsets(disk, file, wanted) == sorted(id_index.offsets(disk, file, wanted), reverse=True)
    id_index.write(disk, file, [])
    assert id_index.offsets(disk, file, "x") == []
    assert id_index.whole(disk, file)


def test_m7_a_page_of_an_index_is_read_in_its_own_place_only() -> None:
    disk, file, other = MemoryDisk(), SealedFile(0, 2000, "messages"), SealedFile(2001, 4000, "messages")
    id_index.write(disk, file, (id_index.entry(f"id-{row}", row) for row in range(2000)))
    name, page = id_index.name_of(file), 4096
    data = disk.read(name)
    assert id_index.usable(disk, file)
    for harmed in (data[:page], data[: 2 * page], data[page:], data[page : 2 * page] + data[:page] + data[2 * page :]):
        disk.write_atomic(name, harmed)
        assert not id_index.whole(disk, file)
        with pytest.raises(id_index.DamagedIndex):
            id_index.offsets(disk, file, "id-5")
    disk.write_atomic(id_index.name_of(other), data)
    assert not id_index.whole(disk, other)
    disk.write_atomic(name, data)
    assert id_index.offsets(disk, file, "id-5") == [5]


def test_l6_a_segment_is_rolled_by_age() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, LogOptions(segment_bytes=1 << 20))
    assert not log.roll(10**9)
    fill(log, 1, own_ids=False)
    assert not log.roll(1000)  # begun at 1000
    assert log.roll(1001)
    assert not log.roll(10**9)  # nothing is in the new one
    for _ in range(2):
        log.write_checkpoint(log.mark(), b"")
    (sealed,) = seal(log)
    assert sealed.messages == 100
    fill(log, 1, own_ids=False)
    log.close()
    log, records, recovery = open_log(disk)
    assert recovery.report.clean
    assert sum(len(record) for record in records if isinstance(record, Appended)) == 100
    assert log.next_offset == 200
