"""The handlers of the bus's own queues: unrouted messages, replies to publish again, kept results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from remuda.bus.handlers.context import Context
from remuda.bus.handlers.exceptions import Dead, Reject
from remuda.bus.handlers.handler import ExecutorKind, Handler, HandlerOptions
from remuda.bus.handlers.signature import read_signature
from remuda.bus.publishing import headers as names
from remuda.bus.settings.retry import RetryPolicy
from remuda.model.message import Message
from remuda.model.queues.system_queues import CALLBACKS, RESULTS, UNROUTED
from remuda.model.values.durations import MINUTE, SECOND

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

_log = logging.getLogger("remuda.bus")
_TOPICS_WARNED: Final = 1000
_RETRIES: Final = RetryPolicy(max_retries=50, intervals=(SECOND, 5 * SECOND, 30 * SECOND, MINUTE))


def system_handlers(bus: Bus) -> Iterator[Handler]:
    """One handler for each of the bus's own queues. They never reply: a message's callback is for its real handler."""
    warned: set[str] = set()

    def route_again(context: Context) -> None:
        message = context.message
        if names.INVALID in message.headers:
            raise Reject(message.headers[names.INVALID])
        queues = {handler.queue for handler in bus.handlers if handler.takes(message.name)}
        if not queues:
            _warn_once(warned, message)
            raise Dead(f"nobody is subscribed to {message.name}")
        # To each queue by name: routed by topic, it would come back here if one of them was removed meanwhile.
        for queue in sorted(queues):
            bus.broker.publish(msgspec.structs.replace(message, created=0), queue=queue)

    def publish_reply(context: Context) -> None:
        bus.publish_messages([msgspec.structs.replace(context.message, created=0)])

    def keep_result(context: Context) -> None:
        """Nothing to do: the result is looked up in the log."""

    functions: list[tuple[str, Callable[..., Any]]] = [
        (UNROUTED, route_again), (CALLBACKS, publish_reply), (RESULTS, keep_result),
    ]  # fmt: skip
    for queue, function in functions:
        options = HandlerOptions(retry=_RETRIES, threads=1, executor=ExecutorKind.THREADS)
        signature = read_signature(function, batch=False)
        yield Handler(queue, queue, ("#",), function, options, signature, replies=False)


def _warn_once(warned: set[str], message: Message) -> None:
    topic = message.name
    if topic in warned or len(warned) >= _TOPICS_WARNED:
        return
    warned.add(topic)
    if names.CORRELATION in message.headers:
        _log.warning(
            "nobody is subscribed to %s, which was to receive the answer to message %s; it is kept in %s. If a service "
            "of CAP's waits for such answers: remuda cap bind URL GROUP %s",
            topic, message.headers[names.CORRELATION], UNROUTED, topic,
        )  # fmt: skip
    else:
        _log.warning("nobody is subscribed to %s; its messages are kept in %s", topic, UNROUTED)
