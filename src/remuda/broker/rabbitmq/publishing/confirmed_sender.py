"""Publishing with confirms: messages are sent in their publisher's own thread if that need not wait, and those that a
lost connection left unanswered are sent again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing, Receipt
from remuda.amqp.client.connection import Connection
from remuda.amqp.errors import AmqpError, ChannelClosed, ConnectionEnded, Nacked, Unroutable
from remuda.model.errors import BrokerClosed
from remuda.model.values.texts import BROKER_CLOSED

GROUP: Final = 4096
"""Messages in one write, at most."""


class Sent:
    """The outcome of one call's messages, by their index in it."""

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self.messages = messages
        self.nacked: set[int] = set()
        self.returned: dict[int, str] = {}
        self.repeated = 0
        """How many were sent again because no answer came: each may be there twice."""

    def check(self) -> None:
        """Raise the error of the first message that was not accepted."""
        if self.returned:
            place, reason = min(self.returned.items())
            key = self.messages[place].routing_key
            raise Unroutable(f"no queue takes messages for {key!r} ({reason})")
        if self.nacked:
            message = self.messages[min(self.nacked)]
            raise Nacked(f"RabbitMQ refused {len(self.nacked)} messages for {message.routing_key!r}: a queue is full")


class _Work:
    """Some messages of one call that are sent together."""

    __slots__ = ("alone", "call", "places")

    def __init__(self, call: _Call, places: Sequence[int], *, alone: bool = False) -> None:
        self.call = call
        self.places = places
        self.alone = alone
        """Whether it may be why RabbitMQ closed the channel: then nothing else is sent with it."""


class _Call:
    __slots__ = ("deadline", "future", "left", "messages", "sent")

    def __init__(self, messages: Sequence[Outgoing], deadline: float) -> None:
        self.messages = messages
        self.deadline = deadline
        self.sent = Sent(messages)
        self.left = len(messages)
        self.future: Future[Sent] = Future()


class Sender:
    """One channel with confirms, and a thread that sends what has to wait."""

    def __init__(self, connection: Connection, name: str = "remuda-sender") -> None:
        self._connection = connection
        self._channel: Channel | None = None
        self.patience = connection.options.reply_timeout
        self._pending: list[_Work] = []
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self._busy = False
        """Whether the thread has work that may have to wait: later messages then queue behind it."""
        self._under_way = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def open(self) -> None:
        self._channel = self._connection.channel(confirms=True)
        self._thread.start()

    def submit(self, messages: Sequence[Outgoing], patience: float | None = None) -> Future[Sent]:
        """Send messages as mandatory; the future gives their outcome. Never waits."""
        call = _Call(messages, time.monotonic() + (self.patience if patience is None else patience))
        if not messages:
            call.future.set_result(call.sent)
            return call.future
        work = _Work(call, range(len(messages)))
        with self._changed:
            if self._closed:
                raise BrokerClosed(BROKER_CLOSED)
            self._under_way += 1
            waits = self._busy or bool(self._pending)
        if waits or not self._send_now(work):
            with self._changed:
                closed = self._closed
                if not closed:
                    self._pending.append(work)
                    self._changed.notify_all()
            if closed:
                self._give_up(work, BrokerClosed(BROKER_CLOSED))
        return call.future

    def close(self, timeout: float) -> None:
        """Wait for what is under way, as long as allowed, and end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, timeout)
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(5)

    def fail_rest(self) -> None:
        """Fail what is left: the connection is closed for good."""
        with self._changed:
            left, self._pending = self._pending, []
        for work in left:
            self._give_up(work, BrokerClosed("the broker was closed before the messages were confirmed"))

    def _send_now(self, work: _Work) -> bool:
        """Send in the caller's own thread; False if that would have to wait."""
        assert self._channel is not None
        try:
            receipt = self._channel.publish_now(work.call.messages, mandatory=True)
        except BaseException:
            self._ended()
            raise
        if receipt is None:
            return False
        receipt.when_settled(_then(self._settled, [work], receipt))
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.wait_for(lambda: self._pending or self._closed)
                if not self._pending:
                    return
                taken, self._pending = self._pending, []
                self._busy = True
            for group in _groups(taken):
                self._send(group)

    def _send(self, group: list[_Work]) -> None:
        assert self._channel is not None
        messages = [work.call.messages[place] for work in group for place in work.places]
        while True:
            left = min(work.call.deadline for work in group) - time.monotonic()
            try:
                receipt = self._channel.publish_many(messages, mandatory=True, timeout=max(min(left, 5.0), 0.05))
                break
            except ConnectionEnded as error:
                for work in group:
                    self._give_up(work, error)
                return
            except AmqpError as error:
                # Nothing was sent. Calls whose time is up fail; the others go on waiting.
                now = time.monotonic()
                late = [work for work in group if work.call.deadline <= now]
                for work in late:
                    self._give_up(work, error)
                group = [work for work in group if work.call.deadline > now]
                if not group:
                    return
                messages = [work.call.messages[place] for work in group for place in work.places]
                if self._closed:
                    time.sleep(0.05)
        receipt.when_settled(_then(self._settled, group, receipt))

    def _settled(self, group: list[_Work], receipt: Receipt) -> None:
        """Called from the connection's thread."""
        start = 0
        again: list[_Work] = []
        for work in group:
            stop = start + len(work.places)
            if not receipt.failed:
                self._done(work, len(work.places))
            else:
                again += self._sort(work, receipt, start, stop)
            start = stop
        if again:
            with self._changed:
                self._pending = again + self._pending
                self._changed.notify_all()

    def _sort(self, work: _Work, receipt: Receipt, start: int, stop: int) -> list[_Work]:
        """Apply RabbitMQ's answers to one call. Returns what has to be sent again."""
        sent, unanswered = work.call.sent, []
        for at, place in zip(range(start, stop), work.places, strict=True):
            if at in receipt.returned:
                sent.returned[place] = receipt.returned[at]
            elif at in receipt.unanswered:
                unanswered.append(place)
            elif at in receipt.nacked:
                sent.nacked.add(place)
        done = len(work.places) - len(unanswered)
        error = receipt.error
        refused = isinstance(error, ChannelClosed)
        rest = _Work(work.call, unanswered, alone=refused)
        if not unanswered:
            self._done(work, done)
            return []
        work.call.left -= done
        hopeless = isinstance(error, ConnectionEnded) or (refused and work.alone)
        if hopeless or time.monotonic() >= work.call.deadline:
            self._give_up(rest, error or AmqpError("no confirm came"))
            return []
        sent.repeated += len(unanswered)
        return [rest]

    def _done(self, work: _Work, count: int) -> None:
        call = work.call
        call.left -= count
        if call.left <= 0 and not call.future.done():
            with contextlib.suppress(Exception):  # the caller may have cancelled it in this moment
                call.future.set_result(call.sent)
            self._ended()

    def _give_up(self, work: _Work, error: Exception) -> None:
        if not work.call.future.done():
            with contextlib.suppress(Exception):
                work.call.future.set_exception(error)
            self._ended()

    def _ended(self) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()


def _groups(works: list[_Work]) -> list[list[_Work]]:
    groups: list[list[_Work]] = []
    size = GROUP
    for work in works:
        if size >= GROUP or work.alone:
            groups.append([])
            size = 0
        groups[-1].append(work)
        size += GROUP if work.alone else len(work.places)
    return groups


def _then(call: Callable[[list[_Work], Receipt], None], group: list[_Work], receipt: Receipt) -> Callable[[], None]:
    return lambda: call(group, receipt)
