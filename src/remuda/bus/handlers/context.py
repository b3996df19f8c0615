"""The values a handler may ask for by type, besides the body."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakSet, WeakValueDictionary

import msgspec

from remuda.bus.broker_api import BaseDelivery
from remuda.bus.publishing import headers as names
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.notes import Note


class Headers(dict[str, str]):
    """The message's headers."""


class Attempt(int):
    """Which attempt this is; 1 is the first."""


class StopToken:
    """Tells a long handler that the bus is stopping, or that its message was cancelled, so that it can end early: save
    its state and raise `NotNow`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._guard = threading.Lock()
        self._calls: WeakSet[StopToken] = WeakSet()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the handler is to end, or for this long; returns whether it is."""
        return self._event.wait(seconds)

    def set(self) -> None:
        self._event.set()
        with self._guard:
            calls = list(self._calls)
        for token in calls:
            token.set()

    def of_call(self) -> StopToken:
        """A token of one call, which is also set with this one."""
        token = StopToken()
        with self._guard:
            self._calls.add(token)
        if self.requested:
            token.set()
        return token

    def __bool__(self) -> bool:
        return self.requested

    def __repr__(self) -> str:
        return f"<StopToken, {'requested' if self.requested else 'not requested'}>"

    def __reduce__(self) -> tuple[type[StopToken], tuple[()]]:
        # Another process gets its own, which is set through its parent.
        return StopToken, ()


_of_calls: Final[WeakValueDictionary[tuple[int, int], StopToken]] = WeakValueDictionary()
"""By the delivery and the first row of a call: the tokens that handlers asked for."""


def tell_to_stop(delivery: BaseDelivery[Any], row: int) -> bool:
    """Set the stop token of the call that begins with this row; False if its handler does not look at it."""
    token = _of_calls.get((id(delivery), row))
    if token is None:
        return False
    token.set()
    return True


_NEVER_STOPS = StopToken()


class Response:
    """The reply to the callback: a handler may add headers, redirect it, or remove it (B9)."""

    def __init__(self, callback: str | None) -> None:
        self.callback = callback
        self.rewritten = False
        self.removed = False
        self.headers: dict[str, str] = {}

    def rewrite(self, topic: str) -> None:
        """Send the reply to another topic."""
        self.rewritten, self.removed = True, False
        self.callback = topic

    def remove(self) -> None:
        """Send no reply."""
        self.removed, self.rewritten = True, False
        self.callback = None

    def follow(self, first: Response) -> None:
        """Do what the handler of a list said, to the first of its messages, for this one too."""
        self.headers |= first.headers
        if first.removed:
            self.remove()
        elif first.rewritten and first.callback is not None:
            self.rewrite(first.callback)

    def __repr__(self) -> str:
        return f"<Response to {self.callback}, headers {self.headers}>" if self.callback else "<Response to nobody>"


class Context(msgspec.Struct, eq=False):
    """One call of a handler with one message. Rarely used values are created when asked for."""

    _message: Message | None
    queue: str
    handler: str
    _attempt: int
    _bus_stops: StopToken = _NEVER_STOPS
    _headers: Headers | None = None
    _response: Response | None = None
    _values: dict[object, object] | None = None
    _messages: Messages | None = None
    """With `_row`, where the message is found; its object is created when it is asked for."""
    _row: int = 0
    _delivery: BaseDelivery[Any] | None = None
    """The delivery whose row `_row` this is."""
    result_headers: dict[str, str] | None = None
    """Further headers of the result, if it is kept."""
    encoding: str = "json"
    """How the bus encodes what the handler returns."""
    _stop: StopToken | None = None

    @property
    def stop(self) -> StopToken:
        """Tells the handler that it is to end."""
        if self._stop is None:
            if self._delivery is None:
                return self._bus_stops
            self._stop = _of_calls[id(self._delivery), self._row] = self._bus_stops.of_call()
        return self._stop

    @property
    def message(self) -> Message:
        message = self._message
        if message is None:
            assert self._messages is not None
            message = self._message = self._messages[self._row]
        return message

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell how far this call has come. The last word is shown by `bus.status`, pages and commands; it costs no
        record, and renews nothing."""
        from remuda.bus.observing import progress

        place = self.place
        progress.tell(place.queue, place.offset, done, total, note)

    @property
    def place(self) -> Note:
        """Where the message is noted on, under its lease (G2)."""
        assert self._delivery is not None
        return Note(self.queue, self._delivery.offsets[self._row], 0, self._delivery.lease)

    @property
    def is_fresh(self) -> bool:
        """Whether it was not delivered before, or was reprocessed since."""
        assert self._delivery is not None
        return not self._delivery.redelivered[self._row]

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
        """Whether a reply is sent: the handler's result or, to a caller that waits, that none comes."""
        callback = self.message.headers.get(names.CALLBACK)
        if self._response is None:
            return callback is not None
        return self._response.callback is not None or (callback or "").startswith(names.AWAITED)

    @property
    def changes_reply(self) -> bool:
        """Whether the handler said something about the reply."""
        response = self._response
        return response is not None and bool(response.removed or response.rewritten or response.headers)

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
        return self.wants_reply or names.KEEP_RESULT in headers

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
