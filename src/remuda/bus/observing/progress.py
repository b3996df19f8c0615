"""How far handlers have come, by their own account (G5): the last word of each is kept in memory, and in no log."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from remuda.bus.execution.processes.parent import parent
from remuda.model.errors import InvalidOption
from remuda.model.operations.worker_orders import Progress
from remuda.model.values.texts import read_text, shown

_MOST: Final = 10_000
_LONGEST: Final = 500
_PAUSE: Final = 0.25
"""Seconds between two words of a handler's process to its parent."""

_latest: dict[tuple[str, int], Progress] = {}
_told: dict[tuple[str, int], float] = {}


class TellProgress(msgspec.Struct, frozen=True):
    """A handler's process tells how far it has come."""

    queue: str
    offset: int
    progress: Progress


def tell(queue: str, offset: int, done: float, total: float | None, note: str) -> None:
    """Keep how far a handler has come. The last word counts."""
    for name, value in (("done", done), ("total", 0 if total is None else total)):
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise InvalidOption(f"{name} must be a number, not {shown(value)}")
    progress = Progress(done, total, read_text("note", note)[:_LONGEST] if note else "")
    connection = parent()
    if connection is None:
        keep(queue, offset, progress)
        return
    now, place = time.monotonic(), (queue, offset)
    if done != total and now - _told.get(place, 0.0) < _PAUSE:
        return
    _told.clear()  # a process handles one message at a time
    _told[place] = now
    connection.ask(TellProgress(queue, offset, progress))


def keep(queue: str, offset: int, progress: Progress) -> None:
    place = (queue, offset)
    if place not in _latest and len(_latest) >= _MOST:
        _latest.pop(next(iter(_latest)), None)
    _latest[place] = progress


def latest(queue: str, offset: int) -> Progress | None:
    """How far the handler of this message has come, if it said so in this process."""
    return _latest.get((queue, offset))


def forget(queue: str, offset: int) -> None:
    """A call of this message begins, or has ended."""
    _latest.pop((queue, offset), None)
