"""Declares the queues of a bus at its broker, and warns of queues that have no handler."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from remuda.bus.broker_api import Broker, QueueInfo
from remuda.bus.handlers.handler import Handler
from remuda.bus.handlers.queue_rules import Rules
from remuda.bus.settings.settings import QueueSettings
from remuda.model.errors import InvalidOption
from remuda.model.queues.options import QueueType
from remuda.model.queues.system_queues import SYSTEM_QUEUES
from remuda.model.values.urls import parse_url

_log = logging.getLogger("remuda.bus")

LEASE: Final = "60s"
"""How long a delivery stays with a worker that does not renew it; workers do while a handler runs."""


def declare_queues(broker: Broker, chosen: Mapping[str, QueueSettings], patterns: Mapping[str, Sequence[str]]) -> None:
    """Create the queues of these handlers and the bus's own, and change the options of those that differ."""
    for queue, settings in chosen.items():
        _declare(broker, queue, patterns[queue], settings.queue_size, settings.unique, settings.rules)
    for queue in SYSTEM_QUEUES:
        _declare(broker, queue, [], 500)
    for queue, settings in chosen.items():
        if settings.failover is not None and settings.failover not in chosen:
            _declare_elsewhere(broker, settings.failover, f"message.failover.{queue}")


def warn_of_orphans(broker: Broker, url: object, mine: Iterable[str], targets: Iterable[str]) -> None:
    """Log a warning for each queue that takes or holds messages but has no handler here."""
    known = {*mine, *targets, *SYSTEM_QUEUES}
    directory = str(parse_url(url)) if isinstance(url, str | os.PathLike) else str(url)  # without its password
    for info in broker.queues():
        if info.name in known or info.options.type is not QueueType.PULL or info.consumers:
            continue
        if not (info.options.patterns or info.size):
            continue
        _log.warning(
            "queue %s has %s but no handler here. If its handler was renamed: remuda move %s %s NEW_QUEUE; "
            "if nobody needs it: remuda queues %s --remove %s",
            info.name, _contents(info), directory, info.name, directory, info.name,
        )  # fmt: skip


def refuse_cycles(queues: Iterable[str], failover_of: Callable[[str], str | None]) -> None:
    """Raise `InvalidOption` if messages could fail over from queue to queue for ever."""
    for start in queues:
        seen, queue = [start], failover_of(start)
        while queue is not None:
            if queue in seen:
                circle = " → ".join([*seen, queue])
                raise InvalidOption(f"failover goes in a circle: {circle}; remove the failover of one of these queues")
            seen.append(queue)
            queue = failover_of(queue)


def refuse_deaf_targets(handlers: Mapping[str, Sequence[Handler]], failover_of: Callable[[str], str | None]) -> None:
    """Raise `InvalidOption` if messages would fail over to a queue of which no handler takes their topic."""
    for start, listening in handlers.items():
        topics = {topic for handler in listening for topic in handler.topics}
        queue = failover_of(start)
        while queue is not None:
            takers = handlers.get(queue, ())
            # The only handler of a queue gets whatever comes to it.
            for topic in sorted(topics) if len(takers) > 1 else ():
                examples = [topic.replace("*", "any").replace("#", words) for words in ("any", "any.any")]
                if not any(taker.takes(example) for taker in takers for example in examples):
                    raise InvalidOption(
                        f"messages of {start} fail over to {queue}, but no handler there takes {topic}; add the topic "
                        "to one of its handlers, or choose another queue"
                    )
            queue = failover_of(queue)


def _contents(info: QueueInfo) -> str:
    parts = []
    if info.size:
        parts.append("1 message" if info.size == 1 else f"{info.size} messages")
    if info.options.patterns:
        parts.append(f"a subscription to {', '.join(sorted(info.options.patterns))}")
    return " and ".join(parts)


def declare_published(broker: Broker, queue: str, topic: str, rules: Rules) -> None:
    """Create the queue that a type of messages names, unless it is there: its creator's options stand."""
    wanted = {"type": "pull", "patterns": [topic], "acknowledge_timeout": LEASE, **dict(rules)}
    differs = broker.create_queue(queue, wanted).differs
    others = sorted(name for name in differs if name in dict(rules))
    if others:
        _log.warning("queue %s exists with other options than its type of messages names: %s", queue, ", ".join(others))


def _declare(
    broker: Broker, queue: str, patterns: Sequence[str], size: int, unique: bool = False, rules: Rules = ()
) -> None:
    wanted: dict[str, Any] = {
        "type": "pull",
        "patterns": sorted(set(patterns)),
        "acknowledge_timeout": LEASE,
        "queue_size": size,
        "unique_ids": unique,
        **dict(rules),
    }
    differs = broker.create_queue(queue, wanted).differs
    if "type" in differs and differs["type"][1] is QueueType.PUSH:
        raise InvalidOption(f"queue {queue!r} exists as a push queue; the bus needs a pull or a round-robin queue")
    # An AMQP client's queue is round-robin, and whoever asks for a message of one gets it.
    changes = {name: wanted[name] for name in differs if name in wanted and name != "type"}
    if changes:
        broker.configure_queue(queue, who="bus", **changes)


def _declare_elsewhere(broker: Broker, queue: str, setting: str) -> None:
    """Create a failover queue without a handler here. It may belong to another process, so its options are kept."""
    declared = broker.create_queue(queue, {"type": "pull", "acknowledge_timeout": LEASE})
    if "type" in declared.differs:
        kind: QueueType = declared.differs["type"][1]
        raise InvalidOption(
            f"{setting}: queue {queue!r} is a {kind.value} queue; messages can only fail over to a pull queue"
        )
    _log.info("%s: no handler here takes messages from %s; they wait there", setting, queue)
