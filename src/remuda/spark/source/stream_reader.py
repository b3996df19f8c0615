"""Following a log: micro-batches by exact numbers, which a checkpoint keeps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from remuda.model.errors import Conflict
from remuda.spark.checkpoints import BEGAN, MISSING
from remuda.spark.source.data_source import Shape, check_queues, numbered, plan, read_part, table_schema
from remuda.spark.source.losses import collected, losses, report
from remuda.spark.source.read_options import LATEST, ReadOptions
from remuda.spark.source.selection import Selection
from remuda.spark.source.spark_log import SparkLog, open_log, shown
from remuda.spark.source.tables import EVENTS, LIFECYCLE, MESSAGES, NUMBER

Offsets = dict[str, Any]
"""How far a query has come: by `offset`, by `position`, or for lives by both; marks that tell logs apart; and of what
lies ahead the ranges that had been collected when the query began."""
_MARK: Final = "Mark"
_GONE: Final = "Gone"
_BEGUN: Final = "Begun"
"""In checkpoints of earlier versions: what is missing before this number counts as gone."""

_TABLES: Final = {"offset": MESSAGES, "position": EVENTS}
_NOT_THIS: Final = (
    "it is not the log that this query has read. Give the query its log again, or a new checkpoint to start over"
)


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A table as it grows. Of lives, each micro-batch has the rows that changed."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = Shape(options.table, schema)
        self._log_at_hand: SparkLog | None = None
        self._goal: dict[str, int] | None = None
        self._checked: list[Offsets] = []
        """Where this log was found to be the right one: the begin and the end of a micro-batch."""

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Where the query begins, and what had been collected by then: only what is collected later is a loss to it."""
        options, end = self._options, self._end()
        check_queues(self._log, options.selection)
        number = options.selection.start
        table = numbered(options.table)
        if options.starting == LATEST:
            number = end[NUMBER[table]]
        elif isinstance(options.starting, int):
            number = self._log.number_at(table, options.starting)
        if options.selection.since is not None:
            number = max(number, self._log.number_at(table, options.selection.since))
        numbers = {NUMBER[options.table]: number}
        if options.table == LIFECYCLE:
            numbers["position"] = end["position"] if options.starting == LATEST else 0
        gone = {name: collected(self._log.gaps(_TABLES[name], first, end[name])) for name, first in numbers.items()}
        for name, ranges in gone.items():
            if ranges and ranges[0].start == numbers[name]:
                numbers[name] = ranges[0].stop  # micro-batches are not spent on what is not there
        # Spark asks again if the first micro-batch has to be repeated: its end says where it began.
        return {**numbers, **_still_gone(gone, numbers), BEGAN: numbers}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        self._check(start)
        begun = numbers_of(start)
        end = self._goal or self._end()
        rows = self._most(limit, begun)
        if rows is not None:
            end = {name: min(number, self._log.after(_TABLES[name], begun[name], rows)) for name, number in end.items()}
        reached = {name: max(number, begun[name]) for name, number in end.items()}
        if reached == begun:
            return start
        gone = {name: gone_at(start, name) for name in begun}
        lost = sum(self._lost(name, range(begun[name], number), gone[name]) for name, number in reached.items())
        counted = {MISSING: start.get(MISSING, 0) + lost} if lost or MISSING in start else {}
        began = {BEGAN: begun} if start.get(BEGAN) == begun else {}
        return self._noted({**self._marked(reached), **_still_gone(gone, begun), **began, **counted})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._goal = self._end()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """The end of the log, and how old its newest row is: what a query's progress shows as `latestOffset`."""
        end = self._end()
        table = numbered(self._options.table)
        newest = self._log.newest(table)
        age = {} if newest is None else {"newestAgeSeconds": round(max(time.time() - newest / 1e6, 0.0), 3)}
        return {**end, **age}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        self._check(start)
        self._check(end)
        start = {**start, **end.get(BEGAN, {})}
        if self._options.table == LIFECYCLE:
            return self._lives(start, end)
        name = NUMBER[self._options.table]
        if start[name] >= end[name]:
            return []
        return plan(self._log, self._options, self._shape, start[name], end[name], 0, gone=gone_at(end, name))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self._options, self._shape, partition)

    def commit(self, end: Offsets) -> None:
        pass

    def stop(self) -> None:
        pass

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_log_at_hand": None}

    @property
    def _log(self) -> SparkLog:
        if self._log_at_hand is None:
            self._log_at_hand = open_log(self._options.url)
        return self._log_at_hand

    def _check(self, at: Offsets) -> None:
        """Raise unless this is the log that a query has read so far."""
        if at in self._checked:
            return
        ends = self._log_ends()
        for name, number in numbers_of(at).items():
            if name not in ends:
                raise Conflict(
                    f"the checkpoint counts by {name}, the table {self._options.table!r} does not; use a new checkpoint"
                )
            if ends[name] < number:
                raise Conflict(
                    f"the checkpoint is at {name} {number}, but the log at {shown(self._options.url)!r} ends at "
                    f"{ends[name]}: {_NOT_THIS}"
                )
            before, now = at.get(f"{name}{_MARK}"), self._log.mark(_TABLES[name], number)
            if before is not None and now is not None and before != now:
                raise Conflict(
                    f"the checkpoint is at {name} {number}, where the log at {shown(self._options.url)!r} holds "
                    f"something else than was read: {_NOT_THIS}"
                )
        self._noted(at)

    def _noted(self, at: Offsets) -> Offsets:
        """The same offsets, which are of this log."""
        self._checked = [*self._checked[-1:], at]
        return at

    def _lost(self, name: str, numbers: range, gone: list[range]) -> int:
        """How many numbers are missing that a query should have read; raises if it is to fail on that."""
        gaps = losses(self._log.gaps(_TABLES[name], numbers.start, numbers.stop), gone)
        report(shown(self._options.url), f"{name}s", gaps, fail=self._options.fail_on_loss)
        return sum(map(len, gaps))

    def _most(self, limit: ReadLimit, at: dict[str, int]) -> int | None:
        """How many rows a micro-batch may have. Spark hands on one limit; if both were asked for, the nearer counts."""
        if isinstance(limit, ReadMaxBytes):
            return self._rows_in(limit.max_bytes, at)
        if not isinstance(limit, ReadMaxRows):
            return None
        most: int = limit.max_rows
        size = self._options.max_bytes
        return most if size is None else min(most, self._rows_in(size, at))

    def _rows_in(self, size: int, at: dict[str, int]) -> int:
        """How many rows from some numbers on have about so many bytes; one at least."""
        name = "offset" if "offset" in at else "position"
        return max(int(size / self._log.row_bytes(_TABLES[name], at[name])), 1)

    def _marked(self, at: dict[str, int]) -> Offsets:
        marks = {f"{name}{_MARK}": self._log.mark(_TABLES[name], number) for name, number in at.items()}
        return {**at, **{name: mark for name, mark in marks.items() if mark is not None}}

    def _log_ends(self) -> dict[str, int]:
        """The numbers that come next."""
        if self._options.table == LIFECYCLE:
            return dict(zip(("offset", "position"), self._log.cut(), strict=True))
        return {NUMBER[self._options.table]: self._log.end(self._options.table)}

    def _end(self) -> dict[str, int]:
        """The numbers before which a query ends."""
        ends = self._log_ends()
        limited = NUMBER[numbered(self._options.table)]
        return {**ends, limited: min(ends[limited], self._options.selection.stop)}

    def _lives(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """New messages, and older ones that something happened to."""
        first, last = self._options.selection.start, end["offset"]
        changed = [range(start["offset"], last)] if start["offset"] < last else []
        for batch in self._log.batches(EVENTS, start["position"], end["position"], Selection(), ("first", "count")):
            for begin, count in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                changed.append(range(max(begin, first), min(begin + count, start["offset"])))
        only = merged(changed)
        if not only:
            return []
        return plan(self._log, self._options, self._shape, only[0].start, only[-1].stop, end["position"], only)


def check_log(url: str, table: str, at: Offsets) -> None:
    """Raise unless a log is the one that a query has read up to some numbers."""
    LogStream(ReadOptions.parse({"path": url, "table": table}), table_schema(table))._check(at)


def numbers_of(offsets: Offsets) -> dict[str, int]:
    """The numbers without the marks."""
    return {name: number for name, number in offsets.items() if name in _TABLES}


def gone_at(at: Offsets, name: str) -> list[range]:
    """What had been collected when a query began that is at some numbers."""
    if f"{name}{_BEGUN}" in at:
        return [range(at[f"{name}{_BEGUN}"])]
    return [range(*pair) for pair in at.get(f"{name}{_GONE}", ())]


def _still_gone(gone: dict[str, list[range]], at: dict[str, int]) -> Offsets:
    """Of what had been collected, that which a query at some numbers has not passed."""
    ahead = {name: [[one.start, one.stop] for one in ranges if one.stop > at[name]] for name, ranges in gone.items()}
    return {f"{name}{_GONE}": pairs for name, pairs in ahead.items() if pairs}


def merged(ranges: list[range]) -> list[range]:
    """The same numbers as ranges in order, none over another."""
    joined: list[range] = []
    for one in sorted(filter(None, ranges), key=lambda one: one.start):
        if joined and one.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, one.stop))
        else:
            joined.append(one)
    return joined
