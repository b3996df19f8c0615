"""O4: the journal takes each message first, and forgets it when the broker or the database has it."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, Message
from remuda.model.errors import StorageError
from remuda.model.messages import Messages
from remuda.outbox import Outbox, Status
from remuda.outbox.database.connections import connect
from remuda.outbox.fallback import SLOW
from remuda.outbox.journal import Journal
from tests.outbox.kit import App, app, eventually
from tests.outbox.test_relay import Stubborn

ROOT = Path(__file__).resolve().parents[2]


class Away(OSError):
    """The database does not answer."""


def fail_the_database(made: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise Away("no route to the database")

    monkeypatch.setattr("remuda.outbox.outbox.connect", away)


def test_journal_off_a_double_failure_is_counted_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """O4: both the broker and the database fail."""
    with app(f"sqlite:///{tmp_path}/app.db") as made:
        broker = Stubborn(made.bus)
        broker.failing = StorageError("the broker is away")
        fail_the_database(made, monkeypatch)
        with caplog.at_level(logging.ERROR, "remuda.outbox"), pytest.raises(StorageError, match="away"):
            made.bus.publish_many("order", range(3))
        assert made.outbox.lost == 3
        assert "3 messages are lost" in caplog.text
        broker.failing = None


def test_a_broker_that_fails_leaves_the_message_in_the_table(tmp_path: Path) -> None:
    """O4: one failure loses nothing, with or without a journal."""
    with app(f"sqlite:///{tmp_path}/app.db") as made:
        broker = Stubborn(made.bus)
        broker.failing = StorageError("the broker is away")
        message = made.bus.publish("order", 1)
        assert made.outbox.status(message).status is Status.SCHEDULED  # type: ignore[union-attr]
        broker.failing = None
        assert made.run() == [1]
        assert made.ids == [message]


def test_journal_on_a_double_failure_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O4: what is left is brought away before anything new, in order, under its own id."""
    url, journal = f"sqlite:///{tmp_path}/app.db", str(tmp_path / "journal")
    with app(url, journal=journal) as made:
        broker = Stubborn(made.bus)
        broker.failing = StorageError("the broker is away")
        with monkeypatch.context() as patch:
            fail_the_database(made, patch)
            ids = made.bus.publish_many("order", range(3))
        assert made.outbox.lost == 0
        broker.failing = None
    kept = Journal(journal)
    assert [message.id for _, message in kept.left()] == ids
    kept.close()
    with app(url, journal=journal) as heir:
        last = heir.bus.publish("order", 3)
        assert sorted(heir.run()) == [0, 1, 2, 3]
        assert sorted(heir.ids) == sorted([*ids, last])
    kept = Journal(journal)
    assert len(kept) == 0
    kept.close()


CRASH = """
import sys
from remuda import Bus, Message
from remuda.outbox import Outbox
bus = Bus(sys.argv[3])
Outbox(bus, sys.argv[1], journal=sys.argv[2])
bus.publish("order", 7)
"""


@pytest.mark.parametrize("point", ["journaled", "delivered"])
def test_killed_in_between(point: str, tmp_path: Path) -> None:
    """O4: after the journal's write nothing is lost; what was delivered and not forgotten comes again under its id."""
    url, journal, data = f"sqlite:///{tmp_path}/app.db", str(tmp_path / "journal"), tmp_path / "data"
    with Bus("memory://") as bus:
        Outbox(bus, url).create_tables()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "REMUDA_OUTBOX_CRASH_AT": point}
    done = subprocess.run(
        [sys.executable, "-c", CRASH, url, journal, str(data)], env=environment, timeout=100, check=False
    )
    assert done.returncode == -9
    with app(url, broker=str(data), journal=journal) as heir:
        heir.bus.publish("order", 8)
        got = heir.run()
    assert got.count(8) == 1
    assert got.count(7) == (1 if point == "journaled" else 2)
    assert len(set(heir.ids)) == 2


def test_a_journal_in_use_says_so(tmp_path: Path) -> None:
    first, second = Journal(str(tmp_path / "j")), Journal(str(tmp_path / "j"))
    assert len(first) == 0
    with pytest.raises(Exception, match="one process"):
        len(second)
    first.close()


def test_refusals_are_the_callers(tmp_path: Path) -> None:
    """O4: a message that the broker refuses is not kept for later."""
    with app(f"sqlite:///{tmp_path}/app.db", journal=str(tmp_path / "j")) as made:
        made.bus.broker.create_queue("small", type="pull", patterns=["big"], message_size_limit=10)
        with pytest.raises(Exception, match="10"):
            made.bus.publish("big", "x" * 100)
        made.bus.publish("big", "ok")
        assert made.outbox.counts()[Status.SCHEDULED] == 0
    kept = Journal(str(tmp_path / "j"))
    assert len(kept) == 0
    kept.close()


def test_an_attempt_under_way_when_the_bus_is_closed_lets_the_journal_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "j")
    reached, goes_on = threading.Event(), threading.Event()
    attempts = itertools.count(1)

    def slowly(*given: Any) -> Any:
        match next(attempts):
            case 1:  # the publish itself
                time.sleep(2 * SLOW)
                raise Away("no route to the database")
            case 3:  # after it was reached again
                reached.set()
                goes_on.wait(60)
        return connect(*given)

    with app(f"sqlite:///{tmp_path}/app.db", journal=path) as made:
        broker = Stubborn(made.bus)
        broker.failing = StorageError("the broker is away")
        monkeypatch.setattr("remuda.outbox.outbox.connect", slowly)
        made.bus.publish("order", 1)
        assert reached.wait(60)
        (attempt,) = [one for one in threading.enumerate() if one.name == "remuda-journal"]
        made.bus.close()
        goes_on.set()
        attempt.join(60)
        kept = Journal(path)
        assert len(kept) == 0
        kept.close()


class Hanging:
    """A broker and a database that are away: each attempt waits, as for a machine that does not answer."""

    def __init__(self, made: App, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.3) -> None:
        self.away = True
        self.attempts = 0
        broker: Any = made.bus.broker
        publish, health = broker.publish, broker.health

        def hang(real: Any) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                if self.away:
                    self.attempts += 1
                    time.sleep(seconds)
                    raise Away("no answer")
                return real(*given, **named)

            return call

        monkeypatch.setattr(broker, "publish", hang(publish))
        monkeypatch.setattr(broker, "health", hang(health))
        monkeypatch.setattr("remuda.outbox.outbox.connect", hang(connect))


def test_what_is_down_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O4: a publish that goes to the journal does not wait for what is known to be away, and all of it is brought away
    by itself, in order."""
    with app(f"sqlite:///{tmp_path}/app.db", journal=str(tmp_path / "j")) as made:
        away = Hanging(made, monkeypatch)
        ids = [made.bus.publish("order", 0)]
        took = []
        for number in range(1, 40):
            began = time.monotonic()
            ids.append(made.bus.publish("order", number))
            took.append(time.monotonic() - began)
        assert sorted(took)[len(took) // 2] < 0.05, "a time-out takes 0.3 s here"
        away.away = False
        eventually(lambda: made.outbox.counts()[Status.SCHEDULED] == 40, 20)
        assert made.run() == list(range(40))
        assert made.ids == ids


def test_a_broker_that_is_away_is_not_waited_for_without_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O4: the table takes the messages at once, and the broker is used again when it answers."""
    with app(f"sqlite:///{tmp_path}/app.db") as made:
        away = Hanging(made, monkeypatch)
        monkeypatch.setattr("remuda.outbox.outbox.connect", connect)
        made.bus.publish("order", 0)
        began = time.monotonic()
        for number in range(1, 11):
            made.bus.publish("order", number)
        assert time.monotonic() - began < 1.5
        assert made.outbox.counts()[Status.SCHEDULED] == 11
        away.away = False

        def goes_to_the_broker() -> bool:
            before = made.outbox.counts()[Status.SCHEDULED]
            made.bus.publish("order", 11)
            return made.outbox.counts()[Status.SCHEDULED] == before

        eventually(goes_to_the_broker, 20)


def test_the_first_publish_waits_no_longer_than_its_url_says(tmp_path: Path) -> None:
    """O4: a machine that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"amqp://127.0.0.1:{silent.getsockname()[1]}/?reply_timeout=300ms"
        with Bus(url) as bus:
            outbox = Outbox(bus, f"sqlite:///{tmp_path}/app.db", journal=str(tmp_path / "j"))
            outbox.create_tables()
            began = time.monotonic()
            bus.publish("order", 1)
            assert time.monotonic() - began < 10, "without it, 20 s"
            assert outbox.counts()[Status.SCHEDULED] == 1


def test_what_is_left_in_the_journal_is_persisted_at_start(tmp_path: Path) -> None:
    """O4: without any publish, and without a relay."""
    journal = Journal(str(tmp_path / "j"))
    journal.append(Messages.of([Message("order", b"%d" % n, id=f"left-{n}") for n in range(5)]))
    journal.close()
    with app(f"sqlite:///{tmp_path}/app.db", journal=str(tmp_path / "j"), relay=False) as made:
        made.bus.start()
        assert made.outbox.counts()[Status.SCHEDULED] == 5
        made.bus.stop()
    kept = Journal(str(tmp_path / "j"))
    assert len(kept) == 0
    kept.close()


def test_what_cannot_be_persisted_at_start_is_persisted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(str(tmp_path / "j"))
    journal.append(Messages.of([Message("order", b"1", id="left")]))
    journal.close()
    with app(f"sqlite:///{tmp_path}/app.db", journal=str(tmp_path / "j"), relay=False) as made:
        away = Hanging(made, monkeypatch, 0.1)
        made.bus.start()
        away.away = False
        assert "journal" in made.bus.health().get("problems", {})
        eventually(lambda: made.outbox.counts()[Status.SCHEDULED] == 1, 20)
        eventually(lambda: made.bus.health()["ready"], 20)
        made.bus.stop()


def test_what_the_broker_refuses_waits_for_the_database_and_nothing_is_sent_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O4: one of those that are left is too large for its queue, and one cannot stand in a table."""
    journal = Journal(str(tmp_path / "j"))
    journal.append(Messages.of([Message("order", b"%d" % n * (50 if n == 1 else 1), id=f"left-{n}") for n in range(3)]))
    journal.append(Messages.of([Message("order", b"9", id="nul", key="a\0b")]))
    journal.close()
    with app(f"sqlite:///{tmp_path}/app.db", journal=str(tmp_path / "j"), relay=False) as made:
        queue = made.bus.handlers[0].queue
        made.bus.broker.configure_queue(queue, message_size_limit=10)
        broker = Stubborn(made.bus)
        broker.failing = StorageError("the broker is away")
        with monkeypatch.context() as patch:
            fail_the_database(made, patch)
            made.outbox._net.start()
            broker.failing = None
            eventually(lambda: made.bus.broker.queue(queue).size == 3)
            eventually(lambda: "1 messages stay" in (made.outbox._net.trouble or ""))
            made.bus.publish("order", 5)
            eventually(lambda: made.bus.broker.queue(queue).size == 4)  # nothing waits behind it
            for _ in range(3):
                made.outbox._net.drain()
            assert made.bus.broker.queue(queue).size == 4, "nothing comes twice"
        eventually(lambda: made.outbox.counts()[Status.SCHEDULED] == 1)
        eventually(lambda: made.outbox._net.trouble is None)
        assert made.bus.broker.queue(queue).size == 4


def test_what_cannot_be_read_in_the_journal_holds_up_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(str(tmp_path / "j"))
    left = [Message("order", b"%d" % n, id=f"left-{n}", mime_type="application/json") for n in range(3)]
    journal.append(Messages.of(left))
    journal._opened().put((1).to_bytes(8), b"\xff damaged")
    journal.close()
    with app(f"sqlite:///{tmp_path}/app.db", journal=str(tmp_path / "j")) as made:
        made.bus.publish("order", 3)
        assert sorted(made.run()) == [0, 2, 3]
        assert caplog.text.count("message 1 of journal") == 1
