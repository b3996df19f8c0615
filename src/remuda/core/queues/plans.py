"""What queues ask of the messages that come to them, worked out when a queue changes, not for every message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from remuda.core.queues.queue import Queue
from remuda.model.queues.options import Status


class Plan:
    """For messages that go to all of these queues."""

    __slots__ = ("body_keys", "durable", "evicts", "merges", "queues", "screens", "watches")

    def __init__(self, queues: list[Queue]) -> None:
        self.queues = queues
        self.screens = any(queue.screens for queue in queues)
        """Whether one of them may refuse a message."""
        self.merges = any(queue.merges for queue in queues)
        """Whether one of them may take fewer messages than are published."""
        self.body_keys = tuple({path for queue in queues if (path := queue.options.body_key) is not None})
        """Where in the bodies of messages the keys stand by which queues count."""
        self.durable = any(queue.durable_in for queue in queues)
        self.watches = any(queue.watches for queue in queues)
        """Whether a producer waits for the outcome in one of them."""
        self.evicts = any(queue.evicts for queue in queues)


def plan_of(names: Iterable[str], queues: Mapping[str, Queue]) -> Plan | None:
    """None unless all of these queues exist and are initialized."""
    found: list[Queue] = []
    for name in names:
        queue = queues.get(name)
        if queue is None or queue.status is Status.NOT_INITIALIZED:
            return None
        found.append(queue)
    return Plan(found)
