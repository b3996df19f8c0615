"""The queues of a bus as its broker must have them, and queues that are left over."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from remuda.bus.broker_api import Broker, QueueInfo
from remuda.bus.publishing.system_queues import SYSTEM_QUEUES
from remuda.bus.settings.settings import QueueSettings
from remuda.model.errors import InvalidOption
from remuda.model.options import QueueType
from remuda.model.urls import parse_url

_log = logging.getLogger("remuda.bus")

LEASE: Final = "60s"
"""How long a worker may be silent; it renews its lease while a handler runs."""


def declare_queues(broker: Broker, chosen: Mapping[str, QueueSettings], patterns: Mapping[str, Sequence[str]]) -> None:
    """Make the queues of these handlers, and the bus's own, what they have to be."""
    for queue, settings in chosen.items():
        _declare(broker, queue, patterns[queue], settings.queue_size, settings.unique)
    for queue in SYSTEM_QUEUES:
        _declare(broker, queue, [], 500)
    for queue, settings in chosen.items():
        if settings.failover is not None and settings.failover not in chosen:
            _declare_elsewhere(broker, settings.failover, f"message.failover.{queue}")


def warn_of_orphans(broker: Broker, url: object, mine: Iterable[str], targets: Iterable[str]) -> None:
    """Tell of queues that still take or hold messages although no handler here works on them."""
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
            info.name, _what_it_has(info), directory, info.name, directory, info.name,
        )  # fmt: skip


def refuse_cycles(queues: Iterable[str], failover_of: Callable[[str], str | None]) -> None:
    for start in queues:
        seen, queue = [start], failover_of(start)
        while queue is not None:
            if queue in seen:
                raise InvalidOption(f"failover goes in a circle: {' → '.join([*seen, queue])}; one of them must end it")
            seen.append(queue)
            queue = failover_of(queue)


def _what_it_has(info: QueueInfo) -> str:
    parts = []
    if info.size:
        parts.append("1 message" if info.size == 1 else f"{info.size} messages")
    if info.options.patterns:
        parts.append(f"a subscription to {', '.join(sorted(info.options.patterns))}")
    return " and ".join(parts)


def _declare(broker: Broker, queue: str, patterns: Sequence[str], size: int, unique: bool = False) -> None:
    wanted: dict[str, Any] = {
        "type": "pull",
        "patterns": sorted(set(patterns)),
        "acknowledge_timeout": LEASE,
        "queue_size": size,
        "unique_ids": unique,
    }
    differs = broker.create_queue(queue, wanted).differs
    if "type" in differs:
        raise InvalidOption(f"queue {queue!r} exists as a {differs['type'][1].value} queue; the bus needs a pull queue")
    changes = {name: wanted[name] for name in differs if name in wanted}
    if changes:
        broker.configure_queue(queue, who="bus", **changes)


def _declare_elsewhere(broker: Broker, queue: str, setting: str) -> None:
    """A queue that no handler here works on: people do, or another process, whose settings are left alone."""
    declared = broker.create_queue(queue, {"type": "pull", "acknowledge_timeout": LEASE})
    if "type" in declared.differs:
        kind: QueueType = declared.differs["type"][1]
        raise InvalidOption(
            f"{setting}: queue {queue!r} is a {kind.value} queue; messages can only fail over to a pull queue"
        )
    _log.info("%s: no handler here takes messages from %s; they wait there", setting, queue)
