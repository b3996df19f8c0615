"""Messages in a consumer's hands, and what it can say of them. One class for threads, one for coroutines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import groupby
from typing import Generic, TypeVar

from remuda.core.effects import Answer, Sending
from remuda.core.settling import Verdict
from remuda.model.durations import Duration, micros
from remuda.model.message import Message
from remuda.model.messages import Messages

R = TypeVar("R")
Runs = list[tuple[int, int]]
Track = Callable[[int, int], Callable[[int], None]]
"""From a lease and the number of its runs to what is told of each offset that is begun."""


class Answers(Generic[R]):
    """A delivery of one or more messages, guarded by a lease.

    Every answer may name some rows of the delivery; without them it is for all. It gives how many messages it
    settled: none, if it came too late or for the second time.
    """

    def __init__(self, sending: Sending, messages: Messages, track: Track | None = None) -> None:
        self.queue = sending.queue
        self.consumer = sending.consumer
        self.lease = sending.lease
        self.deadline = sending.deadline
        self.remaining = sending.remaining
        self.messages = messages
        self.runs: Runs = sending.runs
        self._attempts = sending.attempts
        self._track = track
        self._begin: Callable[[int], None] | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __getitem__(self, row: int) -> Message:
        return self.messages[row]

    @property
    def bodies(self) -> list[bytes]:
        return self.messages.bodies

    @property
    def offsets(self) -> list[int]:
        """The offset of each message in the log."""
        return [offset for first, count in self.runs for offset in range(first, first + count)]

    @property
    def attempts(self) -> list[int]:
        """How often each message has been delivered, this time included."""
        return [attempt for attempt, (_, count) in zip(self._attempts, self.runs, strict=True) for _ in range(count)]

    def begin(self, rows: Iterable[int]) -> None:
        """These rows are worked on from now on. A consumer that says so is charged, if the whole process is killed,
        with attempts of those alone; one that says nothing, with all of the delivery."""
        if self._begin is None:
            if self._track is None or self.lease is None or len(self.messages.bodies) == 1:
                return
            self._begin = self._track(self.lease, len(self.runs))
        first, count = self.runs[0]
        for row in rows:
            self._begin(first + row if row < count else self.offsets[row])

    def ack(self, rows: Iterable[int] | None = None) -> R:
        """Done."""
        return self.answer(Verdict(Answer.ACKNOWLEDGE, consumer=self.consumer), rows)

    def nack(self, rows: Iterable[int] | None = None, *, reason: str | None = None) -> R:
        """Failed: the queue's `put_back` decides what follows."""
        return self.answer(Verdict(Answer.NEGATIVE, reason, consumer=self.consumer), rows)

    def retry(
        self,
        rows: Iterable[int] | None = None,
        *,
        after: Duration = 0,
        reason: str | None = None,
        detail: str | None = None,
    ) -> R:
        """Failed: again after a while."""
        return self.answer(Verdict(Answer.RETRY, reason, micros(after), self.consumer, detail=detail), rows)

    def release(self, rows: Iterable[int] | None = None, *, after: Duration = 0) -> R:
        """Not now: back to the queue, and the attempt does not count."""
        return self.answer(Verdict(Answer.RELEASE, None, micros(after), self.consumer), rows)

    def invalid(self, rows: Iterable[int] | None = None, *, reason: str | None = None) -> R:
        """Never to be understood."""
        return self.answer(Verdict(Answer.INVALID, reason, consumer=self.consumer), rows)

    def not_interested(self, rows: Iterable[int] | None = None, *, reason: str | None = None) -> R:
        """Not for this consumer."""
        return self.answer(Verdict(Answer.NOT_INTERESTED, reason, consumer=self.consumer), rows)

    def dead(
        self,
        rows: Iterable[int] | None = None,
        *,
        reason: str | None = None,
        to: str | None = None,
        detail: str | None = None,
    ) -> R:
        """Give up; the message is parked here and, with `to`, goes on in another queue."""
        return self.answer(Verdict(Answer.DEAD, reason, consumer=self.consumer, detail=detail), rows, to)

    def answer(
        self, verdict: Verdict, rows: Iterable[int] | None = None, to: str | None = None, *, wait: bool = True
    ) -> R:
        """Any answer, as a value. Without `wait` it may return before the answer is kept, which soon follows: a crash
        in between delivers the messages again."""
        return self._settle(verdict, None if rows is None else self._runs_of(rows), to, wait)

    @abstractmethod
    def _settle(self, verdict: Verdict, runs: Runs | None, to: str | None, wait: bool) -> R: ...

    def _runs_of(self, rows: Iterable[int]) -> Runs:
        offsets = self.offsets
        chosen = sorted({offsets[row] for row in rows})
        runs: Runs = []
        for _, block in groupby(enumerate(chosen), key=lambda item: item[1] - item[0]):
            members = [offset for _, offset in block]
            runs.append((members[0], len(members)))
        return runs


Settle = Callable[["Answers[R]", Verdict, Runs | None, str | None, bool], R]


class Delivery(Answers[int]):
    """A delivery to a thread."""

    def __init__(self, sending: Sending, messages: Messages, settle: Settle[int], track: Track | None = None) -> None:
        super().__init__(sending, messages, track)
        self._settle_with = settle

    def _settle(self, verdict: Verdict, runs: Runs | None, to: str | None, wait: bool) -> int:
        return self._settle_with(self, verdict, runs, to, wait)


class AsyncDelivery(Answers[Awaitable[int]]):
    """A delivery to a coroutine: every answer is awaited."""

    def __init__(
        self, sending: Sending, messages: Messages, settle: Settle[Awaitable[int]], track: Track | None = None
    ) -> None:
        super().__init__(sending, messages, track)
        self._settle_with = settle

    def _settle(self, verdict: Verdict, runs: Runs | None, to: str | None, wait: bool) -> Awaitable[int]:
        return self._settle_with(self, verdict, runs, to, wait)
