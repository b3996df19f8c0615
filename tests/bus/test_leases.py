"""Q3, B6: a long handler keeps its message, whatever the queue's `acknowledge_timeout` is, and whenever it changes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from remuda import Bus
from tests.bus import jobs
from tests.bus.kit import eventually, running

LONG = 3.0


@pytest.mark.parametrize("executor", ["threads", "asyncio", "processes"])
def test_q3_a_timeout_below_the_usual_renewal(tmp_path: Path, executor: str) -> None:
    """Q3: an operator may set any; the leases of what is fetched from then on are short from the first."""
    bus, ran = Bus(), tmp_path / "ran"

    def handle(path: str) -> None:
        jobs.linger(path)

    async def handle_async(path: str) -> None:
        jobs.note(path, "ran")
        await asyncio.sleep(LONG)

    handler = {"threads": handle, "asyncio": handle_async, "processes": jobs.linger}[executor]
    bus.subscribe("x", queue="q", executor=executor, threads=2)(handler)
    with running(bus):
        bus.broker.configure_queue("q", acknowledge_timeout="900ms")
        bus.publish("x", str(ran))
        eventually(lambda: bus.broker.queue("q").size == 0)
    assert jobs.notes(ran) == ["ran"]


def test_q3_a_queue_that_is_removed_while_a_handler_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Q3: its lease is gone, and nobody complains about that."""
    monkeypatch.setattr("remuda.bus.execution.active_delivery.RENEW", 0.05)
    bus, calls = Bus(), list[int]()

    @bus.subscribe("x", queue="q")
    def handle(body: int) -> None:
        calls.append(body)
        bus.broker.remove_queue("q")
        time.sleep(0.5)
        calls.append(body)

    bus.publish("x", 1)
    with running(bus):
        eventually(lambda: calls == [1, 1])
    assert "watching" not in caplog.text


def test_q3_a_timeout_that_is_lowered_while_a_handler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """B6: the next renewal gives the new, short lease, and those after it come in time."""
    monkeypatch.setattr("remuda.bus.execution.active_delivery.RENEW", 1.0)
    bus, calls = Bus(), list[int]()

    @bus.subscribe("x", queue="q", threads=2)
    def handle(body: int) -> None:
        calls.append(body)
        time.sleep(LONG)

    bus.publish("x", 1)
    with running(bus):
        eventually(lambda: calls)
        bus.broker.configure_queue("q", acknowledge_timeout="500ms")
        eventually(lambda: bus.broker.queue("q").size == 0)
    assert calls == [1]
