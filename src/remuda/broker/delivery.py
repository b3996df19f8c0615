"""Deliveries: messages given to a consumer, and its answers. One class for threads, one for coroutines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, Generic, TypeVar

from remuda.broker import checks
from remuda.core.effects import Dispatch
from remuda.model.errors import InvalidOption
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.settlement import Outcome, Settlement
from remuda.model.values.durations import Duration
from remuda.model.values.texts import read_flag, shown

R = TypeVar("R")
_ACK: Final = Outcome.ACK
Runs = list[tuple[int, int]]
Track = Callable[[int, int], Callable[[int], None]]
"""From a lease and the number of its runs to a function that is called with each offset that is begun."""
Settle = Callable[["BaseDelivery[R]", Settlement, Runs | None, bool], R]


@lru_cache
def _acknowledgement(consumer: str) -> Settlement:
    """A consumer's acknowledgement; cached, since it is always the same."""
    return Settlement(_ACK, None, None, consumer)


class BaseDelivery(Generic[R]):
    """A delivery of one or more messages, guarded by a lease.

    An answer may name some rows of the delivery; by default it applies to all. It returns how many messages it
    settled: none, if it came too late or for the second time.
    """

    __slots__ = (
        "_begin", "_dispatch", "_offsets", "_settle", "_track", "consumer", "lease", "messages", "queue", "runs",
    )  # fmt: skip

    def __init__(self, dispatch: Dispatch, messages: Messages, settle: Settle[Any], track: Track | None = None) -> None:
        self._dispatch = dispatch
        self.queue = dispatch.queue
        self.consumer = dispatch.consumer
        self.lease = dispatch.lease
        self.messages = messages
        self.runs: Runs = dispatch.runs
        self._settle = settle
        self._track = track
        self._begin: Callable[[int], None] | None = None
        self._offsets: list[int] | None = None

    def __repr__(self) -> str:
        count = len(self)
        return f"<{type(self).__name__} of {count} message{'' if count == 1 else 's'} from {self.queue}>"

    def __len__(self) -> int:
        return len(self.messages.bodies)

    def __iter__(self) -> Iterator[Message]:
        return self.messages.rows()

    def __getitem__(self, row: int) -> Message:
        return self.messages[row]

    @property
    def deadline(self) -> int:
        """When the lease ends, in microseconds since the epoch, unless the delivery is renewed."""
        return self._dispatch.deadline

    @property
    def remaining(self) -> tuple[int, int]:
        """How many messages were still waiting, with a priority above 0 and without."""
        return self._dispatch.remaining

    @property
    def bodies(self) -> list[bytes]:
        """A list of the caller's own: other queues may hold the same messages."""
        return self.messages.bodies[:]

    @property
    def offsets(self) -> list[int]:
        """The offset of each message in the log."""
        return list(self._known_offsets())

    def _known_offsets(self) -> list[int]:
        # Made once, since workers answer for the messages of a delivery one by one.
        if self._offsets is None:
            self._offsets = [offset for first, count in self.runs for offset in range(first, first + count)]
        return self._offsets

    @property
    def attempts(self) -> list[int]:
        """How often each message has been attempted, including this time."""
        attempts = self._dispatch.attempts
        if len(attempts) == len(self.messages.bodies):
            return list(attempts)
        if len(self.runs) == 1:
            return attempts * self.runs[0][1]
        return [attempt for attempt, (_, count) in zip(attempts, self.runs, strict=True) for _ in range(count)]

    @property
    def redelivered(self) -> list[bool]:
        """Whether each message was delivered before, even if that did not count as an attempt."""
        redelivered = self._dispatch.redelivered
        if not redelivered:
            return [False] * len(self)
        return [again for again, (_, count) in zip(redelivered, self.runs, strict=True) for _ in range(count)]

    @property
    def arrivals(self) -> list[str | None]:
        """Why each message came here from another queue, such as `expired in orders`; None if it did not."""
        arrivals = self._dispatch.arrivals
        if not arrivals:
            return [None] * len(self)
        return [arrivals.get(offset) for offset in self.offsets]

    def begin(self, rows: Iterable[int]) -> None:
        """Mark these rows as begun. If the process is killed, only rows marked as begun count as attempted; without any
        mark, the whole delivery does."""
        most = len(self.messages.bodies)
        if type(rows) is not list or len(rows) != 1 or type(rows[0]) is not int or not 0 <= rows[0] < most:
            rows = self._checked(rows)
        begin = self._beginning()
        if begin is None:
            return
        first, count = self.runs[0]
        for row in rows:
            begin(first + row if row < count else self._known_offsets()[row])

    def marks(self) -> tuple[Callable[[int], None], Sequence[int]] | None:
        """As `begin`, for a consumer that goes through the rows one by one: a function that marks an offset as begun,
        and the offset of each row. None if no marks are needed."""
        begin = self._beginning()
        if begin is None:
            return None
        first, count = self.runs[0]
        return begin, range(first, first + count) if len(self.runs) == 1 else self._known_offsets()

    def _beginning(self) -> Callable[[int], None] | None:
        if self._begin is None:
            if self._track is None or self.lease is None or len(self.messages.bodies) == 1:
                return None
            self._begin = self._track(self.lease, len(self.runs))
        return self._begin

    def ack(self, rows: Iterable[int] | None = None) -> R:
        """Success."""
        runs = None if rows is None else self._runs_of(rows)
        settled: R = self._settle(self, _acknowledgement(self.consumer), runs, True)
        return settled

    def nack(
        self,
        rows: Iterable[int] | None = None,
        *,
        reason: str | None = None,
        front: bool | None = None,
        counted: bool | None = None,
    ) -> R:
        """Failure: the queue's `put_back` decides what follows, unless the answer says where the message goes."""
        return self._answer(Outcome.NACK, rows, reason=reason, front=front, counted=counted)

    def retry(
        self,
        rows: Iterable[int] | None = None,
        *,
        after: Duration = 0,
        reason: str | None = None,
        detail: str | None = None,
        front: bool | None = None,
    ) -> R:
        """Failure: retry after a while."""
        return self._answer(Outcome.RETRY, rows, after=after, reason=reason, detail=detail, front=front)

    def release(
        self,
        rows: Iterable[int] | None = None,
        *,
        after: Duration = 0,
        reason: str | None = None,
        front: bool | None = None,
        counted: bool | None = None,
    ) -> R:
        """Not now: back to the queue, and the attempt does not count."""
        return self._answer(Outcome.RELEASE, rows, after=after, reason=reason, front=front, counted=counted)

    def invalid(self, rows: Iterable[int] | None = None, *, reason: str | None = None) -> R:
        """The message is invalid and will never be understood."""
        return self._answer(Outcome.INVALID, rows, reason=reason)

    def not_interested(self, rows: Iterable[int] | None = None, *, reason: str | None = None) -> R:
        """The message is not for this consumer."""
        return self._answer(Outcome.NOT_INTERESTED, rows, reason=reason)

    def dead(
        self,
        rows: Iterable[int] | None = None,
        *,
        reason: str | None = None,
        to: str | None = None,
        detail: str | None = None,
    ) -> R:
        """Give up: the message is parked here or, with `to`, moves to another queue."""
        return self._answer(Outcome.DEAD, rows, reason=reason, to=to, detail=detail)

    def answer(self, settlement: Settlement, rows: Iterable[int] | None = None, *, wait: bool = True) -> R:
        """Give any answer, as a value. Without `wait`, it may return shortly before the answer is stored: a crash in
        between delivers the messages again."""
        checked = checks.checked_settlement(settlement, self.consumer)
        runs = None if rows is None else self._runs_of(rows)
        settled: R = self._settle(self, checked, runs, read_flag("wait", wait))
        return settled

    def _answer(
        self,
        outcome: Outcome,
        rows: Iterable[int] | None,
        *,
        reason: str | None = None,
        after: Duration | None = None,
        detail: str | None = None,
        to: str | None = None,
        front: bool | None = None,
        counted: bool | None = None,
    ) -> R:
        settlement = checks.settlement(
            outcome, self.consumer, reason=reason, after=after, detail=detail, to=to, front=front, counted=counted
        )
        settled: R = self._settle(self, settlement, None if rows is None else self._runs_of(rows), True)
        return settled

    def _runs_of(self, rows: Iterable[int]) -> Runs:
        if type(rows) is list and len(rows) == 1 and type(rows[0]) is int and 0 <= rows[0] < len(self.messages.bodies):
            row, (first, count) = rows[0], self.runs[0]
            return [(first + row if row < count else self._known_offsets()[row], 1)]
        if type(rows) is range and rows.step == 1 and 0 <= rows.start < rows.stop <= len(self.messages.bodies):
            return _cut(self.runs, rows.start, rows.stop)
        offsets = self._known_offsets()
        chosen = sorted({offsets[row] for row in self._checked(rows)})
        runs: Runs = []
        for _, block in groupby(enumerate(chosen), key=lambda item: item[1] - item[0]):
            members = [offset for _, offset in block]
            runs.append((members[0], len(members)))
        return runs

    def _checked(self, rows: Iterable[int]) -> list[int]:
        count = len(self.messages.bodies)
        given = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str | bytes) else [None]
        for row in given:
            if type(row) is not int or not 0 <= row < count:
                raise InvalidOption(
                    f"rows must be numbers of messages in the delivery, which has {count}, not {shown(rows)}"
                )
        return given  # type: ignore[return-value]


def _cut(runs: Runs, start: int, stop: int) -> Runs:
    """The runs of the rows from `start` to `stop`, in the order of their offsets."""
    cut: Runs = []
    at = 0
    for first, count in runs:
        inner, outer = max(start - at, 0), min(stop - at, count)
        if inner < outer:
            cut.append((first + inner, outer - inner))
        at += count
    return sorted(cut)


class Delivery(BaseDelivery[int]):
    """A delivery to a thread."""

    __slots__ = ()


class AsyncDelivery(BaseDelivery[Awaitable[int]]):
    """A delivery to a coroutine: every answer is awaited."""

    __slots__ = ()


def in_hand(runs: Runs, attempts: list[int], redelivered: tuple[bool, ...] = (), lease: int | None = None) -> Dispatch:
    """A delivery that another process holds, and settles."""
    return Dispatch("", "", 0, lease, runs, attempts, 0, redelivered=redelivered)
