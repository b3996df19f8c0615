"""A consumer of one queue: deliveries wait here until a thread takes them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.codec.methods import BasicConsume
from remuda.amqp.errors import AmqpError

if TYPE_CHECKING:
    from remuda.amqp.client.channel import Channel

NO_ACK_HELD: Final = 10_000
"""Deliveries without acknowledgement held before the connection stops reading."""


class Consumer:
    """Deliveries of one queue. When the connection breaks they are forgotten, since the broker delivers them again."""

    def __init__(
        self, channel: Channel, request: BasicConsume, *, comes_back: bool = True, into: Consumer | None = None
    ) -> None:
        self.channel = channel
        self.sink: Consumer = self if into is None else into.sink
        """The consumer that collects its deliveries: consumers that share a sink keep the order of their queue."""
        self.request = request
        self.prefetch = channel.prefetch
        self.comes_back = comes_back
        self.ended: AmqpError | None = None
        self._held: deque[Delivery] = deque()
        self._changed = threading.Condition()
        self._listener: Callable[[], int | None] | None = None

    def listen(self, listener: Callable[[], int | None]) -> None:
        """Have a function called in the connection's thread whenever deliveries arrive or the consumer ends, and once
        right now.

        It must not wait; `take` gives it the deliveries. It may return how many of them wait to be processed."""
        self._listener = listener
        listener()

    def take(self, most: int | None = None) -> list[Delivery]:
        """Up to `most` of the deliveries that are here. Never waits, and never raises why the consumer ended."""
        with self._changed:
            return self._pop(most)

    @property
    def tag(self) -> str:
        return self.request.consumer_tag

    def get(self, most: int = 1000, timeout: float | None = None) -> list[Delivery]:
        """Wait for up to `most` deliveries; none when the timeout passes. Once empty, raises why the consumer ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._held:
                if self.ended is not None:
                    raise self.ended
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return []
                self._changed.wait(left)
            return self._pop(most)

    def ack(self, deliveries: Iterable[Delivery]) -> int:
        """Acknowledge deliveries; returns how many of them were still unsettled."""
        return self.channel.ack(deliveries)

    def cancel(self) -> None:
        """Stop consuming. What was delivered stays here and can be settled."""
        self.channel.cancel(self)

    @property
    def full(self) -> bool:
        """Whether the connection should stop reading until some are taken."""
        return self.request.no_ack and len(self._held) >= NO_ACK_HELD

    def extend(self, deliveries: list[Delivery]) -> int:
        """Add deliveries; returns how many wait to be taken."""
        with self._changed:
            self._held.extend(deliveries)
            self._changed.notify_all()
            waiting = len(self._held)
        return waiting if self._listener is None else self._listener() or 0

    def _pop(self, most: int | None) -> list[Delivery]:
        """Remove up to `most` deliveries. Call it with the lock held."""
        held = self._held
        was_full = len(held) >= NO_ACK_HELD
        if most is None or most >= len(held):
            taken = list(held)
            held.clear()
        else:
            taken = [held.popleft() for _ in range(most)]
        if was_full:
            self.channel.connection.wake()  # it stopped reading, and there is room again
        return taken

    def forget(self) -> None:
        """Drop what is held, since its channel is gone."""
        with self._changed:
            self._held.clear()
            self._changed.notify_all()

    def end(self, error: AmqpError) -> None:
        with self._changed:
            if self.ended is None:
                self.ended = error
            self._changed.notify_all()
        if self._listener is not None:
            self._listener()

    def resume_with(self, arguments: Mapping[str, Any]) -> None:
        """Consume with other arguments when the channel comes back, such as from the stream offset reached so far."""
        self.request = msgspec.structs.replace(self.request, arguments=dict(arguments))
