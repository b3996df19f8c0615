"""B16: opening a broker on the network can be given up, and everybody who waits for it hears of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from remuda import Bus, open_broker
from remuda.bus import lazy_broker
from remuda.bus.lazy_broker import OpeningAbandoned
from remuda.model.errors import RemudaError
from tests.bus.kit import eventually


class SlowServer:
    """Opens a broker in memory for any URL, once it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked = 0
        self.answers: list[Any] = []
        self.failure: Exception | None = None

    def open(self, url: object, **options: Any) -> Any:
        self.asked += 1
        assert self.may_answer.wait(60)
        if self.failure is not None:
            raise self.failure
        self.answers.append(open_broker("memory://", **options))
        return self.answers[-1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> SlowServer:
    slow = SlowServer()
    monkeypatch.setattr(lazy_broker, "open_broker", slow.open)
    return slow


@pytest.fixture
def bus() -> Bus:
    return Bus("remuda://127.0.0.1:1")


def test_all_who_wait_share_one_attempt(bus: Bus, server: SlowServer) -> None:
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(lambda: bus.broker) for _ in range(4)]
        eventually(lambda: server.asked == 1)
        server.may_answer.set()
        assert len({id(one.result(60)) for one in waiting}) == 1
    assert server.asked == 1
    bus.close()


def test_closing_the_bus_ends_the_wait_and_a_late_broker_is_closed(bus: Bus, server: SlowServer) -> None:
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(bus.publish, "x") for _ in range(2)]
        eventually(lambda: server.asked == 1)
        bus.close()
        for one in waiting:
            with pytest.raises(OpeningAbandoned, match=r"remuda://127\.0\.0\.1:1; nothing was sent"):
                one.result(60)
    assert bus.closed
    server.may_answer.set()
    eventually(lambda: server.answers and server.answers[0].runtime.closed)


def test_a_bus_that_was_stopped_meanwhile_can_be_used_again(bus: Bus, server: SlowServer) -> None:
    bus.subscribe("x", queue="x")(lambda body: None)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(bus.run)
        eventually(lambda: server.asked == 1)
        bus.stop()
        running.result(60)
    server.may_answer.set()
    assert bus.publish("x")
    bus.close()


def test_a_failed_attempt_is_told_to_all_and_the_next_is_a_new_one(bus: Bus, server: SlowServer) -> None:
    server.failure = RemudaError("nobody answers")
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(lambda: bus.broker) for _ in range(2)]
        eventually(lambda: server.asked == 1)
        server.may_answer.set()
        assert {str(one.exception(60)) for one in waiting} == {"nobody answers"}
    server.failure = None
    assert bus.publish("x")
    bus.close()
