"""The fast path for handlers that take nothing but the body: their calls, one after the other.

It does what `HandlerCall` does with fewer objects; a `Message`, for example, is created only when it is asked for.
Errors and replies are left to `HandlerCall`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from typing import Any

from remuda.bus.execution.active_delivery import ActiveDelivery
from remuda.bus.handlers.call import HandlerCall, current, ended, forks
from remuda.bus.handlers.context import Context
from remuda.bus.handlers.dispatcher import Dispatcher
from remuda.bus.handlers.handler import Handler
from remuda.bus.publishing import bodies as encodings
from remuda.bus.publishing import headers as names
from remuda.model.messages import Column, cell


def plain_handler(dispatcher: Dispatcher, attempts: list[int]) -> Handler | None:
    """The handler whose calls can take this path, given the attempts of the messages; None if there is none."""
    handler = dispatcher.plain_handler()
    return handler if handler is not None and max(attempts) <= dispatcher.settings.retry.max_retries + 1 else None


def run_plainly(
    active: ActiveDelivery[Any],
    dispatcher: Dispatcher,
    handler: Handler,
    attempts: list[int],
    stopping: threading.Event,
) -> None:
    """Call the handler for each row, until there are none left or the pool stops."""
    environment, queue, stop = dispatcher.environment, dispatcher.queue, dispatcher.stop
    function, signature, own = handler.function, handler.signature, handler.id
    wanted, first, name = signature.body_type, signature.body_first, signature.body or ""
    messages, mark = active.delivery.messages, active.delivery.marks()
    bodies, mime_type = messages.bodies, messages.mime_type
    asked = handler.options.keep_result or _asks(messages.headers)
    next_row, stops, before = active.waiting.popleft, stopping.is_set, forks[0]
    if active.ended_rows is None:
        active.ended_rows = 0
    token = current.set(None)
    try:
        while not stops():
            try:
                row = next_row()
            except IndexError:
                return
            if mark is not None:
                mark[0](mark[1][row])
            context = Context(None, queue, own, attempts[row], stop, None, None, None, messages, row)
            current.set(context)
            try:
                body = bodies[row]
                value: Any = body if wanted is bytes else encodings.decode(body, cell(mime_type, row), wanted)
                result = function(value) if first else function(**{name: value})
                if result is not None and inspect.isawaitable(result):
                    result = environment.loop.complete(result)
                if forks[0] != before:
                    ended(result, None, before)
            except BaseException as error:
                active.note(row, _failure(HandlerCall(handler, (context,), environment, True), error, before))
            else:
                if (asked and handler.replies) or context._response is not None:
                    active.note(row, HandlerCall(handler, (context,), environment, True).result(result))
            active.ended_rows = row + 1
    finally:
        current.reset(token)


def _failure(call: HandlerCall, error: BaseException, before: int) -> Any:
    if forks[0] != before:
        ended(None, error, before)
    return call.failure(error)


def _asks(headers: Column[Mapping[str, str]]) -> bool:
    """Whether any of the messages asks for a reply or to keep the result."""
    if not isinstance(headers, list):
        return bool(headers) and (names.CALLBACK in headers or names.KEEP_RESULT in headers)
    return any(map(_asks, headers))
