"""Fetches one queue's deliveries to this process: the prefetch follows the number of messages asked for, so that memory
is bounded and nothing is fetched that nobody waits for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

import msgspec

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.connection import Connection
from remuda.amqp.client.consumer import Consumer
from remuda.amqp.errors import AmqpError

MOST: Final = 4096
"""The most unanswered messages of one queue in this process, however many are asked for."""
MANY: Final = 16
"""If at least this many messages are wanted at once, they are handled quickly, and more are prefetched meanwhile."""
AHEAD: Final = 2
"""By which factor more are prefetched then: RabbitMQ sends while workers work, and they need not wait for what they
have acknowledged."""
_STEP_BITS: Final = 3
"""The prefetch grows by factors of eight: each growth adds a consumer, which costs RabbitMQ a little for every
message."""
IDLE: Final = 1.0
"""Seconds without a request after which nothing more is fetched."""

FRONT: Final = -1
"""The `message_count` of a delivery that was put back here, before all others."""
GATHER: Final = 0.001
"""How long, in seconds, a pull of several messages waits for more after the first."""
LINGER: Final = 0.005
"""How long, in seconds, a consumer of batches waits for the rest of one."""

Arrival = list[Delivery]


class _Request:
    __slots__ = ("count", "future")

    def __init__(self, count: int) -> None:
        self.count = count
        self.future: Future[Arrival] = Future()


class Fetcher:
    """Takes deliveries in the connection's thread and gives them to those that asked, in their order.

    Its lock is never held during a call to the connection, since the connection calls back into this object.
    """

    def __init__(
        self,
        connection: Connection,
        queue: str,
        *,
        prefetch: int | None = None,
        exclusive: bool = False,
        alone: bool = False,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self.queue = queue
        self.fixed = prefetch
        self.alone = alone
        """Whether the queue has a single active consumer. A second one, for more, would wait behind the first, and the
        end of that would let another process go on beside what is unanswered here."""
        self.exclusive = exclusive
        self.channel: Channel | None = None
        self.closed = False
        self.paused = False
        self.failure: AmqpError | None = None
        self._connection = connection
        self._on_gone = on_gone
        self._consumers: list[Consumer] = []
        self._prefetch = 0
        self._held: deque[Delivery] = deque()
        self._requests: deque[_Request] = deque()
        self._guard = threading.Lock()
        self._adjusting = threading.Lock()
        self._last_asked = self._looked = time.monotonic()
        self._peak = 0
        self.in_hand = 0
        """Deliveries handed out and not yet answered."""

    # Requests

    def ask(self, count: int) -> Future[Arrival]:
        """A future for up to `count` deliveries; an empty list if the fetcher is closed. `start` must follow."""
        request = _Request(count)
        with self._guard:
            self._last_asked = time.monotonic()
            if self.closed:
                request.future.set_result([])
                return request.future
            self._requests.append(request)
            self._peak = max(self._peak, self._wanted())
        self._serve()
        return request.future

    def withdraw(self, future: Future[Arrival]) -> bool:
        """Cancel a request; False if it was answered meanwhile."""
        with self._guard:
            for request in self._requests:
                if request.future is future:
                    self._requests.remove(request)
                    return True
        return False

    def take(self, count: int) -> Arrival:
        """Up to `count` deliveries that are here already."""
        with self._guard:
            return self._taken(count)

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def consumers(self) -> int:
        """How many consumers RabbitMQ sees."""
        return len(self._consumers)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._requests)

    @property
    def must_start(self) -> bool:
        """Whether RabbitMQ must be asked for more, which takes a while."""
        return not self.closed and not self.paused and (not self._consumers or self._needed() > self._prefetch)

    def start(self) -> None:
        """Make RabbitMQ send as many as are asked for. Waits for it.

        For more, another consumer is added on the same channel: cancelling one would return the messages on their way
        to it, which costs them their place and counts as an attempt.
        """
        with self._adjusting:
            needed = self._needed()
            if self.closed or self.paused or (self._consumers and needed <= self._prefetch):
                return
            if self.channel is None:
                self.channel = self._connection.channel()
            if self._consumers and self.exclusive:
                self._cancel_all(self.channel)
            more = needed - self._prefetch if self._consumers else needed
            self.channel.set_prefetch(more)
            first = self._consumers[0] if self._consumers else None
            consumer = self.channel.consume(self.queue, exclusive=self.exclusive, into=first)
            self._consumers.append(consumer)
            self._prefetch, self.failure = needed, None
        consumer.listen(lambda: self._collect(consumer))

    def _cancel_all(self, channel: Channel) -> None:
        consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            with contextlib.suppress(AmqpError):  # the connection is lost, and with it all deliveries
                channel.cancel(consumer)
            self._collect(consumer)

    def put_in_front(self, deliveries: Sequence[Delivery]) -> bool:
        """Hand these out before all others; False if the fetcher is closed or paused."""
        with self._guard:
            if self.closed or self.paused:
                return False
            marked = [msgspec.structs.replace(delivery, message_count=FRONT) for delivery in deliveries]
            self._held.extendleft(reversed(marked))
        self._serve()
        return True

    def hold_again(self, deliveries: Sequence[Delivery]) -> bool:
        """Take back what was not handed out after all; False if the fetcher is closed or paused."""
        with self._guard:
            if self.closed or self.paused:
                return False
            self._held.extendleft(reversed(deliveries))
        self._serve()
        return True

    def open_channel(self) -> Channel:
        with self._adjusting:
            if self.channel is None:
                self.channel = self._connection.channel()
            return self.channel

    def burst(self, count: int) -> Arrival:
        """Consume exactly this many messages, which are known to be waiting. Waits for them."""
        with self._adjusting:
            assert self.channel is not None
            self.channel.set_prefetch(min(count, MOST))
            consumer = self.channel.consume(self.queue)
            taken: Arrival = []
            while len(taken) < count and (arrived := consumer.get(count - len(taken), timeout=0.5)):
                taken += arrived
                if len(taken) >= MOST:
                    break
            self.channel.cancel(consumer)
            taken += consumer.take()
        self.given(len(taken))
        return taken

    def given(self, count: int) -> None:
        with self._guard:
            self.in_hand += count

    def answered(self, count: int) -> None:
        with self._guard:
            self.in_hand = max(self.in_hand - count, 0)

    # Upkeep

    def rest(self) -> Arrival:
        """After a while without requests, or with few: fetch nothing, or less. Returns what was fetched in vain."""
        now = time.monotonic()
        if self.fixed is not None or now - self._looked < IDLE:
            return []
        self._looked = now
        with self._guard:
            idle = not self._requests and now - self._last_asked >= IDLE
            few = len(self._held) > 2 * _prefetch_for(self._peak)
            peak, self._peak = self._peak, self._wanted()
        if (not self._consumers and not self._held) or not (idle or few):
            return []
        given_back = self._stop()
        self._prefetch = peak
        return given_back

    def pause(self) -> Arrival:
        """Consume nothing for now. Returns what was fetched and not handed out."""
        self.paused = True
        return self._stop()

    def resume(self) -> bool:
        """End a pause. Returns whether consuming must be started again."""
        was, self.paused = self.paused, False
        return was and (self.fixed is not None or bool(self._requests))

    def close(self) -> Arrival:
        """Stop for good. Returns what was fetched and not handed out."""
        with self._guard:
            self.closed = True
            requests, self._requests = list(self._requests), deque()
        for request in requests:
            if not request.future.done():
                request.future.set_result([])
        if self.alone and not self.in_hand and self.channel is not None:
            with self._adjusting, contextlib.suppress(AmqpError):  # then the connection is lost, and the channel too
                self._consumers = []
                self.channel.close()  # what was sent is back in its place before the next consumer is served
            return []
        return self._stop()

    def _stop(self) -> Arrival:
        with self._adjusting:
            if self.channel is not None:
                self._cancel_all(self.channel)
            with self._guard:
                return self._taken(len(self._held), returned=True)

    # Serving requests

    def _needed(self) -> int:
        if self.fixed is not None:
            return self.fixed
        with self._guard:
            wanted = self._wanted()
        return 1 if self.alone else max(self._prefetch, _prefetch_for(wanted))

    def _wanted(self) -> int:
        return sum(request.count for request in self._requests) + self.in_hand

    def _collect(self, consumer: Consumer) -> int:
        """Called from the connection's thread when deliveries came or the consumer ended. Returns how many wait now."""
        arrived = consumer.take()
        with self._guard:
            self._held.extend(arrived)
        if arrived:
            self._serve()
        if consumer.ended is not None and consumer in self._consumers:
            self._consumers = []
            self.failure = consumer.ended
            self._on_gone()
        return len(self._held)

    def _serve(self) -> None:
        ready: list[tuple[_Request, Arrival]] = []
        with self._guard:
            while self._requests and (batch := self._taken(self._requests[0].count)):
                ready.append((self._requests.popleft(), batch))
        for request, batch in ready:
            request.future.set_result(batch)

    def _taken(self, count: int, *, returned: bool = False) -> Arrival:
        """Take out deliveries, with the lock held. Those of a connection that was lost belong to RabbitMQ again."""
        epoch = self.channel.epoch if self.channel is not None else -1
        held, batch = self._held, list[Delivery]()
        while held and (missing := count - len(batch)) > 0:
            taken = [held.popleft() for _ in range(min(missing, len(held)))]
            batch += [delivery for delivery in taken if delivery.epoch == epoch]
        if not returned:
            self.in_hand += len(batch)
        return batch


def _prefetch_for(wanted: int) -> int:
    """The prefetch if this many messages are asked for or unanswered."""
    needed = 1 << -(-max(wanted - 1, 0).bit_length() // _STEP_BITS) * _STEP_BITS
    return min(needed if wanted < MANY else needed * AHEAD, MOST)
