"""A run's steps as people look at them: a tree, and when each began and ended, with how long it waited for a worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from remuda.bus.workflows import numbers
from remuda.bus.workflows.history import StepRecord

_OPEN: Final = frozenset({"wait", "call", "group"})
"""Steps that are recorded when they begin, and end with a note of their own."""
_ENDS: Final = frozenset({"member", "signal", "came", "timeout", "decided"})


class Span(msgspec.Struct, rename="camel"):
    """One line of a run's story. Times are microseconds since the epoch."""

    step: int | None
    """The step it belongs to; None for what concerns the run as a whole."""
    name: str
    kind: str
    depth: int
    start: int
    end: int | None
    """None while it goes on."""
    waited: int = 0
    """How long it waited for a worker, though it could have begun."""
    attempt: int = 1
    error: str | None = None
    row: int | None = None
    """Of a group's member, its place in the group."""
    offset: int = -1
    """Where its record is in the log."""


def spans(records: Iterable[StepRecord], created: int, ended: int | None) -> list[Span]:
    """The lines of a tree: steps in their order, below each its attempts, its members and its undo."""
    found: list[tuple[int, int, int, Span]] = []
    open_steps: dict[int, Span] = {}
    ready, epoch = created, 0
    for at, record in enumerate(records):
        step = numbers.owner(record.number)
        span = _span(record, step, ready)
        ready = _ready_after(record, ready)
        if record.kind == "restarted":
            again = record.value().get("from", 0)
            epoch, open_steps = epoch + 1, {step: one for step, one in open_steps.items() if step < again}
        if step is not None and record.kind in _OPEN:
            open_steps[step] = span
        elif step in open_steps and record.kind in _ENDS:
            begun = open_steps[step]
            begun.end = record.recorded
            span.start = begun.start
        if step is not None:
            found.append((epoch, step, int(not numbers.is_step(record.number)), span))
        else:
            begins = at == 0 or record.kind == "restarted"
            found.append((epoch, -1 if begins else numbers.STEPS, 0, span))
    lines = [span for *_, span in sorted(found, key=lambda one: one[:3])]
    for line in lines:
        if line.end is None and ended is not None:
            line.end = max(line.start, ended)
    return lines


def _span(record: StepRecord, step: int | None, ready: int) -> Span:
    started = record.started
    start, end = record.recorded if started is None else started, record.recorded
    if record.kind == "sleep":
        return _made(record, step, start, _due(record, end), 0)
    waited = 0 if started is None else max(0, started - ready)
    return _made(record, step, start, None if record.kind in _OPEN else max(start, end), waited)


def _made(record: StepRecord, step: int | None, start: int, end: int | None, waited: int) -> Span:
    depth = int(step is not None and not numbers.is_step(record.number))
    return Span(
        step, record.name, record.kind, depth, start, end, waited, record.attempt, record.error,
        numbers.row_of(record.number), record.offset,
    )  # fmt: skip


def _ready_after(record: StepRecord, ready: int) -> int:
    """From when on the next step could begin."""
    if record.kind in ("sleep", "attempt"):
        return _due(record, record.recorded)
    return max(ready, record.recorded)


def _due(record: StepRecord, otherwise: int) -> int:
    value: Any = record.value()
    try:
        return int(value["due"] if isinstance(value, dict) else value)
    except (KeyError, TypeError, ValueError):
        return otherwise
