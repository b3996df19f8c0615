"""O4: the journal takes each message first, and forgets it when the broker or the database has it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus
from remuda.model.errors import StorageError
from remuda.outbox import Outbox, Status
from remuda.outbox.journal import Journal
from tests.outbox.kit import App, app
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
from remuda import Bus
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
