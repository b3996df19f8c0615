"""One message at a time is cheap because little is done for it. Calls are counted: time depends on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from remuda import Message, open_broker
from remuda.model.queues.routing import Binding

pytestmark = [pytest.mark.alone, pytest.mark.source]

TURNS = 7
"""The fewest of so many count: where another thread writes at the moment, a message goes a longer way."""


def calls_of(work: Callable[[], Any]) -> list[tuple[str, str]]:
    """The files and names of all Python functions that are called."""
    found: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            found.append((frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("delayed", [False, True])
def test_one_message_takes_few_steps(delayed: bool, tmp_path: Path) -> None:
    """Also where others wait for a time."""
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("orders", type="pull")

        def publish(**columns: Any) -> None:
            broker.publish(Message("orders.new", b"x" * 200, **columns))

        def take() -> None:
            delivery = broker.pull("orders")
            assert delivery is not None
            delivery.ack()

        if delayed:
            publish(due=broker.runtime.clock() + 3600 * 1_000_000)
        publish()
        take()
        turns = [(calls_of(publish), calls_of(take)) for _ in range(TURNS)]
        published, taken = (min(steps, key=len) for steps in zip(*turns, strict=True))
        assert len(published) <= 41  # with the one in this file
        assert len({file for file, _ in published}) <= 23  # as above
        assert len(published) + len(taken) <= 136


def test_a_publish_through_a_router_takes_hardly_more_steps(tmp_path: Path) -> None:
    """Q18: everything that is published goes the same way."""
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("orders", type="pull")
        broker.create_router("all", "direct", [Binding(queue="orders", key="orders.new")])

        def publish() -> None:
            broker.publish(Message("orders.new", b"x" * 200))

        def route() -> None:
            broker.route("all", Message("orders.new", b"x" * 200))

        publish()
        route()
        published, routed = (min((calls_of(work) for _ in range(TURNS)), key=len) for work in (publish, route))
        assert len(routed) <= 1.5 * len(published)


def test_a_failure_takes_few_steps(tmp_path: Path) -> None:
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("orders", type="pull")
        broker.publish([Message("orders", b"%d" % number) for number in range(TURNS)])
        steps = []
        for _ in range(TURNS):
            delivery = broker.pull("orders")
            assert delivery is not None
            steps.append(len(calls_of(partial(delivery.retry, after="1h", reason="no"))))
        assert min(steps) <= 65
        assert broker.queue("orders").delayed == TURNS
