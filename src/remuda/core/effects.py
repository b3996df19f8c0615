"""What follows from commands: records to keep, deliveries to make, producers to answer, handlers to notify."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remuda.model.queues.notices import Notice
from remuda.model.records import Record


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Messages on their way to one consumer. `lease` guards the answer; None where no answer is awaited."""

    queue: str
    consumer: str
    tag: int
    """The tag of the subscription, or of the pull request that this answers."""
    lease: int | None
    runs: list[tuple[int, int]]
    attempts: list[int]
    """The attempt of each run: 1 for the first delivery."""
    deadline: int
    remaining: tuple[int, int] = (0, 0)
    """How many messages still wait, with a priority above 0 and without."""
    redelivered: tuple[bool, ...] = ()
    """For each run, whether it was delivered before; empty if none was."""
    hand_over: bool = False
    """Whether the consumer must say when it takes this: until then the messages belong to the queue."""
    shared: bool = False
    """Whether others get the same messages: then an answer of theirs does not make this one stale."""
    arrivals: dict[int, str] = {}
    """By offset, why messages came here from another queue, and from which."""

    @property
    def count(self) -> int:
        return sum(count for _, count in self.runs)

    def only(self, found: Sequence[tuple[int, int]]) -> Dispatch:
        """The same delivery with only the messages of these runs."""
        past = {
            offset: (attempt, bool(self.redelivered) and self.redelivered[at])
            for at, (attempt, (first, count)) in enumerate(zip(self.attempts, self.runs, strict=True))
            for offset in range(first, first + count)
        }
        runs = [(offset, 1) for first, count in found for offset in range(first, first + count)]
        return msgspec.structs.replace(
            self,
            runs=runs,
            attempts=[past[offset][0] for offset, _ in runs],
            redelivered=tuple(past[offset][1] for offset, _ in runs),
        )


class Confirmation(msgspec.Struct, frozen=True):
    """The outcome of a published batch that its producer waits for; `reason` if it failed."""

    watch: int
    reason: str | None = None
    moved: bool = False
    """Whether the message that failed went on in another queue."""


class Effects(msgspec.Struct):
    """Everything that came of a batch of commands, in order."""

    records: list[Record]
    dispatches: list[Dispatch]
    confirmations: list[Confirmation]
    notices: list[Notice]
    closed: list[int]
    """Tags of subscriptions and pulls that end with their queue."""
    durable: bool = False
    """Whether anything here concerns a persistent queue and must be kept before it is confirmed."""
    parks: bool = False
    """Whether messages ended without success."""
    concerns_others: bool = False
    """Whether anyone but the caller must learn of it."""
