"""The data source `remuda`: tables of a log as DataFrames, in parallel, as Arrow batches."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

from remuda.model.errors import InvalidOption
from remuda.model.values.texts import near
from remuda.spark.source.losses import Gap, losses, report
from remuda.spark.source.read_options import ReadOptions, refuse_stream_options
from remuda.spark.source.selection import Selection
from remuda.spark.source.spark_log import SparkLog, kept_log, open_log, shown, task_log
from remuda.spark.source.tables import EVENTS, LIFECYCLE, MESSAGES, NUMBER, SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FEWEST_ROWS: Final = 1 << 16
_MOST_ROWS: Final = 1 << 20
_NARROW: Final = 4
"""Of so many columns at most, twice as many rows are read: they take half as long."""
_TASKS: Final = os.cpu_count() or 1
"""A log is cut into about so many parts at least, unless they would be small."""
_LATELY: Final = 1 << 16
"""Of so many messages the names of queues are looked at."""
_LIVES: Final = 1 << 18
"""Messages in a part: their lives are put together in memory, with all their events."""


class RemudaSource(DataSource):
    """`spark.read.format("remuda")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "remuda"

    def schema(self) -> StructType:
        return table_schema(ReadOptions.parse(self.options).table)

    def reader(self, schema: StructType) -> DataSourceReader:
        refuse_stream_options(self.options)
        return LogReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from remuda.spark.source.stream_reader import LogStream

        return LogStream(ReadOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from remuda.spark.sink import BatchSink

        return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from remuda.spark.sink import StreamSink

        return StreamSink(self.options, schema, overwrite)


def table_schema(table: str) -> StructType:
    """A table's columns in Spark's terms."""
    schema = from_arrow_schema(SCHEMAS[table])
    assert isinstance(schema, StructType)
    return schema


@dataclass
class ReadPartition(InputPartition):
    """What one task reads: rows of these numbers, and for lives their events."""

    start: int
    stop: int
    positions: tuple[range, ...] = ()
    only: tuple[range, ...] | None = None
    log: str = ""
    """The identity of the log."""
    gone: tuple[range, ...] | None = None
    """Beside these nothing may be missing, not even what the collector has taken; None where it may have taken any."""

    def __init__(
        self,
        start: int,
        stop: int,
        log: str = "",
        positions: Iterable[range] = (),
        only: Iterable[range] | None = None,
        gone: Iterable[range] | None = None,
    ) -> None:
        super().__init__(None)
        self.start, self.stop, self.log = start, stop, log
        self.positions = tuple(positions)
        self.only = None if only is None else tuple(only)
        self.gone = None if gone is None else tuple(gone)


class LogReader(DataSourceReader):
    """Reads a table once, as far as it goes when the read is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = Shape(options.table, schema)

    # No filters are pushed down: of two queries over one loaded frame, Spark gives those of one to the other.

    def partitions(self) -> Sequence[InputPartition]:
        return parts_of(open_log(self._options.url), self._options, self._shape)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self._options, self._shape, partition)


class Shape:
    """The columns that Spark wants, in the types it wants: all of a table, or those of a narrower schema."""

    def __init__(self, table: str, schema: StructType) -> None:
        known = SCHEMAS[table]
        self.names = [name.lower() for name in schema.fieldNames()]  # as Spark, which ignores case
        for name, field in zip(self.names, schema.fields, strict=True):
            if name not in known.names:
                close = near(name, known.names)
                hint = f"did you mean {close!r}?" if close else f"its columns are {', '.join(known.names)}"
                raise InvalidOption(f"table {table!r} has no column {field.name!r}; {hint}")
            if self.names.count(name) > 1:
                raise InvalidOption(f"the schema names column {field.name!r} more than once; name it once")
            _check_cast(known.field(name), field.dataType)
        self._schema = schema
        self._arrow: pa.Schema | None = None

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._arrow is None:
            self._arrow = to_arrow_schema(self._schema, timezone="UTC")
        columns = [self._column(batch, name, kind) for name, kind in zip(self.names, self._arrow.types, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def _column(self, batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
        column = batch.column(name)
        try:
            return column if column.type == kind else column.cast(kind)
        except pa.ArrowInvalid as error:
            raise InvalidOption(f"column {name!r} cannot be read as {kind}: {error}; read it as it is") from None


def _check_cast(field: pa.Field, wanted: DataType) -> None:
    """Raise where a column can never be read as the type that a schema gives it."""
    try:
        pa.nulls(0, field.type).cast(to_arrow_type(wanted, timezone="UTC"))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, PySparkTypeError):
        own = from_arrow_type(field.type).simpleString()
        raise InvalidOption(
            f"column {field.name!r} is {own} and cannot be read as {wanted.simpleString()}; leave the schema out, or "
            "cast it afterwards"
        ) from None


def numbered(table: str) -> str:
    """The table of the log whose numbers a table goes by."""
    return MESSAGES if table == LIFECYCLE else table


def bounds(log: SparkLog, table: str, selection: Selection, end: int) -> tuple[int, int]:
    """The numbers between which all selected rows of the log lie that are before its end."""
    start = selection.start
    if selection.since is not None:
        start = max(start, log.number_at(table, selection.since))
    return start, min(selection.stop, end)


def check_queues(log: SparkLog, selection: Selection) -> None:
    """Raise where a queue that is asked for has never had a message, but one that differs in case only has."""
    end = log.end(MESSAGES) if selection.queues else 0
    begin = max(end - _LATELY, 0)
    lists = [batch.column(0) for batch in log.batches(MESSAGES, begin, end, Selection(), ("queues",))] if end else []
    seen = {name for one in lists for name in pc.unique(pc.list_flatten(one)).to_pylist()}
    for name in sorted((selection.queues or frozenset()) - seen):
        other = next((one for one in sorted(seen) if one.lower() == name.lower()), None)
        only = Selection(queues=frozenset({name}))
        if other is not None and not any(log.batches(MESSAGES, 0, begin, only, ("offset",))):
            raise InvalidOption(f"the log has no message of a queue {name!r}, but of {other!r}: names are told by case")


def parts_of(log: SparkLog, options: ReadOptions, shape: Shape) -> list[ReadPartition]:
    """What there is to be read of a table now."""
    check_queues(log, options.selection)
    table = numbered(options.table)
    offset, position = log.cut()
    start, stop = bounds(log, table, options.selection, position if table == EVENTS else offset)
    return plan(log, options, shape, start, stop, position) if start < stop else []


def planned_here(spark: SparkSession, options: ReadOptions, columns: Sequence[str]) -> DataFrame:
    """Some columns of a table as it is now, planned in this process: Spark would start one for each plan, which knows
    nothing of the log's files, and leave out no column."""
    whole = table_schema(options.table)
    schema = StructType([whole[name] for name in columns])
    shape = Shape(options.table, schema)
    parts = parts_of(kept_log(options.url), options, shape)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_part(options, shape, parts[number])

    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(read, schema)


def plan(
    log: SparkLog,
    options: ReadOptions,
    shape: Shape,
    start: int,
    stop: int,
    position: int,
    only: Sequence[range] | None = None,
    gone: Sequence[range] | None = None,
) -> list[ReadPartition]:
    """Parts to be read side by side. Lives are computed from the events before `position`."""
    table = numbered(options.table)
    rows = options.partition_rows or rows_per_part(options.table, log.rows(table, start, stop), len(shape.names))
    ranges = log.parts(table, start, stop, rows)
    if options.table != LIFECYCLE:
        return [ReadPartition(one.start, one.stop, log.identity, gone=gone) for one in ranges]
    told = log.telling(position)
    parts = []
    for one in ranges:
        mine = None if only is None else [piece for piece in only if piece.start < one.stop and piece.stop > one.start]
        if mine is None or mine:
            positions = [places for places, about in told if about.start < one.stop and about.stop > one.start]
            parts.append(ReadPartition(one.start, one.stop, log.identity, positions, mine))
    return parts


def read_part(options: ReadOptions, shape: Shape, part: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(part, ReadPartition):
        return  # Spark's stand-in where there is nothing to read
    ends = {numbered(options.table): part.stop}
    if options.table == LIFECYCLE:
        ends[EVENTS] = max((one.stop for one in part.positions), default=0)
    log = task_log(options.url, part.log, ends)
    _freeze()
    missing: list[Gap] = []
    if options.table == LIFECYCLE:
        from remuda.spark.source.documents import lives

        for batch in lives(log, range(part.start, part.stop), part.positions, part.only, options.selection, missing):
            yield shape.fit(batch)
        numbers = "offsets or positions"
    else:
        for batch in log.batches(options.table, part.start, part.stop, options.selection, shape.names, missing):
            yield shape.fit(batch)
        numbers = f"{NUMBER[options.table]}s"
    report(shown(options.url), numbers, losses(missing, part.gone), fail=options.fail_on_loss)


def rows_per_part(table: str, rows: int, columns: int, tasks: int = _TASKS) -> int:
    """A task costs Spark and Python tens of milliseconds: parts are large, but not so large that cores are idle."""
    if table == LIFECYCLE:
        return _LIVES
    most = 2 * _MOST_ROWS if columns <= _NARROW else _MOST_ROWS
    rounds = max(-(-rows // (most * tasks)), 1)
    return max(-(-rows // (rounds * tasks)), _FEWEST_ROWS)


@functools.cache
def _freeze() -> None:
    """Take what is loaded by now out of garbage collection.

    Spark's workers collect everything after each task. To look through the modules takes longer than to read 100,000
    messages.
    """
    gc.freeze()
