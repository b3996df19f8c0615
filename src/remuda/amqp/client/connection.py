"""A connection with its own thread for the socket, so that heartbeats never wait for a handler."""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from remuda.amqp.client.backoff import Backoff
from remuda.amqp.client.channel import Channel, Reply
from remuda.amqp.client.channel_restoring import Restorer
from remuda.amqp.client.consumer import Consumer
from remuda.amqp.client.event_dispatcher import Dispatcher
from remuda.amqp.client.heartbeats import Heartbeats
from remuda.amqp.client.secret_watch import SecretWatch
from remuda.amqp.client.send_buffer import SendBuffer
from remuda.amqp.client.transport import Link
from remuda.amqp.client.wakeup import Wakeup
from remuda.amqp.codec.frames import FRAME_MAX, HEARTBEAT, method_frame
from remuda.amqp.codec.methods import ConnectionClose, ConnectionUpdateSecret, Method
from remuda.amqp.connection_options import ConnectionOptions, parse_url
from remuda.amqp.errors import (
    AmqpError,
    ConnectFailed,
    ConnectionEnded,
    ConnectionLost,
    ReplyTimeout,
)
from remuda.model.errors import Conflict, InvalidOption

_LOG: Final = logging.getLogger("remuda.amqp")
_BACKLOG: Final = 200
"""While every consumer has this many deliveries to work on, the next ones are not urgent."""
_WORTH_A_TURN: Final = 65536
"""A read of this many bytes pays for itself, even then."""
_GATHERING: Final = 0.001
"""Otherwise, seconds to let more bytes arrive: RabbitMQ sends them in small pieces, and reading one costs as much as
dozens of deliveries."""
_LOOK: Final = 0.25
"""How often, in seconds, a thread that waits for an answer checks whether it may keep waiting."""
_HASTE: Final = 0.2
"""Seconds to wait for a broker that leaves requests unanswered while the program wants to end."""


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
        """Why the broker accepts no messages at the moment, if so."""
        self.failure: AmqpError | None = None
        """Why the connection was given up for good, if so."""
        self.last_error: str = ""
        self.connects = 0
        self.server_properties: dict[str, Any] = {}
        self._patience = self.options.reply_timeout
        self.hurries = False
        """Whether the program wants to end."""
        self.mute = False
        """Whether the broker left a request unanswered then."""
        self.unsent_acks: set[Channel] = set()
        self.unbounded: set[Consumer] = set()
        """Consumers that no prefetch bounds."""
        self.channels: dict[int, Channel] = {}
        self.restorer = Restorer(self)
        self._dispatcher = Dispatcher(self)
        self._on_change = on_change
        self._buffer = SendBuffer()
        self._wakeup = Wakeup()
        self._heartbeats = Heartbeats(0)
        self._secrets = SecretWatch(self.options, "")
        self._poll = select.poll()
        self._link: Link | None = None
        self._abandoned: str | None = None
        self._ending = False
        self._close_reply = threading.Event()
        self._gathers = False
        self._thread = threading.Thread(target=self._run, name=f"amqp {self.options.name}".strip(), daemon=True)

    def open(self, timeout: float | None = None) -> Connection:
        """Connect; raises `ConnectFailed` when the attempts or the time are used up."""
        with self.changed:
            if self._thread.ident is None:
                self._thread.start()
            self.changed.wait_for(lambda: self.up or self.failure is not None, timeout)
            if self.failure is not None:
                raise self.failure
            connected = self.up
        if not connected:
            self.close(1.0)
            why = self.last_error or "no answer"
            raise ConnectFailed(f"no connection to {self.options} within {timeout:g} s: {why}")
        return self

    def await_up(self, timeout: float) -> bool:
        """Wait until the connection is up, for the first time or again; False if it is not in time."""
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
            number = self.free_number()
            channel = Channel(self, number, confirms=confirms, prefetch=prefetch)
            self.channels[number] = channel
            self.restorer.add(channel)
            self.wake()
            self.wait_for(channel, None)
        return channel

    def free_number(self) -> int:
        taken = self.channels.keys() | self.restorer.left_behind
        number = next((n for n in range(1, self.channel_max + 1) if n not in taken), 0)
        if not number:
            raise Conflict(f"the connection has {self.channel_max} channels, the most the broker allows; close some")
        return number

    def hurry(self, limit: float) -> None:
        """The program wants to end: no request waits longer than this for its answer, also those under way; and once
        the broker missed that limit, hardly at all."""
        with self.changed:
            self.hurries, self._patience = True, min(self._patience, limit)
            self.changed.notify_all()

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, close the connection, and end the thread. May be called again."""
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
            # A thread that is connecting cannot be woken: it ends when the host answers or the attempt times out.
            self._thread.join(min(timeout, _HASTE) if self._link is None else timeout)
        self._finish(ConnectionEnded("the connection was closed by this program; open another one"))
        if not self._thread.is_alive():
            self._wakeup.close()  # otherwise the thread closes it

    # For channels and the parts of this connection, mostly called with `changed` held.

    def put(self, data: bytes) -> None:
        """Queue bytes for the socket."""
        self.put_off(data)
        self.wake()

    def put_off(self, data: bytes) -> None:
        """Queue bytes for the socket; `wake` must follow."""
        self._buffer.add(data)

    def wake(self) -> None:
        """Wake the connection's thread. Best called without the lock, which that thread takes next. Nothing queued
        before is missed: the thread checks for work after it has marked itself as asleep."""
        self._wakeup.wake()

    def wait_for(self, channel: Channel, timeout: float | None, *, room: bool = False) -> None:
        """Wait until a channel is open and, with `room`, until the send buffer is below its limit."""
        began = time.monotonic()
        while True:
            limit = self._patience if timeout is None or (self.hurries and self._patience < timeout) else timeout
            if channel.ended is not None:
                raise channel.ended
            if self.failure is not None:
                raise self.failure
            if self._ending:
                raise ConnectionEnded("the connection was closed by this program; open another one")
            if self._thread.ident is None:
                raise ConnectionEnded("the connection was not opened; call open() first")
            if channel.open and not (room and self._buffer.size > self.options.max_buffered):
                return
            if self.in_own_thread:
                raise ConnectionLost("the channel is not open, and the connection's own thread cannot wait for it")
            left = began + limit - time.monotonic()
            if left <= 0:
                raise self._too_late(channel, limit)
            self.changed.wait(left)

    def has_room(self, channel: Channel) -> bool:
        """Whether a channel can send without waiting."""
        usable = channel.ended is None and self.failure is None and not self._ending
        return usable and channel.open and self._buffer.size <= self.options.max_buffered

    def forget(self, channel: Channel, error: AmqpError) -> None:
        """End a channel for good."""
        with self.changed:
            receipts = channel.lost(error)
            channel.ended = error
            if self.channels.get(channel.number) is channel:
                del self.channels[channel.number]
            consumers = list(channel.consumers.values())
            self.unbounded.difference_update(consumers)
            self.changed.notify_all()
        for consumer in consumers:
            consumer.end(error)
        for receipt in receipts:
            receipt.settle()

    def await_reply(self, reply: Reply, limit: float) -> bool:
        """Wait for an answer, without the lock; False if there was none in time."""
        began = time.monotonic()
        while not reply.done.is_set():
            left = began + min(limit, self._patience) - time.monotonic()
            if left <= 0:
                return False
            reply.done.wait(min(left, _LOOK))
        return True

    def abandon(self, channel: Channel, epoch: int, reply: Reply, reason: str, waited: float | None) -> None:
        """A request was not answered: continue its channel under another number. If the broker sent nothing at all
        during the time `waited`, drop the socket instead."""
        with self.changed:
            if channel.epoch != epoch or channel.ended is not None or channel.reply is not reply:
                return
            if self.hurries:
                self.mute, self._patience = True, min(self._patience, _HASTE)
            if not self.up or (waited is not None and self._heartbeats.silence() > waited):
                self.give_up(reason)
                return
            receipts = self.restorer.leave_behind(channel, reason)
        for receipt in receipts:
            receipt.settle()

    def flush_acks(self) -> None:
        for channel in self.unsent_acks:
            for frame in channel.window.frames(channel.number) if channel.open else ():
                self._buffer.add(frame)
        self.unsent_acks.clear()

    def forget_unread(self, number: int) -> None:
        """Drop a closed channel's unfinished message."""
        if self._link is not None:
            self._link.parser.forget(number)

    def tell_change(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def last_words(self, method: Method) -> None:
        """Send a closing method, if the socket still takes it."""
        if self._link is not None and self._buffer.sending is None:
            with contextlib.suppress(AmqpError):
                self._link.write(memoryview(method_frame(0, method)))

    def give_up(self, reason: str) -> None:
        """Drop the socket; the connection is opened again."""
        with self.changed:
            self._abandoned = reason
            self.wake()

    # The connection's thread.

    def _run(self) -> None:
        try:
            self._keep_connected()
        except Exception as error:
            _LOG.exception("the connection's thread failed unexpectedly")
            self._finish(ConnectFailed(f"the connection's thread failed: {type(error).__name__}: {error}"))
        finally:
            if self._ending:
                self._wakeup.close()

    def _keep_connected(self) -> None:
        backoff = Backoff(self.options)
        while not self._ending:
            error = self._once(*backoff.next_host())
            if self._ending:
                return
            backoff.failed(error)
            self.last_error = str(error)
            if (verdict := backoff.verdict(error, self.connects)) is not None:
                self._finish(verdict)
                return
            _LOG.warning("%s; trying again", error)
            with self.changed:
                self.changed.wait_for(lambda: self._ending, backoff.pause())

    def _once(self, host: str, port: int) -> AmqpError:
        """Connect and work until the connection is lost, or fail to connect; returns why it ended."""
        try:
            link = Link.connect(host, port, self.options)
        except AmqpError as error:
            return error
        except OSError as error:
            return ConnectFailed(f"{host}:{port}: {error.strerror or error}")
        try:
            reason = self._serve(link)
        except Exception as error:
            _LOG.exception("the connection to %s failed unexpectedly", link.place)
            reason = f"{type(error).__name__}: {error}"
        finally:
            link.close()
        self._down(reason)
        return ConnectionLost(reason)

    def _serve(self, link: Link) -> str:
        """Work on a link until it breaks; returns why it did."""
        self._poll = select.poll()
        self._poll.register(self._wakeup.reader, select.POLLIN)
        self._poll.register(link.sock, select.POLLIN)
        self._heartbeats = Heartbeats(link.heartbeat)
        self._secrets = SecretWatch(self.options, link.secret)
        with self.changed:
            if self._ending:
                return "closed by this program"
            self._link = link
            self._buffer.clear()
            self._abandoned, self.blocked = None, None
            self.frame_max = link.frame_max
            self.channel_max = link.channel_max
            self.server_properties = link.server_properties
        try:
            self.restorer.begin()
            self._mark_up()
            while True:
                self.restorer.go_on()
                self.turn(self.restorer.until_next)
        except AmqpError as error:
            return str(error)

    def _mark_up(self) -> None:
        with self.changed:
            self.up = True
            self.connects += 1
            self.changed.notify_all()
        self.tell_change()

    def _down(self, reason: str) -> None:
        error = ConnectionLost(f"{reason}; what was not confirmed may have to be published again")
        with self.changed:
            self.up, self.blocked, self._link = False, None, None
            self._wakeup.awake = True
            self._buffer.clear()
            self.unsent_acks.clear()
            receipts = [receipt for channel in self.channels.values() for receipt in channel.lost(error)]
            self.changed.notify_all()
        self._close_reply.set()
        for receipt in receipts:
            receipt.settle()
        self.tell_change()

    def _finish(self, error: AmqpError) -> None:
        """Fail every channel and everybody who waits, since the connection has ended for good."""
        with self.changed:
            if self.failure is None:
                self.failure = error
            channels = list(self.channels.values())
            self.changed.notify_all()
        for channel in channels:
            self.forget(channel, self.failure)
        self.tell_change()

    def turn(self, longest: float) -> None:
        """Send what is queued, wait for something to happen, and receive what arrived."""
        link = self._link
        assert link is not None
        unsent = self._send(link)
        reading = not self._overfull()
        gathers, self._gathers = self._gathers and reading, False
        listening = reading and not gathers
        wanted = (select.POLLIN if listening else 0) | (select.POLLOUT if unsent else 0)
        self._poll.modify(link.sock, wanted)
        soonest = min(self._heartbeats.until_next(reading), self._secrets.until_next())
        wait = min(_GATHERING if gathers else longest, soonest)
        if gathers:
            self._wakeup.awake = True  # it wakes soon anyway, and acknowledgements made until then go out together
        for number, _ in self._poll.poll(max(wait, 0.0) * 1000):
            if number == self._wakeup.reader:
                self._wakeup.drain()
            elif listening:
                self._receive(link)
        self._wakeup.awake = True
        if self._abandoned is not None:
            raise ConnectionLost(self._abandoned)
        self._beat(link, reading)

    def _send(self, link: Link) -> bool:
        """Write what is queued; True if the socket does not take all of it now."""
        buffer, wakeup = self._buffer, self._wakeup
        while True:
            if buffer.sending is None:
                with self.changed:
                    self.flush_acks()
                    if not buffer.take():
                        wakeup.awake = False
                        if self.restorer.has_work or self._abandoned is not None:
                            wakeup.wake()
                        return False
            assert buffer.sending is not None
            sent = link.write(buffer.sending)
            if sent:
                self._heartbeats.sent()
                self._taken(sent)
            if sent < len(buffer.sending):
                buffer.sending = buffer.sending[sent:]
                if not sent:
                    wakeup.awake = False
                    return True
            else:
                buffer.sending = None

    def _taken(self, size: int) -> None:
        with self.changed:
            was_full = self._buffer.size > self.options.max_buffered
            self._buffer.size -= size
            if was_full and self._buffer.size <= self.options.max_buffered:
                self.changed.notify_all()

    def _overfull(self) -> bool:
        if not self.unbounded:
            return False
        with self.changed:
            return any(consumer.full for consumer in self.unbounded if consumer.ended is None)

    def _beat(self, link: Link, reading: bool) -> None:
        heartbeats = self._heartbeats
        if heartbeats.is_silent(reading):
            raise ConnectionLost(f"{link.place} has been silent for {heartbeats.silence():.0f} s, two heartbeats")
        if heartbeats.is_due() and self._buffer.sending is None:
            heartbeats.sent()
            with self.changed:
                self._buffer.add(HEARTBEAT)
        secret = self._secrets.renewed()
        if secret is not None:
            with self.changed:
                self._buffer.add(method_frame(0, ConnectionUpdateSecret(secret.encode(), "it was renewed")))

    def _receive(self, link: Link) -> None:
        while (data := link.read()) is not None:
            self._heartbeats.heard()
            events = link.parser.feed(data)
            self._gathers = self._dispatcher.dispatch(events) >= _BACKLOG and len(data) < _WORTH_A_TURN
            if link.parser.error is not None:
                error = link.parser.error
                self.last_words(ConnectionClose(error.code, error.text[:200]))
                raise ConnectionLost(f"{link.place} broke the protocol: {error}")
            if self.options.tls is None:
                return

    def _too_late(self, channel: Channel, limit: float) -> AmqpError:
        if not self.up:
            return ConnectionLost(f"no connection to {self.options} for {limit:g} s: {self.last_error}")
        if not channel.open:
            return ReplyTimeout(f"the channel could not be opened for {limit:g} s: {self.last_error}")
        why = f": it blocks publishers ({self.blocked})" if self.blocked is not None else ""
        return ReplyTimeout(
            f"the broker accepted nothing for {limit:g} s{why}; none of these messages was sent, try again later"
        )
