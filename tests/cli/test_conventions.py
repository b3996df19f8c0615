"""U3: what all commands have in common: `--json`, exit codes, completion, 80 columns."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import remuda as package
from remuda import Bus, open_broker
from remuda.cli.app import app
from tests.cli.kit import Remuda

SERVES = {"run", "worker"}
"""These end when they are told to; their log is JSON with `--log-json`."""
PRINTS = {"db sql", "serve"}
"""SQL to be run, and an address to connect to."""


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", sorted(ALL.keys() - PRINTS))
def test_every_command_answers_programs(name: str) -> None:
    options = {option for parameter in ALL[name].params for option in parameter.opts}
    assert ("--log-json" if name in SERVES else "--json") in options


def test_what_was_done_is_told_to_programs(remuda: Remuda, data: str) -> None:
    assert remuda("publish", data, "order.placed", '{"id": 9}', "--id", "nine", "--json").value == {"id": "nine"}
    assert remuda("cancel", data, "nine", "--json").value == {"id": "nine", "cancelled": True, "status": "dead"}
    again = remuda("cancel", data, "nine", "--json", code=1).value
    assert (again["cancelled"], again["status"]) == (False, "dead")
    assert remuda("pause", data, "ship", "--json").value == {"queue": "ship", "status": "only-publish"}
    assert remuda("resume", data, "ship", "--json").value == {"queue": "ship", "status": "running"}
    assert remuda("reprocess", data, "ship", "--json").value == {"queue": "ship", "reprocessed": 3}
    with Bus(data) as bus:
        bus.broker.create_queue("other")
    moved = remuda("move", data, "ship", "other", "--json").value
    assert moved == {"queue": "ship", "to": "other", "moved": 4}
    assert remuda("clear", data, "other", "--yes", "--json").value == {"queue": "other", "cleared": 4}
    assert remuda("forget", data, "other", "--yes", "--json").value == {"queue": "other", "forgotten": 4}
    made = remuda("dashboard-user", "users.toml", "ada", "--password", "correct horse", "--json").value
    assert made == {"user": "ada", "file": "users.toml", "role": "operator", "new": True}
    url = "sqlite:///outbox.db"
    assert remuda("db", "init", url, "--json").value["installed"][0] == 1
    assert remuda("db", "upgrade", url, "--json").value == {"installed": []}
    assert remuda("db", "retry", url, "--json").value == {"retried": 0}


def test_exit_codes(remuda: Remuda, data: str) -> None:
    """0 done, 1 could not be done, 2 not understood."""
    remuda("queues", data)
    assert remuda("queues", "nowhere", code=1).err.startswith("error: ")
    for wrong in (["queues"], ["queues", data, "--colour"], ["nonsense"], ["messages", data, "ship", "--limit", "x"]):
        told = remuda(*wrong, code=2)
        assert told.out == ""
        assert told.err


@pytest.mark.parametrize("target", ["a" * 5000, "a" * 300 + ":b", "", "app.py", "no\0name"])
def test_what_cannot_be_a_directory_is_one_line(remuda: Remuda, folder: Path, target: str) -> None:
    told = remuda("queues", target, "--json", code=1)
    assert (told.out, told.err[:7], told.err.count("\n"), len(told.err) < 2500) == ("", "error: ", 1, True)


def test_many_queues_do_not_flood_the_terminal(remuda: Remuda, folder: Path) -> None:
    with open_broker("many", sync="os") as broker:
        for number in range(300):
            broker.create_queue(f"q{number:03}")
    said = remuda("messages", "many", "q0055", code=1).err
    assert said.endswith("there is no queue 'q0055'; of 300 queues the nearest are: q055, q005, q255\n"), said
    assert "100 more queues" in remuda("top", "many", "-n", "1").out


def test_questions_are_asked_on_stderr_and_silence_is_no(
    remuda: Remuda, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remuda("index", "build", data)
    for words in (["index", "drop", data], ["queues", data, "--remove", "ship"], ["clear", data, "ship"]):
        for stdin in (io.StringIO(""), io.StringIO("what?\n"), None):
            monkeypatch.setattr(sys, "stdin", stdin)
            told = remuda(*words, "--json", code=1)
            assert told.out == ""
            assert "? [y/N]: " in told.err
            assert told.err.endswith("nothing was changed\n")
    assert remuda("queues", data, "--remove", "ship", "--yes", "--json").value == {"queue": "ship", "removed": True}
    assert remuda("index", "drop", data, "-y", "--json").value == {"dropped": f"{data}/index"}


def test_an_index_cannot_begin_behind_the_end(remuda: Remuda, data: str) -> None:
    for start in ("99", "99999999999999999999999"):
        assert "the log ends at offset 5" in remuda("index", "build", data, "--from", start, code=1).err
    assert not Path(data, "index").exists()


@pytest.mark.parametrize("command", ["init", "status", "messages", "retry"])
def test_a_database_that_cannot_be_used_is_one_line(remuda: Remuda, folder: Path, command: str) -> None:
    for url in ("sqlite:///app.py", "postgresql://nobody:x@127.0.0.1:1/none"):
        told = remuda("db", command, url, "--json", code=1)
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert told.err.startswith("error: the database cannot be used: ")
    remuda("db", "messages", "sqlite:///outbox.db", "--limit", "9" * 23, code=2)


def test_a_reader_that_leaves_is_no_error(data: str, folder: Path) -> None:
    """`remuda log tail data | head -1`."""
    with Bus("data") as bus:
        bus.publish_many("order.placed", ({"id": 1, "text": "x" * 200} for _ in range(2000)))
    source = str(Path(package.__file__).parent.parent)
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m remuda.cli log tail data --from 0 | head -n 1"],
        env={**os.environ, "PYTHONPATH": source}, cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("remuda que", {"queues"}), ("remuda messages data sh", {"ship"}), ("remuda pause nowhere sh", set())],
)
def test_a_shell_completes_commands_and_queues(data: str, folder: Path, typed: str, offered: set[str]) -> None:
    source = str(Path(package.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "remuda.cli"],
        env={
            **os.environ, "PYTHONPATH": source, "_REMUDA_COMPLETE": "complete_bash", "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
        },
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize(
    "arguments",
    [
        ["queues", "data"], ["messages", "data", "ship"], ["message", "data", "order-2"], ["schedules", "data"],
        ["config"], ["log", "tail", "data"], ["report", "data"],
        ["index", "build", "data"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_tables_fit_into_80_columns(remuda: Remuda, data: str, arguments: list[str]) -> None:
    source = str(Path(package.__file__).parent.parent)
    code = (
        "import os, pty, sys; from remuda.cli import main\n"
        "code = pty.spawn([sys.executable, '-m', 'remuda.cli', *sys.argv[1:]])\n"
        "sys.exit(os.waitstatus_to_exitcode(code))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": source, "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=90, check=False,
    )  # fmt: skip
    lines = done.stdout.decode().replace("\r\n", "\n").splitlines()
    assert done.returncode == 0, lines
    assert max(map(len, lines)) <= 80, [line for line in lines if len(line) > 80]
