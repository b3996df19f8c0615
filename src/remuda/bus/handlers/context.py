"""The values a handler may ask for by type, besides the body."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import msgspec

from remuda.bus.publishing import headers as names
from remuda.model.message import Message
from remuda.model.messages import Messages


class Headers(dict[str, str]):
    """The message's headers."""


class Attempt(int):
    """Which attempt this is; 1 is the first."""


class StopToken:
    """Tells a long handler that the bus is stopping, so that it can end early: save its state and raise `NotNow`."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the bus is stopping, or for this long; returns whether it is."""
        return self._event.wait(seconds)

    def set(self) -> None:
        self._event.set()

    def __bool__(self) -> bool:
        return self.requested

    def __repr__(self) -> str:
        return f"<StopToken, {'requested' if self.requested else 'not requested'}>"

    def __reduce__(self) -> tuple[type[StopToken], tuple[()]]:
        # Another process gets its own, which is set through its parent.
        return StopToken, ()


_NEVER_STOPS = StopToken()


class Response:
    """The reply to the callback: a handler may add headers, redirect it, or remove it (B9)."""

    def __init__(self, callback: str | None) -> None:
        self.callback = callback
        self.rewritten = False
        self.headers: dict[str, str] = {}

    def rewrite(self, topic: str) -> None:
        """Send the reply to another topic."""
        self.rewritten = True
        self.callback = topic

    def remove(self) -> None:
        """Send no reply."""
        self.callback = None

    def __repr__(self) -> str:
        return f"<Response to {self.callback}, headers {self.headers}>" if self.callback else "<Response to nobody>"


class Context(msgspec.Struct, eq=False):
    """One call of a handler with one message. Rarely used values are created when asked for."""

    _message: Message | None
    queue: str
    handler: str
    _attempt: int
    stop: StopToken = _NEVER_STOPS
    _headers: Headers | None = None
    _response: Response | None = None
    _values: dict[object, object] | None = None
    _messages: Messages | None = None
    """With `_row`, where the message is found; its object is created when it is asked for."""
    _row: int = 0

    @property
    def message(self) -> Message:
        message = self._message
        if message is None:
            assert self._messages is not None
            message = self._message = self._messages[self._row]
        return message

    def __repr__(self) -> str:
        return f"<Context of message {self.message.id} for {self.handler}, attempt {self._attempt}>"

    @property
    def attempt(self) -> Attempt:
        return Attempt(self._attempt)

    @property
    def headers(self) -> Headers:
        if self._headers is None:
            self._headers = Headers(self.message.headers)
        return self._headers

    @property
    def response(self) -> Response:
        if self._response is None:
            self._response = Response(self.message.headers.get(names.CALLBACK))
        return self._response

    @property
    def wants_reply(self) -> bool:
        """Whether the handler's result is sent as a reply."""
        if self._response is None:
            return names.CALLBACK in self.message.headers
        return self._response.callback is not None

    @property
    def keeps_result(self) -> bool:
        """Whether the publisher asked to keep the result, to be found by the message's id."""
        return names.KEEP_RESULT in self.message.headers

    @property
    def wants_result(self) -> bool:
        """Whether the result is sent as a reply or kept."""
        headers = (self._message or self.message).headers
        if self._response is None:
            return bool(headers) and (names.CALLBACK in headers or names.KEEP_RESULT in headers)
        return self._response.callback is not None or names.KEEP_RESULT in headers

    @property
    def values(self) -> dict[object, object]:
        """Values that middleware passes on; handlers get them by type."""
        if self._values is None:
            self._values = {}
        return self._values

    @property
    def user(self) -> str | None:
        """The user who caused this message, however many handlers lie between."""
        return self.headers.get(names.USER)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the message's id, queue, topic and attempt to each record."""
        extra = {
            "queue": self.queue,
            "message_id": self.message.id,
            "topic": self.message.name,
            "attempt": self.attempt,
        }
        return logging.LoggerAdapter(logging.getLogger(f"remuda.handlers.{self.handler}"), extra)


def child_headers(parent: Mapping[str, str], parent_id: str) -> dict[str, str]:
    """Headers that a message caused by another inherits: correlation, sequence, user, trace."""
    inherited = {names.CORRELATION: parent_id, names.SEQUENCE: str(_sequence(parent) + 1)}
    for name in (names.USER, names.TRACE):
        if name in parent:
            inherited[name] = parent[name]
    return inherited


def _sequence(headers: Mapping[str, str]) -> int:
    try:
        return int(headers.get(names.SEQUENCE, "0"))
    except ValueError:
        return 0
