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

pytestmark = pytest.mark.alone


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
        published = calls_of(publish)
        assert len(published) <= 36
        assert len({file for file, _ in published}) <= 21  # with this one
        assert len(published) + len(calls_of(take)) <= 90


def test_a_failure_takes_few_steps(tmp_path: Path) -> None:
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("orders", type="pull")
        broker.publish([Message("orders", b"%d" % number) for number in range(2)])
        steps = []
        for _ in range(2):
            delivery = broker.pull("orders")
            assert delivery is not None
            steps = calls_of(partial(delivery.retry, after="1h", reason="no"))
        assert len(steps) <= 60
        assert broker.queue("orders").delayed == 2
