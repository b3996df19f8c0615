"""Dropping closed segments without sealing them, where nothing in them is needed (L5, L6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from remuda.log.log import Log
from remuda.log.readers.fetch import Run
from remuda.log.segments import Counters, TailSegment
from remuda.log.state.ledger import Span
from remuda.model.errors import StorageError

Keep = Callable[[int, int], list[Run]]
"""Asked with the first and last offset of a file: the runs `(first, count)` in it that must stay."""


class Collected(NamedTuple):
    """What was removed."""

    messages: int = 0
    events: int = 0
    bytes_freed: int = 0
    segments: int = 0
    failures: tuple[str, ...] = ()
    """Files that could not be examined, and are as they were."""

    def describe(self) -> str:
        return (
            f"{self.messages} messages and {self.events} events removed, {self.segments} files gone, "
            f"{self.bytes_freed} bytes freed"
        )


def closed_segments(log: Log) -> Iterator[TailSegment]:
    """The segments that take no more records and lie before the oldest checkpoint kept."""
    for segment in log.catalog.files().tail:
        if segment.end is not None and segment.sequence < log.settled_before:
            yield segment


def drop_settled(log: Log, keep: Keep, *, oldest_first: bool = False) -> Collected:
    """Remove closed segments of which nothing must stay.

    With `oldest_first` none goes before those older than it, sealed ones included: a log that is opened again has no
    gaps but at its beginning.
    """
    with log.maintenance:
        files = log.catalog.files()
        if oldest_first and (files.messages or files.events):
            return Collected()
        gone: list[tuple[TailSegment, Counters]] = []
        for segment in closed_segments(log):
            assert segment.end is not None
            first, end = segment.first.offset, segment.end.offset
            if first < end and keep(first, end - 1):
                if oldest_first:
                    break
                continue
            gone.append((segment, segment.end))
        if not gone:
            return Collected()
        messages = [(segment.first.offset, end.offset) for segment, end in gone]
        events = [(segment.first.position, end.position) for segment, end in gone]

        def remove() -> None:
            for segment, _ in gone:
                log.catalog.drop_tail(segment)
                log.disk.remove(segment.name)

        remove_noted(log, messages, events, remove)
    return Collected(_length(messages), _length(events), sum(segment.written for segment, _ in gone), len(gone))


def remove_noted(log: Log, messages: list[Span], events: list[Span], remove: Callable[[], None]) -> None:
    """Remove files once the ledger notes that they are collected.

    On a disk that is too full for the note they are removed first, to make room. A crash in between then has them
    reported as missing, though nothing in them was needed.
    """
    try:
        log.ledger.note_collected(messages, events)
    except StorageError as error:
        if not error.passing:
            raise
        remove()
        log.ledger.note_collected(messages, events)
    else:
        remove()


def _length(spans: list[Span]) -> int:
    return sum(stop - first for first, stop in spans)
