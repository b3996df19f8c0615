"""What every event log does, a directory's and a stream's alike (L1, L8)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda import Message
from remuda.log.sealed.table_schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA
from tests.log.eventlogs import Written, WrittenDirectory, WrittenStream, now, read


@pytest.fixture(params=["directory", "stream"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Written]:
    if request.param == "directory":
        made: Written = WrittenDirectory(tmp_path / "log")
    else:
        made = WrittenStream(request.getfixturevalue("broker_url"))
    yield made
    made.close()


def numbered(count: int) -> list[Message]:
    return [Message("q", b"%d" % n, f"id-{n}") for n in range(count)]


def test_l8_numbers_grow_and_never_change(written: Written) -> None:
    written.publish(numbered(5))
    written.handle(3)
    offsets = [row for batch in read(written).message_batches() for row in batch.column("offset").to_pylist()]
    positions = [row for batch in read(written).event_batches() for row in batch.column("position").to_pylist()]
    assert len(offsets) == 5
    assert len(positions) == 9
    assert offsets == sorted(set(offsets))
    assert positions == sorted(set(positions))
    written.publish([Message("q", b"more")])
    written.handle(1)
    later = read(written)
    assert [row for batch in later.message_batches() for row in batch.column(0).to_pylist()][:5] == offsets
    assert [row for batch in later.event_batches() for row in batch.column(0).to_pylist()][:9] == positions


def test_l8_the_ends_enclose_all_that_is_there(written: Written) -> None:
    log = read(written)
    empty = log.ends()
    assert list(log.messages()) == []
    assert list(log.events()) == []
    written.publish(numbered(4))
    written.handle(2)
    ends = log.ends()
    offsets = [record.first + row for record in log.messages() for row in range(len(record))]
    positions = [record.first + row for record in log.events() for row in range(len(record))]
    assert ends.next_offset > empty.next_offset
    assert (len(offsets), len(positions)) == (4, 6)
    assert all(ends.first_offset <= one < ends.next_offset for one in offsets)
    assert all(ends.first_position <= one < ends.next_position for one in positions)
    assert list(log.messages(ends.next_offset)) == []
    assert list(log.events(ends.next_position)) == []


def test_l8_any_range_can_be_read(written: Written) -> None:
    written.publish(numbered(20))
    written.handle(20)
    log = read(written)
    offsets = [record.first + row for record in log.messages() for row in range(len(record))]
    for start, stop in ((0, 20), (3, 7), (19, 20), (5, 5)):
        last = offsets[stop] if stop < len(offsets) else None
        found = [body for record in log.messages(offsets[start], last) for body in record.messages.bodies]
        assert found == [b"%d" % n for n in range(start, stop)]
        batches = list(log.message_batches(offsets[start], last))
        assert [row for batch in batches for row in batch.column("offset").to_pylist()] == offsets[start:stop]
    positions = [record.first + row for record in log.events() for row in range(len(record))]
    states = [row.state.value for record in log.events(positions[4], positions[10]) for row in record.rows]
    assert states == list("SXFSXF")


def test_l8_both_tables_have_their_columns(written: Written) -> None:
    written.publish([Message("q", b"body", "own", headers={"h": "v"}, object="o", key="k")])
    written.handle(1)
    log = read(written)
    (messages,) = log.message_batches()
    (events,) = log.event_batches()
    assert messages.schema.names == MESSAGES_SCHEMA.names
    assert events.schema.names == EVENTS_SCHEMA.names
    row = messages.to_pylist()[0]
    assert (row["id"], row["name"], row["queues"], row["body"]) == ("own", "q", ["q"], b"body")
    assert (dict(row["headers"])["h"], row["object"], row["key"]) == ("v", "o", "k")
    assert events.column("first").to_pylist() == [row["offset"]] * 3
    assert events.column("state").to_pylist() == ["F", "S", "X"]
    narrow = next(iter(log.message_batches(columns=["offset", "id"])))
    assert narrow.schema.names == ["offset", "id"]
    assert next(iter(log.event_batches(columns=["position", "state"]))).schema.names == ["position", "state"]


def test_l8_messages_are_found_by_id_and_tell_their_life(written: Written) -> None:
    ids = written.publish([*numbered(3), Message("q", b"own snowflake")])
    written.handle(4)
    log = read(written)
    for at, id in enumerate(ids):
        offset = log.offset_of(id)
        assert offset is not None
        found = log.message(offset)
        assert found is not None
        assert (found[0].id, found[1]) == (id, ("q",))
        assert found[0].body == (b"%d" % at if at < 3 else b"own snowflake")
        told = log.events_of(offset)
        assert [event.state.value for _, event in told] == ["F", "S", "X"]
        assert [event.first for _, event in told] == [offset] * 3
        assert [time for time, _ in told] == sorted(time for time, _ in told)
    assert log.offset_of("nobody") is None
    assert log.offset_of(str(int(ids[-1]) + 1)) is None
    assert log.message(log.ends().next_offset) is None
    assert log.message(log.ends().next_offset + 10**6) is None
    assert log.events_of(log.ends().next_offset) == []


def test_l8_a_time_leads_to_what_happened_then(written: Written) -> None:
    written.publish(numbered(3))
    written.handle(1)
    time.sleep(0.01)
    between = now()
    written.publish([Message("q", b"later", "later")])
    written.handle(1)
    log = read(written)
    assert log.offset_at(between) == log.offset_of("later")
    assert log.offset_at(0) == log.offset_of("id-0")
    at = log.position_at(between)
    assert [row.state.value for record in log.events(at) for row in record.rows] == ["F", "S", "X"]
    ends = log.ends()
    assert log.offset_at(now() + 10**9) == ends.next_offset
    assert log.position_at(now() + 10**9) == ends.next_position


def test_l8_the_last_rows_are_told_from_the_rest(written: Written) -> None:
    written.publish(numbered(9))
    written.handle(3)
    log = read(written)
    for rows in (1, 4, 9, 100):
        found = [body for record in log.messages(log.offset_of_last(rows)) for body in record.messages.bodies]
        assert found == [b"%d" % n for n in range(max(9 - rows, 0), 9)]
        assert sum(len(record) for record in log.events(log.position_of_last(rows))) == min(rows, 9)
    assert list(log.messages(log.offset_of_last(0))) == []


def test_l8_spectators_change_nothing(written: Written) -> None:
    written.publish(numbered(3))
    before = read(written).ends()
    for _ in range(3):
        log = read(written)
        assert sum(len(record) for record in log.messages()) == 3
    assert read(written).ends() == before
    assert (log.gaps, log.event_gaps) == ((), ())


def test_l8_the_log_can_be_followed(written: Written) -> None:
    written.publish(numbered(1))
    written.handle(1)
    stop = threading.Event()
    bodies: list[bytes] = []
    states: list[str] = []
    enough = threading.Semaphore(0)

    def watch_messages() -> None:
        for record in read(written).follow_messages(poll=0.02, stop=stop):
            bodies.extend(record.messages.bodies)
            enough.release(len(record))

    def watch_events() -> None:
        for record in read(written).follow_events(poll=0.02, stop=stop):
            states.extend(row.state.value for row in record.rows)
            enough.release(len(record))

    threads = [threading.Thread(target=watch, daemon=True) for watch in (watch_messages, watch_events)]
    for thread in threads:
        thread.start()
    for n in range(1, 10):
        written.publish([Message("q", b"%d" % n)])
        written.handle(1)
    for _ in range(40):
        assert enough.acquire(timeout=60)
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert bodies == [b"%d" % n for n in range(10)]
    assert states == list("FSX" * 10)
