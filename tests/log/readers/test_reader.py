"""L8: spectators read from any time or offset, as often as they like, and change nothing."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from remuda.log.disk import DirectoryDisk, Disk, MemoryDisk
from remuda.log.readers.reader import Reader
from remuda.log.retention.collect import collect
from remuda.log.sealed.parquet import SealedParquet
from remuda.log.sealed.seal import seal
from remuda.log.sealed.table_schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA
from remuda.log.segments import HEADER_BYTES
from remuda.log.tail.writer import LogOptions
from remuda.model.records import Record
from tests.log.samples import appended, commit, event_rows, events, fill, message_rows, open_log, segments_of

TINY = LogOptions(segment_bytes=900, reserve_bytes=300, spare_bytes=50)


@pytest.fixture(params=["directory", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return DirectoryDisk(tmp_path) if request.param == "directory" else MemoryDisk()


def mixed(disk: Disk) -> list[Record]:
    """A log of sealed files and a tail of several segments."""
    log, _, _ = open_log(disk, TINY)
    given = fill(log, 40)
    log.write_checkpoint(log.mark(), b"")
    seal(log)
    given += fill(log, 40, seed=1)
    log.close()
    return given


def test_l8_every_row_comes_in_order_from_any_number(disk: Disk) -> None:
    given = mixed(disk)
    messages, told = message_rows(given), event_rows(given)
    reader = Reader(disk)
    assert reader.end() == (len(messages), len(told))
    for start in range(0, len(messages) + 2, 7):
        assert message_rows(reader.messages(start)) == messages[start:]
        assert message_rows(reader.messages(start, start + 5)) == messages[start : start + 5]
    for start in range(0, len(told) + 2, 5):
        assert event_rows(reader.events(start)) == told[start:]
        assert event_rows(reader.events(start, start + 3)) == told[start : start + 3]
    assert reader.gaps == ()
    assert reader.event_gaps == ()


def test_l8_batches_are_arrow_and_resume_by_offset(disk: Disk) -> None:
    given = mixed(disk)
    reader = Reader(disk)
    rng = random.Random(1)
    offsets: list[int] = []
    while len(offsets) < len(message_rows(given)):
        stop = len(offsets) + rng.randrange(1, 30)
        for batch in reader.message_batches(len(offsets), stop):
            assert batch.schema.equals(MESSAGES_SCHEMA)
            offsets += batch.column("offset").to_pylist()
    assert offsets == list(range(len(offsets)))
    positions: list[int] = []
    for batch in reader.event_batches():
        assert batch.schema.equals(EVENTS_SCHEMA)
        positions += batch.column("position").to_pylist()
    assert positions == list(range(len(event_rows(given))))


def test_l8_reading_changes_nothing(tmp_path: Path) -> None:
    mixed(DirectoryDisk(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    reader = Reader(DirectoryDisk(tmp_path, create=False))
    list(reader.message_batches())
    list(reader.events())
    reader.offset_at(0)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_l8_from_any_time() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, TINY)
    for turn in range(60):
        commit(log, [appended(log, [b"x" * 20] * 2, created=turn * 1000)])
        commit(log, [events(log, turn * 2, 2, time=turn * 1000 + 500)])
        if turn == 40:
            log.write_checkpoint(log.mark(), b"")
            assert seal(log)
    reader = Reader(disk)
    for turn in range(60):
        assert reader.offset_at(turn * 1000) == 2 * turn
        assert reader.offset_at(turn * 1000 - 1) == 2 * turn
        assert reader.offset_at(turn * 1000 + 1) == 2 * turn + 2
        assert reader.position_at(turn * 1000 + 500) == turn
        assert reader.position_at(turn * 1000 + 501) == turn + 1


def test_l8_an_empty_or_new_log_has_nothing_to_read() -> None:
    disk = MemoryDisk()
    reader = Reader(disk)
    assert reader.end() == (0, 0)
    assert list(reader.messages()) == []
    assert reader.offset_at(5) == 0
    log, _, _ = open_log(disk)
    commit(log, [appended(log, [b"a"])])
    assert reader.end() == (1, 0)
    assert [record.first for record in reader.messages()] == [0]


def test_l8_a_half_written_frame_is_not_there_yet() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    commit(log, [appended(log, [b"first"])])
    (name,) = segments_of(disk)
    whole = len(disk.read(name))
    commit(log, [appended(log, [b"second"])])
    data = disk.read(name)
    reader = Reader(disk)
    for end in range(whole, len(data)):
        disk.write_atomic(name, data[:end] + bytes(100))
        assert [len(record) for record in reader.messages()] == [1]
        assert reader.end() == (1, 0)
    disk.write_atomic(name, data)
    assert message_rows(reader.messages(1))[0][2] == b"second"
    assert reader.end() == (2, 0)
    assert reader.gaps == ()


def test_l3_damage_is_a_gap_that_is_known() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    sizes = [HEADER_BYTES]
    for turn in range(4):
        commit(log, [appended(log, [str(turn).encode()] * 3)])
        sizes.append(disk.size(segments_of(disk)[0]))
    (name,) = segments_of(disk)
    broken = bytearray(disk.read(name))
    broken[sizes[2] + 25] ^= 1
    disk.write_atomic(name, bytes(broken))
    reader = Reader(disk)
    for _ in range(2):
        assert [row[0] for row in message_rows(reader.messages())] == [0, 1, 2, 3, 4, 5, 9, 10, 11]
        assert reader.gaps == (range(6, 9),)


def test_l3_a_damaged_sealed_file_is_a_gap_that_is_known() -> None:
    disk = MemoryDisk()
    given = mixed(disk)
    rows = message_rows(given)
    name = next(name for name in disk.list() if name.startswith("sealed/messages"))
    data = disk.read(name)
    for at in range(0, len(data), 29):
        broken = bytearray(data)
        broken[at] ^= 0x08
        disk.write_atomic(name, bytes(broken))
        reader = Reader(disk)
        found = message_rows(reader.messages())
        gone = {number for gap in reader.gaps for number in gap}
        assert [row for row in rows if row[0] not in gone] == found, at


def test_l8_reading_beside_a_writer_that_seals_and_collects(tmp_path: Path) -> None:
    """Every row is seen once and in order, or is known to be gone."""
    log, _, _ = open_log(DirectoryDisk(tmp_path), TINY)
    done = threading.Event()
    problems: list[BaseException] = []
    total = 150

    def work() -> None:
        try:
            for turn in range(total):
                commit(log, [appended(log, [f"{turn}-{row}".encode() * 3 for row in range(3)])])
                commit(log, [events(log, turn * 3, 3)])
                if turn % 10 == 9:
                    log.write_checkpoint(log.mark(), b"")
                    seal(log)
                if turn % 25 == 24:
                    collect(log, lambda first, last: [(o, 1) for o in range(first, last + 1) if o % 5 == 0])
        except BaseException as error:
            problems.append(error)
        finally:
            done.set()

    def watch() -> None:
        try:
            reader = Reader(DirectoryDisk(tmp_path, create=False))
            offset = position = 0
            seen: set[int] = set()
            while True:
                last_round = done.is_set()
                for record in reader.messages(offset):
                    assert record.first >= offset, "never twice, never back"
                    for row, body in enumerate(record.messages.bodies):
                        number = record.first + row
                        assert body == f"{number // 3}-{number % 3}".encode() * 3
                        seen.add(number)
                    offset = record.first + len(record)
                for events_found in reader.events(position):
                    assert events_found.first >= position
                    position = events_found.first + len(events_found)
                if last_round:
                    break
            gone = {number for gap in reader.gaps for number in gap}
            assert seen | gone == set(range(total * 3))
            assert not any(number % 5 == 0 for number in gone - seen), "what must stay was seen"
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work), *(threading.Thread(target=watch) for _ in range(3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    log.close()


def test_l8_a_sealed_file_is_opened_once_and_let_go_with_its_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message costs one row group. A file that was written anew is opened anew, one that is gone is not kept."""
    opened: list[str] = []

    def counted(disk: Disk, name: str) -> SealedParquet:
        opened.append(name)
        return SealedParquet(disk, name)

    monkeypatch.setattr("remuda.log.sealed.sealed_table.SealedParquet", counted)
    disk = DirectoryDisk(tmp_path)
    mixed(disk)
    reader = Reader(disk)
    file = reader._lister.list().messages[0]
    opened.clear()
    for offset in (file.first, file.last, file.first):
        assert [record.first for record in reader.messages(offset, offset + 1)] == [offset]
    assert opened == [file.name]
    path = Path(disk.path(file.name) or "")
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").rename(path)
    assert list(reader.messages(file.first, file.first + 1))
    assert opened == [file.name] * 2
    path.unlink()
    assert not list(reader.messages(file.first, file.first + 1))
    assert file.name not in reader.tables._known
