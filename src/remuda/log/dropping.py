"""Letting closed segments go as they are, where nothing in them is needed and nobody seals them (L5, L6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from remuda.log.fetch import Run
from remuda.log.log import Log
from remuda.log.segments import TailSegment

Keep = Callable[[int, int], list[Run]]
"""Asked with the first and last offset of a file: the runs `(first, count)` in it that must stay."""


class Collected(NamedTuple):
    """What was removed."""

    messages: int = 0
    events: int = 0
    bytes_freed: int = 0
    segments: int = 0
    failures: tuple[str, ...] = ()
    """Files that could not be looked through, which are as they were."""

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
    messages = events = freed = segments = 0
    with log.maintenance:
        files = log.catalog.files()
        if oldest_first and (files.messages or files.events):
            return Collected()
        for segment in list(closed_segments(log)):
            assert segment.end is not None
            count = segment.end.offset - segment.first.offset
            if count and keep(segment.first.offset, segment.end.offset - 1):
                if oldest_first:
                    break
                continue
            log.catalog.drop_tail(segment)
            log.disk.remove(segment.name)
            messages += count
            events += segment.end.position - segment.first.position
            freed += segment.written
            segments += 1
    return Collected(messages, events, freed, segments)
