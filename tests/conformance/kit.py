"""What every theme of the suite is written with: the backend that a broker supplies, and short ways to say things."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from remuda.broker.delivery import Delivery
from remuda.broker.port import AsyncBroker, Broker, Subscription
from remuda.model.document import QueueView
from remuda.model.message import Message, Priority
from remuda.model.queues.notices import Notice, NoticeKind

SOON = 60.0
"""Seconds within which anything that shall happen must have happened, on the slowest machine."""
MOMENT = "30ms"
"""How long to look for something that shall not happen."""
_ROOM = 1 << 30


@contextlib.contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory, where the system has room there: for tests that are not about the disk, whose syncs take most
    of their time elsewhere."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM
    with tempfile.TemporaryDirectory(prefix="remuda-", dir=memory if roomy else None) as folder:
        yield Path(folder)


class Backend(Protocol):
    """A place where brokers are opened. Opening again after closing finds what was left there."""

    durable: bool
    """Whether messages outlive the broker."""

    def open(self, **options: Any) -> Broker: ...
    async def open_async(self, **options: Any) -> AsyncBroker: ...


class Conformance:
    """The base of every theme."""

    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        return backend.open()


def restarted(backend: Backend, broker: Broker, **options: Any) -> Broker:
    """The broker after a restart; skips where nothing outlives it."""
    if not backend.durable:
        pytest.skip("nothing outlives this broker")
    broker.close()
    return backend.open(**options)


def numbered(count: int, name: str = "orders", start: int = 0, **fields: Any) -> list[Message]:
    """Messages with the bodies 0, 1, 2, …"""
    return [Message(name, b"%d" % number, **fields) for number in range(start, start + count)]


def urgent(body: bytes, name: str = "orders") -> Message:
    return Message(name, body, priority=Priority.HIGH)


def received(subscription: Subscription) -> Delivery:
    """The next delivery, which must come."""
    delivery = subscription.receive(SOON)
    assert delivery is not None, "no delivery came"
    return delivery


def bodies_of(subscription: Subscription, count: int) -> list[bytes]:
    """Take and acknowledge `count` messages, one by one."""
    found: list[bytes] = []
    while len(found) < count:
        delivery = received(subscription)
        found += delivery.bodies
        delivery.ack()
    return found


def pulled(broker: Broker, queue: str = "orders", count: int = 1, **request: Any) -> Delivery:
    """The answer to a pull, which must not be empty."""
    delivery = broker.pull(queue, count, **request)
    assert delivery is not None, f"nothing waits in {queue}"
    return delivery


def waiting_bodies(broker: Broker, queue: str = "orders") -> list[bytes]:
    """Everything that waits in a pull queue, in order. It is taken and acknowledged."""
    delivery = broker.pull(queue, 100_000)
    if delivery is None:
        return []
    delivery.ack()
    return delivery.bodies


def eventually(condition: Callable[[], Any], within: float = SOON) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def view(broker: Broker, message: str | int, queue: str | None = None) -> QueueView:
    """One message's life in one of its queues."""
    views = broker.message(message).queues
    return next(one for one in views if queue is None or one.queue == queue)


def state_of(broker: Broker, message: str | int, queue: str | None = None) -> str:
    return view(broker, message, queue).state.value


def queue_names(broker: Broker) -> list[str]:
    return sorted(info.name for info in broker.queues())


class Notebook:
    """Writes down the notices that come."""

    def __init__(self, broker: Broker) -> None:
        self.notices: list[Notice] = []
        broker.on_notice(self.notices.append)

    def kinds(self, queue: str | None = None) -> list[NoticeKind]:
        return [notice.kind for notice in self.notices if queue is None or notice.queue == queue]

    def the(self, kind: NoticeKind, queue: str | None = None) -> Notice:
        """The first notice of this kind, which must come."""
        matching: list[Notice] = []

        def came() -> bool:
            matching[:] = [one for one in self.notices if one.kind is kind and (queue is None or one.queue == queue)]
            return bool(matching)

        eventually(came)
        return matching[0]
