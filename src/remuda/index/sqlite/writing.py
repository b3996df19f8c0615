"""Writing batches: new messages with the changes of the same batch, then changes of messages that were there."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, islice
from operator import gt
from typing import Final

import msgspec
import pyarrow as pa

from remuda.index.copies import Change, Copy, pack, unpack
from remuda.index.folding import Changes, fold
from remuda.index.messages import NO_QUEUE, listed
from remuda.index.port import Document
from remuda.index.sqlite.database import CHUNK, Database
from remuda.index.text import searchable, text_of

_SPAN: Final = 4096
# The plus keeps SQLite from going through all copies of a queue, or all copies.
BETWEEN: Final = "SELECT offset, state, life FROM copies WHERE offset BETWEEN ? AND ? AND +queue = ?"
AT: Final = """SELECT copies.offset, state, life FROM json_each(?) AS n CROSS JOIN copies
    ON copies.offset = +n.value AND copies.queue = ?"""

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
        self.timestamps: list[int | None] = []
        self.texts: list[str] = []
        self.copy_offsets: list[int] = []
        self.queues: list[int] = []
        self.states: list[str] = []
        self.lives: list[bytes] = []

    def add_copy(self, offset: int, queue: int, copy: Copy) -> None:
        self.copy_offsets.append(offset)
        self.queues.append(queue)
        self.states.append(copy.state)
        self.lives.append(pack(copy))

    def add_copies(
        self, queue: int, name: str, offsets: list[int], created: list[int], changes: dict[int, Change] | None
    ) -> None:
        """Add the copies of a queue. Changes that are used here are taken out."""
        self.copy_offsets += offsets
        self.queues += [queue] * len(offsets)
        take = changes.pop if changes else _nothing
        taken = [take(offset, None) for offset in offsets]
        known: dict[tuple[int, int], tuple[str, bytes]] = {}
        for time, change in zip(created, taken, strict=True):
            found = known.get((time, id(change)))
            if found is None:
                copy = Copy.begun(time, name).after(change)
                found = known[time, id(change)] = copy.state, pack(copy)
            self.states.append(found[0])
            self.lives.append(found[1])


def _nothing(offset: int, default: None) -> None:
    return default


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
        columns.timestamps.append(document.timestamp)
        columns.texts.append(searchable(document.text))
        for queue, copy in document.copies:
            columns.add_copy(offset, database.queue(queue), copy)
    _insert(database, columns)


def _columns_of(database: Database, batch: pa.RecordBatch, changes: Changes) -> _Columns:
    """The columns of a batch of the log. Changes that are used here are taken out."""
    columns = _Columns()
    if not batch.num_rows:
        return columns
    rows = listed(batch)
    columns.offsets, columns.created, columns.ids = rows["offset"], rows["created"], rows["id"]
    columns.keys, columns.timestamps, columns.sizes = rows["key"], rows["timestamp"], list(map(len, rows["body"]))
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
        columns.add_copies(database.queue(queue), queue, offsets, created, changes.get(queue))
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
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)",
        zip(
            columns.offsets, columns.labels, columns.ids, columns.keys, columns.created, columns.sizes,
            columns.timestamps, strict=True,
        ),
    )  # fmt: skip
    many(
        "INSERT INTO copies VALUES (?, ?, ?, ?)",
        zip(columns.copy_offsets, columns.queues, columns.states, columns.lives, strict=True),
    )
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
    counts: Counts = Counter()
    for name, copies in changes.items():
        if copies:
            _change_copies(database, name, copies, counts)
    count(database, counts)


def _change_copies(database: Database, name: str, changes: dict[int, Change], counts: Counts) -> None:
    queue, offsets = database.queue(name), sorted(changes)
    known: dict[tuple[bytes, int], tuple[str, bytes]] = {}
    changed: list[tuple[str, bytes, int, int]] = []
    for offset, before, life in _copies(database, queue, offsets):
        change = changes[offset]
        found = known.get((life, id(change)))
        if found is None:
            copy = unpack(life).after(change)
            known[life, id(change)] = found = copy.state, pack(copy)
        changed.append((*found, offset, queue))
        counts[queue, before] -= 1
        counts[queue, found[0]] += 1
    database.connection.executemany("UPDATE copies SET state = ?, life = ? WHERE offset = ? AND queue = ?", changed)
    if len(changed) < len(changes):
        there = {row[2] for row in changed}
        late = {offset: change for offset, change in changes.items() if offset not in there}
        _arrive(database, name, queue, late, counts)


def _copies(database: Database, queue: int, offsets: list[int]) -> list[tuple[int, str, bytes]]:
    """The copies of a queue at these offsets, as far as there are any."""
    run = database.connection.execute
    if offsets[-1] - offsets[0] < 2 * len(offsets):
        wanted = set(offsets)
        return [row for row in run(BETWEEN, (offsets[0], offsets[-1], queue)) if row[0] in wanted]
    return run(AT, (msgspec.json.encode(offsets).decode(), queue)).fetchall()


def _arrive(database: Database, name: str, queue: int, changes: dict[int, Change], counts: Counts) -> None:
    """Add copies in a queue that their messages came to later. Of others, the messages were collected."""
    there = database.connection.execute(
        "SELECT offset FROM messages WHERE offset IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(list(changes)).decode(),),
    )
    rows = []
    for (offset,) in there.fetchall():
        change = changes[offset]
        copy = Copy.begun(change.events()[0].time, name).after(change)
        rows.append((offset, queue, copy.state, pack(copy)))
        counts[queue, copy.state] += 1
    database.connection.executemany("INSERT INTO copies VALUES (?, ?, ?, ?)", rows)


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
