"""The definitions that all processes share: a journal of changes in a quorum queue, and a fanout exchange that sends
each change to every process.

To write or read the journal a process holds a lock: an exclusive queue, which goes away with its connection. A change
is confirmed when it is in the journal and in the queue of every process, so all see the same changes in the same order.
A reader consumes the whole journal and acknowledges nothing: it all goes back when its channel closes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final
from uuid import uuid4

import msgspec

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing
from remuda.amqp.client.connection import Connection
from remuda.amqp.client.consumer import Consumer
from remuda.amqp.codec.properties import PERSISTENT, Properties, encode_properties
from remuda.amqp.errors import AmqpError, ChannelClosed
from remuda.broker.rabbitmq.publishing.confirmed_sender import Sender
from remuda.broker.rabbitmq.shared_state.queue_definitions import BEGAN, PLANNED, Catalog, Change, QueueDefinition
from remuda.broker.rabbitmq.support import QueueKind, parking, version_of
from remuda.jitter import CHANCE
from remuda.model.errors import RemudaError

CHANGES: Final = "remuda.changes"
"""The exchange, and the queue that is the journal."""
LOCK: Final = "remuda.changes.lock"
SUPERFLUOUS: Final = 1000
"""How many superfluous changes the journal may have before it is rewritten."""
_PROPERTIES: Final = encode_properties(Properties(delivery_mode=PERSISTENT, content_type="application/json"))
_RESOURCE_LOCKED: Final = 405
_LATER: Final = 0.05
_LOG: Final = logging.getLogger("remuda.rabbitmq")
_CHANGES: Final = msgspec.json.Decoder(Change)


class Definitions:
    """Reads, writes and follows the journal. `on_change` is called for every change of a queue, mostly in the
    connection's thread; it must not wait. `on_lost` is called there when changes are no longer followed, until `follow`
    is called again."""

    def __init__(
        self,
        connection: Connection,
        sender: Sender,
        on_change: Callable[[Change], None],
        on_lost: Callable[[], None],
        clock: Callable[[], int],
        timeout: float = 30.0,
    ) -> None:
        self.catalog = Catalog()
        self.trouble: str | None = None
        """Why changes by other processes are not received at present; None if they are."""
        self._connection = connection
        self._sender = sender
        self._on_change = on_change
        self._on_lost = on_lost
        self._clock = clock
        self._timeout = timeout
        self._awaited: dict[str, Future[bool]] = {}
        self._guard = threading.Lock()
        self._playing = threading.Lock()  # changes are applied one after the other, whichever thread brings them
        self._one_at_a_time = threading.Lock()  # the exclusive queue keeps out other connections, not other threads
        self._locking: Channel | None = None
        self._following: Channel | None = None
        self._consumer: Consumer | None = None
        self._seen: set[str] = set()

    @property
    def queues(self) -> dict[str, QueueDefinition]:
        return self.catalog.queues

    def follow(self) -> None:
        """Read all changes, and follow those to come. Waits for RabbitMQ."""
        with self._alone():
            channel = self._open_channels()
            own = f"{CHANGES}.{uuid4().hex}"
            channel.declare_queue(own, durable=False, exclusive=True, auto_delete=True)
            channel.bind_queue(own, CHANGES)
            consumer = channel.consume(own, no_ack=True, comes_back=False)
            self._adopt(self._read())
        self.trouble = None
        self._consumer = consumer
        consumer.listen(lambda: self._arrived(consumer))

    def propose(self, change: Change) -> bool:
        """Write a change, and wait until it is applied here, after all changes before it. Returns whether it holds."""
        return self.propose_all([change])[0]

    def propose_all(self, changes: Sequence[Change]) -> list[bool]:
        """Write several changes at once. Returns for each whether it holds."""
        applied: dict[str, Future[bool]] = {change.token: Future() for change in changes}
        deadline = time.monotonic() + self._timeout
        with self._guard:
            self._awaited.update(applied)
        try:
            with self._alone():
                messages = [Outgoing(CHANGES, "", _PROPERTIES, msgspec.json.encode(change)) for change in changes]
                self._write(messages)
                if len(self._seen) > SUPERFLUOUS + 2 * len(self.catalog):
                    self._read()
            return [one.result(max(deadline - time.monotonic(), 1.0)) for one in applied.values()]
        except TimeoutError:
            raise RemudaError(
                f"RabbitMQ did not accept a definition within {self._timeout:g} s; nothing was changed for others"
            ) from None
        finally:
            with self._guard:
                for token in applied:
                    self._awaited.pop(token, None)

    # The journal

    def _open_channels(self) -> Channel:
        """A channel to follow changes on; declares the exchange and the journal."""
        before, self._following = self._following, None
        if before is not None:
            with contextlib.suppress(AmqpError):
                before.close()
        channel = self._following = self._connection.channel()
        channel.declare_exchange(CHANGES, "fanout")
        version = version_of(self._connection.server_properties)
        channel.declare_queue(CHANGES, arguments=parking(QueueKind.QUORUM, version))
        channel.bind_queue(CHANGES, CHANGES)
        return channel

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock: no other process or thread reads or writes the journal."""
        deadline = time.monotonic() + self._timeout
        if not self._one_at_a_time.acquire(timeout=self._timeout):
            raise _locked(self._timeout)
        try:
            if self._locking is None:
                self._locking = self._connection.channel()
            while not self._locked(self._locking):
                if time.monotonic() > deadline:
                    raise _locked(self._timeout)
                time.sleep(CHANCE.uniform(0.002, 0.02))
            try:
                yield
            finally:
                with contextlib.suppress(AmqpError):  # the lock went with the connection
                    self._locking.delete_queue(LOCK)
        finally:
            self._one_at_a_time.release()

    def _locked(self, channel: Channel) -> bool:
        try:
            channel.declare_queue(LOCK, durable=False, exclusive=True)
        except ChannelClosed as closed:
            if closed.code != _RESOURCE_LOCKED:
                raise
            return False
        return True

    def _read(self) -> list[Change]:
        """All changes, in their order. If most of them are superfluous, the journal is rewritten."""
        fence = msgspec.json.encode(uuid4().hex)  # not a change: readers skip it
        try:
            self._write([Outgoing("", CHANGES, _PROPERTIES, fence)])
        except TimeoutError:
            raise RemudaError(f"the queue {CHANGES!r} accepted nothing within {self._timeout:g} s") from None
        channel = self._connection.channel()
        try:
            count = self._settled_count(channel)
            deliveries = self._deliveries(channel.consume(CHANGES), count)
            fences = [one for one in deliveries if one.body == fence]
            if not fences:
                raise RemudaError(f"RabbitMQ delivered {count} definitions, but there are more; read them again")
            changes = [change for one in deliveries if (change := _decoded(one.body)) is not None]
            catalog = Catalog()
            for change in changes:
                catalog.play(change)
            if count > SUPERFLUOUS + 2 * len(catalog):
                changes = catalog.changes(self._clock())
                fewest = [Outgoing("", CHANGES, _PROPERTIES, msgspec.json.encode(change)) for change in changes]
                self._write(fewest)
                channel.ack(deliveries)
            else:
                channel.ack(fences)
            with self._guard:
                self._seen = {change.token for change in changes}
            return changes
        finally:
            channel.close()

    def _write(self, messages: Sequence[Outgoing]) -> None:
        """Publish, and wait for the confirms. A node may learn a little later of the journal that another node has
        created: until then it returns all messages."""
        deadline = time.monotonic() + self._timeout
        while messages:
            sent = self._sender.submit(messages).result(self._timeout)
            if len(sent.returned) < len(messages) or time.monotonic() > deadline:
                return sent.check()
            time.sleep(_LATER)
        return None

    def _settled_count(self, channel: Channel) -> int:
        """How many messages the journal has, with the fence, once the last reader is gone and what it read is back.

        RabbitMQ reports none at all for a quorum queue that has no leader at present."""
        deadline = time.monotonic() + self._timeout
        while (seen := channel.declare_queue(CHANGES, passive=True)).consumer_count or not seen.message_count:
            if time.monotonic() > deadline:
                if not seen.consumer_count:
                    raise RemudaError(f"the queue {CHANGES!r} has no leader in RabbitMQ; definitions cannot be read")
                raise RemudaError(f"another program consumes from {CHANGES!r}, the journal of definitions; stop it")
            time.sleep(0.002)
        return seen.message_count

    def _deliveries(self, consumer: Consumer, count: int) -> list[Delivery]:
        found: list[Delivery] = []
        while len(found) < count:
            arrived = consumer.get(count - len(found), timeout=self._timeout)
            if not arrived:
                raise RemudaError(f"RabbitMQ delivered {len(found)} of {count} definitions within {self._timeout:g} s")
            found += arrived
        return found

    def _adopt(self, changes: list[Change]) -> None:
        """Apply everything from the beginning: a change that was missed may be known only by what is gone."""
        catalog, played = Catalog(), set()
        with self._playing:
            for change in changes:
                if change.token not in played:
                    played.add(change.token)
                    self._resolve(change, catalog.play(change))
            before, self.catalog = self.catalog, catalog
            for change in catalog.since(before, self._clock()):
                self._on_change(change)

    def _arrived(self, consumer: Consumer) -> None:
        with self._playing:
            if consumer is not self._consumer:
                return
            for delivery in consumer.take():
                change = _decoded(delivery.body)
                if change is not None:
                    self._play(change)
            if consumer.ended is None:
                return
            self._consumer = None
        self.trouble = f"changes by other processes are not received until they are read again: {consumer.ended}"
        self._on_lost()

    def _play(self, change: Change) -> None:
        with self._guard:
            if change.token in self._seen:
                return  # it was read in the journal, or sent again
            self._seen.add(change.token)
        holds = self.catalog.play(change)
        if holds and change.action not in (PLANNED, BEGAN):
            self._on_change(change)
        self._resolve(change, holds)

    def _resolve(self, change: Change, holds: bool) -> None:
        with self._guard:
            awaited = self._awaited.get(change.token)
        if awaited is not None and not awaited.done():
            awaited.set_result(holds)


def _decoded(body: bytes) -> Change | None:
    try:
        return _CHANGES.decode(body)
    except msgspec.DecodeError:
        return None  # a fence, or written by a later version


def _locked(timeout: float) -> RemudaError:
    return RemudaError(
        f"another process has been changing definitions for {timeout:g} s, so nothing was changed; try again, or find "
        f"the process that owns the queue {LOCK!r}"
    )
