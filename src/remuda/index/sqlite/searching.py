"""Queries. The most selective part of a query proposes offsets, newest first; the rest of it filters them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from remuda.index.copies import unpack
from remuda.index.query import Page, Query
from remuda.index.sqlite.database import CHUNK
from remuda.model.message_row import MessageRow
from remuda.model.topics import TopicPrefix

_FIRST_LOOK: Final = 200
_LARGEST_LOOK: Final = 5000
_FEW: Final = 1000
"""Messages of a chunk; a word that fewer hold is rare."""
_SELECTS: Final = 400
"""At most in one statement; SQLite allows 500."""
_WORTH: Final = 8
"""An index that selects at most an eighth of the messages is faster than a scan of all."""
_LAST_CHARACTER: Final = "\U0010ffff"


class Bounds(NamedTuple):
    """Offsets from `low` to before `high`."""

    low: int
    high: int


Propose = Callable[[int, int], list[int]]
"""Called with an offset and a count: the next offsets below, the greatest first, at most so many; empty at the end."""


class Search:
    """One query against one connection."""

    def __init__(self, connection: sqlite3.Connection, query: Query) -> None:
        self._connection = connection
        self._query = query

    def page(self) -> Page:
        query = self._query
        bounds = self._bounds()
        labels = self._labels()
        pairs = self._pairs()
        if bounds.low >= bounds.high or not pairs or labels == {}:
            return Page([])
        hits: list[MessageRow] = []
        propose = self._proposer(bounds, labels, pairs)
        below, size = bounds.high, max(_FIRST_LOOK, query.limit + 1)
        while len(hits) <= query.limit and (offsets := propose(below, size)):
            hits += self._filtered(offsets, labels)
            below, size = offsets[-1], min(2 * size, max(_LARGEST_LOOK, query.limit + 1))
        return Page.of(hits, query.limit)

    def _proposer(self, bounds: Bounds, labels: dict[int, int] | None, pairs: dict[tuple[int, str], int]) -> Propose:
        query, low = self._query, bounds.low
        if query.text.strip():
            return self._by_words(low)
        if query.offsets is not None:
            return _by_offsets(low, query.offsets)
        if query.key is not None:
            return self._by_selects(low, [("messages WHERE key = ?", (query.key,))])
        if query.queue is not None and labels is None:
            # However many there are: they may all be old, and a scan of everything newer would take long.
            return self._by_selects(low, [("copies WHERE queue = ? AND state = ?", pair) for pair in pairs])
        in_all = sum(count for _, _, count in self._run("SELECT * FROM counters"))
        by_pairs = sum(pairs.values())
        by_labels = in_all if labels is None else sum(labels.values())
        if (
            min(by_pairs, by_labels) * _WORTH > in_all
            or len(labels if by_labels <= by_pairs and labels else pairs) > 20_000
        ):
            return self._by_selects(low, [("messages WHERE true", ())])
        if labels is not None and by_labels <= by_pairs:
            return self._by_selects(low, [("messages WHERE label = ?", (label,)) for label in labels])
        return self._by_selects(low, [("copies WHERE queue = ? AND state = ?", pair) for pair in pairs])

    def _by_selects(self, low: int, sources: Sequence[tuple[str, tuple[object, ...]]]) -> Propose:
        def propose(below: int, size: int) -> list[int]:
            found: set[int] = set()
            for at in range(0, len(sources), _SELECTS):
                part = sources[at : at + _SELECTS]
                selects = " UNION ALL ".join(
                    f"SELECT * FROM (SELECT offset FROM {source} AND offset >= ? AND offset < ? "
                    "ORDER BY offset DESC LIMIT ?)"
                    for source, _ in part
                )
                values = [value for _, own in part for value in (*own, low, below, size)]
                found.update(row[0] for row in self._run(selects, values))
            return sorted(found, reverse=True)[:size]

        return propose

    def _by_words(self, low: int) -> Propose:
        words = [f'"{word.text}"{"*" if word.prefix else ""}' for word in self._query.words()]
        wanted = " AND ".join(words)
        chunks = [row[0] for row in self._run("SELECT chunk FROM chunks ORDER BY chunk DESC")]
        few = len(words) > 1 and any(self._is_rare(chunk, word) for chunk in chunks[:1] for word in words)

        def propose(below: int, size: int) -> list[int]:
            found: list[int] = []
            for chunk in chunks:
                if chunk * CHUNK < below and (chunk + 1) * CHUNK > low and len(found) < size:
                    found += self._holding(chunk, wanted, Bounds(low, below), size - len(found), few)
            return found

        return propose

    def _is_rare(self, chunk: int, word: str) -> bool:
        rows = self._run(f"SELECT 1 FROM words_{chunk} WHERE words_{chunk} MATCH ? LIMIT {_FEW}", (word,))
        return len(rows.fetchall()) < _FEW

    def _holding(self, chunk: int, wanted: str, bounds: Bounds, size: int, few: bool) -> list[int]:
        """The last `size` offsets of a chunk that hold these words.

        Backwards, a common word beside a rare one is found three times as slowly: where few hits are expected all are
        read, in forward order.
        """
        select = (
            f"SELECT rowid FROM words_{chunk} WHERE words_{chunk} MATCH ? AND rowid >= ? AND rowid < ? "
            "ORDER BY rowid {} LIMIT ?"
        )
        if few:
            found = [row[0] for row in self._run(select.format("ASC"), (wanted, *bounds, _FEW))]
            if len(found) < _FEW:
                return found[: -size - 1 : -1]
        return [row[0] for row in self._run(select.format("DESC"), (wanted, *bounds, size))]

    def _filtered(self, offsets: list[int], labels: dict[int, int] | None) -> Iterator[MessageRow]:
        query, after = self._query, self._query.after
        conditions, values = self._conditions("copies")
        conditions.append("copies.offset IN (SELECT value FROM json_each(?))")
        values.append(msgspec.json.encode(offsets).decode())
        for name, sign, value in (
            ("created", ">=", query.since),
            ("created", "<", query.until),
            ("key", "=", query.key),
        ):
            if value is not None:
                conditions.append(f"messages.{name} {sign} ?")
                values.append(value)
        if query.offsets is not None:
            conditions.append("copies.offset IN (SELECT value FROM json_each(?))")
            values.append(msgspec.json.encode(query.offsets).decode())
        if after is not None:
            conditions.append("(copies.offset < ? OR copies.offset = ? AND queues.name > ?)")
            values += [after.offset, after.offset, after.queue]
        rows = self._run(
            "SELECT messages.label, messages.offset, queues.name, messages.id, labels.label, created, key, timestamp, "
            "size, life FROM copies CROSS JOIN messages USING (offset) "
            "JOIN labels ON labels.id = messages.label JOIN queues ON queues.id = copies.queue "
            f"WHERE {' AND '.join(conditions)} ORDER BY copies.offset DESC, queues.name",
            values,
        )
        for label, offset, queue, id, shared, created, key, timestamp, size, life in rows:
            if labels is not None and label not in labels:
                continue
            name, topics, about, mime_type = msgspec.json.decode(shared)
            yield MessageRow.of(
                offset, created, id, name, tuple(topics), about, key, timestamp, mime_type, size, queue,
                unpack(life).life,
            )  # fmt: skip

    def _bounds(self) -> Bounds:
        """The offsets in which hits can be, by time and by the pages shown already."""
        query, after = self._query, self._query.after
        low, high = 0, (1 << 63) - 1
        if after is not None:
            high = after.offset + 1
        if query.since is not None or query.until is not None:
            since = -(1 << 62) if query.since is None else query.since
            until = 1 << 62 if query.until is None else query.until
            first, last = next(
                self._run("SELECT min(first), max(last) FROM spans WHERE newest >= ? AND oldest < ?", (since, until))
            )
            low, high = (0, 0) if first is None else (first, min(high, last + 1))
        return Bounds(low, high)

    def _labels(self) -> dict[int, int] | None:
        """The labels with the topic and the object that are asked for, and how many messages each has; None for any."""
        query = self._query
        found: dict[int, int] | None = None
        if (prefix := query.topic_prefix) is not None:
            below, values = _topic_condition(prefix)
            found = dict(
                self._run(
                    "SELECT DISTINCT id, messages FROM label_topics JOIN labels ON labels.id = label_topics.label "
                    f"WHERE messages > 0 AND ({below})",
                    values,
                )
            )
        if query.object is not None:
            of_object: dict[int, int] = dict(
                self._run("SELECT id, messages FROM labels WHERE object = ? AND messages > 0", (query.object,))
            )
            found = of_object if found is None else {label: found[label] for label in found.keys() & of_object.keys()}
        return found

    def _pairs(self) -> dict[tuple[int, str], int]:
        """The queues and states that are asked for and hold messages, and how many."""
        conditions, values = self._conditions("counters")
        rows = self._run(
            "SELECT counters.queue, counters.state, counters.messages FROM counters "
            "JOIN queues ON queues.id = counters.queue "
            f"WHERE {' AND '.join(['counters.messages > 0', *conditions])}",
            values,
        )
        return {(queue, state): count for queue, state, count in rows}

    def _conditions(self, table: str) -> tuple[list[str], list[object]]:
        """The queue and the states that are asked for, as conditions on a table with a state, and their values."""
        query = self._query
        conditions: list[str] = []
        values: list[object] = []
        if query.queue is not None:
            conditions.append("queues.name = ?")
            values.append(query.queue)
        if states := query.kept_states:
            conditions.append(f"{table}.state IN ({', '.join('?' * len(states))})")
            values += states
        return conditions, values

    def _run(self, statement: str, values: Iterable[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, tuple(values))


def _by_offsets(low: int, offsets: Iterable[int]) -> Propose:
    wanted = sorted({offset for offset in offsets if offset >= low}, reverse=True)

    def propose(below: int, size: int) -> list[int]:
        return [offset for offset in wanted if offset < below][:size]

    return propose


def _topic_condition(prefix: TopicPrefix) -> tuple[str, list[str]]:
    start = prefix.stem + "." if prefix.below else prefix.stem
    condition = "topic >= ? AND topic < ?"
    values = [start, start + _LAST_CHARACTER]
    return (f"{condition} OR topic = ?", [*values, prefix.stem]) if prefix.below else (condition, values)
