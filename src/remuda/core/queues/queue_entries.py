"""Values of the core."""

from __future__ import annotations

from typing import Final

import msgspec

from remuda.model.state import State

NEVER: Final = (1 << 63) - 1


class ReadyRun(msgspec.Struct, frozen=True, gc=False):
    """Neighbouring messages that wait together."""

    first: int
    count: int
    deadline: int
    priority: int


class MessageRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`count` neighbouring messages from offset `first` in the same condition."""

    first: int
    count: int
    state: State
    deadline: int = NEVER
    priority: int = 0
    attempt: int = 0
    lease: int = -1
    due: int = 0
    front: bool = False
    reason: str | None = None
    time: int = 0
    redelivered: bool = False
    """Whether the message was delivered before, also where that did not count as an attempt."""
    order: int = 0
    """The order of arrival among messages that came while others, whose delay is over, had yet to join the lane."""

    @property
    def end(self) -> int:
        return self.first + self.count

    def part(self, start: int, stop: int) -> MessageRange:
        if start <= self.first and stop >= self.end:
            return self
        low = max(start, self.first)
        return msgspec.structs.replace(self, first=low, count=min(stop, self.end) - low)


class Waiter(msgspec.Struct, frozen=True):
    """A pull request that found nothing and waits."""

    consumer: str
    tag: int
    count: int
    newest: bool
    until: int
    clear_after: str = "none"


class Lease(msgspec.Struct, gc=False):
    """A delivery that awaits its answer, or its hand-over."""

    token: int
    consumers: tuple[str, ...]
    runs: list[tuple[int, int]]
    deadline: int
    open: int
    """Messages of it still unanswered."""
    confirmed: frozenset[str] = frozenset()
    declined: frozenset[str] = frozenset()
    needed: int = 1
    """Confirmations that complete its message."""
    answered: bool = False
    """Whether some consumer has answered for some of it."""
    pulled: bool = False
    """Whether it was pulled: then it uses no credit, and no other delivery waits for its answer."""
    sent: int = 0
    """Messages of it that were sent ahead: without waiting for answers, limited by a window instead of credit."""
    awaited: frozenset[str] = frozenset()
    """Subscribers that have not taken it yet: until one does, it belongs to the queue."""
    taken: frozenset[str] = frozenset()
    """Consumers that have taken it."""
    kicks: bool = False
    """Whether it ends when it is taken: no answer will come."""
    uncounted: bool = False
    """Whether it was reclaimed by a consumer that has yet to subscribe again, and uses its credit from then on."""

    @property
    def ahead(self) -> bool:
        """Whether it was sent ahead."""
        return self.sent > 0

    @property
    def awaits_hand_over(self) -> bool:
        """Whether it was sent to subscribers and nobody has it yet."""
        return bool(self.awaited) and not self.taken

    @property
    def silent(self) -> list[str]:
        """Consumers that have not answered."""
        if not self.confirmed and not self.declined:
            return list(self.consumers)
        return [name for name in self.consumers if name not in self.confirmed and name not in self.declined]
