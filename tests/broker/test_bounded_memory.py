"""Q21: a queue holds its first messages in memory; the rest waits in the log and is read back in order."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from remuda.broker.embedded.delivering.caches import HeadCache, TailCache
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.opening import open_broker
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.queues.options import QueueOptions
from tests.conformance.kit import bodies_of, numbered, pulled


class WatchedWindow(HeadCache):
    """Remembers how full it was, and how often it could serve."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.fullest = 0
        self.hits = 0
        self.misses = 0

    def put(self, first: int, messages: Messages) -> None:
        super().put(first, messages)
        self.fullest = max(self.fullest, self.size)

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        found = super().take(runs)
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found


class Watched:
    """Windows by queue."""

    def __init__(self) -> None:
        self.windows: dict[str, WatchedWindow] = {}

    def __call__(self, queue: str, options: QueueOptions) -> WatchedWindow:
        return self.windows.setdefault(queue, WatchedWindow(options.queue_size))


@pytest.mark.parametrize("size", [1, 7, 50])
def test_q21_only_queue_size_messages_are_held(tmp_path: Path, size: int) -> None:
    watched = Watched()
    with open_broker(tmp_path / "broker", sync="os", extensions=Extensions(store_for=watched)) as broker:
        broker.create_queue("orders", type="pull", queue_size=50)
        for start in range(0, 700, size):
            broker.publish(numbered(size, start=start))
        assert watched.windows["orders"].fullest <= 50
        found: list[bytes] = []
        while (delivery := broker.pull("orders", 13)) is not None:
            found += delivery.bodies
            delivery.ack()
        assert found == [b"%d" % number for number in range(len(found))]
        assert len(found) >= 700
        assert watched.windows["orders"].misses > 0


def test_q21_a_consumer_that_keeps_up_is_served_from_memory(tmp_path: Path) -> None:
    watched = Watched()
    with open_broker(tmp_path / "broker", sync="os", extensions=Extensions(store_for=watched)) as broker:
        broker.create_queue("orders")
        subscription = broker.subscribe("orders", batch=10)
        for start in range(0, 200, 10):
            broker.publish(numbered(10, start=start))
            bodies_of(subscription, 10)
        window = watched.windows["orders"]
        assert (window.hits, window.misses) == (20, 0)


def test_q21_a_window_serves_again_after_a_backlog(tmp_path: Path) -> None:
    watched = Watched()
    with open_broker(tmp_path / "broker", sync="os", extensions=Extensions(store_for=watched)) as broker:
        broker.create_queue("orders", type="pull", queue_size=20)
        broker.publish(numbered(10))
        broker.publish(numbered(100, start=10))
        for _ in range(11):
            pulled(broker, count=10).ack()
        misses = watched.windows["orders"].misses
        for start in range(110, 200, 10):
            broker.publish(numbered(10, start=start))
            assert pulled(broker, count=10).ack() == 10
        assert watched.windows["orders"].misses == misses


def test_q21_large_bodies_wait_on_disk(tmp_path: Path) -> None:
    with open_broker(tmp_path / "broker", sync="os") as broker:
        broker.create_queue("orders", type="pull", queue_size=100)
        tracemalloc.start()
        try:
            for _ in range(40):
                broker.publish(Messages(bodies=[b"x" * 10_000 for _ in range(100)], name="orders"))
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert broker.queue("orders").waiting == 4000
        assert held < 12_000_000, "40 MB wait, but only the window and the newest 8 MB are held"


def test_q21_a_backlog_is_read_back_after_a_restart(tmp_path: Path) -> None:
    with open_broker(tmp_path / "broker", sync="os") as broker:
        broker.create_queue("orders", type="pull", queue_size=10)
        for start in range(0, 300, 30):
            broker.publish(numbered(30, start=start))
    with open_broker(tmp_path / "broker", sync="os") as broker:
        delivery = pulled(broker, count=300)
        assert delivery.bodies == [b"%d" % number for number in range(300)]


@pytest.mark.alone
@pytest.mark.parametrize("options", [{"unique_ids": True}, {"byte_limit": 10**6}], ids=str)
def test_q21_messages_that_are_looked_up_in_the_log_are_read_along_with_their_neighbours(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Where ids or bytes count, those of messages that come from another queue are asked for, under the lock."""
    many, calls = 300, 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    with open_broker(tmp_path / "broker", sync="os", shared=False) as broker:
        broker.create_queue("orders", type="pull")
        broker.create_queue("limited", options, type="pull")
        for number in range(many):
            broker.publish(Message("orders", b"%d" % number))
        broker.runtime.engine._recent = TailCache()
        sys.setprofile(count)
        try:
            assert broker.move("orders", "limited") == many
        finally:
            sys.setprofile(None)
        assert calls < 150 * many
        assert pulled(broker, "limited", count=many)[-1].body == b"%d" % (many - 1)
