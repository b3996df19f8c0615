"""Collecting: sealed files lose the rows that need not stay, each file in one atomic step (L5, L6)."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from remuda.log.log import Log
from remuda.log.readers.fetch import Run, add_run
from remuda.log.retention.drop import Collected, Keep, remove_noted
from remuda.log.sealed import id_index
from remuda.log.sealed.arrow import pa
from remuda.log.sealed.parquet import Unreadable, write_sealed
from remuda.log.sealed.seal import GROUP_BYTES, GROUP_ROWS
from remuda.log.sealed.sealed_table import EventTable, MessageTable, Table
from remuda.log.segments import EVENTS_TABLE, MESSAGES_TABLE, SealedFile
from remuda.log.state.ledger import Missed, Span
from remuda.model.errors import RemudaError
from remuda.model.values.number_runs import merged

REWRITE_BELOW: Final = 0.75
REWRITE_ALWAYS: Final = 1 << 20
_FAILURES: Final = (RemudaError, OSError, pa.ArrowException, ValueError)
_FOREVER: Final = 1 << 62


def collect(log: Log, keep: Keep, events_from: int | None = None) -> Collected:
    """Remove the messages that need not stay from sealed files, then the events of nothing but removed messages.

    Events from the position `events_from` on stay in any case.
    """
    with log.maintenance:
        failures: list[str] = []
        messages = _collect_messages(log, keep, failures)
        present = _Present(log)
        events = _collect_events(log, present, failures, events_from)
        _note_missing(log, keep, present, events_from)
        return Collected(
            messages.rows, events.rows, messages.bytes + events.bytes, messages.files + events.files, tuple(failures)
        )


class _Gone(NamedTuple):
    rows: int
    files: int
    bytes: int


def _collect_messages(log: Log, keep: Keep, failures: list[str]) -> _Gone:
    def look(file: SealedFile) -> tuple[Table, list[list[int]] | None]:
        runs = merged(keep(file.first, file.last))
        table = MessageTable(log.disk, file)
        return table, _staying(table, ["offset"], partial(_rows_in, runs)) if runs else []

    return _each(log, log.catalog.files().messages, look, failures)


def _collect_events(log: Log, present: _Present, failures: list[str], events_from: int | None) -> _Gone:
    def rows(batch: pa.RecordBatch) -> list[int]:
        needed = present.rows(batch)
        if events_from is None or batch.column("position")[-1].as_py() < events_from:
            return needed
        late = bisect_left(batch.column("position").to_pylist(), events_from)
        return sorted({*needed, *range(late, batch.num_rows)})

    def look(file: SealedFile) -> tuple[Table, list[list[int]] | None]:
        table = EventTable(log.disk, file)
        return table, _staying(table, ["position", "first", "count"], rows)

    return _each(log, log.catalog.files().events, look, failures)


def _note_missing(log: Log, keep: Keep, present: _Present, events_from: int | None) -> None:
    """Rows that are missing count as collected once retention would have removed them anyway."""
    messages, events = log.ledger.missing()
    known = {(one.first, one.stop): one for one in (log.ledger.known.missed if log.ledger.known is not None else ())}
    missed = [known.get(span, Missed(*span, log.next_offset)) for span in events]
    over = [
        one for one in missed if present.none_before(one.before) and (events_from is None or one.stop <= events_from)
    ]
    log.ledger.note_missed(one for one in missed if one not in over)
    log.ledger.note_collected(
        [(first, stop) for first, stop in messages if not keep(first, stop - 1)],
        [(one.first, one.stop) for one in over],
    )


def _each(
    log: Log,
    files: Iterable[SealedFile],
    look: Callable[[SealedFile], tuple[Table, list[list[int]] | None]],
    failures: list[str],
) -> _Gone:
    """Remove files with no rows to keep, and rewrite those where that saves enough. One bad file does not stop the
    others: a damaged one with rows to keep is left as it is, since it may be restored from a copy.
    """
    gone: list[_Gone] = []
    empty: list[tuple[SealedFile, int]] = []
    for file in files:
        try:
            table, staying = look(file)
            count = 0 if staying is None else sum(map(len, staying))
            if staying is None or (count and not _is_worth_it(log, file, count, table.rows)):
                continue
            if not count:
                empty.append((file, table.rows))
                continue
            gone.append(_remove(log, empty, failures))  # which makes room for the new file
            empty = []
            gone.append(_rewrite(log, table, staying))
        except _FAILURES as error:
            failures.append(f"{file.name}: {error}")
    gone.append(_remove(log, empty, failures))
    return _Gone(*map(sum, zip(*gone, strict=True)))


def _is_worth_it(log: Log, file: SealedFile, staying: int, rows: int) -> bool:
    """Whether to rewrite a file with the rows that stay. Where little is written, files are small and last for long."""
    return staying < REWRITE_BELOW * rows or (staying < rows and log.disk.size(file.name) <= REWRITE_ALWAYS)


def _staying(table: Table, columns: list[str], rows: Callable[[pa.RecordBatch], list[int]]) -> list[list[int]] | None:
    """The rows of each group that stay; None when some cannot be read."""
    if not table.readable:
        return None
    staying = []
    for group in range(table.group_count):
        batch = table.batch(group, columns)
        if batch is None:
            return None
        staying.append(rows(batch))
    return staying


def _rewrite(log: Log, table: Table, staying: list[list[int]]) -> _Gone:
    """Rewrite a file with the rows that stay."""
    file = table.file
    before = log.disk.size(file.name)
    try:
        batches = _regrouped(_selected(table, staying), table.schema)
        _, after = write_sealed(log.disk, file.name, batches, table.schema, file.table)
    except Unreadable:
        return _Gone(0, 0, 0)
    log.catalog.replace(file, SealedFile(file.first, file.last, file.table, file.generation + 1))
    return _Gone(table.rows - sum(map(len, staying)), 0, before - after)


def _selected(table: Table, staying: list[list[int]]) -> Iterator[pa.RecordBatch]:
    for group, rows in enumerate(staying):
        if rows:
            batch = table.read(group)
            yield batch if len(rows) == batch.num_rows else batch.take(pa.array(rows, pa.int64()))


def _regrouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if group and (rows + batch.num_rows > GROUP_ROWS or size + batch.nbytes > GROUP_BYTES):
            yield _joined(group, schema)
            group, rows, size = [], 0, 0
        group.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if group:
        yield _joined(group, schema)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    return pa.Table.from_batches(batches, schema).combine_chunks().to_batches()[0]


def _remove(log: Log, files: list[tuple[SealedFile, int]], failures: list[str]) -> _Gone:
    """Remove files with their indexes; each comes with the number of its rows."""
    gone: list[_Gone] = [_Gone(0, 0, 0)]

    def remove() -> None:
        for file, rows in files:
            try:
                gone.append(_Gone(rows, 1, _remove_one(log, file)))
            except _FAILURES as error:
                failures.append(f"{file.name}: {error}")

    if files:
        spans: dict[str, list[Span]] = {MESSAGES_TABLE: [], EVENTS_TABLE: []}
        for file, _ in files:
            spans[file.table].append((file.first, file.last + 1))
        remove_noted(log, spans[MESSAGES_TABLE], spans[EVENTS_TABLE], remove)
    return _Gone(*map(sum, zip(*gone, strict=True)))


def _remove_one(log: Log, file: SealedFile) -> int:
    names = [file.name, id_index.name_of(file)] if file.table == MESSAGES_TABLE else [file.name]
    log.catalog.replace(file, None)
    freed = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            freed += log.disk.size(name)
        log.disk.remove(name)
    return freed


def _rows_in(runs: list[Run], batch: pa.RecordBatch) -> list[int]:
    """The rows of a batch whose offsets lie in the runs, which are in order."""
    offsets = batch.column("offset").to_pylist()
    rows: list[int] = []
    at = max(bisect_right(runs, (offsets[0], _FOREVER)) - 1, 0)
    while at < len(runs) and runs[at][0] <= offsets[-1]:
        first, count = runs[at]
        rows += range(bisect_left(offsets, first), bisect_left(offsets, first + count))
        at += 1
    return rows


class _Present:
    """Which offsets still have their message."""

    def __init__(self, log: Log) -> None:
        runs: list[Run] = []
        files = log.catalog.files()
        for file in files.messages:
            try:
                table = MessageTable(log.disk, file)
            except (RemudaError, OSError):
                runs.append((file.first, file.last - file.first + 1))
                continue
            if not table.readable or table.rows == file.last - file.first + 1:
                runs.append((file.first, file.last - file.first + 1))
                continue
            for group in range(table.group_count):
                batch = table.batch(group, ["offset"])
                if batch is None:
                    runs.append(table.bounds(group))
                    continue
                for offset in batch.column("offset").to_pylist():
                    add_run(runs, offset, 1)
        tail = min((segment.first.offset for segment in files.tail), default=log.next_offset)
        runs.append((tail, _FOREVER))
        runs.sort()
        self._starts = [first for first, _ in runs]
        self._stops = [first + count for first, count in runs]

    def none_before(self, offset: int) -> bool:
        return self._starts[0] >= offset

    def rows(self, batch: pa.RecordBatch) -> list[int]:
        """The rows of a batch of events that concern a message which is still there."""
        rows: list[int] = []
        firsts, counts = batch.column("first").to_pylist(), batch.column("count").to_pylist()
        for row, (first, count) in enumerate(zip(firsts, counts, strict=True)):
            at = bisect_right(self._stops, first)
            if at < len(self._starts) and self._starts[at] < first + count:
                rows.append(row)
        return rows
