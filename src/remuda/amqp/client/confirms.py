"""Publisher confirms: which batch a confirm settles, and which publish a returned message belongs to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

from remuda.amqp.codec.methods import BasicReturn
from remuda.amqp.errors import AmqpError, Nacked, ReplyTimeout, Unroutable

_LOG: Final = logging.getLogger("remuda.amqp")


class Outgoing(NamedTuple):
    """A message to publish: `properties` are encoded, see `encode_properties`."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


class Receipt:
    """The broker's answers to a batch of publishes, by their places in it."""

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self.messages = messages
        self.nacked: set[int] = set()
        """Places of the messages that the broker refused."""
        self.returned: dict[int, str] = {}
        """Places of the mandatory messages that no queue took, with the broker's reason."""
        self.error: AmqpError | None = None
        """Why the rest of the answers will never come; the messages concerned are `unanswered`."""
        self.unanswered: set[int] = set()
        self.first = 0
        self._upto = 0  # answers are known for this many from the front
        self._ahead: set[int] = set()
        self._settled = False
        self._lock = threading.Lock()
        self._waiters: list[Callable[[], None]] = []

    @property
    def settled(self) -> bool:
        """Whether every message has its answer, or never will."""
        return self._settled

    @property
    def failed(self) -> set[int]:
        """Places of all messages that the broker has not confirmed."""
        return self.nacked | self.returned.keys() | self.unanswered

    def wait(self, timeout: float | None = None) -> None:
        """Wait for all answers; raises the error of the first message that was not accepted."""
        done = threading.Event()
        self.when_settled(done.set)
        if not done.wait(timeout):
            raise ReplyTimeout(f"no confirm came within {timeout} s; the messages may still be stored")
        self.check()

    def check(self) -> None:
        """Raise the error of the first message that was not accepted, if any."""
        if self.error is not None:
            raise self.error
        if self.returned:
            place, reason = min(self.returned.items())
            message = self.messages[place]
            raise Unroutable(
                f"no queue takes messages for exchange {message.exchange!r} and key {message.routing_key!r} "
                f"({reason}); bind a queue and publish again"
            )
        if self.nacked:
            message = self.messages[min(self.nacked)]
            raise Nacked(
                f"the broker refused {len(self.nacked)} of {len(self.messages)} messages "
                f"for exchange {message.exchange!r} and key {message.routing_key!r}; publish them again later"
            )

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call this in the connection's thread once all answers are there, or right now if they are."""
        with self._lock:
            if not self._settled:
                self._waiters.append(call)
                return
        call()

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        def pass_on() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(finish)

        self.when_settled(pass_on)
        yield from done
        self.check()

    def settle(self) -> None:
        with self._lock:
            if self._settled:
                return
            self._settled = True
            waiters, self._waiters = self._waiters, []
        for call in waiters:
            call()

    def answer(self, sequence: int, multiple: bool, taken: bool) -> bool:
        """Note an answer to one message of this batch, or to all up to it; True once all are answered."""
        place = sequence - self.first
        if multiple:
            refused = [p for p in range(self._upto, place + 1) if p not in self._ahead] if not taken else []
            self._upto = max(self._upto, place + 1)
            self._ahead = {p for p in self._ahead if p > place}
        else:
            refused = [place] if not taken else []
            if place == self._upto:
                self._upto += 1
            elif place > self._upto:
                self._ahead.add(place)
        self.nacked.update(refused)
        while self._upto in self._ahead:
            self._ahead.remove(self._upto)
            self._upto += 1
        return self.complete

    def is_open(self, place: int) -> bool:
        """Whether a message still waits for its answer."""
        return place >= self._upto and place not in self._ahead

    def open_places(self) -> set[int]:
        return set(range(self._upto, len(self.messages))) - self._ahead

    @property
    def complete(self) -> bool:
        """Whether every message has its answer."""
        return self._upto >= len(self.messages)


class ConfirmTracker:
    """Receipts of one channel in the order of their publishes."""

    def __init__(self) -> None:
        self._next = 1
        self.strays = 0
        """Answers to messages that were never sent, or are answered already."""
        self._receipts: list[Receipt] = []
        self._firsts: list[int] = []
        self._head = 0
        self._returned_upto = 0

    def add(self, receipt: Receipt) -> None:
        receipt.first = self._next
        self._next += len(receipt.messages)
        self._receipts.append(receipt)
        self._firsts.append(receipt.first)

    def answer(self, sequence: int, multiple: bool, taken: bool) -> list[Receipt]:
        """Note a `basic.ack` or `basic.nack`; returns the receipts that it completes."""
        done: list[Receipt] = []
        if sequence >= self._next:
            self._stray(sequence)
            return done
        place = bisect_right(self._firsts, sequence, self._head) - 1
        if multiple:
            if sequence == 0:
                sequence, place = self._next - 1, len(self._receipts) - 1
            for receipt in self._receipts[self._head : place]:
                if not receipt.complete and receipt.answer(receipt.first + len(receipt.messages) - 1, True, taken):
                    done.append(receipt)
        if place >= self._head:
            receipt = self._receipts[place]
            last = receipt.first + len(receipt.messages) - 1
            known = not receipt.complete and (multiple or sequence <= last)
            if known and receipt.answer(min(sequence, last), multiple, taken):
                done.append(receipt)
        elif not multiple:
            self._stray(sequence)
        self._drop_front()
        return done

    def _stray(self, sequence: int) -> None:
        self.strays += 1
        _LOG.warning("the broker answered for message %d of a channel, which does not wait for an answer", sequence)

    def returned(self, method: BasicReturn, properties: bytes, body: bytes) -> Receipt | None:
        """Find the publish that was returned. Returns come in the order of publishing, and before their confirms."""
        sought = Outgoing(method.exchange, method.routing_key, properties, body)
        for receipt in self._receipts[self._head :]:
            for place in range(max(0, self._returned_upto + 1 - receipt.first), len(receipt.messages)):
                if receipt.messages[place] == sought and receipt.is_open(place):
                    self._returned_upto = receipt.first + place
                    receipt.returned[place] = f"{method.code} {method.text}"
                    return receipt
        return None

    def fail(self, error: AmqpError) -> list[Receipt]:
        """Fail what is unanswered, since the channel is gone; returns the receipts concerned."""
        failed = [receipt for receipt in self._receipts[self._head :] if not receipt.complete]
        for receipt in failed:
            receipt.error = error
            receipt.unanswered = receipt.open_places()
        self._receipts.clear()
        self._firsts.clear()
        self._next, self._head, self._returned_upto = 1, 0, 0
        return failed

    def _drop_front(self) -> None:
        while self._head < len(self._receipts) and self._receipts[self._head].complete:
            self._head += 1
        if self._head > 1000 or self._head == len(self._receipts):
            del self._receipts[: self._head], self._firsts[: self._head]
            self._head = 0
