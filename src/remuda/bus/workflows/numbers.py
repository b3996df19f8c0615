"""The numbers of a run's notes. A step has one; what belongs to it has numbers made from it, each noted
once."""

from __future__ import annotations

from typing import Final

from remuda.model.errors import InvalidOption

STEPS: Final = 1 << 25
"""A run has fewer steps, and a group fewer members than `MEMBERS`."""
MEMBERS: Final = 1 << 20
_ATTEMPT: Final = 1 << 40
_UNDO: Final = 1 << 48
_MEMBER: Final = 1 << 47
_SIGNAL: Final = 1 << 46
_OUTCOME: Final = 1 << 45
FAILED: Final = 1 << 42
RESTARTED: Final = 1 << 43
CANCELLED: Final = 1 << 44
EPOCH: Final = 1 << 54
"""A run that was restarted from a step numbers anew from there: each epoch has numbers of its own."""


def checked(number: int) -> int:
    if number >= STEPS:
        raise InvalidOption(f"a workflow has at most {STEPS} steps; let it start another that goes on")
    return number


def attempt(number: int, count: int) -> int:
    """The failed attempt number `count` of a step or of an undo."""
    return _ATTEMPT | (number & _UNDO) | (number & (STEPS - 1)) << 12 | min(count, (1 << 12) - 1)


def undo(number: int) -> int:
    return _UNDO | number


def member(number: int, row: int) -> int:
    """The end of a member of a group, or of the one message that a step waits for."""
    return _MEMBER | number << 20 | row


def signal(number: int) -> int:
    """What came for a step that waits."""
    return _SIGNAL | number


def outcome(number: int) -> int:
    """How a wait ended, where that is for the run itself to decide."""
    return _OUTCOME | number


def is_step(number: int) -> bool:
    return number < STEPS


def is_undo(number: int) -> bool:
    """Whether it records that a step was undone."""
    return bool(number & _UNDO) and not number & _ATTEMPT


def kept_with(number: int) -> int | None:
    """The step with which a note is kept when the run is restarted from a later one; None for undos, and for those of
    the run as a whole."""
    return None if number & _UNDO else owner(number)


def owner(number: int) -> int | None:
    """The step that a note belongs to; None for those of the run as a whole."""
    if is_step(number):
        return number
    if number in (FAILED, RESTARTED, CANCELLED):
        return None
    if number & _MEMBER:
        return (number ^ _MEMBER) >> 20
    for bit in (_SIGNAL, _OUTCOME):
        if number & bit:
            return number ^ bit
    return (number & (_ATTEMPT - 1)) >> 12 if number & _ATTEMPT else number & (STEPS - 1)


def row_of(number: int) -> int | None:
    """The row of a group's member."""
    return number & (MEMBERS - 1) if number & _MEMBER else None
