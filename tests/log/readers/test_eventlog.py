"""The event log port, as the directory implements it (L8)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.log.eventlog import Ends, EventLog, open_event_log
from remuda.model.errors import InvalidOption, StorageError


def test_l8_ends_seek_and_both_tables(tmp_path: Path) -> None:
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("q", type="pull")
        log = open_event_log(f"file:{tmp_path}")
        assert log.ends() == Ends(0, 0, 0, 0)
        broker.publish([Message("q", b"%d" % n, f"id-{n}") for n in range(5)])
        receipt = broker.publish(Message("q", b"5"))
        delivery = broker.pull("q", 6)
        assert delivery is not None
        delivery.ack()
        log = open_event_log(tmp_path)
        ends = log.ends()
        assert (ends.first_offset, ends.next_offset, ends.first_position) == (0, 6, 0)
        assert ends.next_position == sum(len(record) for record in log.events())
        assert [log.offset_of(f"id-{n}") for n in (0, 4, 9)] == [0, 4, None]
        assert log.offset_of(receipt.id) == 5
        found = log.message(3)
        assert found is not None
        assert (found[0].body, found[1]) == (b"3", ("q",))
        assert log.message(6) is None
        assert [event.state.value for _, event in log.events_of(3)] == ["F", "S", "X"]
        created = found[0].created
        assert log.offset_at(created) == 0
        assert log.offset_at(created + 10**12) == 6
        assert sum(batch.num_rows for batch in log.message_batches(2, 4)) == 2
        assert sum(batch.num_rows for batch in log.event_batches()) == ends.next_position
        assert (log.gaps, log.event_gaps) == ((), ())


def test_l8_messages_and_events_can_be_followed(tmp_path: Path) -> None:
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("q", type="pull")
        spectators: list[EventLog] = [open_event_log(tmp_path), broker.spectate().log]
        stop = threading.Event()
        bodies: list[list[bytes]] = [[], []]
        states: list[list[str]] = [[], []]

        def watch_messages(log: EventLog, found: list[bytes]) -> None:
            for record in log.follow_messages(poll=0.005, stop=stop):
                found.extend(record.messages.bodies)

        def watch_events(log: EventLog, found: list[str]) -> None:
            for record in log.follow_events(poll=0.005, stop=stop):
                found.extend(row.state.value for row in record.rows)

        threads = [threading.Thread(target=watch_messages, args=pair) for pair in zip(spectators, bodies, strict=True)]
        others = [open_event_log(tmp_path), broker.spectate().log]
        threads += [threading.Thread(target=watch_events, args=pair) for pair in zip(others, states, strict=True)]
        for thread in threads:
            thread.start()
        for number in range(20):
            broker.publish(Message("q", b"%d" % number))
            delivery = broker.pull("q")
            assert delivery is not None
            delivery.ack()
        for _ in range(6000):
            if all(len(found) == 20 for found in bodies) and all(len(found) == 60 for found in states):
                break
            stop.wait(0.01)
        stop.set()
        for thread in threads:
            thread.join()
    assert bodies == [[b"%d" % number for number in range(20)]] * 2
    assert states == [list("FSX" * 20)] * 2


def test_l8_what_is_no_log_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no directory"):
        open_event_log(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    for url in ("memory://", "remuda://host:1"):
        with pytest.raises(InvalidOption, match="no event log can be read at"):
            open_event_log(url)
