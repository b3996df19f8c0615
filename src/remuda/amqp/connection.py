"""A connection with one thread of its own for the socket, so that heartbeats never wait for anybody's handler."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from remuda.amqp.channel import Channel, Reply
from remuda.amqp.confirms import Receipt
from remuda.amqp.consumer import Consumer
from remuda.amqp.delivery import Delivery
from remuda.amqp.errors import (
    AmqpError,
    ChannelClosed,
    ConnectFailed,
    ConnectionClosed,
    ConnectionEnded,
    ConnectionLost,
    ConsumerCancelled,
    LoginRefused,
    ReplyTimeout,
)
from remuda.amqp.frames import FRAME_MAX, HEARTBEAT, Event, method_frame
from remuda.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsumeOk,
    BasicDeliver,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUnblocked,
    Method,
)
from remuda.amqp.options import ConnectionOptions, parse_url
from remuda.amqp.reading import Deliveries
from remuda.amqp.transport import Link
from remuda.chance import CHANCE
from remuda.model.errors import Conflict, InvalidOption

_LOG: Final = logging.getLogger("remuda.amqp")
_STEADY: Final = 5.0
"""A connection that held for so long was a good one: the next loss starts the back-off anew."""
_IDLE: Final = 3600.0
_BACKLOG: Final = 200
"""Where so many deliveries wait here for those who take them, nobody is in a hurry for the next."""
_WORTH_A_TURN: Final = 65536
_GATHERING: Final = 0.001
"""So many seconds are then left for more bytes to come: RabbitMQ sends them in small pieces, and to read one costs as
much as dozens of deliveries."""


class Connection:
    """A connection to a broker that is opened again, over all hosts, whenever it breaks.

    Channels and consumers come back with it. `on_change` is called from the connection's thread whenever it goes up or
    down; it must not wait.
    """

    def __init__(
        self, url: str | ConnectionOptions, *, on_change: Callable[[], None] | None = None, **changes: Any
    ) -> None:
        if isinstance(url, ConnectionOptions):
            if changes:
                raise InvalidOption("changes can be given with a URL only; change the options themselves")
            self.options = url
        else:
            self.options = parse_url(url, **changes)
        self.changed = threading.Condition()
        self.frame_max = FRAME_MAX
        self.channel_max = 65535
        self.up = False
        self.blocked: str | None = None
        """Why the broker takes nothing in at the moment, if so."""
        self.failure: AmqpError | None = None
        """Why the connection was given up for good, if so."""
        self.last_error: str = ""
        self.connects = 0
        self.server_properties: dict[str, Any] = {}
        self.unsent_acks: set[Channel] = set()
        self.unbounded: set[Consumer] = set()
        """Consumers that no prefetch bounds."""
        self._on_change = on_change
        self._channels: dict[int, Channel] = {}
        self._left_behind: set[int] = set()
        """Numbers of channels whose other end does not answer; they are free again with the next connection."""
        self._out: list[bytes] = []
        self._out_size = 0
        self._sending: memoryview | None = None
        self._link: Link | None = None
        self._abandoned: str | None = None
        self._ending = False
        self._awake = True
        self._tasks: list[Channel] = []
        self._close_reply = threading.Event()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._sent_at = self._heard_at = 0.0
        self._gathers = False
        self._thread = threading.Thread(target=self._run, name=f"amqp {self.options.name}".strip(), daemon=True)

    def open(self, timeout: float | None = None) -> Connection:
        """Connect; raises `ConnectFailed` when the attempts are used up, or the time is."""
        with self.changed:
            if self._thread.ident is None:
                self._thread.start()
            self.changed.wait_for(lambda: self.up or self.failure is not None, timeout)
            if self.failure is not None:
                raise self.failure
            connected = self.up
        if not connected:
            self.close(1.0)
            raise ConnectFailed(f"no connection to {self.options} within {timeout:g} s: {self.last_error}")
        return self

    def await_up(self, timeout: float) -> bool:
        """Wait until there is a connection, again if need be; False if there is none in time."""
        with self.changed:
            self.changed.wait_for(lambda: self.up or self.failure is not None or self._ending, timeout)
            return self.up and not self._ending

    def __enter__(self) -> Connection:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether the connection's thread runs."""
        return self._thread.is_alive()

    @property
    def in_own_thread(self) -> bool:
        """Whether the caller is the connection's thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def channel(self, *, confirms: bool = False, prefetch: int = 0) -> Channel:
        """Open a channel. With `confirms` the broker answers every publish."""
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 0 <= prefetch <= 65535:
            raise InvalidOption(f"prefetch must be a whole number from 0 to 65535, not {prefetch!r}")
        with self.changed:
            number = self._free_number()
            channel = Channel(self, number, confirms=confirms, prefetch=prefetch)
            self._channels[number] = channel
            self._tasks.append(channel)
            self.wake()
            self.wait_for(channel, None)
        return channel

    def _free_number(self) -> int:
        taken = self._channels.keys() | self._left_behind
        number = next((n for n in range(1, self.channel_max + 1) if n not in taken), 0)
        if not number:
            raise Conflict(f"the connection has {self.channel_max} channels, the most the broker allows; close some")
        return number

    def close(self, timeout: float = 5.0) -> None:
        """Send what is left, say goodbye, and end. May be called again."""
        if self.in_own_thread:
            raise InvalidOption("a connection cannot be closed from its own thread")
        with self.changed:
            self._ending = True
            if self.up:
                self.flush_acks()
                self.put(method_frame(0, ConnectionClose(200, "done")))
            self.changed.notify_all()
            self.wake()
        if self._thread.ident is not None:
            if self.up:
                self._close_reply.wait(timeout)
            self.give_up("closed by this program")
            self._thread.join(timeout)
        self._finish(ConnectionEnded("the connection was closed by this program; open another one"))
        if self._wake_out >= 0 and not self._thread.is_alive():
            os.close(self._wake_in)
            os.close(self._wake_out)
            self._wake_in = self._wake_out = -1

    # What channels use, with `changed` held.

    def put(self, data: bytes) -> None:
        """Queue bytes for the socket."""
        self.put_off(data)
        self.wake()

    def put_off(self, data: bytes) -> None:
        """Queue bytes for the socket; `wake` must follow."""
        self._out.append(data)
        self._out_size += len(data)

    def wake(self) -> None:
        """Have the connection's thread look. Best called without the lock, which that thread takes next: whatever was
        queued before is seen, since it looks after it has said that it sleeps."""
        if not self._awake:
            self._awake = True
            with contextlib.suppress(OSError):
                os.write(self._wake_out, b"!")

    def wait_for(self, channel: Channel, timeout: float | None, *, room: bool = False) -> None:
        """Wait until a channel is open and, if asked, until the broker has taken some of what is queued."""
        limit = self.options.reply_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        while True:
            if channel.ended is not None:
                raise channel.ended
            if self.failure is not None:
                raise self.failure
            if self._ending:
                raise ConnectionEnded("the connection was closed by this program; open another one")
            if self._thread.ident is None:
                raise ConnectionEnded("the connection was not opened; call open() first")
            if channel.open and not (room and self._out_size > self.options.max_buffered):
                return
            if self.in_own_thread:
                raise ConnectionLost("the channel is not open, and the connection's own thread cannot wait for it")
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._too_late(channel, limit)
            self.changed.wait(left)

    def has_room(self, channel: Channel) -> bool:
        """Whether `wait_for` would not wait for room on a channel."""
        usable = channel.ended is None and self.failure is None and not self._ending
        return usable and channel.open and self._out_size <= self.options.max_buffered

    def forget(self, channel: Channel, error: AmqpError) -> None:
        """A channel is closed for good."""
        with self.changed:
            receipts = channel.lost(error)
            channel.ended = error
            if self._channels.get(channel.number) is channel:
                del self._channels[channel.number]
            consumers = list(channel.consumers.values())
            self.unbounded.difference_update(consumers)
            self.changed.notify_all()
        for consumer in consumers:
            consumer.end(error)
        for receipt in receipts:
            receipt.settle()

    def abandon(self, channel: Channel, epoch: int, reason: str, waited: float) -> None:
        """A request was not answered. Where the broker answers others, as when one queue has no leader, this channel
        alone is left behind and opened anew; otherwise the socket is dropped."""
        with self.changed:
            if channel.epoch != epoch or channel.ended is not None:
                return
            if not self.up or time.monotonic() - self._heard_at > waited:
                self.give_up(reason)
                return
            _LOG.warning("channel %d does not answer, and is left behind: %s", channel.number, reason)
            receipts = channel.lost(ReplyTimeout(reason))
            del self._channels[channel.number]
            self._left_behind.add(channel.number)
            channel.renumber(self._free_number())
            self._channels[channel.number] = channel
            self._tasks.append(channel)
            self.wake()
        for receipt in receipts:
            receipt.settle()

    def give_up(self, reason: str) -> None:
        """Drop the socket, since the other end does not behave."""
        with self.changed:
            self._abandoned = reason
            self.wake()

    # The connection's thread.

    def _run(self) -> None:
        try:
            self._keep_connected()
        except Exception as error:
            _LOG.exception("the connection's thread failed by a fault of its own")
            self._finish(ConnectFailed(f"the connection's thread failed: {type(error).__name__}: {error}"))

    def _keep_connected(self) -> None:
        failures, hosts = 0, list(self.options.hosts)
        turn = CHANCE.randrange(len(hosts))
        while not self._ending:
            host, port = hosts[turn % len(hosts)]
            turn += 1
            began = time.monotonic()
            error = self._once(host, port)
            if self._ending:
                return
            failures = 1 if time.monotonic() - began >= _STEADY and isinstance(error, ConnectionLost) else failures + 1
            self.last_error = str(error)
            if self._hopeless(error, failures):
                if not isinstance(error, LoginRefused):
                    error = ConnectFailed(f"no connection to {self.options} within {failures} attempts: {error}")
                self._finish(error)
                return
            _LOG.warning("%s; trying again", error)
            self._pause(failures, len(hosts))

    def _once(self, host: str, port: int) -> AmqpError:
        """Connect and work until the connection is lost, or fail to connect; why it ended."""
        try:
            link = Link.connect(host, port, self.options)
        except AmqpError as error:
            return error
        except OSError as error:
            return ConnectFailed(f"{host}:{port}: {error.strerror or error}")
        try:
            reason = self._serve(link)
        except Exception as error:
            _LOG.exception("the connection to %s failed by a fault of its own", link.place)
            reason = f"{type(error).__name__}: {error}"
        finally:
            link.close()
        self._down(reason)
        return ConnectionLost(reason)

    def _hopeless(self, error: Exception, failures: int) -> bool:
        if isinstance(error, LoginRefused) and self.connects == 0:
            return True
        return self.options.attempts is not None and failures >= self.options.attempts

    def _pause(self, failures: int, hosts: int) -> None:
        """Wait before the next attempt: not at all while there are hosts not tried yet, then longer and longer."""
        rounds = (failures - 1) // hosts
        if failures % hosts and failures < hosts:
            return
        wait = min(self.options.backoff * 2.0 ** min(rounds, 20), self.options.backoff_max)
        with self.changed:
            self.changed.wait_for(lambda: self._ending, wait * CHANCE.uniform(0.5, 1.0))

    def _serve(self, link: Link) -> str:
        """Work on a link until it breaks; why it did."""
        self._link = link
        self._poll = select.poll()
        self._poll.register(self._wake_in, select.POLLIN)
        self._poll.register(link.sock, select.POLLIN)
        self._sent_at = self._heard_at = time.monotonic()
        with self.changed:
            self._out, self._out_size, self._sending = [], 0, None
            self._abandoned, self.blocked = None, None
            self._left_behind.clear()
            self.frame_max = link.frame_max
            self.channel_max = link.channel_max
            self.server_properties = link.server_properties
            waiting = [channel for channel in self._channels.values() if not channel.open]
            self._tasks = []
        try:
            for channel in waiting:
                self._restore(channel)
            self._rise()
            while True:
                while self._tasks:
                    self._restore(self._tasks.pop(0))
                self._turn(_IDLE)
        except AmqpError as error:
            return str(error)

    def _rise(self) -> None:
        with self.changed:
            self.up = True
            self.connects += 1
            self.changed.notify_all()
        if self._on_change is not None:
            self._on_change()

    def _down(self, reason: str) -> None:
        error = ConnectionLost(f"{reason}; what was not confirmed may have to be published again")
        with self.changed:
            self.up, self.blocked, self._link = False, None, None
            self._awake = True
            self._out, self._out_size, self._sending = [], 0, None
            self.unsent_acks.clear()
            receipts = [receipt for channel in self._channels.values() for receipt in channel.lost(error)]
            self.changed.notify_all()
        self._close_reply.set()
        for receipt in receipts:
            receipt.settle()
        if self._on_change is not None:
            self._on_change()

    def _finish(self, error: AmqpError) -> None:
        """Nothing more will come: tell everybody who waits."""
        with self.changed:
            if self.failure is None:
                self.failure = error
            channels = list(self._channels.values())
            self.changed.notify_all()
        for channel in channels:
            self.forget(channel, self.failure)
        if self._on_change is not None:
            self._on_change()

    def _restore(self, channel: Channel) -> None:
        """Open a channel, for the first time or again, with all it had."""
        if self._channels.get(channel.number) is not channel or channel.open:
            return
        try:
            self._ask(channel, ChannelOpen(), ChannelOpenOk)
            for method, expected in channel.opening():
                self._ask(channel, method, expected)
        except ChannelClosed as closed:
            _LOG.warning("channel %d cannot be opened again: %s", channel.number, closed)
            self._tasks.append(channel)
            return
        except AmqpError:
            if channel.ended is not None:
                return  # the program closed it meanwhile, which concerns nobody else
            raise
        with self.changed:
            # Nobody waits for the answers: a queue that has no leader may give none for long.
            channel.resuming = dict(channel.consumers)
            for consumer in channel.consumers.values():
                self.put(method_frame(channel.number, BasicQos(0, consumer.prefetch, False)))
                self.put(method_frame(channel.number, consumer.request))
            channel.open = True
            self.changed.notify_all()
        if channel.epoch and self._on_change is not None:
            self._on_change()

    def _ask(self, channel: Channel, method: Method, expected: type[Method]) -> None:
        """A request from the connection's own thread, which goes on working until the answer comes."""
        reply = Reply((expected,))
        with self.changed:
            channel.reply = reply
            self.put(method_frame(channel.number, method))
        deadline = time.monotonic() + self.options.reply_timeout
        while not reply.done.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                raise ReplyTimeout(f"{type(method).__name__} was not answered in time")
            self._turn(left)
        reply.result()

    def _turn(self, longest: float) -> None:
        """Send what there is, wait for something to happen, and take in what came."""
        link = self._link
        assert link is not None
        unsent = self._send(link)
        reading = not self._overfull()
        gathers, self._gathers = self._gathers and reading, False
        listening = reading and not gathers
        wanted = (select.POLLIN if listening else 0) | (select.POLLOUT if unsent else 0)
        self._poll.modify(link.sock, wanted)
        now = time.monotonic()
        wait = min(_GATHERING if gathers else longest, self._until_beat(link, now, reading))
        for number, _ in self._poll.poll(max(wait, 0.0) * 1000):
            if number == self._wake_in:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_in, 4096)
            elif listening:
                self._receive(link)
        self._awake = True
        if self._abandoned is not None:
            raise ConnectionLost(self._abandoned)
        self._beat(link, reading)

    def _send(self, link: Link) -> bool:
        """Write; True if something is left that the socket does not take now."""
        while True:
            if self._sending is None:
                with self.changed:
                    self.flush_acks()
                    if not self._out:
                        self._awake = bool(self._tasks) or self._abandoned is not None
                        if self._awake:
                            self._awake = False
                            self.wake()
                        return False
                    self._sending = memoryview(b"".join(self._out))
                    self._out = []
            sent = link.write(self._sending)
            if sent:
                self._sent_at = time.monotonic()
                self._taken(sent)
            if sent < len(self._sending):
                self._sending = self._sending[sent:]
                if not sent:
                    self._awake = False
                    return True
            else:
                self._sending = None

    def _taken(self, size: int) -> None:
        with self.changed:
            was_full = self._out_size > self.options.max_buffered
            self._out_size -= size
            if was_full and self._out_size <= self.options.max_buffered:
                self.changed.notify_all()

    def flush_acks(self) -> None:
        for channel in self.unsent_acks:
            for frame in channel.window.frames(channel.number) if channel.open else ():
                self._out.append(frame)
                self._out_size += len(frame)
        self.unsent_acks.clear()

    def _overfull(self) -> bool:
        if not self.unbounded:
            return False
        with self.changed:
            return any(consumer.full for consumer in self.unbounded if consumer.ended is None)

    def _until_beat(self, link: Link, now: float, reading: bool) -> float:
        if not link.heartbeat:
            return _IDLE
        due = self._sent_at + link.heartbeat / 2
        return min(due, self._heard_at + 2 * link.heartbeat) - now if reading else due - now

    def _beat(self, link: Link, reading: bool) -> None:
        if not link.heartbeat:
            return
        now = time.monotonic()
        if not reading:
            self._heard_at = now
        elif now - self._heard_at >= 2 * link.heartbeat:
            raise ConnectionLost(f"{link.place} has been silent for {now - self._heard_at:.0f} s, two heartbeats")
        if now - self._sent_at >= link.heartbeat / 2 and self._sending is None:
            self._sent_at = now
            with self.changed:
                self._out.append(HEARTBEAT)
                self._out_size += len(HEARTBEAT)

    def _receive(self, link: Link) -> None:
        while (data := link.read()) is not None:
            self._heard_at = time.monotonic()
            events = link.parser.feed(data)
            self._gathers = self._dispatch(events) >= _BACKLOG and len(data) < _WORTH_A_TURN
            if link.parser.error is not None:
                error = link.parser.error
                self._last_words(link, ConnectionClose(error.code, error.text[:200]))
                raise ConnectionLost(f"{link.place} broke the protocol: {error}")
            if self.options.tls is None:
                return

    def _dispatch(self, events: list[Event]) -> int:
        """Hand on what came, deliveries of one consumer together; how many of these wait where the fewest do."""
        delivered: dict[Consumer, list[Delivery]] = {}
        settled: list[Receipt] = []
        answered: list[Reply] = []
        with self.changed:
            for number, method, properties, body in events:
                channel = self._channels.get(number)
                if channel is None:
                    if number == 0:
                        self._control(method)
                elif type(method) is BasicDeliver:
                    consumer = channel.consumers.get(method.consumer_tag)
                    if consumer is not None:
                        delivery = Delivery(
                            method.delivery_tag, channel.epoch, method.redelivered, method.exchange,
                            method.routing_key, properties, body,
                        )  # fmt: skip
                        delivered.setdefault(consumer, []).append(delivery)
                elif type(method) is Deliveries:
                    consumer = channel.consumers.get(method.like.consumer_tag)
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
            for consumer, batch in delivered.items():
                if not consumer.request.no_ack and batch[-1].epoch == consumer.channel.epoch:
                    consumer.channel.window.delivered([delivery.tag for delivery in batch])
        waiting = [
            consumer.extend(batch) for consumer, batch in delivered.items() if batch[-1].epoch == consumer.channel.epoch
        ]
        for reply in answered:
            reply.done.set()
        for receipt in settled:
            receipt.settle()
        return min(waiting) if waiting and not answered and not settled else 0

    def _on_channel(self, channel: Channel, method: Method, properties: bytes, body: bytes) -> list[Receipt]:
        if isinstance(method, ChannelClose):
            self.put(method_frame(channel.number, ChannelCloseOk()))
            if self._link is not None:
                self._link.parser.forget(channel.number)
            self._tasks.append(channel)
            closed = ChannelClosed(method.code, method.text, "channel")
            blamed = next(iter(channel.resuming.values()), None)
            receipts = channel.lost(closed)
            if blamed is not None:
                channel.consumers.pop(blamed.tag, None)
                blamed.end(ConsumerCancelled(f"queue {blamed.request.queue!r} can no longer be consumed: {closed}"))
            self.last_error = f"channel {channel.number}: {method.code} {method.text}"
            self.changed.notify_all()
            if self._on_change is not None:
                self._on_change()
            return receipts
        if isinstance(method, BasicReturn):
            if channel.tracker.returned(method, properties, body) is None and channel.confirms:
                _LOG.warning("a message for %r %r came back that was not published here", method.exchange, method.text)
        elif isinstance(method, BasicCancel):
            consumer = channel.consumers.pop(method.consumer_tag, None)
            if not method.no_wait:
                self.put(method_frame(channel.number, BasicCancelOk(method.consumer_tag)))
            if consumer is not None:
                name = consumer.request.queue
                consumer.end(ConsumerCancelled(f"the broker ended the consumer of queue {name!r}; is it deleted?"))
                if self._on_change is not None:
                    self._on_change()
        elif isinstance(method, ChannelFlow):
            self.put(method_frame(channel.number, ChannelFlowOk(method.active)))
        return []

    def _control(self, method: Method) -> None:
        if isinstance(method, ConnectionClose):
            assert self._link is not None
            self._last_words(self._link, ConnectionCloseOk())
            raise ConnectionClosed(method.code, method.text, "connection")
        if isinstance(method, ConnectionCloseOk):
            raise ConnectionEnded("the connection was closed by this program; open another one")
        if isinstance(method, ConnectionBlocked):
            self.blocked = method.reason or "no reason given"
            _LOG.warning("the broker takes nothing in: %s", self.blocked)
        elif isinstance(method, ConnectionUnblocked):
            self.blocked = None
            _LOG.info("the broker takes messages in again")

    def _last_words(self, link: Link, method: Method) -> None:
        """Tell the broker why, if its socket still takes it."""
        if self._sending is None:
            with contextlib.suppress(AmqpError):
                link.write(memoryview(method_frame(0, method)))

    def _too_late(self, channel: Channel, limit: float) -> AmqpError:
        if not self.up:
            return ConnectionLost(f"no connection to {self.options} for {limit:g} s: {self.last_error}")
        if not channel.open:
            return ReplyTimeout(f"the channel could not be opened for {limit:g} s: {self.last_error}")
        why = f": it blocks publishers ({self.blocked})" if self.blocked is not None else ""
        return ReplyTimeout(
            f"the broker took nothing in for {limit:g} s{why}; nothing of this was sent, try again later"
        )
