"""The core's replaceable parts (Q20), each a small protocol: delivery strategies and delivery handlers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from remuda.core.queues.credit import Consumer
from remuda.model.message import NO_HEADERS, Message
from remuda.model.queues.options import QueueOptions
from remuda.model.settlement import Outcome

T = TypeVar("T")
_log = logging.getLogger("remuda.extensions")


class QueueView(Protocol):
    """What a strategy sees of a queue."""

    @property
    def options(self) -> QueueOptions: ...
    @property
    def waiting(self) -> int: ...
    @property
    def unanswered(self) -> int:
        """Deliveries of the whole queue that no consumer has answered yet."""
        ...

    @property
    def members(self) -> Sequence[Consumer]:
        """Consumers, the longest connected first."""
        ...

    def next_ready(self) -> Consumer | None:
        """Of the consumers that can take a message, the one served longest ago, then the one that came first."""
        ...


class Assignment(msgspec.Struct, frozen=True):
    """The next `count` messages go to these consumers, each of whom gets all of them."""

    consumers: tuple[str, ...]
    count: int = 1


class Strategy(Protocol):
    """Chooses the consumers of the next messages; None while none can take any."""

    def next(self, queue: QueueView) -> Assignment | None: ...


class DeliveryHandler(Protocol):
    """Called at each step of a message's way through a queue. Offsets name messages that are already stored."""

    def received(self, queue: str, message: Message) -> str | None:
        """None to take the message, or the reason to refuse it."""
        ...

    def sending(self, queue: str, offset: int, consumers: tuple[str, ...]) -> str | None:
        """None to send the message, or the reason to end it undelivered."""
        ...

    def sent(self, queue: str, offset: int, consumers: tuple[str, ...]) -> None: ...

    def answered(self, queue: str, offset: int, outcome: Outcome) -> Outcome:
        """The outcome to go by; usually the one given."""
        ...

    def timed_out(self, queue: str, offset: int) -> Outcome:
        """What to make of a missing answer; usually `Outcome.NACK`."""
        ...


StrategyFor = Callable[[str, QueueOptions], Strategy]
HandlerFor = Callable[[str, QueueOptions], DeliveryHandler | None]


class MessageFacts(NamedTuple):
    """What a queue's rules need to know of a message of which the core holds only the offset."""

    id: str
    size: int
    key: str | None = None
    headers: Mapping[str, str] = NO_HEADERS


FactsOf = Callable[[int], MessageFacts | None]
"""Called with an offset; None if nothing is known of the message, which then passes all limits."""


MessageOf = Callable[[int], "Message | None"]
"""A message by its offset; None if it cannot be read."""


def unreadable(offset: int) -> Message | None:
    return None


def unknown(offset: int) -> None:
    """The default: nothing is known of any message."""


def no_handler(queue: str, options: QueueOptions) -> None:
    """The default: queues have no delivery handler."""


class ContainedHandler:
    """Wraps a delivery handler, so that its errors cost one message and never the broker."""

    def __init__(self, handler: DeliveryHandler) -> None:
        self._handler = handler

    def received(self, queue: str, message: Message) -> str | None:
        return self._reason("received", queue, self._handler.received, queue, message)

    def sending(self, queue: str, offset: int, consumers: tuple[str, ...]) -> str | None:
        return self._reason("sending", queue, self._handler.sending, queue, offset, consumers)

    def sent(self, queue: str, offset: int, consumers: tuple[str, ...]) -> None:
        self._ask("sent", queue, self._handler.sent, queue, offset, consumers)

    def answered(self, queue: str, offset: int, outcome: Outcome) -> tuple[Outcome, str | None]:
        """The outcome to go by, and the reason where the handler failed."""
        return self._outcome("answered", queue, outcome, self._handler.answered, queue, offset, outcome)

    def timed_out(self, queue: str, offset: int) -> tuple[Outcome, str | None]:
        return self._outcome("timed_out", queue, Outcome.NACK, self._handler.timed_out, queue, offset)

    def _reason(self, point: str, queue: str, ask: Callable[..., Any], *args: Any) -> str | None:
        given, failure = self._ask(point, queue, ask, *args)
        if failure is not None or given is None:
            return failure
        return given if isinstance(given, str) and given else f"the delivery handler's {point} returned {given!r}"

    def _outcome(
        self, point: str, queue: str, usual: Outcome, ask: Callable[..., Any], *args: Any
    ) -> tuple[Outcome, str | None]:
        given, failure = self._ask(point, queue, ask, *args)
        if failure is None and isinstance(given, Outcome):
            return given, None
        return usual, failure or f"the delivery handler's {point} returned {given!r}"

    def _ask(self, point: str, queue: str, ask: Callable[..., Any], *args: Any) -> tuple[Any, str | None]:
        try:
            return ask(*args), None
        except Exception as error:
            _log.exception("queue %s: the delivery handler's %s failed", queue, point)
            return None, f"the delivery handler's {point} failed: {type(error).__name__}: {error}"


class _Unmade:
    """Stands in for a delivery handler that could not be made: every message is refused with the reason."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, point: str) -> Any:
        def ask(*args: Any) -> Any:
            raise RuntimeError(f"it could not be made: {self._error}")

        return ask


def contained_handler(handler_for: HandlerFor, queue: str, options: QueueOptions) -> ContainedHandler | None:
    """A queue's delivery handler; None if it has none."""
    try:
        handler = handler_for(queue, options)
    except Exception as error:
        _log.exception("queue %s: its delivery handler could not be made, and its messages are refused", queue)
        return ContainedHandler(_Unmade(error))
    return None if handler is None else ContainedHandler(handler)
