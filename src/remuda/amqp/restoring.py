"""Channels that have to be opened, for the first time or again, with all they had."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from remuda.amqp.channel import Channel, Reply
from remuda.amqp.errors import AmqpError, ChannelClosed, ReplyTimeout
from remuda.amqp.frames import method_frame
from remuda.amqp.methods import BasicQos, ChannelOpen, ChannelOpenOk, Method

if TYPE_CHECKING:
    from remuda.amqp.connection import Connection

_LOG: Final = logging.getLogger("remuda.amqp")


class Restorer:
    """Works in the connection's thread, which goes on sending and receiving meanwhile."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[Channel] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def add(self, channel: Channel) -> None:
        """Have a channel opened. With the connection's lock held; `wake` must follow."""
        self._waiting.append(channel)

    def begin(self) -> None:
        """There is a new link: all channels are opened on it, each tried once."""
        with self._connection.changed:
            closed = [channel for channel in self._connection.channels.values() if not channel.open]
            self._waiting = []
        for channel in closed:
            self._restore(channel)

    def go_on(self) -> None:
        while self._waiting:
            self._restore(self._waiting.pop(0))

    def _restore(self, channel: Channel) -> None:
        connection = self._connection
        if connection.channels.get(channel.number) is not channel or channel.open:
            return
        try:
            self._ask(channel, ChannelOpen(), ChannelOpenOk)
            for method, expected in channel.opening():
                self._ask(channel, method, expected)
        except ChannelClosed as closed:
            _LOG.warning("channel %d cannot be opened again: %s", channel.number, closed)
            self.add(channel)
            return
        except AmqpError:
            if channel.ended is not None:
                return  # the program closed it meanwhile, which concerns nobody else
            raise
        with connection.changed:
            # Nobody waits for the answers: a queue that has no leader may give none for long.
            channel.resuming = dict(channel.consumers)
            for consumer in channel.consumers.values():
                connection.put(method_frame(channel.number, BasicQos(0, consumer.prefetch, False)))
                connection.put(method_frame(channel.number, consumer.request))
            channel.open = True
            connection.changed.notify_all()
        if channel.epoch:
            connection.tell_change()

    def _ask(self, channel: Channel, method: Method, expected: type[Method]) -> None:
        """A request from the connection's own thread, which goes on working until the answer comes."""
        connection, reply = self._connection, Reply((expected,))
        with connection.changed:
            channel.reply = reply
            connection.put(method_frame(channel.number, method))
        deadline = time.monotonic() + connection.options.reply_timeout
        while not reply.done.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                raise ReplyTimeout(f"{type(method).__name__} was not answered in time")
            connection.turn(left)
        reply.result()
