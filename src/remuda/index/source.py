"""The log as an index reads it: the one place that knows the log's reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from remuda.index.port import EVENT_COLUMNS, MESSAGE_COLUMNS, Reached
from remuda.log.disk import Disk
from remuda.log.readers.reader import Reader
from remuda.log.sealed.sealed_table import EventTable, Table, file_state
from remuda.model.errors import InvalidOption

_NEAR: Final = 1024
"""Bodies that lie closer together are read together."""


class LogSource:
    """The tables of a log from any point on, and which of its messages are gone."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._reader = Reader(disk)
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
            return isinstance(table, EventTable) and table.concerns(group).stop > offset

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
        listing = self._reader.listed()
        tail = min((view.first.offset for view in listing.tail), default=before)
        looked_at: dict[str, tuple[object, ...]] = {}
        following = 0
        for file in listing.messages:
            if following < file.first:
                yield range(following, min(file.first, before))
            following = max(following, file.last + 1)
            try:
                state = file_state(self._disk, file.name) or (self._disk.size(file.name),)
                if self._looked_at.get(file.name) != state:
                    yield from self._gone_of(self._reader.tables.table(file), before)
            except FileNotFoundError:
                continue  # rewritten or removed just now: the next call finds out
            looked_at[file.name] = state
        self._looked_at = looked_at
        if following < min(tail, before):
            yield range(following, min(tail, before))

    def _gone_of(self, table: Table, before: int) -> Iterator[range]:
        following = table.file.first
        for run in [*table.held(0, table.file.last + 1, []), range(table.file.last + 1, table.file.last + 1)]:
            if following < run.start:
                yield range(following, min(run.start, before))
            following = run.stop
