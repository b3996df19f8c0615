"""Opens channels, for the first time or again with the settings and consumers they had."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from remuda.amqp.client.channel import Channel, Reply
from remuda.amqp.client.confirms import Receipt
from remuda.amqp.client.heartbeats import IDLE
from remuda.amqp.codec.frames import method_frame
from remuda.amqp.codec.methods import BasicQos, ChannelClose, ChannelCloseOk, ChannelOpen, ChannelOpenOk, Method
from remuda.amqp.errors import AmqpError, ChannelClosed, ReplyTimeout
from remuda.model.errors import Conflict

if TYPE_CHECKING:
    from remuda.amqp.client.connection import Connection

_LOG: Final = logging.getLogger("remuda.amqp")


class _Watch:
    """When a channel's consumers were requested again, and how long to wait for the broker's answers."""

    __slots__ = ("began", "wait")

    def __init__(self, wait: float) -> None:
        self.began = time.monotonic()
        self.wait = wait

    def left(self) -> float:
        return self.began + self.wait - time.monotonic()


class Restorer:
    """Runs in the connection's thread, which goes on sending and receiving meanwhile."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[Channel] = []
        self._watched: dict[Channel, _Watch] = {}
        self.left_behind: set[int] = set()
        """Numbers of channels whose other end does not answer. They can be used again once it confirms the close."""
        self._asking = False

    @property
    def has_work(self) -> bool:
        """Whether a channel can be opened now; they are opened one after the other."""
        return bool(self._waiting) and not self._asking

    @property
    def until_next(self) -> float:
        """Seconds until a channel's consumers are due for a check."""
        return max(min((watch.left() for watch in self._watched.values()), default=IDLE), 0.0)

    def add(self, channel: Channel) -> None:
        """Schedule a channel to be opened. Call it with the connection's lock held; `wake` must follow."""
        self._waiting.append(channel)

    def begin(self) -> None:
        """Open all channels on a new link, trying each once."""
        with self._connection.changed:
            closed = [channel for channel in self._connection.channels.values() if not channel.open]
            self._waiting = []
            self._watched.clear()
            self.left_behind.clear()
        for channel in closed:
            self._restore(channel)

    def go_on(self) -> None:
        self._look_after_consumers()
        while self._waiting:
            self._restore(self._waiting.pop(0))

    def leave_behind(self, channel: Channel, reason: str) -> list[Receipt]:
        """Continue a channel under another number because the broker's end of this one does not answer, as when its
        queue has no leader. The old one is asked to close, so that whatever it still delivers goes back to the queue.
        Call it with the connection's lock held, and settle the receipts it returns."""
        connection, closing = self._connection, not channel.open
        try:
            following = connection.free_number()
        except Conflict:
            connection.give_up(reason)
            return []
        _LOG.warning("channel %d does not answer and is replaced by another: %s", channel.number, reason)
        receipts = channel.lost(ReplyTimeout(reason))
        del connection.channels[channel.number]
        self.left_behind.add(channel.number)
        if not closing:
            connection.put(method_frame(channel.number, ChannelClose(200, "no answer")))
            channel.renumber(following)
            connection.channels[following] = channel
            self.add(channel)
            connection.wake()
        return receipts

    def answered_late(self, number: int, method: Method) -> None:
        """Something arrived for a channel that was left behind. Call it with the connection's lock held."""
        if number not in self.left_behind:
            return
        if isinstance(method, ChannelCloseOk):
            self.left_behind.remove(number)
            self._connection.forget_unread(number)
        elif isinstance(method, ChannelClose):  # both ends closed it at the same time
            self._connection.put(method_frame(number, ChannelCloseOk()))

    def _restore(self, channel: Channel) -> None:
        connection = self._connection
        if connection.channels.get(channel.number) is not channel or channel.open:
            return
        try:
            self._ask(channel, ChannelOpen(), ChannelOpenOk)
            for method, expected in channel.opening():
                self._ask(channel, method, expected)
        except ChannelClosed as closed:
            _LOG.warning("channel %d cannot be opened, trying again: %s", channel.number, closed)
            self.add(channel)
            return
        except AmqpError:
            if channel.ended is not None:
                return  # the program closed it meanwhile; the connection itself is fine
            raise
        with connection.changed:
            # Do not wait for the answers: a queue without a leader may not answer for a long time.
            channel.resuming = dict(channel.consumers)
            for consumer in channel.consumers.values():
                connection.put(method_frame(channel.number, BasicQos(0, consumer.prefetch, False)))
                connection.put(method_frame(channel.number, consumer.request))
            channel.open = True
            if channel.resuming:
                self._watch(channel)
            connection.changed.notify_all()
        if channel.epoch:
            connection.tell_change()

    def _watch(self, channel: Channel) -> None:
        """Wait for the consumers' answers, twice as long as the last time if there was one."""
        options, before = self._connection.options, self._watched.get(channel)
        wait = options.retry_after if before is None else 2 * before.wait
        self._watched[channel] = _Watch(min(wait, options.reply_timeout))

    def _look_after_consumers(self) -> None:
        """Request consumers once more, on a fresh channel, if their last request was not answered in time."""
        connection = self._connection
        receipts: list[Receipt] = []
        with connection.changed:
            for channel, watch in list(self._watched.items()):
                if (channel.open and not channel.resuming) or channel.ended is not None:
                    del self._watched[channel]
                elif watch.left() <= 0:
                    self._look_after(channel, watch, receipts)
        for receipt in receipts:
            receipt.settle()

    def _look_after(self, channel: Channel, watch: _Watch, receipts: list[Receipt]) -> None:
        limit = self._connection.options.reply_timeout
        if not channel.open:
            watch.began = time.monotonic()  # it is being opened
        elif channel.window and watch.wait < limit:
            watch.wait = limit  # its other consumers hold deliveries, which would be delivered again
        else:
            receipts += self.leave_behind(channel, f"its consumers were not answered within {watch.wait:g} s")

    def _ask(self, channel: Channel, method: Method, expected: type[Method]) -> None:
        """Make a request from the connection's own thread, which keeps the connection going until the answer comes."""
        connection, reply = self._connection, Reply((expected,))
        with connection.changed:
            channel.reply = reply
            connection.put(method_frame(channel.number, method))
        deadline = time.monotonic() + connection.options.reply_timeout
        self._asking = True
        try:
            while not reply.done.is_set():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ReplyTimeout(f"{type(method).__name__} was not answered in time")
                connection.turn(left)
        finally:
            self._asking = False
        reply.result()
