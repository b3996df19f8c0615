"""The life of a message in one queue: its states and the only moves between them (M5, M6)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from remuda.model.errors import IllegalMove


class State(StrEnum):
    """One letter each, as written in the log."""

    LOGGED = "L"
    UNCHANGED = "U"
    QUEUED = "Q"
    FETCHED = "F"
    SUCCESS = "S"
    KICKED = "K"
    RETRY = "R"
    DEAD = "E"
    INVALID = "I"
    NOT_INTERESTED = "N"
    COMPLETED = "X"

    __hash__ = str.__hash__  # An Enum's own is a call of Python code, and states are looked up all the time.


MOVES: Final[frozenset[tuple[State, State]]] = frozenset(
    (State(move[0]), State(move[1])) for move in "LQ LU QF QE FS FK FR FE FI FN FQ RQ RE SX KX EQ IQ NQ".split()
)

PARKED: Final = frozenset({State.DEAD, State.INVALID, State.NOT_INTERESTED})
"""Ended without success; an operator may send these back to the queue."""

LIVE: Final = frozenset({State.QUEUED, State.FETCHED, State.RETRY})
"""Still to be delivered or answered."""


def check_move(source: State, target: State) -> None:
    """Raise `IllegalMove` unless a message may go from `source` to `target`."""
    if (source, target) not in MOVES:
        raise IllegalMove(
            f"a message cannot go from {source.name} ({source.value}) to {target.name} ({target.value}); "
            f"from {source.value} it can go to {', '.join(reachable(source)) or 'no other state'}"
        )


def reachable(source: State) -> list[str]:
    return sorted(target.value for origin, target in MOVES if origin is source)
