"""One channel's own state: what it holds unanswered, what it awaits to be confirmed, what its transaction gathers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from remuda.amqp.frames import method_frame
from remuda.amqp.methods import BasicAck, BasicNack
from remuda.broker.delivery import AsyncDelivery
from remuda.model.settlement import Settlement
from remuda.server.amqp.failures import PRECONDITION_FAILED, Failure
from remuda.server.amqp.inbound import Publication

if TYPE_CHECKING:
    from remuda.server.amqp.consumers import AmqpConsumer

Held = tuple[AsyncDelivery, int, "AmqpConsumer | None"]
"""A message in a client's hands: its delivery, its row there, and the consumer that got it."""


class Unanswered:
    """Messages that a client holds, by delivery tag."""

    def __init__(self) -> None:
        self.last_tag = 0
        self.held: dict[int, Held] = {}
        self._oldest: deque[tuple[int, float]] = deque()
        """Tags and when they went out, for those who take too long."""

    def add(self, delivery: AsyncDelivery, rows: Sequence[int], consumer: AmqpConsumer | None, now: float) -> int:
        """Give tags to rows of a delivery; the first of them."""
        first = self.last_tag + 1
        held = self.held
        for tag, row in enumerate(rows, first):
            held[tag] = (delivery, row, consumer)
        self.last_tag += len(rows)
        self._oldest.append((first, now))
        return first

    def skip(self, count: int) -> int:
        """Tags of messages for which no answer is awaited."""
        first = self.last_tag + 1
        self.last_tag += count
        return first

    def take(self, tag: int, multiple: bool) -> list[Held]:
        """The messages that an answer is for."""
        if not multiple:
            found = self.held.pop(tag, None)
            if found is None:
                raise unknown_tag(tag)
            return [found]
        return [self.held.pop(one) for one in self._up_to(tag)]

    def take_tagged(self, tag: int, multiple: bool) -> dict[int, Held]:
        """The same with their tags, for those who may give them back."""
        tags = self._up_to(tag) if multiple else [tag]
        if any(one not in self.held for one in tags):
            raise unknown_tag(tag)
        return {one: self.held.pop(one) for one in tags}

    def give_back(self, taken: Mapping[int, Held]) -> None:
        self.held = dict(sorted({**self.held, **taken}.items()))

    def _up_to(self, tag: int) -> list[int]:
        """All tags up to this one; 0 stands for all there are."""
        found = list(takewhile(lambda one: not tag or one <= tag, self.held))
        if tag and (not found or tag > self.last_tag):
            raise unknown_tag(tag)
        return found

    def take_all(self) -> list[Held]:
        taken, self.held = list(self.held.values()), {}
        self._oldest.clear()
        return taken

    def oldest(self) -> tuple[int, float] | None:
        """The longest unanswered delivery: its tag, and since when."""
        while self._oldest:
            first, since = self._oldest[0]
            following = self._oldest[1][0] if len(self._oldest) > 1 else self.last_tag + 1
            for tag in range(first, following):
                if tag in self.held:
                    return tag, since
            self._oldest.popleft()
        return None


def unknown_tag(tag: int) -> Failure:
    return Failure(PRECONDITION_FAILED, f"unknown delivery tag {tag}")


class Confirms:
    """Tells a publisher in order what was taken: one `basic.ack` stands for all up to it."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self.last_tag = 0
        self._waiting: deque[_Batch] = deque()

    def next(self) -> int:
        self.last_tag += 1
        return self.last_tag

    def expect(self, tags: list[int]) -> _Batch:
        batch = _Batch(tags)
        self._waiting.append(batch)
        return batch

    def settle(self, batch: _Batch, refused: Iterable[int], before: list[bytes]) -> list[bytes]:
        """A batch is kept, but for those tags; `before` is to be told first. Gives the frames that may go out now."""
        batch.refused = frozenset(refused)
        batch.before = before
        batch.done = True
        out: list[bytes] = []
        last = 0
        while self._waiting and self._waiting[0].done:
            ready = self._waiting.popleft()
            out += ready.before
            if not ready.refused:
                last = max(last, ready.tags[-1])
                continue
            for tag in ready.tags:
                if tag not in ready.refused:
                    last = tag
                    continue
                if last:
                    out.append(self._ack(last))
                    last = 0
                out.append(method_frame(self._channel, BasicNack(tag, False, False)))
        if last:
            out.append(self._ack(last))
        return out

    def _ack(self, tag: int) -> bytes:
        return method_frame(self._channel, BasicAck(tag, True))


class _Batch:
    """Publications that go to the broker together."""

    __slots__ = ("before", "done", "refused", "tags")

    def __init__(self, tags: list[int]) -> None:
        self.tags = tags
        self.refused: frozenset[int] = frozenset()
        self.before: list[bytes] = []
        self.done = False


class Channel:
    """What the server knows of one open channel."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.consumers: dict[str, AmqpConsumer] = {}
        self.unanswered = Unanswered()
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self.prefetch = 0
        """Of each consumer; 0 is as many as there are."""
        self.shared_prefetch = 0
        """Of all consumers together."""
        self.last_queue = ""
        self.reply_consumer: str | None = None
        self.reply_token: str | None = None
        self.closed = False


class Transaction:
    """What a transaction has gathered since the last commit."""

    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self.answers: list[tuple[dict[int, Held], Settlement]] = []

    def clear(self) -> tuple[list[Publication], list[tuple[dict[int, Held], Settlement]]]:
        gathered = self.publications, self.answers
        self.publications, self.answers = [], []
        return gathered
