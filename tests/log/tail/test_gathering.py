"""Records that need not outlive the process are encoded later, many at once, and nobody can tell (L2)."""

from __future__ import annotations

from remuda.log.disk import MemoryDisk
from remuda.log.log import Log
from remuda.log.readers.reader import Reader
from remuda.log.tail.writer import LogOptions
from remuda.model.messages import Messages
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State
from tests.log.samples import change, commit, open_log

ROOMY = LogOptions()


def lives(count: int, start: int = 0, body: bytes = b"x" * 20) -> list[Appended | Events]:
    """Each message is taken in, fetched and done."""
    made: list[Appended | Events] = []
    for at in range(start, start + count):
        stored = Messages(bodies=[body], name="fruit", ids=range(1024 * at, 1024 * at + 1, 1024))
        made.append(Appended(at, 10 * at, stored, ("q",)))
        made.append(Events(3 * at, 10 * at + 1, [Event("q", State.FETCHED, at, 1, "c", 1)]))
        made.append(
            Events(
                3 * at + 1,
                10 * at + 2,
                [Event("q", State.SUCCESS, at, 1, "c"), Event("q", State.COMPLETED, at)],
            )
        )
    return made


def told(disk: MemoryDisk) -> tuple[list[object], list[object]]:
    reader = Reader(disk)
    return list(reader.messages()), list(reader.events())


def logged(*, gathering: bool, records: list[Appended | Events]) -> tuple[Log, MemoryDisk]:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, ROOMY)
    for record in records:
        if not (gathering and log.gather(record)):
            log.append(record)
    return log, disk


def test_what_was_gathered_is_told_like_anything_else() -> None:
    given = lives(300)
    (now, own), (later, other) = (logged(gathering=gathering, records=given) for gathering in (False, True))
    commit(now)
    assert other.list() == []
    commit(later)
    assert told(own) == told(other)
    assert now.mark() == later.mark()
    assert later.find_id("204800") == 200
    assert len(later.events_of(200)) == 3


def test_whatever_comes_next_stands_behind_what_was_gathered() -> None:
    log, disk = logged(gathering=True, records=lives(3))
    log.append(change())
    commit(log)
    assert (log.next_offset, log.next_position) == (3, 9)
    assert sum(map(len, Reader(disk).messages())) == 3


def test_only_so_much_is_gathered() -> None:
    log, disk = logged(gathering=True, records=lives(2000))
    assert sum(len(part.chunks) for part in log._pending) > 0
    assert len(log._gathered) < 1000
    commit(log)
    assert sum(map(len, Reader(disk).messages())) == 2000


def test_what_is_large_is_not_gathered() -> None:
    log, _ = logged(gathering=True, records=[])
    large = lives(1, body=b"x" * 100_000)
    assert log.gather(large[0]) == 0
    assert log.gather(large[1]) > 0
