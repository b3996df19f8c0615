"""The command line on a log that is a RabbitMQ stream (L8, U3)."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda import Bus, Message
from remuda.model.state import State
from tests.cli.kit import Remuda, start, wait_for
from tests.log.eventlogs import WrittenStream, tell


@pytest.fixture
def written(broker_url: str) -> Iterator[WrittenStream]:
    made = WrittenStream(broker_url)
    yield made
    made.close()


def test_u3_log_tail_shows_messages_and_events_of_a_stream(remuda: Remuda, written: WrittenStream) -> None:
    written.publish([Message("order.placed", b'{"n": %d}' % n, f"id-{n}") for n in range(12)])
    written.handle(2)
    last = remuda("log", "tail", written.url, "--json").values
    assert [entry["id"] for entry in last] == [f"id-{n}" for n in range(2, 12)]
    assert last[-1]["body"] == {"n": 11}
    assert [entry["id"] for entry in remuda("log", "tail", written.url, "-n", "1", "--json").values] == ["id-11"]
    assert len(remuda("log", "tail", written.url, "--from", "0", "--json").values) == 12
    assert len(remuda("log", "tail", written.url, "--since", "10m", "--json").values) == 12
    events = remuda("log", "tail", written.url, "--events", "--json").values
    assert [event["state"] for event in events] == list("FSXFSX")
    assert events[0]["offset"] == remuda("log", "tail", written.url, "--from", "0", "--json").values[0]["offset"]
    assert "id-11" in remuda("log", "tail", written.url).out


def test_u3_log_tail_follows_a_stream(written: WrittenStream, tmp_path: Path) -> None:
    written.publish([Message("order.placed", b"first")])
    following = start(tmp_path, "log", "tail", written.url, "--follow", "--json")
    limit = threading.Timer(120, following.kill)
    limit.start()
    try:
        assert json.loads(wait_for(following, "offset"))["body"] == "first"
        written.publish([Message("order.placed", b"second")])
        assert json.loads(wait_for(following, "offset"))["body"] == "second"
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 0
    finally:
        limit.cancel()
        following.kill()
        following.communicate(timeout=100)


def test_u3_one_message_tells_its_life_across_processes(remuda: Remuda, written: WrittenStream) -> None:
    (id,) = written.publish([Message("order.placed", b"hello")])
    tell(written.writer, id, State.FETCHED, State.RETRY)
    tell(written.writer, id, State.FETCHED, State.SUCCESS, State.COMPLETED)
    written.writer.flush()
    told = remuda("message", written.url, id, "--json").value
    assert (told["id"], told["body"], told["state"]) == (id, "hello", "completed")
    assert [entry["state"] for entry in told["timeline"]] == ["L", "Q", "F", "R", "F", "S", "X"]
    assert told == remuda("message", written.url, str(told["offset"]), "--offset", "--json").value
    assert "published as order.placed" in remuda("message", written.url, id).out


def test_u3_what_is_not_there_is_said_in_one_line(remuda: Remuda, written: WrittenStream, broker_url: str) -> None:
    assert "there is no message 'nobody'" in remuda("message", written.url, "nobody", code=1).err
    said = remuda("log", "tail", f"{broker_url}?log=no-such-log", code=1).err
    assert "there is no stream 'no-such-log'" in said
    assert "guest:guest" not in said
    said = remuda("log", "tail", "amqp://me:secret@127.0.0.1:1/", code=1).err
    assert "no connection" in said
    assert "secret" not in said
    assert "is not a directory" in remuda("top", written.url, code=1).err


def test_u3_schedules_on_rabbitmq(remuda: Remuda, clean_url: str) -> None:
    """B19: the command lists them from the definitions and the event log, beside the process that runs them."""
    bus = Bus(clean_url)
    bus.every("1h", name="tick")(lambda: None)
    bus.cron("0 3 * * *", tz="Europe/Berlin", name="nightly")(lambda: None)
    try:
        bus.start()
        rows = {row["name"]: row for row in remuda("schedules", clean_url, "--json").value}
        assert {name: row["rule"] for name, row in rows.items()} == {
            "tick": "every 1h",
            "nightly": "cron 0 3 * * * Europe/Berlin",
        }
        assert all(row["next"] and row["last"] is None and row["status"] == "running" for row in rows.values())
        shown = remuda("schedules", clean_url).out
        assert "nightly" in shown
        assert "never" in shown
    finally:
        bus.close()
