"""Commands of operators beyond the usual: forget, cancel, move, remove, schedules, versions (B15, B19, B20, U3)."""

from __future__ import annotations

import io
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import remuda as package
from remuda import Bus
from remuda.cli.viewing.directory_view import DirectoryView
from tests.bus.test_cancel_running import ended, sleeping
from tests.cli.kit import Remuda
from tests.server.site import until


def make(folder: Path, queue: str) -> Bus:
    bus = Bus(folder / "data")
    bus.subscribe("x", queue=queue, retry="never")(lambda body: 1 / 0)
    return bus


def test_version_and_help(remuda: Remuda) -> None:
    """U3"""
    root = Path(package.__file__).parents[2]
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert package.__version__ == version
    assert remuda("--version").out == f"remuda {version}\n"
    assert "Usage: remuda" in remuda("-h").out
    assert "Usage: remuda queues" in remuda("queues", "-h").out
    done = subprocess.run(
        [sys.executable, "-m", "remuda", "--version"], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(root / "src"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout == f"remuda {version}\n"


def test_forget_lets_dead_letters_go_with_who_did_it(
    remuda: Remuda, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B15"""
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    with make(folder, "q") as bus:
        bus.publish_many("x", [1, 2])
        bus.run(until_idle=True)
    assert "nothing was changed" in remuda("forget", "data", "q", code=1).err
    assert remuda("forget", "data", "q", "--reason", "nobody", "--yes").out == "0 dead letters of q forgotten\n"
    assert remuda("forget", "data", "q", "--yes", "--who", "ada").out == "2 dead letters of q forgotten\n"
    assert remuda("reprocess", "data", "q").out == "0 messages back in q\n"


def test_cancel(remuda: Remuda, folder: Path) -> None:
    """B20"""
    with make(folder, "q") as bus:
        bus.publish("x", 1, id="a", delay="1h")
    assert remuda("cancel", "data", "a").out == "a is cancelled\n"
    assert remuda("cancel", "data", "a", code=1).out == "a was not cancelled: it is dead\n"
    assert "no message 'b'" in remuda("cancel", "data", "b", code=1).err


def test_a_renamed_handlers_messages_can_be_moved_and_its_queue_removed(
    remuda: Remuda, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13"""
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    with make(folder, "old") as bus:
        bus.publish_many("x", [1, 2, 3])
    with make(folder, "new") as bus:
        assert bus.broker.queue("new").waiting == 0
    assert remuda("move", "data", "old", "new").out == "3 messages moved from old to new\n"
    remuda("move", "data", "old", "old", code=1)
    remuda("move", "data", "old", "nowhere", code=1)
    rows = {row["queue"]: row for row in remuda("queues", "data", "--json").value}
    assert (rows["old"]["waiting"], rows["old"]["dead"], rows["new"]["waiting"]) == (0, 0, 3)
    assert "nothing was changed" in remuda("queues", "data", "--remove", "old", code=1).err
    assert remuda("queues", "data", "--remove", "old", "--yes").out == "old is removed\n"
    assert "old" not in {row["queue"] for row in remuda("queues", "data", "--json").value}


def test_schedules_are_listed_with_last_and_next_run(remuda: Remuda, folder: Path) -> None:
    """B19"""
    bus = Bus(folder / "data")
    bus.every("1h", name="tidy")(lambda: None)
    bus.cron("0 3 * * *", tz="Europe/Berlin", name="nightly")(lambda: None)
    with bus:
        bus.run(until_idle=True)
    rows = {row["name"]: row for row in remuda("schedules", "data", "--json").value}
    assert rows["tidy"]["rule"] == "every 1h"
    assert rows["nightly"]["rule"] == "cron 0 3 * * * Europe/Berlin"
    assert rows["tidy"]["last"] is None
    assert rows["tidy"]["next"] is not None
    assert "never" in remuda("schedules", "data").out
    said = remuda("schedules", "data", "--run", "tidy").out
    assert said.startswith("tidy runs as soon as a worker takes it, as message schedule:tidy:")
    assert "nothing was done" in remuda("schedules", "data", "--run", "tidi", code=1).err
    remuda("pause", "data", "tidy")
    assert {row["status"] for row in remuda("schedules", "data", "--json").value} == {"paused", "running"}


def test_u4_the_next_run_is_found_behind_those_that_wait_for_retries(folder: Path) -> None:
    """U4 B19: it was planned last."""
    with Bus(folder / "data") as bus:
        bus.broker.create_queue("q", type="pull", patterns=["x"])
        for number in range(5):
            bus.publish("x", number, delay=f"{9 - number}h")
        bus.publish("x", 5)
        found = DirectoryView(folder / "data").newest("q", ("waiting", "delayed"), 3)
        assert sorted(message.body for message in found) == [b"3", b"4", b"5"]


def test_u4_a_verb_for_all_queues_that_are_named_so(
    remuda: Remuda, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U4 B15 B22: exactly those, and a queue whose own name has a * is meant alone."""
    with Bus(folder / "data") as bus:
        for name in ("team-1", "team-2", "team[1]", "other", "t*"):
            bus.broker.create_queue(name, type="pull", patterns=[name])
            delivery = bus.broker.pull(name) if bus.publish(name, 1) else None
            assert delivery is not None
            delivery.dead(reason="broken")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    refused = remuda("forget", "data", "team-*", code=1)
    assert "Forget 2 dead letters of 2 queues for good?" in refused.err
    assert remuda("pause", "data", "team*").out.startswith("3 queues are paused; they still accept messages")
    assert remuda("resume", "data", "team[1]").out == "team[1] is running\n"
    assert remuda("reprocess", "data", "t*").out == "1 message back in t*\n"
    assert remuda("reprocess", "data", "team-*", "--json").value == {"queue": "team-*", "reprocessed": 2}
    assert remuda("move", "data", "team-*", "team-2").out == "1 message moved from 2 queues to team-2\n"
    assert "no queue is named like 'nope*'" in remuda("resume", "data", "nope*", code=1).err
    shown = {row["queue"]: row for row in remuda("queues", "data", "--json").value}
    assert [shown[name]["dead"] for name in ("team-1", "team-2", "team[1]", "other", "t*")] == [0, 0, 1, 1, 0]
    assert shown["remuda.unrouted"]["status"] == "running"


def test_publish_makes_no_directory_unless_told(remuda: Remuda, folder: Path) -> None:
    """U3"""
    assert "nothing was published" in remuda("publish", "typo", "x", "1", code=1).err
    assert not (folder / "typo").exists()
    remuda("publish", "typo", "x", "1", "--create")
    assert (folder / "typo").is_dir()


def test_clear_with_filters(remuda: Remuda, folder: Path) -> None:
    """B15"""
    with make(folder, "q") as bus:
        bus.publish("x", 1)
    assert remuda("clear", "data", "q", "--topic", "y", "--yes").out == "0 messages cleared from q\n"
    assert remuda("clear", "data", "q", "--topic", "x", "--since", "10m", "--yes").out == "1 message cleared from q\n"


def test_cancel_what_runs(remuda: Remuda, folder: Path) -> None:
    """B20"""
    with Bus(folder / "data") as bus:
        id = sleeping(bus, folder / "flag")
        until(lambda: bus.broker.workers(), "the worker's sign")
        assert "was not cancelled: it is running" in remuda("cancel", "data", id, "--leave-running", code=1).out
        told = remuda("cancel", "data", id, "--who", "ann").out
        assert "cancelled" in told
        assert ended(bus, id).queues["q"].reason == "cancelled"
