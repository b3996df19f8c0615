"""Creates exchanges, queues and bindings when they are first needed, and again when they are gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from remuda.amqp.client.channel import Channel
from remuda.amqp.client.connection import Connection
from remuda.amqp.codec.methods import QueueDeclareOk
from remuda.amqp.errors import ChannelClosed, ConnectionLost
from remuda.broker.rabbitmq.publishing.delays import exchange_of, level_arguments, level_for
from remuda.broker.rabbitmq.shared_state.definitions_journal import Definitions
from remuda.broker.rabbitmq.shared_state.queue_definitions import PARKING, QueueDefinition, change
from remuda.broker.rabbitmq.support import DEAD, QueueKind, native, parking, parks_natively, version_of
from remuda.model.errors import Conflict
from remuda.model.message import MAX_PRIORITY
from remuda.model.queues.options import QueueOptions

TOPICS: Final = "remuda.topics"
"""A topic exchange that routes to the queues of the topics' roots, and to all channels."""
CHANNELS: Final = "remuda.channels"
"""A topic exchange that routes to channels only."""
_NOT_FOUND: Final = 404
_PRECONDITION: Final = 406
_REMAKE_DELAY: Final = 0.5
"""Seconds before a queue that was deleted is created again. A quorum queue that is created at once inherits the
consumers of the old one, which do not notice (RabbitMQ 3.10), and its messages are delivered to nobody."""
T = TypeVar("T")


class RabbitTopology:
    """Knows what exists in RabbitMQ. It has a channel of its own, so that a refusal disturbs no other work."""

    def __init__(
        self,
        connection: Connection,
        definitions: Definitions,
        kind: QueueKind,
        clock: Callable[[], int],
        *,
        max_priority: int = MAX_PRIORITY,
        uses_existing: bool = False,
    ) -> None:
        self.kind = kind
        self._max_priority = max_priority
        self.uses_existing = uses_existing
        """Whether queues of other programs are used as they are, whatever their arguments."""
        self._connection = connection
        self._definitions = definitions
        self._clock = clock
        self._channel: Channel | None = None
        self._made: set[str] = set()
        self._levels: set[int] = set()
        self._guard = threading.RLock()

    @property
    def version(self) -> tuple[int, ...]:
        return version_of(self._connection.server_properties)

    def open(self) -> None:
        self._channel = self._connection.channel()
        for exchange in (TOPICS, CHANNELS):
            self._channel.declare_exchange(exchange, "topic")

    def knows(self, queue: str) -> bool:
        """Whether this process has declared a queue."""
        return queue in self._made

    def forget(self, queue: str) -> None:
        """A queue may be gone: declare it again before the next use."""
        self._made.discard(queue)

    def make(self, queue: str, definition: QueueDefinition) -> None:
        """Declare a queue with its bindings, unless this process has done so."""
        if queue in self._made:
            return
        with self._guard:
            options = definition.options
            if parks_natively(options):
                self.make_parking(queue, definition)
            wanted = native(queue, options, self.kind, self.version, self._max_priority)
            self._declare(queue, wanted.arguments)
            self._bind(queue, options)
            self._made.add(queue)

    def make_parking(self, queue: str, definition: QueueDefinition) -> str:
        """Declare the dead-letter queue of a queue. Returns its name."""
        name = queue + DEAD
        if name not in self._made:
            with self._guard:
                self._declare(name, parking(self.kind, self.version))
                self._made.add(name)
            if not definition.parks:
                self._definitions.propose(change(PARKING, queue, self._clock()))
        return name

    def make_level(self, level: int) -> str:
        """Declare the exchange and the queue of a delay level. Returns the exchange."""
        name = exchange_of(level)
        if level not in self._levels:
            with self._guard:
                channel = self.channel
                channel.declare_exchange(name, "fanout")
                channel.declare_queue(name, arguments=level_arguments(level, self.version))
                channel.bind_queue(name, name)
                self._levels.add(level)
        return name

    def forget_levels(self) -> None:
        """Delay queues may be gone: declare them again before the next use."""
        self._levels.clear()

    def has_level(self, level: int) -> bool:
        return level in self._levels

    def level_made(self, delay: int) -> int:
        """The longest declared level within a delay of this many microseconds; else the shortest declared one, which is
        a moment too long if time has passed since it was declared. An exchange that does not exist would close the
        channel."""
        level = level_for(delay)
        made = set(self._levels)
        if level in made or not made:
            return level
        return max((one for one in made if one < level), default=min(made))

    def remake(self, queue: str) -> None:
        """Create a queue again if it is gone."""
        self.forget(queue)
        definition = self._definitions.queues.get(queue)
        if definition is not None:
            if self.look(queue) is None:
                time.sleep(_REMAKE_DELAY)
            self.make(queue, definition)

    def remove(self, queue: str, definition: QueueDefinition) -> None:
        with self._guard:
            self.channel.delete_queue(queue)
            if definition.parks:
                self.channel.delete_queue(queue + DEAD)
            self._made.discard(queue)
            self._made.discard(queue + DEAD)

    def rebind(self, queue: str, before: QueueOptions, after: QueueOptions) -> None:
        """Change the bindings of a queue to new topics. New ones are added first, so that nothing is missed."""
        old, new = set(routing_keys(before)), set(routing_keys(after))
        with self._guard:
            for key in sorted(new - old):
                for exchange in (TOPICS, CHANNELS):
                    self.channel.bind_queue(queue, exchange, key)
            for key in sorted(old - new):
                for exchange in (TOPICS, CHANNELS):
                    self.channel.unbind_queue(queue, exchange, key)
            if before.is_channel != after.is_channel and not after.is_channel:
                self._bind(queue, after)

    def look(self, queue: str) -> QueueDeclareOk | None:
        """A queue's numbers; None if RabbitMQ does not have it."""
        if not self._connection.up:
            raise ConnectionLost(f"there is no connection to {self._connection.options}: {self._connection.last_error}")
        try:
            return self._ask(lambda channel: channel.declare_queue(queue, passive=True))
        except ChannelClosed as closed:
            if closed.code != _NOT_FOUND:
                raise
            self.forget(queue)
            return None

    @property
    def channel(self) -> Channel:
        assert self._channel is not None
        return self._channel

    def _ask(self, ask: Callable[[Channel], T]) -> T:
        with self._guard:
            return ask(self.channel)

    def _declare(self, queue: str, arguments: dict[str, object]) -> None:
        try:
            self.channel.declare_queue(queue, arguments=arguments)
        except ChannelClosed as closed:
            if closed.code != _PRECONDITION:
                raise
            if not self.uses_existing and not self._is_older(queue, arguments):
                raise Conflict(
                    f"queue {queue!r} is in RabbitMQ with other arguments: {closed.text}. Nothing was changed; remove "
                    "that queue, choose another name or ?queue_type=, or use it as it is: ?existing=use"
                ) from None

    def _is_older(self, queue: str, arguments: dict[str, object]) -> bool:
        """Whether a queue is ours from before an upgrade of RabbitMQ."""
        before = {name: value for name, value in arguments.items() if name != "x-delivery-limit"}
        if before == arguments:
            return False
        try:
            self.channel.declare_queue(queue, arguments=before)
        except ChannelClosed:
            return False
        return True

    def _bind(self, queue: str, options: QueueOptions) -> None:
        channel = self.channel
        for key in routing_keys(options):
            channel.bind_queue(queue, CHANNELS, key)
            channel.bind_queue(queue, TOPICS, key)
        for key in _root_keys(queue):
            channel.bind_queue(queue, TOPICS, key)


def routing_keys(options: QueueOptions) -> list[str]:
    """The binding keys of a channel: patterns are AMQP's own, a prefix covers itself and all below it."""
    keys = list(options.patterns)
    for prefix in options.topics:
        stem = prefix.removesuffix(".*").removesuffix("*").rstrip(".")
        keys += [f"{stem}.#"] if stem else ["#"]
    return keys


def _root_keys(queue: str) -> Iterable[str]:
    """The binding keys for topics whose root is the queue's name; a name with dots is no root."""
    return () if "." in queue or "*" in queue or "#" in queue else (f"{queue}.#",)
