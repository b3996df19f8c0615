"""The bus's own queues: messages nobody subscribed to, and answers that could not be published at first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.bus.context import Context
from remuda.bus.handler import ExecutorKind, Handler, HandlerOptions, plan
from remuda.bus.retry import NEVER, RetryPolicy
from remuda.model.durations import MINUTE, SECOND
from remuda.model.topics import matches

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

UNROUTED: Final = "remuda.unrouted"
"""Where messages without a subscriber are kept (B13). Reprocessing the queue routes them anew."""
CALLBACKS: Final = "remuda.callbacks"
"""Where answers wait that a queue refused (B9)."""

_CALLBACK_RETRIES: Final = RetryPolicy(max_retries=50, intervals=(SECOND, 5 * SECOND, 30 * SECOND, MINUTE))


class NoSubscriber(Exception):
    """Nobody is subscribed to the message's topic."""


def internal_handlers(bus: Bus) -> Iterator[Handler]:
    def route_anew(context: Context) -> None:
        message = context.message
        if not any(matches(pattern, message.name) for handler in bus.handlers for pattern in handler.topics):
            raise NoSubscriber(f"nobody is subscribed to {message.name}")
        bus.deliver([msgspec.structs.replace(message, created=0)])

    def publish_answer(context: Context) -> None:
        bus.deliver([msgspec.structs.replace(context.message, created=0)])

    for queue, function, retry in ((UNROUTED, route_anew, NEVER), (CALLBACKS, publish_answer, _CALLBACK_RETRIES)):
        options = HandlerOptions(retry=retry, threads=1, executor=ExecutorKind.THREADS)
        yield Handler(queue, queue, ("#",), function, options, plan(function, batch=False))
