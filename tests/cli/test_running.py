"""`remuda run` in processes of its own: stopping in order, at once, and starting anew."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cli.kit import Remuda, python, start, wait_for
from tests.servers.ports import free_port


def test_run_handles_and_stops_in_order(remuda: Remuda, folder: Path) -> None:
    remuda("publish", "app:bus", "order.placed", '{"id": 2}', "--id", "unlucky")
    remuda("publish", "app:bus", "order.placed", '{"id": 4}', "--id", "slow")
    port = free_port()
    process = start(folder, "run", "app:bus", "--threads", "ship=2", "--metrics", str(port), HOLD="25")
    before = wait_for(process, "holding")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert b'remuda_handlers_running{queue="ship"} 1.0' in answer.read()
    process.send_signal(signal.SIGTERM)
    before += wait_for(process, "stopping")
    (folder / "go").touch()
    said = before + process.communicate(timeout=100)[0]
    assert process.returncode == 0, said
    assert "ship: attempt 1 of 2 of message unlucky failed: ValueError: no stock; next attempt in 1h" in said
    assert "stopping; running handlers have 10s to finish" in said
    assert "shipped 4" in said
    assert "Exception ignored" not in said
    (ship,) = (row for row in remuda("queues", "data", "--json").value if row["queue"] == "ship")
    assert (ship["done"], ship["delayed"], ship["inFlight"]) == (1, 1, 0)


def test_a_second_signal_stops_at_once_and_loses_nothing(remuda: Remuda, folder: Path) -> None:
    remuda("publish", "app:bus", "order.placed", '{"id": 4}', "--id", "slow")
    process = start(folder, "run", "app:bus", "--log-json", HOLD="60")
    said = wait_for(process, "holding")
    process.send_signal(signal.SIGINT)
    said += wait_for(process, "stopping")
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=100)[0]
    assert process.returncode == 128 + signal.SIGINT
    assert "delivered again" in rest
    logged = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert {"level": "info", "logger": "remuda.run"}.items() <= logged[-1].items()
    (held,) = remuda("messages", "data", "ship", "--json").value
    assert (held["id"], held["state"]) == ("slow", "in-flight")


def test_reload_starts_anew_when_a_file_changes(remuda: Remuda, folder: Path) -> None:
    process = start(folder, "run", "app:bus", "--reload")
    try:
        wait_for(process, "handles ship")
        source = (folder / "app.py").read_text()
        (folder / "app.py").write_text(source.replace('queue="ship"', 'queue="send"'))
        said = wait_for(process, "handles send")
        assert "app.py changed; restarting" in said
        (folder / "app.py").write_text("oops")
        assert "error: module app cannot be loaded: NameError" in wait_for(process, "waiting for a file to change")
        (folder / "app.py").write_text(source)
        wait_for(process, "handles ship")
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=100)[0]
    assert process.returncode == 0, rest


def test_l10_run_ends_with_a_code_when_its_broker_has_stopped(folder: Path) -> None:
    """L10, B16: rather than try for ever, so that whoever started it can start it again."""
    process = start(folder, "run", "app:bus", "--no-dashboard")
    wait_for(process, "started: ship (")
    shutil.rmtree(folder / "data")
    said = process.communicate(timeout=200)[0]
    assert process.returncode == 1, said
    assert "error: the broker stopped: directory" in said
    assert said.count("a worker failed and will try again") < 20, said


def test_u3_a_program_that_calls_run_says_what_it_does(folder: Path) -> None:
    """U3: as a Django command does, which has set up no logging for it."""
    process = python(folder, "-c", "from app import bus; bus.run()")
    wait_for(process, "started: ship (1 thread)")
    process.send_signal(signal.SIGINT)
    assert "stopping; handlers have 10s to finish" in process.communicate(timeout=100)[0]


def test_run_until_idle_ends_by_itself(remuda: Remuda, folder: Path) -> None:
    remuda("publish", "app:bus", "order.placed", '{"id": 1}')
    assert "shipped 1" in remuda("run", "app:bus", "--until-idle", "--threads", "2").out


@pytest.mark.parametrize("queue", ["ship", "staging.ship"])
def test_threads_of_a_queue_with_a_prefix(
    remuda: Remuda, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, queue: str
) -> None:
    """B3: with or without the prefix, as in settings and as `remuda queues` shows it."""
    monkeypatch.setenv("REMUDA_MESSAGE_PREFIX", "staging.")
    remuda("run", "app:bus", "--until-idle", "--threads", f"{queue}=3")
    assert "started: staging.ship (3 threads)" in caplog.messages


def test_tail_follows_a_log_that_another_process_writes(remuda: Remuda, folder: Path) -> None:
    remuda("publish", "data", "first", "1", "--create")
    process = start(folder, "log", "tail", "data", "--follow")
    wait_for(process, "first")
    remuda("publish", "data", "second", "2")
    wait_for(process, "second")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert process.returncode == 0


def test_changes_are_found_where_they_matter(folder: Path) -> None:
    from remuda.cli.serving.reload import snapshot

    (folder / ".venv").mkdir()
    (folder / ".venv" / "ignored.py").touch()
    (folder / "package").mkdir()
    (folder / "package" / "module.py").touch()
    (folder / "notes.txt").touch()
    before = snapshot(folder)
    assert sorted(before) == ["app.py", "package/module.py"]
    time.sleep(0.01)
    (folder / "package" / "module.py").write_text("changed")
    (folder / "remuda.toml").touch()
    assert {name for name, stamp in snapshot(folder).items() if before.get(name) != stamp} == {
        "package/module.py",
        "remuda.toml",
    }


def test_u3_run_serves_the_dashboard_and_says_where(remuda: Remuda, folder: Path) -> None:
    """On a free port if the usual one is taken; two apps may run side by side."""
    (folder / "other.py").write_text((folder / "app.py").read_text().replace('Bus("data")', 'Bus("other")'))
    both = [start(folder, "run", "app:bus"), start(folder, "run", "other:bus")]
    try:
        for process in both:
            address = wait_for(process, "dashboard at").split("dashboard at ")[1].strip()
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert b"Messaging" in answer.read()
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
    finally:
        for process in both:
            process.kill()
            process.communicate(timeout=100)


def test_u3_run_without_a_dashboard(remuda: Remuda, folder: Path) -> None:
    process = start(folder, "run", "app:bus", "--no-dashboard")
    try:
        wait_for(process, "handles ship")
        process.send_signal(signal.SIGTERM)
        assert "dashboard" not in process.communicate(timeout=100)[0]
    finally:
        process.kill()
    assert "give one or the other" in remuda("run", "app:bus", "--no-dashboard", "--users", "x", code=1).err
    assert "there is no login" in remuda("run", "app:bus", "--dashboard", "0.0.0.0:0", code=1).err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "cannot listen" in remuda("run", "app:bus", "--dashboard", f":{port}", code=1).err


def test_run_does_without_the_extra(remuda: Remuda, folder: Path) -> None:
    (folder / "jinja2.py").write_text("raise ImportError('not here')")
    process = start(folder, "run", "app:bus")
    try:
        assert 'pip install "remuda[server]"' in wait_for(process, "no dashboard")
        wait_for(process, "handles ship")
    finally:
        process.kill()
        process.communicate(timeout=100)
