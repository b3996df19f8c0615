"""The consumers of this process: one per queue that all its pulls share, and one for each subscription."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Final

from remuda.amqp.client.connection import Connection
from remuda.amqp.errors import AmqpError, ChannelClosed, ConnectionLost
from remuda.broker.rabbitmq.consuming.fetcher import Arrival, Fetcher
from remuda.broker.rabbitmq.consuming.handing_out import Consuming
from remuda.broker.rabbitmq.shared_state.definitions_journal import Definitions
from remuda.broker.rabbitmq.shared_state.queue_declarations import Queues
from remuda.broker.rabbitmq.shared_state.rabbit_topology import RabbitTopology
from remuda.model.errors import Conflict, RemudaError
from remuda.model.queues.options import Status
from remuda.model.settlement import Outcome, Settlement

_LOG: Final = logging.getLogger("remuda.rabbitmq")
_NOT_FOUND: Final = 404
_BURST: Final = 16
"""From this many messages on, consuming is cheaper than `basic.get` for each."""
_RETURN: Final = 10.0
_HASTE: Final = 0.2
GIVING: Final = frozenset({Status.RUNNING, Status.ONLY_CONSUME})
"""Statuses in which consumers are served."""


class Consumers:
    """Starts, pauses and stops consumers as the status of their queues demands."""

    def __init__(
        self,
        connection: Connection,
        definitions: Definitions,
        topology: RabbitTopology,
        queues: Queues,
        consuming: Consuming,
        background: Callable[[Callable[[], None]], None],
    ) -> None:
        self._connection = connection
        self._definitions = definitions
        self._topology = topology
        self._queues = queues
        self._consuming = consuming
        self._background = background
        self._guard = threading.RLock()
        self._fetchers: dict[str, Fetcher] = {}
        self._subscribed: dict[Fetcher, tuple[str, str]] = {}
        self._pulls: dict[str, int] = {}
        self._unanswered = False
        """Whether RabbitMQ did not answer in time when messages were last given back."""

    # Starting

    def fetcher(self, queue: str) -> Fetcher:
        """The fetcher that all pulls of a queue in this process share."""
        with self._guard:
            self._queues.check_open()
            found = self._fetchers.get(queue)
            if found is None:
                found = self._fetchers[queue] = Fetcher(
                    self._connection, queue, alone=self._is_alone(queue), on_gone=lambda: self._topology.forget(queue)
                )
            return found

    def subscribe(self, queue: str, consumer: str, credit: int, *, exclusive: bool) -> Fetcher:
        """A fetcher for one subscription. `start` must follow."""
        with self._guard:
            self._queues.check_open()
            if any(taken == (queue, consumer) for taken in self._subscribed.values()):
                raise Conflict(f"queue {queue!r} already has a consumer named {consumer!r}")
            fetcher = Fetcher(
                self._connection, queue, prefetch=min(credit, 65535), exclusive=exclusive,
                alone=self._is_alone(queue), on_gone=lambda: self._come_back(queue, fetcher),
            )  # fmt: skip
            self._subscribed[fetcher] = (queue, consumer)
        return fetcher

    def _is_alone(self, queue: str) -> bool:
        known = self._definitions.queues.get(queue)
        return known is not None and known.options.single_active_consumer

    def count(self, queue: str) -> int:
        """How many consumers of a queue this process has, those included that wait for it to deliver."""
        with self._guard:
            return sum(taken == queue for taken, _ in self._subscribed.values())

    def start(self, fetcher: Fetcher) -> None:
        """Begin to consume, or consume more. A queue that is gone is created again. Waits for RabbitMQ."""
        self.check_up()
        try:
            fetcher.start()
        except ChannelClosed as closed:
            if closed.code != _NOT_FOUND:
                raise
            self._topology.remake(fetcher.queue)
            fetcher.start()

    def get(self, fetcher: Fetcher, count: int) -> Arrival:
        """Up to `count` messages that a queue has now, in its order; none are prefetched."""
        taken = fetcher.take(count)
        if len(taken) == count:
            return taken
        self.check_up()
        channel = fetcher.open_channel()
        while len(taken) < count:
            try:
                one = channel.get(fetcher.queue)
            except ChannelClosed as closed:
                if closed.code != _NOT_FOUND:
                    raise
                self._topology.remake(fetcher.queue)
                break
            if one is None:
                taken += fetcher.take(count - len(taken))  # sent for an earlier pull that gave up
                break
            taken.append(one)
            fetcher.given(1)
            rest = min(one.message_count or 0, count - len(taken))
            if rest >= _BURST:
                taken += fetcher.burst(rest)
        return taken

    @contextlib.contextmanager
    def waiting_pull(self, queue: str) -> Iterator[None]:
        with self._guard:
            self._pulls[queue] = self._pulls.get(queue, 0) + 1
        try:
            yield
        finally:
            with self._guard:
                self._pulls[queue] -= 1

    def check_up(self) -> None:
        """Raise rather than wait when there is no connection."""
        self._queues.check_open()
        connection = self._connection
        if not connection.up:
            raise ConnectionLost(
                f"there is no connection to {connection.options}: {connection.last_error}; it is being reopened"
            )

    # Queries

    def of(self, queue: str) -> list[Fetcher]:
        with self._guard:
            pulls = [fetcher for name, fetcher in self._fetchers.items() if name == queue]
            return pulls + [fetcher for fetcher, (name, _) in self._subscribed.items() if name == queue]

    def names(self, queue: str) -> tuple[str, ...]:
        """The names of the consumers that subscribed."""
        with self._guard:
            return tuple(consumer for name, consumer in self._subscribed.values() if name == queue)

    def waiting_pulls(self, queue: str, status: Status) -> int:
        """How many pulls wait: at the fetcher, if the queue delivers at present; else for its status to change."""
        with self._guard:
            fetcher = self._fetchers.get(queue)
            return fetcher.waiting if fetcher is not None and status in GIVING else self._pulls.get(queue, 0)

    def is_giving(self, queue: str) -> bool:
        known = self._definitions.queues.get(queue)
        return known is None or known.status in GIVING

    # Following changes of queues

    def follow_status(self, queue: str) -> None:
        giving = self.is_giving(queue)
        for fetcher in self.of(queue):
            if not giving:
                self.give_back(fetcher, fetcher.pause())
            elif fetcher.resume():
                self._topology.make(queue, self._queues.definition(queue))
                self.start(fetcher)

    def pause(self, queue: str) -> None:
        """Give back all that was fetched and not handed out, and wait until it is in the queue again."""
        for fetcher in self.of(queue):
            given = self.give_back(fetcher, fetcher.pause())
            if given is not None:
                given.result(30)

    def rest(self) -> None:
        """Fetch less, or nothing, for pulls that ask for less, or nothing."""
        with self._guard:
            fetchers = list(self._fetchers.values())
        for fetcher in fetchers:
            self.give_back(fetcher, fetcher.rest())

    def give_back(self, fetcher: Fetcher, unseen: Arrival) -> Future[int] | None:
        if not unseen or fetcher.channel is None:
            return None
        return self._consuming.give_back(fetcher.queue, fetcher.channel, unseen)

    def _come_back(self, queue: str, fetcher: Fetcher) -> None:
        """RabbitMQ ended a consumer, mostly because its queue was deleted: create it again, and consume again."""
        self._topology.forget(queue)

        def again() -> None:
            while not fetcher.closed and not self._queues.closed and queue in self._definitions.queues:
                try:
                    self._topology.remake(queue)
                    self.start(fetcher)
                    return
                except RemudaError as error:
                    _LOG.warning("queue %s cannot be consumed at the moment: %s; trying again", queue, error)
                    time.sleep(1.0)

        self._background(again)

    # Stopping

    def unsubscribe(self, fetcher: Fetcher) -> tuple[str, str] | None:
        """A consumer leaves: its unanswered messages go back, and so does what was fetched for it."""
        with self._guard:
            known = self._subscribed.pop(fetcher, None)
        if known is None:
            return None
        queue, consumer = known
        channel, waiting = fetcher.channel, []
        unseen = fetcher.close()
        if channel is not None:
            if (given := self._consuming.give_back(queue, channel, unseen)) is not None:
                waiting.append(given)
            for lease in self._consuming.held.held_through(fetcher):
                lost = Settlement(Outcome.NACK, "consumer lost", consumer=consumer)
                work = self._consuming.settle(lease, lost, None)
                if not isinstance(work, int):
                    waiting.append(work())
            self._await_returned(waiting)
            try:
                channel.close()
            except AmqpError as error:
                _LOG.debug("a channel was lost before it was closed: %s", error)
        return known

    def leave(self, queue: str) -> None:
        """Stop all consumers of a queue that is removed."""
        with self._guard:
            pull = self._fetchers.pop(queue, None)
            subscribed = [fetcher for fetcher, (name, _) in self._subscribed.items() if name == queue]
            for fetcher in subscribed:
                del self._subscribed[fetcher]
        for fetcher in ([pull] if pull is not None else []) + subscribed:
            fetcher.close()

    def subscribed(self) -> list[Fetcher]:
        with self._guard:
            return list(self._subscribed)

    def close_pulls(self) -> None:
        """Stop the fetchers of pulls. What was fetched goes back, if there is a connection."""
        with self._guard:
            fetchers = list(self._fetchers.values())
        up = self._connection.up
        waiting = [given for one in fetchers if (given := self.give_back(one, one.close() if up else [])) is not None]
        for fetcher in fetchers:
            fetcher.close()
        self._await_returned(waiting)

    def _await_returned(self, waiting: Sequence[Future[int]]) -> None:
        """Wait until RabbitMQ has taken messages back; what it does not take in time goes back with the connection.
        Closing waits the full time once, not again for each queue."""
        if not waiting:
            return
        hurries = self._connection.hurries
        _, late = wait(waiting, _HASTE if hurries and self._unanswered else _RETURN)
        self._unanswered = bool(late)
        if late:
            _LOG.debug("RabbitMQ did not confirm in time that %d batches were given back", len(late))
