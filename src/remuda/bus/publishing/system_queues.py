"""The bus's own queues: messages nobody subscribed to, and answers that could not be published at first."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.bus.handlers.context import Context
from remuda.bus.handlers.exceptions import Dead, Reject
from remuda.bus.handlers.handler import ExecutorKind, Handler, HandlerOptions, plan
from remuda.bus.publishing import headers as names
from remuda.bus.settings.retry import RetryPolicy
from remuda.model.durations import MINUTE, SECOND

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

UNROUTED: Final = "remuda.unrouted"
"""Where messages are kept that have no subscriber (B13) or came from elsewhere without their headers (M3).
Reprocessing the queue routes them anew."""
CALLBACKS: Final = "remuda.callbacks"
"""Where answers wait that could not be published at first (B9)."""
INTERNAL: Final = (UNROUTED, CALLBACKS)

_log = logging.getLogger("remuda.bus")
_TOPICS_TOLD: Final = 1000
_RETRIES: Final = RetryPolicy(max_retries=50, intervals=(SECOND, 5 * SECOND, 30 * SECOND, MINUTE))


def internal_handlers(bus: Bus) -> Iterator[Handler]:
    told: set[str] = set()

    def route_anew(context: Context) -> None:
        message = context.message
        if names.INVALID in message.headers:
            raise Reject(message.headers[names.INVALID])
        queues = {handler.queue for handler in bus.handlers if handler.takes(message.name)}
        if not queues:
            _tell_once(told, message.name)
            raise Dead(f"nobody is subscribed to {message.name}")
        # To each queue by name: routed by topic, it would come back here if one of them was removed meanwhile.
        for queue in sorted(queues):
            bus.broker.publish(msgspec.structs.replace(message, created=0), queue=queue)

    def publish_answer(context: Context) -> None:
        bus.publish_messages([msgspec.structs.replace(context.message, created=0)])

    for queue, function in ((UNROUTED, route_anew), (CALLBACKS, publish_answer)):
        options = HandlerOptions(retry=_RETRIES, threads=1, executor=ExecutorKind.THREADS)
        yield Handler(queue, queue, ("#",), function, options, plan(function, batch=False))


def _tell_once(told: set[str], topic: str) -> None:
    if topic not in told and len(told) < _TOPICS_TOLD:
        told.add(topic)
        _log.warning("nobody is subscribed to %s; its messages are kept in %s", topic, UNROUTED)
