"""Around publishing and handling (B11): ordered layers, each with a before, an after and an error hook."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from remuda.bus.handlers.context import Context
from remuda.model.message import Message

_log = logging.getLogger("remuda.bus")


class Handled:
    """What an error hook returns to mark the error as handled: the handler then counts as having returned `result`."""

    def __init__(self, result: Any = None) -> None:
        self.result = result


class Middleware:
    """Override what you need. Before-hooks run in order, after- and error-hooks in reverse."""

    def before_publish(self, message: Message) -> Message:
        """May return a changed message; raising stops the publish."""
        return message

    def after_publish(self, message: Message) -> None:
        """The message is kept."""

    def publish_error(self, message: Message, error: Exception) -> None:
        """The message was not taken."""

    def before_handle(self, context: Context) -> None:
        """May put values into the context; raising counts as the handler's failure."""

    def after_handle(self, context: Context, result: Any) -> Any:
        """May replace the result."""
        return result

    def handle_error(self, context: Context, error: BaseException) -> Handled | None:
        """May mark the error as handled and give a result in place of it."""
        return None


class MiddlewareStack:
    """The layers of one bus, outermost first."""

    def __init__(self, layers: Sequence[Middleware] = ()) -> None:
        self.layers = list(layers)

    def publishing(self, message: Message) -> Message:
        for layer in self.layers:
            message = layer.before_publish(message)
        return message

    def published(self, message: Message) -> None:
        for layer in reversed(self.layers):
            with _only_told(layer, "after_publish"):
                layer.after_publish(message)

    def unpublished(self, message: Message, error: Exception) -> None:
        for layer in reversed(self.layers):
            with _only_told(layer, "publish_error"):
                layer.publish_error(message, error)

    def handling(self, context: Context, begun: list[Middleware]) -> None:
        """Before-hooks in order. Those that went well are in `begun`, also when one raises."""
        for layer in self.layers:
            layer.before_handle(context)
            begun.append(layer)

    def handled(
        self, context: Context, begun: Sequence[Middleware], result: Any, error: BaseException | None = None
    ) -> Any:
        """After- or error-hooks of those that have begun, from the inside out. Once one has handled the error, those
        further out see a result; once one raises, they see that error."""
        for layer in reversed(begun):
            try:
                if error is None:
                    result = layer.after_handle(context, result)
                elif (answer := layer.handle_error(context, error)) is not None:
                    result, error = answer.result, None
            except Exception as raised:
                error = raised
        if error is not None:
            raise error
        return result


@contextmanager
def _only_told(layer: Middleware, hook: str) -> Iterator[None]:
    """Whether the message is kept is settled by now: a hook that fails must not tell the publisher otherwise."""
    try:
        yield
    except Exception:
        _log.exception("%s of %s failed; whether the message is kept does not depend on it", hook, type(layer).__name__)
