"""What one message costs, in calls of functions, which no machine changes (B1, B4)."""

from __future__ import annotations

import io
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from remuda import Bus
from remuda.bus.execution.thread_pool import ThreadWorker, ThreadWorkerPool
from remuda.bus.execution.watchdog import Watchdog

pytestmark = pytest.mark.alone

ROUNDS = 20


def calls(action: Callable[[], object], *rooms: str) -> float:
    """How many Python functions of these rooms are called, on average."""
    counted: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith(rooms):
            counted[frame.f_code.co_qualname] += 1

    action()
    sys.setprofile(count)
    try:
        for _ in range(ROUNDS):
            action()
    finally:
        sys.setprofile(None)
    return counted.total() / ROUNDS


@pytest.fixture
def bus() -> Bus:
    return Bus()


def test_a_publish_takes_few_calls_of_the_bus(bus: Bus) -> None:
    """B1"""
    bus.subscribe("x", queue="q")(lambda body: None)
    with bus.testing():
        assert calls(lambda: bus.publish("x", "text"), "remuda.bus") <= 20


def test_a_handled_message_takes_few_calls_of_the_bus(bus: Bus) -> None:
    """B1"""
    bus.subscribe("x", queue="q")(lambda body: None)
    with bus.testing() as test:
        processor = next(one for one in bus.processors() if one.queue == "q")

        def handle() -> None:
            assert test._round(processor) == 1

        bus.publish_many("x", ["text"] * (ROUNDS + 1))
        assert calls(handle, "remuda.bus") <= 30


def test_a_message_more_in_a_delivery_takes_few_calls_more(bus: Bus) -> None:
    """B1: what a delivery costs as a whole is shared by its messages; one for a handler of batches costs even less."""

    @bus.subscribe("one", queue="one")
    def handle(body: bytes) -> None: ...

    @bus.subscribe("many", queue="many", batch=500)
    def handle_many(bodies: list[bytes]) -> None: ...

    processors = {one.queue: one for one in bus.processors()}

    def work(queue: str, count: int) -> float:
        worker = ThreadWorker(ThreadWorkerPool(processors[queue], Watchdog()))
        bus.publish_many(queue, [b"text"] * count * (ROUNDS + 1))

        def handle_all() -> None:
            delivery = bus.broker.pull(queue, count)
            assert delivery is not None
            assert len(delivery) == count
            assert worker._handle(delivery)

        return calls(handle_all, "remuda.bus")

    with bus.testing():
        assert work("one", 110) - work("one", 10) <= 100
        assert work("many", 110) - work("many", 10) <= 100 * 3


@pytest.fixture
def shown() -> Iterator[io.StringIO]:
    """What a terminal shows of the bus."""
    stream, logger = io.StringIO(), logging.getLogger("remuda.bus")
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    logger.propagate = False  # pytest's own handlers do their own work
    yield stream
    logger.propagate = True
    logger.removeHandler(handler)


def test_a_failure_is_described_once_for_each_place(bus: Bus, shown: io.StringIO) -> None:
    """B4: formatting a traceback, which reads the source, is what made failures dear; also where it is shown."""

    @bus.subscribe("x", queue="q", retry=["1h"])
    def handle(body: str) -> None:
        raise ValueError(body)

    with bus.testing() as test:
        processor = next(one for one in bus.processors() if one.queue == "q")

        def fail() -> None:
            assert test._round(processor) == 1

        bus.publish_many("x", [str(number) for number in range(2 * ROUNDS + 2)])
        assert calls(fail, "traceback", "linecache") == 0
        assert calls(fail, "remuda.bus") <= 50
    assert shown.getvalue().count("    raise ValueError(body)\nValueError: ") == 2 * ROUNDS + 2
    assert __file__ in shown.getvalue()
