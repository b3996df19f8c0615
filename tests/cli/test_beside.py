"""Every command works beside a running application (S5), and one application may run in several processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from remuda import open_broker
from tests.broker.shared.kit import SOURCE
from tests.cli.kit import Remuda, start, wait_for
from tests.servers.ports import free_port

pytestmark = pytest.mark.faults


def eventually(condition: Callable[[], Any], within: float = 60) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def ship(remuda: Remuda, data: str) -> dict[str, Any]:
    """The numbers of the queue that the app handles."""
    found: dict[str, Any] = next(one for one in remuda("queues", data, "--json").value if one["queue"] == "ship")
    return found


def end(process: subprocess.Popen[str]) -> str:
    """Everything printed until it ended after being asked to."""
    if process.poll() is None:
        process.terminate()
    try:
        rest, _ = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return rest


@pytest.fixture
def running(folder: Path, data: str) -> Iterator[subprocess.Popen[str]]:
    """The app of the tests, at work."""
    process = start(folder, "run", "app:bus")
    wait_for(process, "handles ship")
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=100)


def test_s5_commands_work_beside_a_running_app(running: subprocess.Popen[str], remuda: Remuda, data: str) -> None:
    before = ship(remuda, data)
    remuda("publish", data, "order.placed", '{"id": 1}')
    wait_for(running, "shipped 1")
    remuda("publish", data, "order.placed", '{"id": 3}')
    eventually(lambda: ship(remuda, data)["invalid"] == before["invalid"] + 1)
    assert "back in ship" in remuda("reprocess", data, "ship", "--state", "dead-letters").out
    eventually(lambda: ship(remuda, data)["invalid"] == before["invalid"] + 1)
    assert "of ship forgotten" in remuda("forget", data, "ship", "--yes").out
    assert ship(remuda, data)["invalid"] == 0
    assert "ship is paused" in remuda("pause", data, "ship").out
    remuda("publish", data, "order.placed", '{"id": 5}')
    eventually(lambda: ship(remuda, data)["waiting"] == 1)
    assert "cleared from ship" in remuda("clear", data, "ship", "--yes").out
    assert ship(remuda, data)["waiting"] == 0
    assert "ship is running" in remuda("resume", data, "ship").out
    assert "order.placed" in remuda("log", "tail", data).out
    assert remuda("messages", data, "ship").code == 0
    assert remuda("check", data).code == 0
    remuda("publish", data, "order.placed", '{"id": 6}')
    wait_for(running, "shipped 6")
    assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=100)
    assert running.returncode == 0


def test_s5_several_workers_are_restarted_and_stopped_in_order(folder: Path, remuda: Remuda, data: str) -> None:
    """The dashboard is served by the process that looks after them, at one address that stays."""
    process = start(folder, "run", "app:bus", "--workers", "3", "--dashboard", ":0")
    try:
        said = wait_for(process, "dashboard at")
        assert "app:bus on data handles ship in 3 processes" in said
        address = said.split("dashboard at ")[1].strip()
        begun = {wait_for(process, "started: ship (").splitlines()[-1].split()[3] for _ in range(3)}
        assert begun == {"1:", "2:", "3:"}, "each line says which worker speaks"
        children = _children(process.pid)
        assert len(children) == 3
        os.kill(children[0], signal.SIGKILL)
        wait_for(process, "ended by signal 9; restarting it")
        wait_for(process, "started: ship (")
        assert len(_children(process.pid)) == 3
        before = ship(remuda, data)["done"]
        for number in range(10, 16):
            remuda("publish", data, "order.placed", f'{{"id": {number}}}')
        eventually(lambda: ship(remuda, data)["done"] == before + 6)
        with urllib.request.urlopen(f"{address}api/v1/queues/ship", timeout=30) as answer:
            assert json.load(answer)["entered"]["S"] == before + 6
    finally:
        end(process)
    assert process.returncode == 0
    with open_broker(data, sync="os") as broker:
        assert broker.queue("ship").in_flight == 0


WORKED = """
import time
from remuda.cli.serving.worker_processes import end_with_supervisor
end_with_supervisor()
print("here", flush=True)
time.sleep(30)
print("still here", flush=True)
"""
SUPERVISOR = f"""
import os, subprocess, sys, time
environment = {{**os.environ, "REMUDA_SUPERVISOR": str(os.getpid())}}
subprocess.Popen([sys.executable, "-c", {WORKED!r}], env=environment)
time.sleep(60)
"""


def test_s5_workers_stop_when_their_supervisor_is_gone(folder: Path) -> None:
    command = [sys.executable, "-c", SUPERVISOR]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    (worker,) = _children(process.pid)
    try:
        process.kill()
        process.wait(30)
        assert process.stdout.read() == ""  # which the worker holds open as long as it lives
    finally:
        process.stdout.close()
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--workers", "0"], "at least 1"), (["--workers", "2", "--metrics", "9"], "of one process")],
)
def test_impossible_workers_are_refused(remuda: Remuda, data: str, arguments: list[str], words: str) -> None:
    assert words in remuda("run", "app:bus", *arguments, code=1).err


def test_s5_takeover_has_nothing_to_do_where_nobody_is(remuda: Remuda, data: str) -> None:
    assert "no process has" in remuda("takeover", data).out
    with open_broker(data, sync="os"):
        assert "answers; nothing was done" in remuda("takeover", data, "--yes", code=1).err


SITE = """
import os
from fastapi import FastAPI
from remuda import Bus

bus = Bus("site")
app = FastAPI()

@app.post("/orders/{number}")
def order(number: int) -> dict:
    bus.publish("order.placed", {"id": number})
    return {"pid": os.getpid()}
"""
WORKER = """
import os
from remuda import Bus

bus = Bus("site")

@bus.subscribe("order.placed", queue="ship")
def ship(order: dict) -> None:
    with open("shipped", "a") as out:
        out.write(f"{order['id']}\\n")
"""


def test_s5_fastapi_under_uvicorn_with_three_workers_and_a_worker_process(folder: Path) -> None:
    (folder / "site_app.py").write_text(SITE)
    (folder / "site_worker.py").write_text(WORKER)
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    command = [sys.executable, "-m", "uvicorn", "site_app:app", "--port", str(port), "--workers", "3"]
    site = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    worker = start(folder, "run", "site_worker:bus")
    try:
        eventually(lambda: _order(port, 0) is not None)
        pids: list[int | None] = [_order(port, number) for number in range(1, 41)]

        def several() -> bool:
            """On a busy machine the first process may take many orders before the others have started."""
            if len(set(pids)) == 1:
                pids.append(_order(port, len(pids) + 1))
            return len(set(pids)) > 1

        eventually(several)
        assert None not in pids
        shipped, orders = folder / "shipped", list(range(len(pids) + 1))
        eventually(lambda: shipped.exists() and set(map(int, shipped.read_text().split())) >= set(orders))
        assert sorted(map(int, shipped.read_text().split())) == orders
    finally:
        end(worker)
        site.terminate()
        try:
            site.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            site.kill()
            site.communicate(timeout=100)
    assert worker.returncode == 0


def _order(port: int, number: int) -> int | None:
    """Order over a connection of its own; the process that took it, or None if nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", f"/orders/{number}")
        answer = connection.getresponse()
        assert answer.status == 200
        return int(json.loads(answer.read())["pid"])
    except OSError:
        return None
    finally:
        connection.close()
