"""The life of a message in one queue: the only moves between its states (M5, M6), and what each does to the copy (M7).

The table is read by everything that follows states: the core checks moves against it, documents, search indexes, pages,
the command line and Spark fold events by it, and the diagram in `docs/messages.md` is drawn from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from remuda.model.errors import IllegalMove
from remuda.model.state import State

if TYPE_CHECKING:
    from remuda.model.records import Event

CONSUMER_LOST: Final = "consumer lost"
"""The reason recorded when a consumer is lost before it answers."""


class Phase(msgspec.Struct, frozen=True):
    """A state: how a message gets into it, and what that does to its copy in the queue."""

    state: State
    sources: str
    """The states it is entered from, one letter each."""
    what: str
    live: bool = False
    """Still to be delivered or answered."""
    waits: bool = False
    """In the queue, to be delivered now or later."""
    parked: bool = False
    """Ended without success; an operator may send it back. A copy that moved to another queue is not parked."""
    succeeds: bool = False
    clears: bool = False
    """An earlier reason no longer counts, nor does the time of an earlier failure."""
    counts: bool = False
    """An attempt begins."""
    sets: str | None = None
    """The time that is noted when this happens first."""
    answer: bool | None = False
    """Whether it is a consumer's answer; None: if it names a consumer that was not lost."""


_TABLE: Final = (
    Phase(State.LOGGED, "", "stored in the log"),
    Phase(State.UNCHANGED, "L", "says what was said before: kept, not delivered"),
    Phase(State.QUEUED, "LFREIN", "waits in the queue", live=True, waits=True, clears=True),
    Phase(State.FETCHED, "Q", "with a consumer", live=True, counts=True, sets="consumed"),
    Phase(State.SUCCESS, "F", "confirmed", succeeds=True, clears=True, answer=True),
    Phase(State.KICKED, "F", "sent, no answer expected", succeeds=True, clears=True),
    Phase(State.RETRY, "F", "failed, waits for its next attempt", live=True, waits=True, answer=None),
    Phase(State.DEAD, "QFR", "given up, or moved to another queue", parked=True, sets="failed", answer=None),
    Phase(State.INVALID, "F", "cannot be understood", parked=True, sets="failed", answer=None),
    Phase(State.NOT_INTERESTED, "F", "not wanted", parked=True, sets="failed", answer=None),
    Phase(State.COMPLETED, "SK", "confirmed by all", succeeds=True, clears=True, sets="completed"),
)
PHASES: Final = {phase.state: phase for phase in _TABLE}


def _where(column: str, value: object = True) -> frozenset[State]:
    return frozenset(phase.state for phase in _TABLE if getattr(phase, column) is value)


MOVES: Final = frozenset((State(source), phase.state) for phase in _TABLE for source in phase.sources)
LIVE: Final = _where("live")
WAITING: Final = _where("waits")
PARKED: Final = _where("parked")
SUCCEEDED: Final = _where("succeeds")
CLEARING: Final = _where("clears")
ANSWERS: Final = _where("answer")
"""Always a consumer's answer."""
REFUSALS: Final = _where("answer", None)
"""A consumer's answer if it names a consumer that was not lost."""


def check_move(source: State, target: State) -> None:
    """Raise `IllegalMove` unless a message may go from `source` to `target`."""
    if (source, target) not in MOVES:
        raise IllegalMove(
            f"a message cannot go from {source.name} ({source.value}) to {target.name} ({target.value}); "
            f"from {source.value} it can go to {', '.join(reachable(source)) or 'no other state'}"
        )


def reachable(source: State) -> list[str]:
    return sorted(target.value for origin, target in MOVES if origin is source)


def diagram() -> str:
    """The states and moves as a Mermaid diagram."""
    lines = ["stateDiagram-v2"]
    lines += [f"    {phase.state.value}: {phase.state.value} {phase.state.name.lower()}" for phase in _TABLE]
    lines += ["    [*] --> L"]
    lines += [f"    {source} --> {phase.state.value}" for phase in _TABLE for source in phase.sources]
    return "\n".join(lines)


def table() -> str:
    """The states in words, as Markdown."""
    lines = ["| | state | what it means | what it does |", "|---|---|---|---|"]
    for phase in _TABLE:
        does = [
            "counts an attempt" if phase.counts else "",
            f"sets `{phase.sets}`, if it is not set" if phase.sets else "",
            "is an answer" if phase.answer else "is an answer, if a consumer gave it" if phase.answer is None else "",
            "clears the reason and `failed`" if phase.clears else "",
            "" if phase.live else "ends the copy" if phase.succeeds or phase.parked else "",
        ]
        what = "; ".join(filter(None, does))
        name = phase.state.name.lower().replace("_", " ")
        lines.append(f"| `{phase.state.value}` | {name} | {phase.what} | {what} |")
    return "\n".join(lines)


def is_answer(event: Event) -> bool:
    """Whether this event is a consumer's answer. One without an answer, such as a timeout, names no consumer."""
    if event.state in ANSWERS:
        return True
    return event.state in REFUSALS and bool(event.consumer) and event.reason != CONSUMER_LOST


class Consumption(msgspec.Struct, frozen=True, rename="camel"):
    """One consumer's attempt at the message."""

    consumer: str
    fetched: int
    confirmed: int | None = None
    duration: int | None = None


class Life(msgspec.Struct, rename="camel", omit_defaults=True):
    """What the events so far made of a message's copy in one queue."""

    state: State
    modified: int
    attempts: int = 0
    confirmed_count: int = 0
    consumed_by: list[Consumption] = []
    consumed: int | None = None
    """When it was first fetched."""
    processed: int | None = None
    """When it was first answered."""
    completed: int | None = None
    failed: int | None = None
    """When it ended without success; None again once it is back in the queue."""
    reason: str | None = None
    """Why it failed last; None once it is back in the queue without a word, or succeeded."""
    detail: str | None = None
    duration: int | None = None
    """From the fetch to the first answer; earlier fetches that got no answer do not count."""
    moved_to: str | None = None
    """The queue it went on to, by failover, by a move, or as a dead letter."""
    delivered: bool = False

    @classmethod
    def begun(cls, created: int, queue: str | None) -> Life:
        """A copy as it comes into its queue, or that of a message which came into none."""
        return cls(State.QUEUED if queue else State.UNCHANGED, created)

    def copy(self) -> Life:
        """The same life, to go on independently."""
        life = msgspec.structs.replace(self)
        life.consumed_by = self.consumed_by.copy()
        return life

    def apply(self, event: Event, time: int) -> None:
        """What happens next."""
        phase = PHASES[event.state]
        self.state, self.modified, self.moved_to = event.state, time, event.to
        if phase.clears:
            self.reason = self.detail = self.failed = None
        self.reason = event.reason or self.reason
        self.detail = event.detail or self.detail
        if is_answer(event) and self.processed is None:
            self.processed, self.delivered = time, True
            self.duration = time - self.consumed_by[-1].fetched if self.consumed_by else None
        if phase.sets is not None and getattr(self, phase.sets) is None:
            setattr(self, phase.sets, time)
        if phase.counts or phase.waits:
            # What goes back without counting, or begins again, says so.
            self.attempts = max(event.attempt, 0)
        if phase.counts:
            self.consumed_by += [Consumption(name, time) for name in (event.consumer or "").split(", ")]
        elif event.state is State.SUCCESS:
            self.confirmed_count += 1
            self._confirm(event.consumer or "", time)
        elif event.state is State.KICKED:
            self.delivered = True

    def _confirm(self, consumer: str, time: int) -> None:
        for index in range(len(self.consumed_by) - 1, -1, -1):
            entry = self.consumed_by[index]
            if entry.consumer == consumer and entry.confirmed is None:
                self.consumed_by[index] = Consumption(consumer, entry.fetched, time, time - entry.fetched)
                return

    @property
    def queued(self) -> bool:
        return self.state in WAITING

    @property
    def success(self) -> bool:
        return self.confirmed_count > 0 or self.state in SUCCEEDED

    @property
    def archived(self) -> bool:
        return self.state not in LIVE

    @property
    def is_parked(self) -> bool:
        """Whether it ended here without success; what moved to another queue has its outcome there."""
        return is_parked(self.state, self.moved_to)


def is_parked(state: State, moved_to: str | None) -> bool:
    """Whether a copy ended without success in its queue; one that moved to another queue has its outcome there."""
    return state in PARKED and moved_to is None


def reason_of_arrival(reason: str | None, source: str) -> str:
    """Why a message came to its queue from another, in which it ended or was moved for this reason."""
    return f"moved from {source}: {reason}" if reason else f"moved from {source}"


def is_move(arrival: str) -> bool:
    """Whether a message came from another queue by a move, rather than for a reason for which it had ended there."""
    return arrival.startswith("moved from ") and ": " not in arrival


def why(reason: str | None, moved_to: str | None) -> str:
    """Why a copy is where it is, or where it went."""
    if moved_to is None:
        return reason or ""
    return f"moved to {moved_to}: {reason}" if reason else f"moved to {moved_to}"


def outcome(event: Event) -> str:
    """Why a message did not succeed, for its producer."""
    return why(event.reason, event.to) or event.state.name.lower().replace("_", " ")


def in_words(name: str, reason: str | None, moved_to: str | None) -> str:
    """A state, by its name on this face, with its reason. A copy that moved to another queue is not dead."""
    if moved_to is not None:
        return why(reason, moved_to)
    return f"{name}: {reason}" if reason else name
