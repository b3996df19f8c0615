"""Celery with its worker as it is: results, retries, ETA, groups, events and remote control (S2)."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.server.amqp.kit import eventually
from tests.servers.amqpd import RunningServer

_ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def _worker(url: str, backend: str, log: Path, *options: str) -> Iterator[dict[str, str]]:
    """A worker in a process of its own, killed at the end; gives the environment of its application."""
    environment = {**os.environ, "BROKER_URL": url, "RESULTS": backend, "PYTHONPATH": f"{_ROOT}:{_ROOT / 'src'}"}
    command = [sys.executable, "-m", "celery", "-A", "tests.server.amqp.apps.tasks", "worker", "-P", "solo", "-E"]
    with log.open("wb") as out:
        worker = subprocess.Popen(
            [*command, "-l", "info", *options], env=environment, cwd=_ROOT, stdout=out, stderr=out
        )
    try:
        eventually(lambda: b" ready." in log.read_bytes() or worker.poll() is not None, 120)
        assert worker.poll() is None, log.read_text()
        yield environment
    finally:
        worker.kill()
        worker.wait(60)


def _leave(app: Any) -> None:
    from kombu import pools

    pools.reset()  # connections that applications share
    app.close()


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with RunningServer() as server:
        yield server


@pytest.fixture(scope="module")
def tasks(running: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    log = tmp_path_factory.mktemp("celery") / "worker.log"
    with _worker(running.url.replace("%2F", "/"), "rpc://", log) as environment:
        os.environ.update({name: environment[name] for name in ("BROKER_URL", "RESULTS")})
        module = importlib.import_module("tests.server.amqp.apps.tasks")
        yield module
        _leave(module.app)


def test_results_come_back(tasks: Any) -> None:
    """S2."""
    assert [tasks.add.delay(n, n).get(timeout=90) for n in range(5)] == [0, 2, 4, 6, 8]


def test_retries_and_countdowns(tasks: Any) -> None:
    """S2."""
    assert tasks.flaky.delay(2).get(timeout=90) == 2


def test_a_task_waits_for_its_time(tasks: Any) -> None:
    """S2: ETA."""
    due = datetime.now(UTC) + timedelta(seconds=1)
    result = tasks.add.apply_async((1, 2), eta=due)
    assert result.get(timeout=90) == 3
    assert datetime.now(UTC) >= due


def test_groups_and_chains(tasks: Any) -> None:
    """S2."""
    from celery import chain, group

    assert group(tasks.add.s(n, 1) for n in range(10))().get(timeout=90) == list(range(1, 11))
    assert chain(tasks.add.s(1, 2), tasks.add.s(10))().get(timeout=90) == 13


def test_remote_control_and_events(tasks: Any) -> None:
    """S2: pidbox, reply queues, event exchange."""
    (answer,) = tasks.app.control.ping(timeout=60, limit=1)
    assert next(iter(answer.values())) == {"ok": "pong"}
    assert any(
        "add" in name
        for names in tasks.app.control.inspect(timeout=60, limit=1).registered().values()
        for name in names
    )
    seen: list[str] = []
    listening = threading.Event()

    def listen() -> None:
        with tasks.app.connection_for_read() as connection:
            receiver = tasks.app.events.Receiver(
                connection, handlers={"task-succeeded": lambda event: seen.append("done")}
            )
            listening.set()
            with contextlib.suppress(Exception):  # the server ends before the listener does
                receiver.capture(limit=200, timeout=30, wakeup=True)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    listening.wait(60)

    def heard() -> bool:
        tasks.add.delay(1, 1).get(timeout=90)
        return bool(seen)

    eventually(heard)


def test_chords(tmp_path: Path) -> None:
    """S2: a chord asks again and again, through the broker, whether its tasks are done."""
    from celery import Celery, chord

    results = tmp_path / "results"
    results.mkdir()
    quick = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    with RunningServer() as server:
        url, backend = server.url.replace("%2F", "/"), f"file://{results}"
        with _worker(url, backend, tmp_path / "worker.log", *quick):
            app = Celery("asking", broker=url, backend=backend, set_as_current=False)
            tasks = "tests.server.amqp.apps.tasks"
            header = [app.signature(f"{tasks}.add", args=(n, n)) for n in range(5)]
            asked = chord(header, app=app)(app.signature(f"{tasks}.total"))
            assert asked.get(timeout=120) == 20
            _leave(app)
