"""Received events, handed to consumers and to the threads that wait for a reply or for confirms."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel, Reply
from remuda.amqp.client.confirms import Receipt
from remuda.amqp.client.consumer import Consumer
from remuda.amqp.client.delivery_parser import Deliveries
from remuda.amqp.codec.frames import Event, method_frame
from remuda.amqp.codec.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsumeOk,
    BasicDeliver,
    BasicGetOk,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUnblocked,
    Method,
)
from remuda.amqp.errors import ChannelClosed, ConnectionClosed, ConnectionEnded, ConsumerCancelled

if TYPE_CHECKING:
    from remuda.amqp.client.connection import Connection

_LOG: Final = logging.getLogger("remuda.amqp")


class Dispatcher:
    """Runs in the connection's thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def dispatch(self, events: list[Event]) -> int:
        """Hand over received events; deliveries for one consumer go together and in order.

        Returns the smallest backlog of the consumers that got deliveries, or 0 if somebody got a reply or a confirm."""
        delivered: dict[Consumer, list[Delivery]] = {}
        settled: list[Receipt] = []
        answered: list[Reply] = []
        connection = self._connection
        with connection.changed:
            for number, method, properties, body in events:
                channel = connection.channels.get(number)
                if channel is None:
                    if number == 0:
                        self._control(method)
                    else:
                        connection.restorer.answered_late(number, method)
                elif type(method) is BasicDeliver:
                    consumer = self._consumer(channel, method.consumer_tag, (method.delivery_tag,))
                    if consumer is not None:
                        delivery = Delivery(
                            method.delivery_tag, channel.epoch, method.redelivered, method.exchange,
                            method.routing_key, properties, body,
                        )  # fmt: skip
                        delivered.setdefault(consumer, []).append(delivery)
                elif type(method) is Deliveries:
                    consumer = self._consumer(channel, method.like.consumer_tag, method.tags)
                    if consumer is not None:
                        delivered.setdefault(consumer, []).extend(method.of_epoch(channel.epoch))
                elif type(method) is BasicAck:
                    settled += channel.tracker.answer(method.delivery_tag, method.multiple, True)
                elif type(method) is BasicNack:
                    settled += channel.tracker.answer(method.delivery_tag, method.multiple, False)
                elif type(method) is BasicConsumeOk and channel.resuming.pop(method.consumer_tag, None) is not None:
                    continue
                elif (reply := channel.reply) is not None and isinstance(method, reply.kinds):
                    if isinstance(method, BasicGetOk):
                        channel.window.delivered([method.delivery_tag])
                    channel.reply = None
                    reply.answer(method, properties, body)
                    answered.append(reply)
                else:
                    settled += self._on_channel(channel, method, properties, body)
        waiting = [
            consumer.extend(batch) for consumer, batch in delivered.items() if batch[-1].epoch == consumer.channel.epoch
        ]
        for reply in answered:
            reply.done.set()
        for receipt in settled:
            receipt.settle()
        return min(waiting) if waiting and not answered and not settled else 0

    def _consumer(self, channel: Channel, name: str, tags: Sequence[int]) -> Consumer | None:
        """The consumer that collects these deliveries; None if it is gone.

        Their tags enter the window either way: an acknowledgement with `multiple` covers all tags before it, of every
        consumer of the channel."""
        consumer = channel.consumers.get(name)
        if consumer is None or not consumer.request.no_ack:
            channel.window.delivered(tags)
        return None if consumer is None else consumer.sink

    def _on_channel(self, channel: Channel, method: Method, properties: bytes, body: bytes) -> list[Receipt]:
        if isinstance(method, ChannelClose):
            return self._closed(channel, method)
        connection = self._connection
        if isinstance(method, BasicReturn):
            if channel.tracker.returned(method, properties, body) is None and channel.confirms:
                where = method.exchange, method.routing_key, method.text
                _LOG.warning("the broker returned an unknown message for exchange %r and key %r: %s", *where)
        elif isinstance(method, BasicCancel):
            consumer = channel.consumers.pop(method.consumer_tag, None)
            if not method.no_wait:
                connection.put(method_frame(channel.number, BasicCancelOk(method.consumer_tag)))
            if consumer is not None:
                name = consumer.request.queue
                consumer.end(ConsumerCancelled(f"the broker ended the consumer of queue {name!r}; was it deleted?"))
                connection.tell_change()
        elif isinstance(method, ChannelFlow):
            connection.put(method_frame(channel.number, ChannelFlowOk(method.active)))
        return []

    def _closed(self, channel: Channel, method: ChannelClose) -> list[Receipt]:
        """Reopen a channel that the broker closed, as it does when it refuses a request."""
        connection = self._connection
        connection.put(method_frame(channel.number, ChannelCloseOk()))
        connection.forget_unread(channel.number)
        connection.restorer.add(channel)
        closed = ChannelClosed(method.code, method.text, "channel")
        blamed = next(iter(channel.resuming.values()), None)
        receipts = channel.lost(closed)
        if blamed is not None:
            channel.consumers.pop(blamed.tag, None)
            blamed.end(ConsumerCancelled(f"queue {blamed.request.queue!r} can no longer be consumed: {closed}"))
        connection.last_error = f"channel {channel.number}: {method.code} {method.text}"
        connection.changed.notify_all()
        connection.tell_change()
        return receipts

    def _control(self, method: Method) -> None:
        connection = self._connection
        if isinstance(method, ConnectionClose):
            connection.last_words(ConnectionCloseOk())
            raise ConnectionClosed(method.code, method.text, "connection")
        if isinstance(method, ConnectionCloseOk):
            raise ConnectionEnded("the connection was closed by this program; open another one")
        if isinstance(method, ConnectionBlocked):
            connection.blocked = method.reason or "no reason given"
            _LOG.warning("the broker has blocked publishing: %s", connection.blocked)
        elif isinstance(method, ConnectionUnblocked):
            connection.blocked = None
            _LOG.info("the broker accepts messages again")
