"""What a queue knows of one key that has more than a message waiting, and of one that has none but has had its turn."""

from __future__ import annotations

from array import array
from typing import Final

from remuda.core.flow.keys import UNKNOWN
from remuda.core.queues.ready import ReadyMessages

Turn = tuple[int, float, int, int]
"""Of a key that may go: the rank of its priority, its turn, the first offset that waits, and its number."""


class Key:
    """What one key has waiting and in flight, and what holds it."""

    __slots__ = (
        "due", "entry", "fresh", "held", "later", "line", "mark", "most", "newest", "number", "paused", "pending",
        "running", "since", "sleeps", "turn",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.line: ReadyMessages | None = None
        self.running = 0
        """Messages in flight."""
        self.pending = 0
        """Messages that were just taken out of the line, and are not in flight yet."""
        self.later = 0
        """Delayed messages."""
        self.newest = -1
        """The offset of the newest message that came."""
        self.mark = 0
        """When the messages began to come of which the last wins; or until when the first one is enough."""
        self.held = 0
        """Messages that are to be tried again, for which the others wait."""
        self.most = 0
        """How many may be in flight, if its messages say so."""
        self.paused = 0
        """Until when the key waits."""
        self.due = 0.0
        """When the next message is due by the key's rate."""
        self.turn = 0.0
        self.entry: Turn | None = None
        """Its place among the keys that may go."""
        self.sleeps = 0
        """When it is to be looked at again."""
        self.fresh = False
        """Whether it must be looked at."""
        self.since = 0
        """Since when something holds it."""

    def is_idle(self, now: int) -> bool:
        """Whether nothing needs to be remembered of it but its turn."""
        return not self.lives and not self.fresh and self.paused <= now and self.due <= now and self.mark <= now

    @property
    def lives(self) -> bool:
        """Whether a message of it waits or is in flight."""
        return self.line is not None or self.running > 0 or self.pending > 0 or self.later > 0


_LEAST: Final = 64


class RestingKeys:
    """The turns of keys of which nothing waits, as long as the clock has not come to them: sixteen bytes each, and some
    room between them."""

    __slots__ = ("_numbers", "_turns", "_used")

    def __init__(self) -> None:
        self._numbers = array("q")
        self._turns = array("d")
        self._used = 0

    def put(self, number: int, turn: float, clock: float) -> None:
        if number == UNKNOWN:
            return
        if 3 * self._used >= 2 * len(self._numbers):
            self._make_room(clock)
        self._set(number, turn)

    def turn_of(self, number: int) -> float:
        """The turn of a key; 0 if none is known."""
        return self._turns[self._place(number)] if self._used and number != UNKNOWN else 0.0

    def clear(self) -> None:
        if self._used:
            self._numbers, self._turns, self._used = array("q"), array("d"), 0

    def _set(self, number: int, turn: float) -> None:
        at = self._place(number)
        self._used += self._numbers[at] == UNKNOWN
        self._numbers[at], self._turns[at] = number, turn

    def _place(self, number: int) -> int:
        numbers, last = self._numbers, len(self._numbers) - 1
        at = (number >> 8) & last
        while (found := numbers[at]) != UNKNOWN and found != number:
            at = (at + 1) & last
        return at

    def _make_room(self, clock: float) -> None:
        """Forget those that the clock has come to."""
        numbers, turns = self._numbers, self._turns
        later = [at for at, turn in enumerate(turns) if turn > clock]
        size = _LEAST
        while size < 3 * len(later):
            size *= 2
        self._numbers, self._turns, self._used = array("q", bytes(8 * size)), array("d", bytes(8 * size)), 0
        for at in later:
            self._set(numbers[at], turns[at])
