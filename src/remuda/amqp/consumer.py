"""A consumer of one queue: deliveries gather here until some thread takes them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from remuda.amqp.delivery import Delivery
from remuda.amqp.errors import AmqpError
from remuda.amqp.methods import BasicConsume

if TYPE_CHECKING:
    from remuda.amqp.channel import Channel

NO_ACK_HELD: Final = 10_000
"""Deliveries without acknowledgement held before the connection stops reading."""


class Consumer:
    """Deliveries of one queue. When the connection breaks they are forgotten, since the broker delivers them again."""

    def __init__(
        self, channel: Channel, request: BasicConsume, *, comes_back: bool = True, into: Consumer | None = None
    ) -> None:
        self.channel = channel
        self.sink: Consumer = self if into is None else into.sink
        """Where its deliveries gather: several consumers of one queue that gather at one place keep its order."""
        self.request = request
        self.prefetch = channel.prefetch
        self.comes_back = comes_back
        self.ended: AmqpError | None = None
        self._held: deque[Delivery] = deque()
        self._changed = threading.Condition()
        self._listener: Callable[[], int | None] | None = None

    def listen(self, listener: Callable[[], int | None]) -> None:
        """Have a function called, in the connection's thread, whenever deliveries came or the consumer ended.

        It must not wait; `take` gives it what is there. It is called at once, too. It may tell how many deliveries wait
        with it."""
        self._listener = listener
        listener()

    def take(self, most: int | None = None) -> list[Delivery]:
        """Up to `most` deliveries that are there now, without waiting and without complaint."""
        with self._changed:
            was_full = len(self._held) >= NO_ACK_HELD
            if most is None or most >= len(self._held):
                taken = list(self._held)
                self._held.clear()
            else:
                taken = [self._held.popleft() for _ in range(most)]
        if was_full:
            self.channel.connection.wake()
        return taken

    @property
    def tag(self) -> str:
        return self.request.consumer_tag

    def get(self, most: int = 1000, timeout: float | None = None) -> list[Delivery]:
        """Up to `most` deliveries, at least one unless the time is over. Raises why the consumer ended, once empty."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._held:
                if self.ended is not None:
                    raise self.ended
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return []
                self._changed.wait(left)
            was_full = len(self._held) >= NO_ACK_HELD
            taken = [self._held.popleft() for _ in range(min(most, len(self._held)))]
        if was_full:
            self.channel.connection.wake()
        return taken

    def ack(self, deliveries: Iterable[Delivery]) -> int:
        """Acknowledge; how many of them the broker still waited for."""
        return self.channel.ack(deliveries)

    def cancel(self) -> None:
        """Ask the broker for no more. What was delivered stays here and can be settled."""
        self.channel.cancel(self)

    @property
    def full(self) -> bool:
        """Whether the connection should stop reading until some are taken."""
        return self.request.no_ack and len(self._held) >= NO_ACK_HELD

    def extend(self, deliveries: list[Delivery]) -> int:
        """Take in what came; how many wait to be taken out."""
        with self._changed:
            self._held.extend(deliveries)
            self._changed.notify_all()
            waiting = len(self._held)
        return waiting if self._listener is None else self._listener() or 0

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
        """Ask with other arguments when the channel comes back, as for what lies behind what was read of a stream."""
        self.request = msgspec.structs.replace(self.request, arguments=dict(arguments))

    def renamed(self, tag: str) -> None:
        self.request = msgspec.structs.replace(self.request, consumer_tag=tag)
