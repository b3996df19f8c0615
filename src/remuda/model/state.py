"""The states of a message in one queue (M5)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


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


WORDS: Final = {
    State.LOGGED: "logged",
    State.UNCHANGED: "unchanged",
    State.QUEUED: "waiting",
    State.FETCHED: "in flight",
    State.SUCCESS: "success",
    State.KICKED: "sent",
    State.RETRY: "retry",
    State.DEAD: "dead",
    State.INVALID: "invalid",
    State.NOT_INTERESTED: "not interested",
    State.COMPLETED: "completed",
}
"""The word for each state, the same on pages and on the command line."""
