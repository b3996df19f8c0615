"""M7: one message's life is found wherever in the log it lies."""

from __future__ import annotations

import pytest

from remuda.log.disk import MemoryDisk
from remuda.log.log import Log
from remuda.log.retention.collect import collect
from remuda.log.sealed.seal import seal
from remuda.log.tail.writer import LogOptions
from remuda.model.document import document
from remuda.model.messages import Messages
from remuda.model.records import Appended, Record
from remuda.model.state import State
from tests.log.samples import appended, commit, event_rows, events, fill, message_rows, open_log

TINY = LogOptions(segment_bytes=900, reserve_bytes=300, spare_bytes=50)


@pytest.fixture(params=["tail", "sealed", "reopened"])
def told(request: pytest.FixtureRequest) -> tuple[Log, list[Record]]:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, TINY)
    given = fill(log, 60)
    if request.param != "tail":
        log.write_checkpoint(log.mark(), b"")
        assert seal(log)
    given += fill(log, 20, seed=1)
    if request.param == "reopened":
        log, _, _ = open_log(disk, TINY)
    return log, given


def test_m7_all_events_of_a_message_in_order(told: tuple[Log, list[Record]]) -> None:
    log, given = told
    for offset in range(0, log.next_offset, 9):
        expected = [(time, e) for _, time, e in event_rows(given) if e.first <= offset < e.first + e.count]
        assert log.events_of(offset) == expected
    assert log.events_of(10**6) == []


def test_m7_the_record_of_a_message(told: tuple[Log, list[Record]]) -> None:
    log, given = told
    for row in message_rows(given)[::7]:
        found = log.record_of(row[0])
        assert found is not None
        message, queues = found
        assert (message.body, message.id, queues) == (row[2], row[3], row[14])
        assert dict(message.headers) == row[9]
    assert log.record_of(10**6) is None


def test_the_newest_message_with_an_id(told: tuple[Log, list[Record]]) -> None:
    log, given = told
    newest = {row[3]: row[0] for row in message_rows(given)}
    for wanted, offset in list(newest.items())[::5]:
        assert log.find_id(str(wanted)) == offset
    assert log.find_id("never used") is None
    assert log.find_id("00") is None
    assert log.find_id("³") is None
    for _ in range(2):
        own = Messages(bodies=[b"a", b"b", b"c"], name="n", ids=["twice", "other", "twice"])
        commit(log, [Appended(log.next_offset, 1, own, ())])
    assert log.find_id("twice") == log.next_offset - 1


def test_m7_a_document_from_the_log() -> None:
    log, _, _ = open_log(MemoryDisk())
    commit(log, [appended(log, [b"a"] * 3)])
    for at, state in enumerate((State.FETCHED, State.SUCCESS, State.COMPLETED)):
        commit(log, [events(log, 0, 3, state=state, time=2_000 + at)])
    found = log.record_of(1)
    assert found is not None
    view = document(1, *found, log.events_of(1)).queues[0]
    assert (view.state, view.consumed, view.processed, view.completed) == (State.COMPLETED, 2_000, 2_001, 2_002)


def test_a_collected_message_has_no_record() -> None:
    log, _, _ = open_log(MemoryDisk(), TINY)
    fill(log, 60)
    log.write_checkpoint(log.mark(), b"")
    seal(log)
    collect(log, lambda first, last: [])
    assert log.record_of(0) is None
    assert log.find_id("0") is None
