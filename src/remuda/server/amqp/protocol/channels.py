"""The state of one channel: its unanswered deliveries, its unconfirmed publications, its transaction."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from remuda.amqp.codec.frames import method_frame
from remuda.amqp.codec.methods import BasicAck, BasicNack
from remuda.broker.delivery import AsyncDelivery
from remuda.model.settlement import Settlement
from remuda.server.amqp.protocol.failures import PRECONDITION_FAILED, Failure
from remuda.server.amqp.protocol.request_reader import Publications

if TYPE_CHECKING:
    from remuda.server.amqp.messages.consumers import AmqpConsumer

_STALE: Final = 64
_ACK: Final = Struct(">BHI4sQBB")
"""The whole frame of a `basic.ack`."""
_ACK_SIZE: Final = 13


class Handed:
    """Messages of one delivery that a client holds. `open` are the ranges of them that it has not answered."""

    __slots__ = ("consumer", "delivery", "first", "limit", "open", "rows", "since")

    def __init__(
        self, first: int, delivery: AsyncDelivery, rows: Sequence[int], consumer: AmqpConsumer | None, since: float,
        limit: int | None,
    ) -> None:  # fmt: skip
        self.first = first
        """The tag of the first; the others follow."""
        self.delivery = delivery
        self.rows = rows
        self.consumer = consumer
        self.since = since
        self.limit = limit
        """How often a message of this queue may be redelivered."""
        self.open = [(0, len(rows))]

    def take(self, start: int, stop: int) -> Iterator[Taken]:
        """Close what is open between these places."""
        (first, last), *more = self.open
        if not more and start <= first and last <= stop:
            self.open = []
            yield Taken(self, first, last)
            return
        kept: list[tuple[int, int]] = []
        for first, last in self.open:
            inner, outer = max(first, start), min(last, stop)
            if inner >= outer:
                kept.append((first, last))
                continue
            if first < inner:
                kept.append((first, inner))
            if outer < last:
                kept.append((outer, last))
            yield Taken(self, inner, outer)
        self.open = kept

    def give_back(self, start: int, stop: int) -> None:
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*self.open, (start, stop)]):
            if merged and merged[-1][1] == first:
                first = merged.pop()[0]
            merged.append((first, last))
        self.open = merged


class Taken(NamedTuple):
    """A range of messages that a client held and has answered."""

    handed: Handed
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> Sequence[int]:
        """Its rows in the delivery."""
        rows = self.handed.rows
        return rows if self.size == len(rows) else rows[self.start : self.stop]

    def by_limit(self, limit: int) -> Iterator[tuple[bool, Taken]]:
        """Its parts, each with whether its messages have reached the delivery limit."""
        attempts, rows = self.handed.delivery.attempts, self.handed.rows
        for over, places in groupby(range(self.start, self.stop), key=lambda place: attempts[rows[place]] > limit):
            found = list(places)
            yield over, Taken(self.handed, found[0], found[-1] + 1)


class Unanswered:
    """Messages that a client holds, by delivery tag."""

    def __init__(self) -> None:
        self.last_tag = 0
        self._handed: list[Handed] = []
        """In the order of their tags; those with nothing open are removed from time to time."""
        self._stale = 0

    def add(
        self, delivery: AsyncDelivery, rows: Sequence[int], consumer: AmqpConsumer | None, now: float,
        limit: int | None = None,
    ) -> int:  # fmt: skip
        """Assign tags to rows of a delivery; returns the first."""
        first = self.last_tag + 1
        self._handed.append(Handed(first, delivery, rows, consumer, now, limit))
        self.last_tag += len(rows)
        return first

    def skip(self, count: int) -> int:
        """Assign tags to messages that need no answer; returns the first."""
        first = self.last_tag + 1
        self.last_tag += count
        return first

    def take(self, tag: int, multiple: bool) -> list[Taken]:
        """The messages that an answer covers: one or, with `multiple`, all up to it, where 0 means all."""
        if not multiple:
            return self.take_run(tag, tag)
        if not tag:
            return self.take_all()
        if tag > self.last_tag:
            raise unknown_tag(tag)
        taken: list[Taken] = []
        for handed in self._handed:
            if handed.first > tag:
                break
            if handed.open:
                taken += handed.take(0, tag - handed.first + 1)
        if not taken:
            raise unknown_tag(tag)
        self._clear_away(taken)
        return taken

    def take_run(self, first: int, last: int) -> list[Taken]:
        """The messages of consecutive tags. If one is unknown, those before it are taken all the same and are in the
        error."""
        taken: list[Taken] = []
        tag = first
        at = bisect_right(self._handed, first, key=_first) - 1
        while tag <= last:
            handed = self._handed[at] if 0 <= at < len(self._handed) else None
            found = [] if handed is None or not handed.open else self._adjoining(handed, tag, last)
            if not found:
                self._clear_away(taken)
                raise UnknownTag(tag, taken)
            taken += found
            tag += sum(one.size for one in found)
            at += 1
        self._clear_away(taken)
        return taken

    def _adjoining(self, handed: Handed, tag: int, last: int) -> list[Taken]:
        """Take what is open from this tag on, without a gap."""
        start = tag - handed.first
        for inner, outer in handed.open:
            if inner <= start < outer:
                return list(handed.take(start, min(outer, last - handed.first + 1)))
        return []

    def give_back(self, taken: Iterable[Taken]) -> None:
        """Reopen messages whose answers were rolled back."""
        known = {id(one) for one in self._handed}
        for handed, start, stop in taken:
            handed.give_back(start, stop)
            if id(handed) not in known:
                known.add(id(handed))
                insort(self._handed, handed, key=_first)

    def take_all(self) -> list[Taken]:
        handed, self._handed, self._stale = self._handed, [], 0
        return [taken for one in handed if one.open for taken in one.take(0, len(one.rows))]

    @property
    def count(self) -> int:
        """How many messages the client holds."""
        return sum(stop - start for handed in self._handed for start, stop in handed.open)

    def held(self) -> Iterator[Handed]:
        """Deliveries with unanswered messages, the oldest first."""
        return (handed for handed in self._handed if handed.open)

    def _clear_away(self, taken: Sequence[Taken]) -> None:
        handed = self._handed
        for one in taken:
            self._stale += not one.handed.open
        if handed and not handed[0].open:
            front = 1
            while front < len(handed) and not handed[front].open:
                front += 1
            del handed[:front]
            self._stale = max(self._stale - front, 0)
        if self._stale > _STALE and 2 * self._stale > len(handed):
            self._handed = [one for one in handed if one.open]
            self._stale = 0


_first = attrgetter("first")


class UnknownTag(Failure):
    """An answer to a message that the client does not hold; `before` are the messages of that answer that it held."""

    def __init__(self, tag: int, before: list[Taken]) -> None:
        super().__init__(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        self.before = before


def unknown_tag(tag: int) -> UnknownTag:
    return UnknownTag(tag, [])


class Confirms:
    """Confirms publications in order, with one `basic.ack` for as many as possible."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self.last_tag = 0
        self._confirmed = 0
        """The last tag that was confirmed or refused."""
        self._waiting: deque[ConfirmBatch] = deque()

    @property
    def unconfirmed(self) -> int:
        return self.last_tag - self._confirmed

    def next(self, count: int) -> int:
        """Reserve tags for this many publications; returns the first."""
        first = self.last_tag + 1
        self.last_tag += count
        return first

    def expect(self, first: int, count: int) -> ConfirmBatch:
        batch = ConfirmBatch(range(first, first + count))
        self._waiting.append(batch)
        return batch

    def extend(self, batch: ConfirmBatch, count: int) -> None:
        """Add this many publications to the newest batch."""
        batch.tags = range(batch.tags.start, self.next(count) + count)

    def settle(self, batch: ConfirmBatch, refused: Sequence[int], before: list[bytes]) -> list[bytes]:
        """A batch is stored, except for the refused rows; `before` are frames that go out ahead of its confirms.
        Returns the frames to send."""
        if refused:
            batch.refused = frozenset(batch.tags[row] for row in refused)
        batch.before = before
        batch.done = True
        out: list[bytes] = []
        last = 0
        while self._waiting and self._waiting[0].done:
            ready = self._waiting.popleft()
            out += ready.before
            if not ready.refused:
                last = ready.tags[-1]
                continue
            for tag in ready.tags:
                if tag not in ready.refused:
                    last = tag
                    continue
                if last:
                    out.append(self._ack(last))
                    last = 0
                out.append(method_frame(self._channel, BasicNack(tag, False, False)))
                self._confirmed = tag
        if last:
            out.append(self._ack(last))
        return out

    def _ack(self, tag: int) -> bytes:
        several = tag - self._confirmed > 1
        self._confirmed = tag
        return _ACK.pack(1, self._channel, _ACK_SIZE, BasicAck.index, tag, several, 0xCE)


class ConfirmBatch:
    """Publications that go to the broker together."""

    __slots__ = ("before", "done", "refused", "tags")

    def __init__(self, tags: range) -> None:
        self.tags = tags
        self.refused: frozenset[int] = frozenset()
        self.before: list[bytes] = []
        self.done = False


class PendingPublications:
    """Publications to one exchange that go to the broker with the next commit."""

    def __init__(self, publications: list[Publications], batch: ConfirmBatch | None, size: int, count: int) -> None:
        self.publications = publications
        self.batch = batch
        self.size = size
        """About how many bytes they take in memory."""
        self.count = count


class Channel:
    """What the server knows of one open channel."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.consumers: dict[str, AmqpConsumer] = {}
        self.unanswered = Unanswered()
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self.prefetch = 0
        """Of each consumer; 0 sets no limit."""
        self.shared_prefetch = 0
        """Of all consumers together."""
        self.last_queue = ""
        self.reply_consumer: str | None = None
        self.reply_token: str | None = None
        self.soon: PendingPublications | None = None
        """What it published last, unless the broker has it already."""
        self.closed = False


Gathered: TypeAlias = tuple[list[Publications], list[tuple[list[Taken], Settlement]]]
"""The publications and the answers of a transaction."""


class Transaction:
    """Publications and answers since the last commit."""

    def __init__(self) -> None:
        self.publications: list[Publications] = []
        self.answers: list[tuple[list[Taken], Settlement]] = []
        self.size = 0
        """About how many bytes the publications take in memory."""

    def clear(self) -> Gathered:
        gathered = self.publications, self.answers
        self.publications, self.answers, self.size = [], [], 0
        return gathered
