"""The log of a RabbitMQ stream, read by entry while others write it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa

from remuda.log.streams.stream_log import AHEAD, StreamLog
from remuda.log.streams.stream_numbers import entry_after, entry_of, first_of
from remuda.model.values.urls import parse_url
from remuda.spark.source.losses import Gap
from remuda.spark.source.selection import Selection
from remuda.spark.source.tables import MESSAGES, SCHEMAS

_SAMPLE: Final = 8
"""Adjacent entries from which the others are estimated."""
_TELLING: Final = 16
"""How many runs events are divided into: lives need those from their messages on."""


class StreamedLog:
    """Implements `SparkLog` on a stream."""

    def __init__(self, url: str) -> None:
        self._log = StreamLog(parse_url(url))
        self._rows_per_entry: dict[str, float] = {}

    @property
    def is_same(self) -> bool:
        """Whether the stream is still the one that was read before, and no other of its name."""
        return self._log.is_same

    @property
    def identity(self) -> str:
        return ""

    def reaches(self, table: str, number: int) -> bool:
        return self.end(table) >= number

    def end(self, table: str) -> int:
        return self._log.end()

    def cut(self) -> tuple[int, int]:
        end = self._log.end()
        return end, end

    def mark(self, table: str, number: int) -> str | None:
        entry = self._log.entry(entry_of(number - 1)) if number else None
        return None if entry is None else f"{entry.writer.hex()} {entry.sequence}"

    def number_at(self, table: str, time: int) -> int:
        return self._log.offset_at(time) if table == MESSAGES else self._log.position_at(time)

    def newest(self, table: str) -> int | None:
        entry = self._log.last_entry()
        return None if entry is None else entry.time

    def rows(self, table: str, start: int, stop: int) -> int:
        return round(max(stop - start, 0) / first_of(1) * self._average(table))

    def after(self, table: str, start: int, rows: int) -> int:
        for entry in self._log.entries(entry_of(start), entry_of(self._log.end())):
            first = first_of(entry.number)
            skipped = max(start - first, 0)
            held = max((entry.message_count if table == MESSAGES else entry.event_count) - skipped, 0)
            if held > rows:
                return first + skipped + rows
            if held == rows:
                return first_of(entry.number + 1)
            rows -= held
        return self._log.end()

    def row_bytes(self, table: str, start: int) -> float:
        stop = min(first_of(entry_of(start) + _SAMPLE), self._log.end())
        size = rows = 0
        for batch in self._read(table, start, stop, SCHEMAS[table].names):
            size += batch.nbytes
            rows += batch.num_rows
        return max(size / rows, 1.0) if rows else 1.0

    def parts(self, table: str, start: int, stop: int, rows: int) -> list[range]:
        """Entries are not split: of a part that begins in the middle of one, the entry would be read twice."""
        entries = max(round(rows / max(self._average(table), 1.0)), 1)
        edges = [start, *(first_of(one) for one in range(entry_of(start) + entries, entry_after(stop), entries)), stop]
        return [range(*pair) for pair in pairwise(edges) if pair[0] < pair[1]]

    def gaps(self, table: str, start: int, stop: int) -> list[Gap]:
        first = self._log.ends().first_offset
        return [Gap(start, min(stop, first), False)] if start < min(stop, first) else []

    def telling(self, before: int) -> list[tuple[range, range]]:
        """A message comes before its events, or not far behind them."""
        first, last = entry_of(self._log.ends().first_position), entry_after(before)
        step = max(-(-(last - first) // _TELLING), 1)
        runs = (range(first_of(one), min(first_of(one + step), before)) for one in range(first, last, step))
        return [(run, range(run.stop + first_of(AHEAD))) for run in runs if run]

    def batches(
        self,
        table: str,
        start: int,
        stop: int,
        selection: Selection,
        columns: Sequence[str],
        missing: list[Gap] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        needed = [name for name in SCHEMAS[table].names if name in selection.columns(table) or name in columns]
        for batch in self._read(table, start, stop, needed):
            chosen = selection.apply(table, batch)
            if chosen.num_rows:
                yield chosen.select(list(columns))
        if missing is not None:
            damaged = set(self._log.damaged)
            for gap in self._log.gaps if table == MESSAGES else self._log.event_gaps:
                found = Gap(gap.start, gap.stop, gap in damaged).clip(start, stop)
                if len(found):
                    missing.append(found)

    def _read(self, table: str, start: int, stop: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        read = self._log.message_batches if table == MESSAGES else self._log.event_batches
        return read(start, stop, columns=columns)

    def _average(self, table: str) -> float:
        """How many rows an entry has, estimated from the oldest, the newest, and those in the middle."""
        if table not in self._rows_per_entry:
            ends = self._log.ends()
            first, end = entry_of(ends.first_offset), entry_of(ends.next_offset)
            starts = (first, (first + end) // 2, max(end - _SAMPLE, first))
            counts = [
                entry.message_count if table == MESSAGES else entry.event_count
                for start in starts
                for entry in self._log.entries(start, min(start + _SAMPLE, end))
            ]
            self._rows_per_entry[table] = sum(counts) / len(counts) if counts else 1.0
        return self._rows_per_entry[table]


_at_hand: dict[str, StreamedLog] = {}


def kept_log(url: str) -> StreamedLog:
    """The log that earlier tasks of this process read, with what they found, if the stream is still the same."""
    log = _at_hand.get(url)
    if log is None or not log.is_same:
        _at_hand.clear()  # one is enough: a process reads one log after the other
        log = _at_hand[url] = StreamedLog(url)
    return log
