"""Q21: messages that wait in the log are read back in order, from wherever they are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from remuda.log.disk import DirectoryDisk, Disk, MemoryDisk
from remuda.log.log import Log
from remuda.log.readers import fetch
from remuda.log.retention.collect import collect
from remuda.log.sealed.seal import seal
from remuda.log.tail.regroup import join_messages
from remuda.log.tail.writer import LogOptions
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.records import Appended, Record
from tests.log.samples import SMALL, appended, commit, fill, message_rows, open_log


@pytest.fixture(params=["directory", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return DirectoryDisk(tmp_path) if request.param == "directory" else MemoryDisk()


def as_messages(given: list[Record]) -> list[Message]:
    rows = [message for record in given if isinstance(record, Appended) for message in record.messages]
    created = [
        message.created or record.created
        for record in given
        if isinstance(record, Appended)
        for message in record.messages
    ]
    return [plain(message, stamp) for message, stamp in zip(rows, created, strict=True)]


def plain(message: Message, created: int) -> Message:
    values = {name: getattr(message, name) for name in message.__struct_fields__}
    return Message(**{**values, "headers": dict(message.headers), "created": created})


def check(log: Log, expected: list[Message], seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        runs = []
        for _ in range(rng.randrange(1, 4)):
            first = rng.randrange(len(expected))
            runs.append((first, rng.randrange(1, min(40, len(expected) - first) + 1)))
        fetched = log.fetch(runs)
        wanted = [message for first, count in runs for message in expected[first : first + count]]
        assert fetched.missing == []
        assert sum(count for _, count in fetched.offsets) == len(wanted)
        assert [plain(message, message.created) for message in fetched.messages] == wanted


def test_q21_any_runs_from_tail_and_sealed_files(disk: Disk) -> None:
    log, _, _ = open_log(disk)
    given = fill(log, 150)
    expected = as_messages(given)
    check(log, expected, 1)
    log.write_checkpoint(log.mark(), b"")
    assert seal(log)
    check(log, expected, 2)
    given += fill(log, 30, seed=5)
    expected = as_messages(given)
    check(log, expected, 3)
    log.close()
    log, _, _ = open_log(disk)
    check(log, expected, 4)
    assert len(log.fetch([(0, len(expected))]).messages) == len(expected)
    log.close()


def test_a_run_in_one_frame_stays_in_columns() -> None:
    log, _, _ = open_log(MemoryDisk())
    commit(log, [appended(log, [str(row).encode() for row in range(100)])])
    fetched = log.fetch([(10, 20)])
    assert fetched.offsets == [(10, 20)]
    assert fetched.messages.name == "fruit.apple"
    assert fetched.messages.ids == range(10 * 1024, 30 * 1024, 1024)
    assert fetched.messages.created == 1_000
    assert fetched.messages.bodies == [str(row).encode() for row in range(10, 30)]
    whole = log.fetch([(0, 100)]).messages
    assert log.fetch([(0, 100)]).messages is whole, "the frame is decoded once"


def test_frames_are_joined_column_by_column() -> None:
    log, _, _ = open_log(MemoryDisk())
    for turn in range(5):
        commit(log, [appended(log, [str(turn).encode()] * 2)])
    messages = log.fetch([(0, 10)]).messages
    assert messages.name == "fruit.apple"
    assert messages.ids == range(0, 10 * 1024, 1024)
    assert log.fetch([(4, 2), (0, 2)]).messages.ids == ["4096", "5120", "0", "1024"]


def test_what_is_not_there_is_named() -> None:
    log, _, _ = open_log(MemoryDisk())
    assert log.fetch([(0, 3)]) == (Messages(bodies=[], name=""), [], [(0, 3)])
    commit(log, [appended(log, [b"a"] * 4)])
    log.append(appended(log, [b"pending"]))
    assert log.fetch([(2, 5), (100, 1), (0, 1)]).missing == [(4, 3), (100, 1)]
    assert log.fetch([(2, 5), (100, 1), (0, 1)]).offsets == [(2, 2), (0, 1)]
    assert log.fetch([]).messages.bodies == []


def test_a_growing_block_is_read_on_not_again() -> None:
    class Counting(MemoryDisk):
        read_bytes = 0

        def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
            data = super().read(name, start, length)
            self.read_bytes += len(data)
            return data

    disk = Counting()
    log, _, _ = open_log(disk, type(SMALL)())
    disk.read_bytes = 0
    for turn in range(200):
        commit(log, [appended(log, [b"x" * 100])])
        assert log.fetch([(turn, 1)]).messages.bodies == [b"x" * 100]
    assert disk.read_bytes < 1.1 * log.mark().byte


def test_q21_the_memory_of_what_was_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CACHE_BYTES", 10_000)
    log, _, _ = open_log(MemoryDisk(), type(SMALL)())
    for _ in range(100):
        commit(log, [appended(log, [b"x" * 70_000])])
    for offset in range(100):
        assert len(log.fetch([(offset, 1)]).messages.bodies[0]) == 70_000
    fetcher = log._fetcher
    assert fetcher._held <= 80_000
    assert len(fetcher._cache) == len(fetcher._sizes) == 1


def test_collected_offsets_are_missing_and_their_neighbours_are_not() -> None:
    log, _, _ = open_log(MemoryDisk())
    given = fill(log, 150)
    expected = as_messages(given)
    log.write_checkpoint(log.mark(), b"")
    seal(log)
    assert log.fetch([(0, 12)]).missing == []
    collect(log, lambda first, last: [(offset, 2) for offset in range(first, last, 10)])
    fetched = log.fetch([(0, 12)])
    assert fetched.offsets[0] == (0, 2)
    assert fetched.missing[0] == (2, 8)
    assert [message.body for message in fetched.messages][:2] == [message.body for message in expected[:2]]


def test_joining_keeps_ids_of_every_kind() -> None:
    numbered = Messages(bodies=[b"a"], name="n", ids=range(1024, 2048, 1024))
    named = Messages(bodies=[b"b"], name="m", ids=["own"])
    without = Messages(bodies=[b"c"], name="m")
    joined = join_messages([numbered, named, without])
    assert joined.ids == ["1024", "own", ""]
    assert joined.name == ["n", "m", "m"]
    assert join_messages([without, without]).ids is None


def test_rows_survive_as_they_were() -> None:
    log, _, _ = open_log(MemoryDisk())
    given = fill(log, 40, seed=8)
    rows = message_rows(given)
    for offset, row in enumerate(rows):
        found = log.record_of(offset)
        assert found is not None
        assert (found[0].body, found[0].id, found[1]) == (row[2], row[3], row[14])


def test_reading_beside_pending_frames_does_not_hide_them_later(disk: Disk) -> None:
    log, _, _ = open_log(disk, LogOptions())
    commit(log, [appended(log, [b"first"])])
    for body in (b"unindexed" * 8_000, b"indexed"):
        log.append(appended(log, [body]))
    assert log.fetch([(0, 1)]).messages.bodies == [b"first"]
    commit(log)
    fetched = log.fetch([(0, 3)])
    assert fetched.missing == []
    assert fetched.messages.bodies == [b"first", b"unindexed" * 8_000, b"indexed"]
