"""O5, U3: `remuda db` and `remuda relay`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from remuda import Bus
from remuda.outbox import Outbox, Status
from remuda.outbox.database.statements import LATEST
from tests.cli.kit import Remuda, runner, start, wait_for
from tests.outbox.kit import connect


@pytest.fixture
def remuda(capsys: pytest.CaptureFixture[str]) -> Remuda:
    return runner(capsys)


def test_tables_are_made_once(url: str, remuda: Remuda) -> None:
    """O5."""
    assert remuda("db", "status", url, "--json").value["version"] == 0
    assert "remuda db init" in remuda("db", "messages", url, code=1).err
    assert f"version {LATEST}" in remuda("db", "init", url).out
    assert "up to date" in remuda("db", "init", url).out
    assert "up to date" in remuda("db", "upgrade", url).out
    told = remuda("db", "status", url, "--json").value
    assert told["version"] == told["latest"] == LATEST
    assert told["messages"] == {"scheduled": 0, "succeeded": 0, "delayed": 0, "failed": 0}
    assert "scheduled" in remuda("db", "status", url).out


def test_sql_can_be_run_by_hand(url: str, remuda: Remuda) -> None:
    """O5: names as one wants them."""
    text = remuda("db", "sql", url, "--prefix", "mail_").out
    connection = connect(url)
    if url.startswith("sqlite"):
        connection.executescript(text)
    else:
        connection.execute(text.encode())
    connection.commit()
    assert remuda("db", "status", url, "--prefix", "mail_", "--json").value["version"] == LATEST
    with Bus("memory://") as bus:
        Outbox(bus, url, prefix="mail_")
        with bus.transaction(connection):
            bus.publish("order", 1)
    assert remuda("db", "status", url, "--prefix", "mail_", "--json").value["messages"]["scheduled"] == 1
    connection.close()


@pytest.mark.parametrize("wrong", [["--prefix", "a b"], ["--schema", "x'"], ["--status", "odd"]])
def test_wrong_arguments(wrong: list[str], remuda: Remuda, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    remuda("db", "init", url)
    assert "error: " in remuda("db", "messages", url, *wrong, code=1).err


def test_failed_messages_are_listed_and_retried(url: str, remuda: Remuda) -> None:
    """O2, U3."""
    with Bus("memory://") as bus:
        outbox = Outbox(bus, url, retry="never")
        outbox.create_tables()
        bus.broker.create_queue("small", type="pull", patterns=["big"], message_size_limit=10)
        connection = connect(url)
        with bus.transaction(connection):
            message = bus.publish("big", "x" * 100)
        connection.close()
        outbox.relay.pump()
    # The relay is gone with the bus: it would try again at once.
    assert remuda("db", "messages", url, "--json").value[0]["id"] == message
    assert "MessageTooLarge" in remuda("db", "messages", url).out
    assert "1 message will be" in remuda("db", "retry", url, message).out
    assert "0 messages will be" in remuda("db", "retry", url).out
    with Bus("memory://") as bus:  # where the message is not too large
        outbox = Outbox(bus, url)
        outbox.relay.pump()
        assert outbox.status(message).status is Status.SUCCEEDED  # type: ignore[union-attr]


APP = """
from remuda import Bus
from remuda.outbox import Outbox
bus = Bus("data")
Outbox(bus, "sqlite:///app.db")
plain = Bus("other")
"""


def test_relay_as_a_process(tmp_path: Path, remuda: Remuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """O2, U3."""
    (tmp_path / "outbox_app.py").write_text(APP)
    url = f"sqlite:///{tmp_path}/app.db"
    remuda("db", "init", url)
    connection = connect(url)
    with Bus("memory://") as bus:
        Outbox(bus, url)
        with bus.transaction(connection):
            bus.publish_many("order", range(20))
    connection.close()
    process = start(tmp_path, "relay", "outbox_app:bus")
    wait_for(process, "relaying for")
    with Bus("memory://") as bus:
        outbox = Outbox(bus, url)
        from tests.outbox.kit import eventually

        eventually(lambda: outbox.counts()[Status.SUCCEEDED] == 20)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=100)
    assert "20 messages sent" in out
    assert process.returncode == 0
    drained = start(tmp_path, "relay", "outbox_app:bus", "--drain")
    assert "0 messages sent" in drained.communicate(timeout=100)[0]
    wrong = start(tmp_path, "relay", "outbox_app:plain")
    assert "no outbox" in wrong.communicate(timeout=100)[0]
    assert wrong.returncode == 1
