"""What the command line does to a directory, and that it is logged with who did it."""

from __future__ import annotations

from pathlib import Path

import pytest

from remuda import Bus, open_broker
from tests.cli.kit import Remuda


def test_publish_prints_the_id_and_keeps_the_message(remuda: Remuda, folder: Path) -> None:
    number = remuda(
        "publish", "data", "order.placed", '{"id": 7}', "--header", "a=b=c", "--callback", "done", "--delay", "1h",
        "--user", "ada", "--create",
    ).out.strip()  # fmt: skip
    with open_broker("data") as broker:
        document = broker.message(number)
    assert document.message.body == b'{"id":7}'
    assert document.message.headers["a"] == "b=c"
    assert document.message.headers["cap-callback-name"] == "done"
    assert document.message.headers["remuda-user"] == "ada"
    assert document.message.due is not None


def test_publish_takes_texts_an_app_and_standard_input(
    remuda: Remuda, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\x00raw")))
    remuda("publish", "app:bus", "order.placed", "-", "--id", "raw", "--high")
    remuda("publish", "data", "order.placed", "just words", "--id", "words", "--create")
    rows = {row["id"]: row["body"] for row in remuda("messages", "data", "ship", "--json").value}
    assert rows == {"raw": "\x00raw", "words": "just words"}


def test_reprocess_by_reason_and_time(remuda: Remuda, data: str) -> None:
    assert remuda("reprocess", data, "ship", "--reason", "something else").out == "0 messages back in ship\n"
    assert remuda("reprocess", data, "ship", "--until", "1h").out == "0 messages back in ship\n"
    chosen = ("--reason", "no such", "--since", "1h", "--who", "ada")
    assert remuda("reprocess", data, "ship", *chosen).out == "1 message back in ship\n"
    (event,) = remuda("log", "tail", data, "--events", "-n", "1", "--json").values
    assert (event["reason"], event["who"]) == ("reprocessed", "ada")


def test_clear_asks_first(remuda: Remuda, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert "nothing was changed" in remuda("clear", data, "ship", code=1).err
    assert remuda("clear", data, "ship", "--yes", "--who", "ada").out == "2 messages cleared from ship\n"
    (ship,) = (row for row in remuda("queues", data, "--json").value if row["queue"] == "ship")
    assert (ship["waiting"], ship["delayed"], ship["dead"]) == (0, 0, 2)


def test_pause_and_resume(remuda: Remuda, data: str) -> None:
    def status() -> object:
        return next(row["status"] for row in remuda("queues", data, "--json").value if row["queue"] == "ship")

    assert "it still accepts messages" in remuda("pause", data, "ship").out
    assert status() == "only-publish"
    assert "paused" in remuda("queues", data).out
    assert remuda("publish", data, "order.placed", "1").out, "paused means not delivering"
    assert "refuses publishers" in remuda("pause", data, "ship", "--refuse").out
    assert status() == "paused"
    assert "refuses publishers" in remuda("pause", data, "ship", "--only-publishers").out
    assert status() == "only-consume"
    remuda("pause", data, "ship", "--refuse", "--only-publishers", code=1)
    remuda("resume", data, "ship")
    assert status() == "running"


def test_config_says_where_settings_come_from(remuda: Remuda, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "remuda.toml").write_text('[message.retry]\nintervals = ["5s", "1m"]\n')
    monkeypatch.setenv("REMUDA_MESSAGE_THREADS", "4")
    rows = {row["setting"]: (row["value"], row["source"]) for row in remuda("config", "--json").value}
    assert rows["message.retry.intervals"] == (["10s", "1m"], "remuda.toml, line 2")
    assert rows["message.threads"] == (4, "REMUDA_MESSAGE_THREADS")
    assert rows["message.retry.min.interval"] == ("10s", "default")
    rows = {row["setting"]: (row["value"], row["source"]) for row in remuda("config", "app:bus", "--json").value}
    assert rows["message.retry.ship"] == (["1h"], "handler")
    assert rows["message.timeout.ship"] == ("30s", "handler")
    assert "message.retry.ship" in remuda("config", "app:bus").out


def test_config_knows_the_settings_of_queues_with_a_prefix(
    remuda: Remuda, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3: a setting names the queue without the prefix."""
    monkeypatch.setenv("REMUDA_MESSAGE_PREFIX", "staging.")
    monkeypatch.setenv("REMUDA_MESSAGE_THREADS__ship", "7")
    rows = {row["setting"]: (row["value"], row["source"]) for row in remuda("config", "app:bus", "--json").value}
    assert rows["message.threads.ship"] == (7, "REMUDA_MESSAGE_THREADS__ship")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["queues", "nowhere"], "there is no directory 'nowhere'; nothing was created"),
        (["top", "amqp://127.0.0.1"], "is not a directory"),
        (["messages", "data", "nope"], "queues the nearest are: "),
        (["messages", "data", "ship", "--state", "odd"], "--state must be one of waiting"),
        (["message", "data", "nope"], "there is no message 'nope'"),
        (["message", "data", "x", "--offset"], "an offset is a whole number"),
        (["reprocess", "data", "nope"], "nope"),
        (["reprocess", "data", "ship", "--since", "soon"], "--since: 'soon' is not a time"),
        (["log", "tail", "data", "--from", "0", "--since", "1h"], "give one of them"),
        (["publish", "data", "order.placed", "1", "--header", "oops"], "--header takes NAME=VALUE"),
        (["publish", "memory://", "order.placed", "1"], "would be lost when this command ends"),
        (["publish", "data", "", "1"], "topic"),
        (["run", "nope:bus"], "there is no module nope here"),
        (["run", "app"], "does not name a bus"),
        (["run", "app:ship"], "app:ship is a function, not a Bus; did you mean app:bus?"),
        (["run", "app:nope"], "did you mean app:bus?"),
        (["run", "broken:bus"], "ZeroDivisionError: division by zero (broken.py, line 1)"),
        (["run", "app:bus", "--grace", "soon"], "'soon' is not a duration"),
        (["run", "app:bus", "--threads", "0"], "--threads: message.threads must be at least 1"),
    ],
)
def test_errors_are_one_line(remuda: Remuda, data: str, folder: Path, arguments: list[str], words: str) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    result = remuda(*arguments, code=1)
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert words in result.err
    assert result.err.count("\n") == 1


def test_a_directory_that_is_not_shared_says_by_whom_it_is_used(remuda: Remuda, data: str) -> None:
    with open_broker(data, shared=False):
        assert "is open in process" in remuda("clear", data, "ship", "--yes", code=1).err
        assert "is open in process" in remuda("publish", data, "order.placed", "1", code=1).err


def test_help_names_all_commands(remuda: Remuda) -> None:
    shown = remuda("--help").out
    for name in "run config publish queues messages message reprocess clear pause resume log".split():
        assert f"  {name} " in shown
    assert Bus.__name__ in shown
