"""Following a log: micro-batches by exact numbers, which a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from remuda.model.errors import Conflict
from remuda.spark.options import ReadOptions
from remuda.spark.port import SparkLog, open_log
from remuda.spark.selection import Selection
from remuda.spark.source import Shape, numbered, plan, read_part
from remuda.spark.tables import EVENTS, LIFECYCLE, MESSAGES, NUMBER

Offsets = dict[str, Any]
"""How far a query has come: by `offset`, by `position`, or for lives by both; and marks that tell logs apart."""
_MARK: Final = "Mark"


_TABLES: Final = {"offset": MESSAGES, "position": EVENTS}
_NOT_THIS: Final = (
    "it is not the log that this query has read. Give the query its log again, or a new checkpoint to begin anew"
)


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A table as it grows. Of lives, each micro-batch gives those rows anew that changed."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = Shape(options.table, schema)
        self._log_at_hand: SparkLog | None = None
        self._goal: dict[str, int] | None = None
        self._checked: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802
        selection = self._options.selection
        number = selection.start
        if selection.since is not None:
            number = max(number, self._log.number_at(numbered(self._options.table), selection.since))
        if self._options.table == LIFECYCLE:
            return {"offset": number, "position": 0}
        return {NUMBER[self._options.table]: number}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        self._check(start)
        begun = numbers_of(start)
        end = self._goal or self._end()
        if isinstance(limit, ReadMaxRows):
            end = {name: min(number, begun[name] + limit.max_rows) for name, number in end.items()}
        reached = {name: max(number, begun[name]) for name, number in end.items()}
        return start if reached == begun else self._marked(reached)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._goal = self._end()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        return self._end()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        self._check(start)
        self._check(end)
        if self._options.table == LIFECYCLE:
            return self._lives(start, end)
        name = NUMBER[self._options.table]
        if start[name] >= end[name]:
            return []
        return plan(self._log, self._options, start[name], end[name], 0)

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
        if at == self._checked:
            return
        for name, number in numbers_of(at).items():
            if name not in self._end():
                raise Conflict(
                    f"the checkpoint counts by {name}, the table {self._options.table!r} does not; start anew"
                )
            if self._log_end(name) < number:
                raise Conflict(
                    f"the checkpoint is at {name} {number}, but the log at {self._options.url!r} ends at "
                    f"{self._log_end(name)}: {_NOT_THIS}"
                )
            before, now = at.get(f"{name}{_MARK}"), self._log.mark(_TABLES[name], number)
            if before is not None and now is not None and before != now:
                raise Conflict(
                    f"the checkpoint is at {name} {number}, where the log at {self._options.url!r} holds something "
                    f"else than was read: {_NOT_THIS}"
                )
        self._checked = at

    def _marked(self, at: dict[str, int]) -> Offsets:
        marks = {f"{name}{_MARK}": self._log.mark(_TABLES[name], number) for name, number in at.items()}
        return {**at, **{name: mark for name, mark in marks.items() if mark is not None}}

    def _log_end(self, name: str) -> int:
        return self._log.end(_TABLES[name])

    def _end(self) -> dict[str, int]:
        last = self._options.selection.stop
        if self._options.table == LIFECYCLE:
            offset, position = self._log.cut()
            return {"offset": min(offset, last), "position": position}
        name = NUMBER[self._options.table]
        return {name: min(self._log_end(name), last)}

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
        return plan(self._log, self._options, only[0].start, only[-1].stop, end["position"], only)


def numbers_of(offsets: Offsets) -> dict[str, int]:
    """The numbers without the marks."""
    return {name: number for name, number in offsets.items() if isinstance(number, int)}


def merged(ranges: list[range]) -> list[range]:
    """The same numbers as ranges in order, none over another."""
    joined: list[range] = []
    for one in sorted(filter(None, ranges), key=lambda one: one.start):
        if joined and one.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, one.stop))
        else:
            joined.append(one)
    return joined
