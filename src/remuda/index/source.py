"""The log as an index reads it: the one place that knows the log's reader."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from remuda.index.port import EVENT_COLUMNS, MESSAGE_COLUMNS, Reached
from remuda.log.disk import Disk
from remuda.log.reader import Reader
from remuda.log.sealed import MessageTable, Table
from remuda.log.view import Lister
from remuda.model.errors import InvalidOption

_NEAR: Final = 1024
"""Bodies that lie closer together are read together."""


class LogSource:
    """The tables of a log from any point on, and which of its messages are gone."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._reader = Reader(disk)
        self._lister = Lister(disk)
        self._looked_at: dict[str, tuple[object, ...]] = {}

    def end(self) -> tuple[int, int]:
        """The offset and the position that come next."""
        return self._reader.end()

    def messages(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        return self._reader.message_batches(start, stop, columns=MESSAGE_COLUMNS)

    def events(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        return self._reader.event_batches(start, stop, columns=EVENT_COLUMNS)

    def point(self, offset: int) -> Reached:
        """Where to begin so that no event of a message from `offset` on is left out."""

        def may_reach(table: Table, group: int) -> bool:
            firsts, counts = table.statistics(group, "first"), table.statistics(group, "count")
            return not firsts or not counts or bool(firsts[1] + counts[1] > offset)

        if offset <= 0:
            return Reached()
        end = self.end()
        if offset > end[0]:
            raise InvalidOption(f"the log ends at offset {end[0]}, and cannot be read from {offset} on")
        columns = ("position", "first", "count")
        for batch in self._reader.event_batches(0, end[1], columns=columns, wanted=may_reach):
            for position, first, count in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                if first + count > offset:
                    return Reached(offset, position)
        return Reached(offset, end[1])

    def offset_at(self, time: int) -> int:
        return self._reader.offset_at(time)

    def bodies(self, offsets: Iterable[int]) -> dict[int, bytes]:
        """The bodies of messages that are still there."""
        wanted = sorted(set(offsets))
        found: dict[int, bytes] = {}
        at = 0
        while at < len(wanted):
            last = at
            while last + 1 < len(wanted) and wanted[last + 1] - wanted[last] < _NEAR:
                last += 1
            these = set(wanted[at : last + 1])
            for batch in self._reader.message_batches(wanted[at], wanted[last] + 1, columns=("offset", "body")):
                numbers = batch.column(0).to_pylist()
                for row, number in enumerate(numbers):
                    if number in these:
                        found[number] = batch.column("body")[row].as_py()
            at = last + 1
        return found

    def gone(self, before: int) -> Iterator[range]:
        """Offsets below `before` whose messages were collected or lost, since this was asked last."""
        listing = self._lister.list()
        tail = min((view.first.offset for view in listing.tail), default=before)
        looked_at: dict[str, tuple[object, ...]] = {}
        following = 0
        for file in listing.messages:
            if following < file.first:
                yield range(following, min(file.first, before))
            following = max(following, file.last + 1)
            try:
                state = self._state_of(file.name)
                if self._looked_at.get(file.name) != state:
                    yield from self._gone_of(MessageTable(self._disk, file), before)
            except FileNotFoundError:
                continue  # rewritten or removed just now: the next call finds out
            looked_at[file.name] = state
        self._looked_at = looked_at
        if following < min(tail, before):
            yield range(following, min(tail, before))

    def _state_of(self, name: str) -> tuple[object, ...]:
        path = self._disk.path(name)
        if path is None:
            return (self._disk.size(name),)
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _gone_of(self, table: MessageTable, before: int) -> Iterator[range]:
        if not table.readable or table.rows == table.file.last - table.file.first + 1:
            return  # a damaged file may be restored
        following = table.file.first
        for group in range(table.group_count):
            batch = table.batch(group, ["offset"])
            first, count = table.bounds(group)
            if following < first:
                yield range(following, min(first, before))
            following = first + count
            if batch is not None and batch.num_rows < count:
                offsets = batch.column(0)
                ends, starts = offsets.slice(0, len(offsets) - 1), offsets.slice(1)
                apart = pc.greater(pc.subtract(starts, ends), 1)
                for end, start in zip(ends.filter(apart).to_pylist(), starts.filter(apart).to_pylist(), strict=True):
                    yield range(end + 1, min(start, before))
        if following <= table.file.last:
            yield range(following, min(table.file.last + 1, before))
