"""A channel that survives its connection: publish in batches, consume, acknowledge, declare."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from remuda.amqp.client.acknowledgements import AckWindow
from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.confirms import ConfirmTracker, Outgoing, Receipt
from remuda.amqp.client.consumer import Consumer
from remuda.amqp.codec.frames import add_content, method_frame
from remuda.amqp.codec.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from remuda.amqp.codec.properties import EMPTY
from remuda.amqp.errors import AmqpError, ConnectionEnded, ConsumerCancelled, ReplyTimeout
from remuda.model.errors import InvalidMessage, InvalidOption

if TYPE_CHECKING:
    from remuda.amqp.client.connection import Connection

M = TypeVar("M", bound=Method)
_TAGS: Final = itertools.count(1)
_FRAMES_KEPT: Final = 10_000


class Reply:
    """The answer to a request, for the thread that waits for it."""

    def __init__(self, kinds: tuple[type[Method], ...], begin: Callable[[], None] | None = None) -> None:
        self.kinds = kinds
        self._begin = begin  # runs before anything that arrived behind the answer is handled
        self.done = threading.Event()
        self.value: tuple[Method, bytes, bytes] | None = None
        self.error: AmqpError | None = None

    def answer(self, method: Method, properties: bytes = b"", body: bytes = b"") -> None:
        """Store the answer. `done` is set later, once everything that arrived before the answer was handed over."""
        if self._begin is not None:
            self._begin()
        self.value = (method, properties, body)

    def fail(self, error: AmqpError) -> None:
        self.error = error
        self.done.set()

    def fail_unless_done(self, error: AmqpError, timeout: float) -> None:
        """Fail unless the thread that drops the channel does so within this time."""
        if not self.done.wait(timeout):
            self.fail(error)

    def result(self) -> tuple[Method, bytes, bytes]:
        if self.error is not None:
            raise self.error
        assert self.value is not None
        return self.value


class Channel:
    """May be used from any thread. After a loss it is opened again with its consumers and its prefetch.

    `epoch` counts how often it was lost: deliveries of an earlier epoch can no longer be settled, and the broker
    delivers them again.
    """

    def __init__(self, connection: Connection, number: int, *, confirms: bool, prefetch: int) -> None:
        self.connection = connection
        self.number = number
        self.confirms = confirms
        self.prefetch = prefetch
        self.open = False
        self.ended: AmqpError | None = None
        self.epoch = 0
        self.consumers: dict[str, Consumer] = {}
        self.resuming: dict[str, Consumer] = {}
        """Consumers that were requested again after a loss, in this order, and are not answered yet."""
        self.window = AckWindow()
        self.tracker = ConfirmTracker()
        self.reply: Reply | None = None
        self._one_request = threading.Lock()
        self._frames: dict[tuple[str, str, bool], bytes] = {}

    def publish(
        self, exchange: str, routing_key: str, body: bytes, properties: bytes = EMPTY, *, mandatory: bool = False
    ) -> Receipt:
        """Send one message; the receipt tells whether the broker accepted it, see `publish_many`."""
        return self.publish_many([Outgoing(exchange, routing_key, properties, body)], mandatory=mandatory)

    def publish_many(
        self, messages: Sequence[Outgoing], *, mandatory: bool = False, timeout: float | None = None
    ) -> Receipt:
        """Send messages in one write. Waits while the connection is down or the broker accepts nothing.

        On a channel without confirms the receipt is settled as soon as the messages are handed to the connection.
        """
        messages = tuple(messages)  # the caller may go on using its list
        number, frame_max = self.number, self.connection.frame_max
        data = self._encoded(messages, mandatory, frame_max)
        with self.connection.changed:
            self.connection.wait_for(self, timeout, room=True)
            if self.connection.frame_max < frame_max or self.number != number:
                data = self._encoded(messages, mandatory, self.connection.frame_max)
            receipt = self._hand_over(messages, data)
        return self._sent(receipt)

    def publish_now(self, messages: Sequence[Outgoing], *, mandatory: bool = False) -> Receipt | None:
        """As `publish_many`, but where that would wait it sends nothing and returns None."""
        messages = tuple(messages)
        connection, number, frame_max = self.connection, self.number, self.connection.frame_max
        if not connection.has_room(self):
            return None
        data = self._encoded(messages, mandatory, frame_max)
        with connection.changed:
            if not connection.has_room(self) or connection.frame_max < frame_max or self.number != number:
                return None
            receipt = self._hand_over(messages, data)
        return self._sent(receipt)

    def _hand_over(self, messages: Sequence[Outgoing], data: bytes) -> Receipt:
        """Queue encoded messages for the socket. Call it with the connection's lock held."""
        receipt = Receipt(messages)
        if self.confirms and messages:
            self.tracker.add(receipt)
        self.connection.put_off(data)
        return receipt

    def _sent(self, receipt: Receipt) -> Receipt:
        self.connection.wake()
        if not self.confirms or not receipt.messages:
            receipt.settle()
        return receipt

    def consume(
        self,
        queue: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
        comes_back: bool = True,
        into: Consumer | None = None,
    ) -> Consumer:
        """Consume a queue. Where the queue goes with the connection, `comes_back=False` ends the consumer at a loss
        instead of resuming it. With `into`, another consumer of this channel collects the deliveries, in order."""
        tag = f"remuda-{next(_TAGS)}"
        request = BasicConsume(0, queue, tag, False, no_ack, exclusive, False, _table(arguments))
        consumer = Consumer(self, request, comes_back=comes_back, into=into)

        def begin() -> None:
            self.consumers[tag] = consumer
            if no_ack:
                self.connection.unbounded.add(consumer)

        with self._one_request:
            self._exchange(request, (BasicConsumeOk,), begin, repeatable=True)
        return consumer

    def cancel(self, consumer: Consumer) -> None:
        """End a consumer; it keeps what it was delivered."""
        if self.consumers.get(consumer.tag) is not consumer:
            return
        try:
            if self.open:
                self.request(BasicCancel(consumer.tag), BasicCancelOk)
        finally:
            self.consumers.pop(consumer.tag, None)
            self.connection.unbounded.discard(consumer)
            consumer.end(ConsumerCancelled(f"the consumer of queue {consumer.request.queue!r} was cancelled here"))

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        """One message, if the queue has any."""
        with self._one_request:
            epoch, (method, properties, body) = self._exchange(BasicGet(0, queue, no_ack), (BasicGetOk, BasicGetEmpty))
        if not isinstance(method, BasicGetOk):
            return None
        return Delivery(
            method.delivery_tag, epoch, method.redelivered, method.exchange, method.routing_key, properties, body,
            method.message_count,
        )  # fmt: skip

    def ack(self, deliveries: Iterable[Delivery]) -> int:
        """Acknowledge deliveries, in as few frames as possible; returns how many were still unsettled."""
        connection = self.connection
        with connection.changed:
            epoch = self.epoch
            count = self.window.ack([delivery.tag for delivery in deliveries if delivery.epoch == epoch])
            if count:
                connection.unsent_acks.add(self)
        if count:
            connection.wake()
        return count

    def nack(self, delivery: Delivery, *, requeue: bool = True) -> bool:
        """Requeue or reject a delivery; False if it is settled or its channel was lost."""
        connection = self.connection
        with connection.changed:
            if not self.open or delivery.epoch != self.epoch or not self.window.settle(delivery.tag):
                return False
            connection.put(method_frame(self.number, BasicNack(delivery.tag, False, requeue)))
        return True

    def set_prefetch(self, count: int) -> None:
        """How many unsettled deliveries each later consumer of this channel may hold; 0 is no limit."""
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 65535:
            raise InvalidOption(f"prefetch must be a whole number from 0 to 65535, not {count!r}")
        self.prefetch = count
        self.request(BasicQos(0, count, False), BasicQosOk, repeatable=True)

    def declare_queue(
        self,
        queue: str,
        *,
        passive: bool = False,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> QueueDeclareOk:
        """Create a queue, or check that it exists as described."""
        request = QueueDeclare(0, queue, passive, durable, exclusive, auto_delete, False, _table(arguments))
        return self.request(request, QueueDeclareOk, repeatable=True)

    def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; returns how many messages it held."""
        return self.request(QueueDelete(0, queue, if_unused, if_empty), QueueDeleteOk).message_count

    def purge_queue(self, queue: str) -> int:
        return self.request(QueuePurge(0, queue), QueuePurgeOk).message_count

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        request = QueueBind(0, queue, exchange, routing_key, False, _table(arguments))
        self.request(request, QueueBindOk, repeatable=True)

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        request = QueueUnbind(0, queue, exchange, routing_key, _table(arguments))
        self.request(request, QueueUnbindOk, repeatable=True)

    def declare_exchange(
        self,
        exchange: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Create an exchange, or check that it exists as described."""
        table = _table(arguments)
        request = ExchangeDeclare(0, exchange, kind, passive, durable, auto_delete, internal, False, table)
        self.request(request, ExchangeDeclareOk, repeatable=True)

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        self.request(ExchangeDelete(0, exchange, if_unused), ExchangeDeleteOk)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        request = ExchangeBind(0, destination, source, routing_key, False, _table(arguments))
        self.request(request, ExchangeBindOk, repeatable=True)

    def close(self) -> None:
        """Close the channel. Deliveries that were not settled go back to their queues."""
        connection = self.connection
        try:
            if self.open:
                self.request(ChannelClose(200, "done"), ChannelCloseOk)
        finally:
            connection.forget(self, ConnectionEnded("the channel was closed by this program; open another one"))

    def request(self, method: Method, expected: type[M], *, repeatable: bool = False) -> M:
        """Send a method and wait for its answer. A `repeatable` one is idempotent: it may be sent twice."""
        with self._one_request:
            return cast("M", self._exchange(method, (expected,), repeatable=repeatable)[1][0])

    def _exchange(
        self,
        method: Method,
        kinds: tuple[type[Method], ...],
        begin: Callable[[], None] | None = None,
        *,
        repeatable: bool = False,
    ) -> tuple[int, tuple[Method, bytes, bytes]]:
        connection = self.connection
        if connection.in_own_thread:
            raise InvalidOption("the connection's own thread cannot wait for the broker; do this in another thread")
        began, wait = time.monotonic(), connection.options.retry_after
        while True:
            epoch, reply = self._ask(method, Reply(kinds, begin))
            # A channel that holds deliveries is not replaced early: they would be delivered again.
            early = repeatable and not self.consumers and not self.window
            left = connection.options.reply_timeout - (time.monotonic() - began)
            last = not early or wait >= left
            if not connection.await_reply(reply, left if last else wait):
                waited = time.monotonic() - began
                reason = f"{type(method).__name__} was not answered within {waited:.3g} s"
                connection.abandon(self, epoch, reply, reason, waited if last else None)
                reply.fail_unless_done(ReplyTimeout(reason), waited)
            try:
                return epoch, reply.result()
            except ReplyTimeout:
                if last or connection.hurries:
                    raise
            wait *= 2

    def _ask(self, method: Method, reply: Reply) -> tuple[int, Reply]:
        connection = self.connection
        with connection.changed:
            connection.wait_for(self, None)
            self.reply = reply
            # Acknowledgements made before this go out before it: closing the channel first would requeue them.
            connection.flush_acks()
            connection.put(method_frame(self.number, method))
            if isinstance(method, ChannelClose):
                self.open = False  # anything sent behind it would fail the whole connection
            return self.epoch, reply

    def _encoded(self, messages: Sequence[Outgoing], mandatory: bool, frame_max: int) -> bytes:
        if {*map(type, messages)} - {Outgoing}:
            for message in messages:
                if not isinstance(message, tuple) or len(message) != 4:
                    raise InvalidMessage(f"a message to publish is an Outgoing, not {message!r}")
        if len(messages) > 1 and (alike := self._encoded_alike(messages, mandatory, frame_max)) is not None:
            return alike
        out: list[bytes] = []
        for exchange, routing_key, properties, body in messages:
            add_content(out, self._frame(exchange, routing_key, mandatory), self.number, properties, body, frame_max)
        return b"".join(out)

    def _encoded_alike(self, messages: Sequence[Outgoing], mandatory: bool, frame_max: int) -> bytes | None:
        """Encode messages for one exchange and key whose properties and bodies have the same lengths, as in most
        batches: the frames around them are built once. None if they differ."""
        exchanges, keys, properties, bodies = zip(*messages, strict=True)
        exchange, key, first, body = messages[0]
        if (
            {*map(type, properties), *map(type, bodies)} != {bytes}
            or exchanges.count(exchange) != len(messages)
            or keys.count(key) != len(messages)
            or {*map(len, properties)} != {len(first)}
            or {*map(len, bodies)} != {len(body)}
        ):
            return None
        around: list[bytes] = []
        add_content(around, self._frame(exchange, key, mandatory), self.number, first, body, frame_max)
        if len(around) != 6:
            return None  # without a body, or with one in several frames
        frame, header, _, between, _, end = around
        rows = zip(repeat(frame + header), properties, repeat(between), bodies, repeat(end))
        return b"".join(chain.from_iterable(rows))

    def _frame(self, exchange: str, routing_key: str, mandatory: bool) -> bytes:
        frame = self._frames.get((exchange, routing_key, mandatory))
        if frame is None:
            if len(self._frames) >= _FRAMES_KEPT:
                self._frames.clear()
            frame = method_frame(self.number, BasicPublish(0, exchange, routing_key, mandatory))
            self._frames[exchange, routing_key, mandatory] = frame
        return frame

    def lost(self, error: AmqpError) -> list[Receipt]:
        """Begin a new epoch, since the channel was lost. Call it with the connection's lock held, and settle the
        receipts it returns."""
        self.open = False
        self.epoch += 1
        self.window.clear()
        self.resuming.clear()
        for tag, consumer in list(self.consumers.items()):
            consumer.forget()
            if not consumer.comes_back:
                del self.consumers[tag]
                self.connection.unbounded.discard(consumer)
                consumer.end(error)
        if self.reply is not None:
            self.reply.fail(error)
            self.reply = None
        return self.tracker.fail(error)

    def renumber(self, number: int) -> None:
        """Continue under another number, since the broker's end of this one does not answer."""
        self.number = number
        self._frames.clear()

    def opening(self) -> list[tuple[Method, type[Method]]]:
        """The requests that restore a newly opened channel, consumers aside, each with its expected answer."""
        steps: list[tuple[Method, type[Method]]] = []
        if self.confirms:
            steps.append((ConfirmSelect(), ConfirmSelectOk))
        if self.prefetch:
            steps.append((BasicQos(0, self.prefetch, False), BasicQosOk))
        return steps


def _table(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InvalidOption(f"arguments must be a mapping, not {arguments!r}")
    return dict(arguments or {})
