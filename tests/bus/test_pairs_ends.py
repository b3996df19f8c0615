"""Every end without success is told (B9, B1), also where no handler had the message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, HandlerFailed, Message, NoResult
from remuda.model.errors import Conflict


def cancelled(bus: Bus, message: str) -> None:
    assert bus.cancel(message) == 1


def cleared(bus: Bus, message: str) -> None:
    assert bus.clear("q") == 1


def evicted(bus: Bus, message: str) -> None:
    bus.broker.configure_queue("q", message_limit=1, limit_exceeded="delete-oldest")
    bus.publish("x", 2)


def removed(bus: Bus, message: str) -> None:
    bus.broker.remove_queue("q")


ENDS: dict[Callable[[Bus, str], None], str] = {
    cancelled: "cancelled", cleared: "cleared", evicted: "evicted", removed: "queue removed",
}  # fmt: skip


@pytest.mark.parametrize("end", [*ENDS, None])
@pytest.mark.parametrize("reopened", [False, True])
def test_b9_a_failure_callback_is_called_at_every_end(
    tmp_path: Path, end: Callable[[Bus, str], None] | None, reopened: bool
) -> None:
    """B9: once, with the reason and the message's id."""
    told: list[tuple[str, str, str]] = []

    def opened() -> Bus:
        bus = Bus(tmp_path / "d", sync="os")
        bus.subscribe("x", queue="q")(lambda body: None)

        @bus.subscribe("failed", queue="failures")
        def failed(message: Message) -> None:
            headers = message.headers
            told.append((headers["cap-corr-id"], headers["cap-exception"], headers["cap-msg-group"]))

        return bus

    bus = opened()
    expires = "1s" if end is None else None
    message = bus.publish("x", 1, failure_callback="failed", expires=expires, delay=None if end is None else "500ms")
    if reopened:
        bus.close()
        bus = opened()
    with bus:
        if end is not None:
            end(bus, message)
        else:
            deadline = time.monotonic() + 30
            while bus.broker.queue("q").size and time.monotonic() < deadline:
                time.sleep(0.05)
        bus.run(until_idle=True)
    assert told == [(message, "expired" if end is None else ENDS[end], "q")]


@pytest.mark.parametrize("how", ["expires", "cancel"])
def test_b1_a_call_is_told_at_once(how: str) -> None:
    """B1: not at the end of its time-out."""
    bus = Bus()
    bus.subscribe("x", queue="q")(lambda body: body)
    with bus:
        bus.broker.set_status("q", "only-publish")
        raised: list[Exception] = []

        def call() -> None:
            try:
                bus.call("x", 1, timeout="60s", id="mine", expires="300ms" if how == "expires" else None)
            except Exception as error:
                raised.append(error)

        began = time.monotonic()
        caller = threading.Thread(target=call)
        caller.start()
        if how == "cancel":
            while not bus.broker.queue("q").size:
                time.sleep(0.01)
            assert bus.cancel("mine") == 1
        caller.join(60)
        assert time.monotonic() - began < 30
    assert isinstance(raised[0], HandlerFailed)
    assert ("expired" if how == "expires" else "cancelled") in str(raised[0])


def test_b20_cancel_says_how_many() -> None:
    """B20: an id may have been used twice."""
    bus = Bus()
    bus.subscribe("x", queue="q")(lambda body: body)
    with bus.testing() as test:
        for _ in range(3):
            test.publish("x", 1, id="a")
        assert bus.cancel("a") == 3
        assert bus.cancel("a") == 0
        assert test.run() == 0


@pytest.mark.parametrize("name", ["remuda.results", "remuda.callbacks", "remuda.unrouted"])
def test_q14_the_queues_of_the_bus_itself_take_messages(name: str) -> None:
    """Q14: no handler could be settled if they did not."""
    bus = Bus()
    bus.subscribe("x", queue="q", keep_result=True)(lambda body: body)
    with bus.testing() as test:
        for status in ("paused", "only-consume"):
            with pytest.raises(Conflict, match=f"{name} belongs to the bus itself"):
                bus.broker.set_status(name, status)
        bus.broker.set_status(name, "only-publish")
        message = test.publish("x", 5)
        test.run()
        assert bus.result(message) == 5


@pytest.mark.parametrize(
    ("rule", "why"), [({"singleton": "skip"}, "skipped"), ({"throttle": "1h"}, "skipped"), ({}, "unchanged")]
)
def test_b1_a_message_that_comes_into_no_queue_is_told_at_once(rule: dict[str, Any], why: str) -> None:
    """B1, B9, F4, T3: to the caller that waits, by the failure callback, and to whoever asks for its result."""
    bus = Bus()
    told: list[str] = []
    bus.subscribe("x", queue="q", **rule)(lambda body: body)

    @bus.subscribe("failed", queue="failures")
    def failed(message: Message) -> None:
        told.append(f"{message.headers['cap-corr-id']} {message.headers['cap-exception']}")

    options: dict[str, Any] = {"key": "k"} if rule else {"object": "o", "key": "k"}
    with bus.testing() as test:
        bus.publish("x", 1, delay="1h", **options)
        with pytest.raises(HandlerFailed, match=why):
            test.call("x", 1, **options)
        bus.publish("x", 1, id="a", failure_callback="failed", **options)
        assert bus.status("a").word == "in no queue"
        with pytest.raises(NoResult, match="in no queue"):
            bus.result("a", timeout="1h")
        test.run()
    assert told == [f"a {why}"]
