"""Middleware around publishing and handling (B11): ordered layers, each with before, after and error hooks.

A hook may be a coroutine function; it is awaited, on the application's loop if the bus runs there.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

from remuda.bus.handlers.context import Context
from remuda.model.errors import InvalidMessage
from remuda.model.message import Message

_log = logging.getLogger("remuda.bus")

Steps = Generator[Any, Any, Any]
"""Yields what a hook returned, which may have to be awaited, and is sent the value."""


class Handled:
    """Returned by an error hook to mark the error as handled, as if the handler had returned `result`."""

    def __init__(self, result: Any = None) -> None:
        self.result = result

    def __repr__(self) -> str:
        return f"Handled({self.result!r})"


class Middleware:
    """Override what you need. Before-hooks run in order, after- and error-hooks in reverse.

    `provides` lists the types for which `before_handle` puts a value into `context.values`; handlers can ask for them.
    """

    provides: ClassVar[tuple[Any, ...]] = ()

    def before_publish(self, message: Message) -> Any:
        """May return a changed message; raising stops the publish."""
        return message

    def after_publish(self, message: Message) -> Any:
        """Called when the message is stored."""

    def publish_error(self, message: Message, error: Exception) -> Any:
        """Called when the message was refused."""

    def before_handle(self, context: Context) -> Any:
        """May put values into the context; raising counts as the handler's failure."""

    def after_handle(self, context: Context, result: Any) -> Any:
        """May replace the result."""
        return result

    def handle_error(self, context: Context, error: BaseException) -> Any:
        """May return `Handled` to mark the error as handled, with a result instead."""
        return None


class MiddlewareStack:
    """The layers of one bus, outermost first. Each method returns a generator for `drive` or `drive_async`."""

    def __init__(self, layers: Sequence[Middleware] = ()) -> None:
        self.layers = list(layers)

    def __bool__(self) -> bool:
        return bool(self.layers)

    @property
    def provided(self) -> set[Any]:
        """The types that handlers may ask for because of these layers."""
        return {wanted for layer in self.layers for wanted in getattr(layer, "provides", ())}

    def publishing(self, message: Message) -> Steps:
        own = message.id
        for layer in self.layers:
            message = yield layer.before_publish(message)
            if not isinstance(message, Message):
                raise TypeError(f"before_publish of {type(layer).__name__} must return a message, not {message!r}")
            if own and message.id != own:
                raise InvalidMessage(
                    f"before_publish of {type(layer).__name__} changed the id {own!r} to {message.id!r}, but it is how "
                    "the message is found: by unique=, idempotency_key=, or a call that waits for its reply. Nothing "
                    "was stored; keep the id, and put yours into a header"
                )
        return message

    def published(self, message: Message) -> Steps:
        for layer in reversed(self.layers):
            try:
                yield layer.after_publish(message)
            except Exception:
                _log_failed_hook(layer, "after_publish")

    def unpublished(self, message: Message, error: Exception) -> Steps:
        for layer in reversed(self.layers):
            try:
                yield layer.publish_error(message, error)
            except Exception:
                _log_failed_hook(layer, "publish_error")

    def handling(self, context: Context, begun: list[Middleware]) -> Steps:
        """Run the before-hooks in order, and add each layer whose hook succeeded to `begun`."""
        for layer in self.layers:
            yield layer.before_handle(context)
            begun.append(layer)

    def handled(
        self, context: Context, begun: Sequence[Middleware], result: Any, error: BaseException | None = None
    ) -> Steps:
        """Run the after- or error-hooks of the `begun` layers, innermost first.

        Once a hook handles the error, the layers outside it see a result; once one raises, they see that error.
        """
        for layer in reversed(begun):
            try:
                if error is None:
                    result = yield layer.after_handle(context, result)
                else:
                    handled = yield layer.handle_error(context, error)
                    if isinstance(handled, Handled):
                        result, error = handled.result, None
                    elif handled is not None:
                        name = type(layer).__name__
                        raise TypeError(
                            f"handle_error of {name} must return Handled or None, not {handled!r}"
                        ) from error
            except Exception as raised:
                error = raised
        if error is not None:
            raise error
        return result


def _log_failed_hook(layer: Middleware, hook: str) -> None:
    # The message is stored or refused by now: the failure of a hook must not make it look otherwise to the publisher.
    _log.exception("%s of %s failed; this does not affect the message", hook, type(layer).__name__)
