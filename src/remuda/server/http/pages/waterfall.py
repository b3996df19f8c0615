"""What happened when, as bars below each other: of a workflow's steps, and of a message's attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from remuda.bus.workflows.spans import Span
from remuda.model.state import WORDS, State
from remuda.server.http.service_values import TimelineEntry

LINES: Final = 300
"""Lines of a waterfall on a page; the API has all of them."""
_TONES: Final = frozenset({"sleep", "wait", "call", "group", "undo"})
_FAILED: Final = frozenset({State.RETRY, State.DEAD, State.INVALID, State.NOT_INTERESTED})


class Bar(msgspec.Struct, frozen=True):
    """A line of the waterfall: places are percents of the whole."""

    span: Span
    left: float
    wait: float
    width: float

    @property
    def tone(self) -> str:
        if self.span.error:
            return "bad"
        return self.span.kind if self.span.kind in _TONES else "step"


def bars(tree: Sequence[Span], created: int, now: int) -> list[Bar]:
    """Where each line begins and ends between the beginning of the whole and its last sign."""
    last = max((now if one.end is None else one.end for one in tree), default=now)
    whole = max(last - created, 1)
    made = []
    for one in tree:
        end = now if one.end is None else one.end
        begin = max(one.start - created, 0)
        left = max(begin - one.waited, 0)
        made.append(Bar(one, 100 * left / whole, 100 * (begin - left) / whole, 100 * max(end - one.start, 0) / whole))
    return made


def attempts(timeline: Sequence[TimelineEntry]) -> list[Span]:
    """The attempts at a message in each queue, and between them the delays for which the schedule held it back."""
    made: list[Span] = []
    held: dict[str, Span] = {}
    delayed: dict[str, Span] = {}
    due: dict[str, int] = {}
    for entry in timeline:
        queue = entry.queue
        delay = delayed.pop(queue, None)
        if delay is not None and delay.end is not None:
            delay.end = max(delay.start, min(delay.end, entry.time))  # it may have been sent back sooner
            due[queue] = delay.end
        if entry.state is State.FETCHED:
            waited = max(entry.waited or 0, entry.time - due.pop(queue, entry.time))
            held[queue] = Span(None, queue, "attempt", 0, entry.time, None, waited, entry.attempt)
            made.append(held[queue])
        elif queue in held and entry.state is not State.COMPLETED:
            ended = held.pop(queue)
            ended.end = entry.time
            ended.error = WORDS[entry.state] if entry.state in _FAILED else None
        if entry.due is not None and entry.due > entry.time:
            delayed[queue] = Span(None, queue, "sleep", 1, entry.time, entry.due, attempt=entry.attempt)
            made.append(delayed[queue])
    return made
