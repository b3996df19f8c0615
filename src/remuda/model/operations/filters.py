"""Filters for messages of a queue: by state, reason, time or offset."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.life import PARKED, WAITING
from remuda.model.state import State
from remuda.model.values.number_runs import Run, merged
from remuda.model.values.option_reading import read_enum
from remuda.model.values.texts import read_count, read_optional_text, shown

FAILED: Final = PARKED | {State.RETRY}
"""Parked, or waiting for a retry."""


class Which(StrEnum):
    """Which of a queue's live messages to list."""

    WAITING = "waiting"
    """All that wait, delayed ones included."""
    NEW = "new"
    """Of these, those that wait for their turn, or for their time to come first."""
    RETURNED = "returned"
    """Of these, those that were delivered, and come again later."""
    HANDLED = "handled"
    """Those that a consumer has."""


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects messages of one queue by state, by the reason and time of that state, or by offset."""

    states: frozenset[State] | None = None
    """None for those that the verb takes by default: dead letters and, where it is not `forget`, what waits for a
    retry."""
    reason: str | None = None
    """Part of the reason's text."""
    since: int = 0
    until: int | None = None
    offsets: tuple[tuple[int, int], ...] | None = None
    """Runs of `(first offset, count)`."""

    @property
    def taken(self) -> frozenset[State]:
        """The states of the messages it selects."""
        return PARKED if self.states is None else self.states

    def fits(self, state: State, reason: str | None, time: int) -> bool:
        """Whether it selects messages in this state, for this reason, since this time, whatever their offsets."""
        return (
            state in self.taken
            and self.since <= time
            and (self.until is None or time < self.until)
            and (self.reason is None or self.reason in (reason or ""))
        )


def message_filter(chosen: MessageFilter | None, usual: frozenset[State] = PARKED) -> MessageFilter:
    """A filter as given, for a verb that takes the `usual` states by default."""
    if chosen is None:
        return MessageFilter(states=usual)
    if not isinstance(chosen, MessageFilter):
        raise InvalidOption(f"a filter must be a MessageFilter, not {shown(chosen)}")
    states = usual if chosen.states is None else chosen.states
    if not isinstance(states, Iterable):
        raise InvalidOption(f"states must be a set of states, not {shown(states)}")
    return MessageFilter(
        states=frozenset(read_enum("states", state, State) for state in states),
        reason=read_optional_text("reason", chosen.reason),
        since=read_count("since", chosen.since),
        until=None if chosen.until is None else read_count("until", chosen.until),
        offsets=None if chosen.offsets is None else read_runs(chosen.offsets),
    )


_NAMES: Final = {
    "failed": FAILED,
    "waiting": WAITING,
    "dead-letters": PARKED,
    "in-flight": frozenset({State.FETCHED}),
    **{state.name.lower().replace("_", "-"): frozenset({state}) for state in State},
}
STATE_NAMES: Final = tuple(_NAMES)


def read_states(text: str) -> frozenset[State]:
    """States by their letters, `EI`, or by their names, `dead,invalid`; `dead-letters`, `waiting` and `failed` are
    several."""
    try:
        return frozenset(map(State, text.upper()))
    except ValueError:
        named = [name.strip().lower() for name in text.split(",")]
    for name in named:
        if name not in _NAMES:
            raise InvalidOption(
                f"there is no state {name[:40]!r}; the states are {', '.join(_NAMES)}, or letters of {''.join(State)}"
            )
    return frozenset(state for name in named for state in _NAMES[name])


def read_runs(offsets: Any) -> tuple[Run, ...]:
    """Runs of offsets, in order and without overlaps."""
    try:
        return tuple(
            merged((read_count("offsets", first), read_count("offsets", count, 1)) for first, count in offsets)
        )
    except (TypeError, ValueError):
        raise InvalidOption(f"offsets must be pairs of a first offset and a count, not {shown(offsets)}") from None
