"""A table of the log as an Arrow stream."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from remuda.lake.readahead import Shared, read_ahead
from remuda.model.errors import InvalidOption
from remuda.spark.source.directory_log import EmbeddedLog
from remuda.spark.source.losses import Gap, losses, report
from remuda.spark.source.selection import Selection
from remuda.spark.source.snapshots import hold
from remuda.spark.source.spark_log import directory, place_text
from remuda.spark.source.tables import EVENTS, MESSAGES, NUMBER, SCHEMAS

_PART_ROWS: Final = 1 << 16
_MOST_THREADS: Final = 4
_TABLES: Final = (MESSAGES, EVENTS)


class ArrowTable:
    """Implements the Arrow stream protocol (`__arrow_c_stream__`). Each reading is a cut of its own."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        table: str,
        columns: Sequence[str] | None,
        start: int,
        stop: int | None,
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        if table not in _TABLES:
            raise InvalidOption(f"there is no table {table!r}; the tables are {', '.join(_TABLES)}")
        known = SCHEMAS[table].names
        if columns is not None and (isinstance(columns, str | bytes) or not isinstance(columns, Iterable)):
            raise InvalidOption(f"columns is a list of names, not {columns!r}")
        wanted = known if columns is None else list(columns)
        for name in wanted:
            if name not in known:
                raise InvalidOption(f"table {table!r} has no column {name!r}; its columns are {', '.join(known)}")
        if not wanted or len(set(wanted)) < len(wanted):
            raise InvalidOption("name at least one column, and each once")
        for name, number in (("start", start), ("stop", 0 if stop is None else stop)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise InvalidOption(f"{name} must be a whole number from 0 on, not {number!r}")
        if not isinstance(fail_on_data_loss, bool):
            raise InvalidOption(f"fail_on_data_loss must be True or False, not {fail_on_data_loss!r}")
        self._root = Path(directory(place_text(url)))
        EmbeddedLog(str(self._root))  # or say what is wrong with it
        self._table = table
        self._columns = wanted
        self._start = start
        self._stop = stop
        self._fail = fail_on_data_loss

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([SCHEMAS[self._table].field(name) for name in self._columns])

    def reader(self) -> pa.RecordBatchReader:
        """The rows as pyarrow reads them, batch by batch."""
        return pa.RecordBatchReader.from_batches(self.schema, Shared(self._batches()))

    def table(self) -> pa.Table:
        """All rows at once."""
        return self.reader().read_all()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with hold(self._root) as held:
            log = EmbeddedLog(str(held))
            end = log.end(self._table)
            stop = end if self._stop is None else min(end, self._stop)
            parts = log.parts(self._table, self._start, stop, _PART_ROWS) if self._start < stop else []
            yield from read_ahead(partial(self._part, held), parts, min(os.cpu_count() or 1, _MOST_THREADS))

    def _part(self, held: Path, part: range) -> Iterator[pa.RecordBatch]:
        missing: list[Gap] = []
        log = EmbeddedLog(str(held))
        schema = self.schema
        for batch in log.batches(self._table, part.start, part.stop, Selection(), self._columns, missing):
            yield batch.cast(schema)
        lost, numbers = losses(missing, None), f"{NUMBER[self._table]}s"
        report(str(self._root), numbers, lost, fail=self._fail, choice="fail_on_data_loss=False")
