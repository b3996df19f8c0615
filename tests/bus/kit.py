"""What the tests of the bus share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from remuda import Bus
from remuda.model.records import Event


def eventually(condition: Callable[[], object], within: float = 60.0) -> None:
    """Wait until something holds; fail if it does not in time."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@contextmanager
def running(bus: Bus, grace: float = 20.0) -> Iterator[Bus]:
    """The bus at work in the background, for tests in which threads, loops or processes are the point."""
    runner = bus.start()
    try:
        yield bus
    finally:
        runner.stop(grace)
        bus.close()


def events(bus: Bus, queue: str) -> list[Event]:
    """Everything that the log says of a queue."""
    return [event for record in bus.broker.spectate().events() for event in record.rows if event.queue == queue]


def attempts(bus: Bus, message: str, queue: str) -> int:
    return next(view.attempts for view in bus.broker.message(message).queues if view.queue == queue)


def state(bus: Bus, message: str, queue: str) -> str:
    return next(view.state.value for view in bus.broker.message(message).queues if view.queue == queue)


def headers(bus: Bus, message: str) -> dict[str, Any]:
    return dict(bus.broker.message(message).message.headers)
