"""B16: a command that waits for a server ends when it is asked to, whether the server is down, silent or lost."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.kit import start, wait_for
from tests.servers.faultproxy import FaultProxy
from tests.servers.ports import free_port
from tests.servers.rabbitmq import RabbitNode

SOON = 8.0
"""Seconds, for a busy machine. Those who wait for a server give up by themselves after 20 and more."""

APP = """
import os
from remuda import Bus
from remuda.outbox import Outbox
from remuda.worker import Worker, WorkerConfig

bus = Bus(os.environ["URL"])

@bus.subscribe("x", queue=os.environ.get("QUEUE", "q"))
async def handle(body: int) -> None: ...

def worker() -> Worker:
    return Worker(WorkerConfig(url=os.environ["URL"], input_queue="tasks"), lambda task: None)

relayed = Bus(os.environ.get("BROKER", "memory://"))
if "DATABASE" in os.environ:
    Outbox(relayed, os.environ["DATABASE"])
"""
WORKER = """
import app
worker = app.worker()
"""
LOOP = """
import asyncio, logging
from app import bus
logging.basicConfig(level=logging.INFO)
print("begins", flush=True)
try:
    asyncio.run(bus.run_async())
finally:
    bus.close()
    print("closed", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("app", APP), ("tasks", WORKER), ("loop", LOOP)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


class SilentServer:
    """Takes connections and never says a word."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._taken: list[socket.socket] = []
        self.port: int = listening.getsockname()[1]

    def wait_for_connection(self) -> None:
        self._listening.settimeout(120)
        self._taken.append(self._listening.accept()[0])

    def close(self) -> None:
        for connection in self._taken:
            connection.close()


@pytest.fixture
def silent() -> Iterator[SilentServer]:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listening, closing(SilentServer(listening)) as server:
        yield server


def ended(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """What it prints until it ends, in order and soon."""
    process.send_signal(number)
    try:
        out, _ = process.communicate(timeout=SOON)
    finally:
        process.kill()
    assert process.returncode == 0, out
    return out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("scheme", ["amqp", "remuda"])
def test_run_while_its_broker_is_silent(
    folder: Path, silent: SilentServer, scheme: str, number: signal.Signals
) -> None:
    process = start(folder, "run", "app:bus", "--no-dashboard", URL=f"{scheme}://127.0.0.1:{silent.port}")
    wait_for(process, "handles")
    silent.wait_for_connection()
    out = ended(process, number)
    assert f"stopped before it was connected to {scheme}://127.0.0.1:{silent.port}" in out


def test_s5_run_while_the_host_of_its_directory_is_frozen(folder: Path) -> None:
    """S5"""
    host = start(folder, "run", "app:bus", "--no-dashboard", URL="data")
    wait_for(host, "coroutine")
    host.send_signal(signal.SIGSTOP)
    try:
        process = start(folder, "run", "app:bus", "--no-dashboard", URL="data")
        wait_for(process, "handles")
        time.sleep(0.5)
        assert "stopped before it was connected to data" in ended(process, signal.SIGTERM)
    finally:
        host.send_signal(signal.SIGCONT)
    ended(host, signal.SIGTERM)


def test_run_while_its_rabbitmq_is_down(folder: Path) -> None:
    """U3: the password of the URL is not logged."""
    process = start(folder, "run", "app:bus", URL=f"amqp://guest:secret@127.0.0.1:{free_port()}")
    printed = wait_for(process, "trying again")
    printed += ended(process, signal.SIGTERM)
    assert "stopped before it was connected" in printed
    assert "secret" not in printed


def test_run_with_several_workers(folder: Path) -> None:
    process = start(folder, "run", "app:bus", "--workers", "2", URL=f"amqp://127.0.0.1:{free_port()}")
    wait_for(process, "trying again")
    assert "stopped before it was connected" in ended(process, signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_on_an_applications_own_loop(folder: Path, silent: SilentServer, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "loop.py"], cwd=folder, env={"URL": f"amqp://127.0.0.1:{silent.port}"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    wait_for(process, "begins")
    silent.wait_for_connection()
    process.send_signal(number)
    out, _ = process.communicate(timeout=SOON)
    assert "closed" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_while_rabbitmq_is_silent(folder: Path, silent: SilentServer, number: signal.Signals) -> None:
    """W1"""
    process = start(folder, "worker", "tasks:worker", URL=f"amqp://127.0.0.1:{silent.port}")
    silent.wait_for_connection()
    assert "stopped before it was connected" in ended(process, number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_relay_while_its_database_is_silent(folder: Path, silent: SilentServer, number: signal.Signals) -> None:
    """O2"""
    process = start(
        folder, "relay", "app:relayed", URL="memory://", DATABASE=f"postgresql://127.0.0.1:{silent.port}/shop"
    )
    wait_for(process, "relaying")
    assert "0 messages sent" in ended(process, number)


def test_run_after_its_rabbitmq_was_lost(folder: Path, rabbit: RabbitNode) -> None:
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        url = rabbit.url.replace(str(rabbit.port), str(proxy.port))
        process = start(folder, "run", "app:bus", "--no-dashboard", URL=url, QUEUE=f"q-{time.time_ns()}")
        wait_for(process, "coroutine")
        proxy.refuse = True
        proxy.cut()
        wait_for(process, "trying again")
        ended(process, signal.SIGTERM)


SLOW = """
import time
from remuda import Bus
bus = Bus("slow-data")
@bus.subscribe("x", queue="x", threads=2)
def handle(body):
    print("begun", flush=True)
    time.sleep(100)
@bus.on_startup
def begin():
    bus.publish("x", 1)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_b16_a_forced_end_of_several_workers_has_a_code(folder: Path, number: signal.Signals, code: int) -> None:
    """B16: whoever supervises it can tell it from a graceful one."""
    (folder / "slow.py").write_text(SLOW)
    process = start(folder, "run", "slow:bus", "--workers", "2", "--grace", "100s", "--no-dashboard")
    try:
        wait_for(process, "begun")
        process.send_signal(number)
        time.sleep(0.5)
        assert process.poll() is None
        deadline = time.monotonic() + 60
        while process.poll() is None:  # the second asks the workers to end at once, the third ends them
            assert time.monotonic() < deadline
            process.send_signal(number)
            time.sleep(0.5)
        assert process.returncode == code
    finally:
        process.kill()
        process.communicate()
