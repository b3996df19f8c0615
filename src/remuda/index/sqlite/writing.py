"""Writing batches: new messages with the changes of the same batch, then changes of messages that were there."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from operator import gt
from typing import Any, Final

import pyarrow as pa

from remuda.index.folding import Change, Changes, fold
from remuda.index.messages import NO_QUEUE, copy_of
from remuda.index.port import MESSAGE_COLUMNS, CopyState, Document
from remuda.index.query import kept_state
from remuda.index.sqlite.database import CHUNK, Database
from remuda.index.text import searchable, text_of

_SPAN: Final = 4096
_CHANGED: Final = """CREATE TEMP TABLE IF NOT EXISTS changed (
    offset INTEGER, queue INTEGER, state TEXT, modified INTEGER, attempts INTEGER, reason TEXT, clean INTEGER,
    PRIMARY KEY (offset, queue)) WITHOUT ROWID"""
_OLD: Final = """SELECT copies.queue, copies.state, count(*) FROM temp.changed CROSS JOIN copies
    ON copies.offset = changed.offset AND copies.queue = changed.queue GROUP BY 1, 2"""
# The plus keeps SQLite from scanning all copies and looking each up among the changes.
_UPDATE: Final = """UPDATE copies SET state = n.state, modified = n.modified,
    attempts = coalesce(n.attempts, copies.attempts),
    reason = CASE WHEN n.clean OR n.reason IS NOT NULL THEN n.reason ELSE copies.reason END
    FROM temp.changed AS n WHERE copies.offset = +n.offset AND copies.queue = +n.queue"""
_ARRIVED: Final = """INSERT OR IGNORE INTO copies
    SELECT n.offset, n.queue, n.state, n.modified, coalesce(n.attempts, 0), n.reason FROM temp.changed AS n
    WHERE EXISTS (SELECT 1 FROM messages WHERE messages.offset = n.offset)
      AND NOT EXISTS (SELECT 1 FROM copies WHERE copies.offset = n.offset AND copies.queue = n.queue)"""

Counts = Counter[tuple[int, str]]


class _Columns:
    """Messages and their copies side by side, as SQLite takes them: row by row it would cost twice as much."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.labels: list[int] = []
        self.ids: list[str] = []
        self.keys: list[str | None] = []
        self.created: list[int] = []
        self.sizes: list[int] = []
        self.texts: list[str] = []
        self.copy_offsets: list[int] = []
        self.queues: list[int] = []
        self.states: list[str] = []
        self.modified: list[int] = []
        self.attempts: list[int] = []
        self.reasons: list[str | None] = []

    def add_copy(self, offset: int, queue: int, copy: CopyState) -> None:
        self.copy_offsets.append(offset)
        self.queues.append(queue)
        self.states.append(kept_state(copy.state, copy.reason))
        self.modified.append(copy.modified)
        self.attempts.append(copy.attempts)
        self.reasons.append(copy.reason)

    def add_copies(
        self, queue: int, offsets: list[int], created: list[int], state: str, changes: dict[int, Change] | None
    ) -> None:
        """Add the copies of a queue in their first state. Changes that are used here are taken out."""
        count = len(offsets)
        self.copy_offsets += offsets
        self.queues += [queue] * count
        if not changes:
            self.states += [state] * count
            self.modified += created
            self.attempts += [0] * count
            self.reasons += [None] * count
            return
        take = changes.pop
        taken = [take(offset, None) for offset in offsets]
        self.states += [state if one is None else one.state for one in taken]
        self.modified += [time if one is None else one.modified for one, time in zip(taken, created, strict=True)]
        self.attempts += [0 if one is None else one.attempts or 0 for one in taken]
        self.reasons += [None if one is None else one.reason for one in taken]


def write(database: Database, messages: Sequence[pa.RecordBatch], events: Sequence[pa.RecordBatch]) -> None:
    """Write messages, then events; within a transaction."""
    parts = fold(events)
    first = next(parts, {})
    for batch in messages:
        _insert(database, _columns_of(database, batch, first))
    for part in chain((first,), parts):
        _write_changes(database, part)


def write_documents(database: Database, found: Iterable[Document]) -> None:
    """Add messages that are not there yet."""
    columns = _Columns()
    for document in found:
        offset = document.offset
        columns.offsets.append(offset)
        columns.labels.append(database.label(document.name, document.topics, document.object, document.mime_type))
        columns.ids.append(document.id)
        columns.keys.append(document.key)
        columns.created.append(document.created)
        columns.sizes.append(document.size)
        columns.texts.append(document.text)
        for copy in document.copies:
            columns.add_copy(offset, database.queue(copy.queue), copy)
    _insert(database, columns)


def _columns_of(database: Database, batch: pa.RecordBatch, changes: Changes) -> _Columns:
    """The columns of a batch of the log. Changes that are used here are taken out."""
    columns = _Columns()
    if not batch.num_rows:
        return columns
    listed = {name: batch.column(name) for name in MESSAGE_COLUMNS}
    listed["created"] = listed["created"].cast(pa.int64())
    rows: dict[str, list[Any]] = {name: column.to_pylist() for name, column in listed.items()}
    columns.offsets, columns.created, columns.ids = rows["offset"], rows["created"], rows["id"]
    columns.keys, columns.sizes = rows["key"], list(map(len, rows["body"]))
    shared = [rows[name] for name in ("name", "topics", "object", "mime_type")]
    if all(column.count(column[0]) == len(column) for column in shared):
        name, topics, about, mime_type = (column[0] for column in shared)
        columns.labels = [database.label(name, tuple(topics or ()), about, mime_type)] * len(columns.offsets)
    else:
        columns.labels = [
            database.label(name, tuple(topics or ()), about, mime_type)
            for name, topics, about, mime_type in zip(*shared, strict=True)
        ]
    columns.texts = list(map(searchable, map(text_of, rows["body"], rows["mime_type"])))
    for queue, (offsets, created) in _by_queue(columns.offsets, columns.created, rows["queues"]).items():
        columns.add_copies(database.queue(queue), offsets, created, copy_of(queue, 0, None).state, changes.get(queue))
    return columns


def _by_queue(
    offsets: list[int], created: list[int], queues: list[list[str] | None]
) -> dict[str, tuple[list[int], list[int]]]:
    """Offsets and times of the messages of each queue."""
    first = queues[0]
    if queues.count(first) == len(queues):
        return dict.fromkeys(first or (NO_QUEUE,), (offsets, created))
    found: dict[str, tuple[list[int], list[int]]] = {}
    for offset, time, names in zip(offsets, created, queues, strict=True):
        for queue in names or (NO_QUEUE,):
            known = found.get(queue)
            if known is None:
                known = found[queue] = ([], [])
            known[0].append(offset)
            known[1].append(time)
    return found


def _insert(database: Database, columns: _Columns) -> None:
    if not columns.offsets:
        return
    many = database.connection.executemany
    many(
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)",
        zip(columns.offsets, columns.labels, columns.ids, columns.keys, columns.created, columns.sizes, strict=True),
    )
    many(
        "INSERT INTO copies VALUES (?, ?, ?, ?, ?, ?)",
        zip(
            columns.copy_offsets, columns.queues, columns.states, columns.modified, columns.attempts,
            columns.reasons, strict=True,
        ),
    )  # fmt: skip
    many(
        "UPDATE labels SET messages = messages + ? WHERE id = ?",
        ((number, label) for label, number in Counter(columns.labels).items()),
    )
    texts = ((offset, text) for offset, text in zip(columns.offsets, columns.texts, strict=True) if text)
    for chunk, group in groupby(texts, key=lambda text: text[0] // CHUNK):
        many(f"INSERT INTO {database.words_table(chunk)} (rowid, text) VALUES (?, ?)", group)
    _widen_spans(database, columns.offsets, columns.created)
    count(database, Counter(zip(columns.queues, columns.states, strict=True)))


def count(database: Database, counts: Counts) -> None:
    """Add to the counters."""
    database.connection.executemany(
        "INSERT INTO counters VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET messages = messages + excluded.messages",
        ((queue, state, number) for (queue, state), number in counts.items() if number),
    )


def _write_changes(database: Database, changes: Changes) -> None:
    if not any(changes.values()):
        return
    run = database.connection.execute
    run(_CHANGED)
    run("DELETE FROM temp.changed")
    database.connection.executemany("INSERT INTO temp.changed VALUES (?, ?, ?, ?, ?, ?, ?)", _rows(database, changes))
    counts: Counts = Counter()
    for queue, state, number in run(_OLD):
        counts[queue, state] -= number
    run(_UPDATE)
    run(_ARRIVED)
    for queue, state, number in run(_OLD):
        counts[queue, state] += number
    count(database, counts)


def _rows(database: Database, changes: Changes) -> Iterator[tuple[object, ...]]:
    def row(queue: int, offset: int, change: Change) -> tuple[object, ...]:
        return offset, queue, change.state, change.modified, change.attempts, change.reason, change.clean

    found = [
        row(database.queue(queue), offset, change)
        for queue, copies in changes.items()
        for offset, change in copies.items()
    ]
    found.sort(key=lambda entry: entry[:2])
    return iter(found)


def _widen_spans(database: Database, offsets: Sequence[int], times: Sequence[int]) -> None:
    run = database.connection.execute
    newest = run("SELECT * FROM spans ORDER BY first DESC LIMIT 1").fetchone()
    if any(map(gt, offsets, islice(offsets, 1, None))):  # those of the log are in order, those of `load` need not be
        offsets, times = zip(*sorted(zip(offsets, times, strict=True)), strict=True)
    spans: list[tuple[int, int, int, int]] = []
    at = 0
    if newest is not None and newest[1] < offsets[0] < newest[0] + _SPAN:
        first, _, oldest, latest = newest
        at = bisect_left(offsets, first + _SPAN)
        own = times[:at]
        spans.append((first, offsets[at - 1], min(oldest, *own), max(latest, *own)))
    while at < len(offsets):
        start, at = at, bisect_left(offsets, offsets[at] + _SPAN, at)
        own = times[start:at]
        spans.append((offsets[start], offsets[at - 1], min(own), max(own)))
    database.connection.executemany("INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?)", spans)


def forget(database: Database, gone: range) -> None:
    """Remove the messages of a range of offsets; within a transaction."""
    run = database.connection.execute
    bounds = (gone.start, gone.stop - 1)
    counts: Counts = Counter()
    for queue, state, number in run(
        "SELECT queue, state, count(*) FROM copies WHERE offset BETWEEN ? AND ? GROUP BY 1, 2", bounds
    ):
        counts[queue, state] -= number
    if not counts:
        return
    count(database, counts)
    run(
        "UPDATE labels SET messages = messages - gone.number FROM "
        "(SELECT label, count(*) AS number FROM messages WHERE offset BETWEEN ? AND ? GROUP BY 1) AS gone "
        "WHERE labels.id = gone.label",
        bounds,
    )
    run("DELETE FROM copies WHERE offset BETWEEN ? AND ?", bounds)
    run("DELETE FROM messages WHERE offset BETWEEN ? AND ?", bounds)
    run("DELETE FROM spans WHERE first >= ? AND last <= ?", bounds)


def sweep(database: Database) -> None:
    """Drop the full-text tables of which no message is left."""
    run = database.connection.execute
    chunks = [row[0] for row in run("SELECT chunk FROM chunks")]
    newest = max(chunks, default=0)
    for chunk in chunks:
        bounds = (chunk * CHUNK, (chunk + 1) * CHUNK - 1)
        is_empty = run("SELECT 1 FROM messages WHERE offset BETWEEN ? AND ? LIMIT 1", bounds).fetchone() is None
        if is_empty and chunk != newest:  # the newest is still being filled
            run(f"DROP TABLE words_{chunk}")
            run("DELETE FROM chunks WHERE chunk = ?", (chunk,))
