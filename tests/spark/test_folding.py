"""M7: lives told column by column are those that the broker tells one by one. No Spark is needed for this."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from remuda.index.copies import CONSUMPTIONS, Change, Copy, pack, unpack
from remuda.log.sealed.table_schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA
from remuda.model.document import Document, QueueView, document
from remuda.model.message import Message
from remuda.model.records import Event
from remuda.model.state import State
from remuda.spark.source.folding import EVENT_COLUMNS, MESSAGE_COLUMNS, fold

CONSUMERS = (None, "", "a", "b", "a, b", "b, a", "a, a")
Told = tuple[int, Event]


def random_story(rng: random.Random, messages: int) -> list[Told]:
    """Events in any order of states, also such as no broker writes, with a clock that may run backwards."""
    return [
        (
            rng.randrange(1000),
            Event(
                rng.choice("xyz"),
                rng.choice(list(State)),
                rng.randrange(messages),
                rng.randrange(1, 4),
                rng.choice(CONSUMERS),
                rng.randrange(4),
                reason=rng.choice([None, "", "late", "consumer lost"]),
                detail=rng.choice([None, "", "a story"]),
                to=rng.choice([None, "z"]),
            ),
        )
        for _ in range(rng.randrange(8 * messages))
    ]


def as_tables(messages: dict[int, tuple[Message, list[str]]], story: list[Told]) -> tuple[pa.Table, pa.Table]:
    rows = [
        {"offset": offset, "id": one.id, "name": one.name, "topics": list(one.topics), "object": one.object,
         "key": one.key, "created": one.created, "queues": queues}
        for offset, (one, queues) in messages.items()
    ]  # fmt: skip
    events = [
        {"time": time, "queue": one.queue, "state": one.state.value, "first": one.first, "count": one.count,
         "consumer": one.consumer, "attempt": one.attempt, "reason": one.reason, "detail": one.detail,
         "to": one.to, "position": position}
        for position, (time, one) in enumerate(story)
    ]  # fmt: skip
    return _table(rows, MESSAGES_SCHEMA, MESSAGE_COLUMNS), _table(events, EVENTS_SCHEMA, EVENT_COLUMNS)


def _table(rows: list[dict[str, Any]], schema: pa.Schema, columns: tuple[str, ...]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([schema.field(name) for name in columns]))


def as_rows(told: Document) -> list[dict[str, Any]]:
    whole = {name: getattr(told.message, name) for name in ("id", "name", "object", "key", "created")}
    whole |= {"offset": told.offset, "topic_count": told.topic_count}
    if not told.queues:
        return [whole | {"queue": None, "state": "U", "modified": told.created, "archived": True}]
    names = (
        "queue", "queued", "delivered", "success", "archived", "modified", "consumed", "processed", "completed",
        "failed", "confirmed_count", "attempts", "reason", "detail", "duration", "moved_to",
    )  # fmt: skip
    return [
        whole
        | {name: getattr(view, name) for name in names}
        | {
            "state": view.state.value,
            "consumed_by": [
                {name: getattr(entry, name) for name in ("consumer", "fetched", "confirmed", "duration")}
                for entry in view.consumed_by
            ],
        }
        for view in told.queues
    ]


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows with their times as numbers."""
    times = [field.name for field in batch.schema if pa.types.is_timestamp(field.type)]
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        row |= {name: row[name] and _micros(row[name]) for name in times}
        for entry in row["consumed_by"]:
            entry |= {name: entry[name] and _micros(entry[name]) for name in ("fetched", "confirmed")}
    return rows


def _micros(time: Any) -> int:
    return int(pa.scalar(time, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py())


@pytest.mark.parametrize("seed", range(60))
def test_m7_whatever_happened_is_told_as_the_broker_tells_it(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice([1, 3, 20])
    messages = {
        offset: (
            Message(rng.choice("xy"), b"", topics=tuple("xy"[: rng.randrange(3)]), created=offset + 1),
            rng.sample("xy", rng.randrange(3)),
        )
        for offset in range(count)
        if rng.random() < 0.8  # others were collected, and their events remain
    }
    story = random_story(rng, count)
    expected = []
    for offset, (message, queues) in messages.items():
        mine = [told for told in story if told[1].first <= offset < told[1].first + told[1].count]
        expected += as_rows(document(offset, message, queues, mine))
    found = plain(fold(*as_tables(messages, story)))
    assert [row["offset"] for row in found] == sorted(row["offset"] for row in found)
    by_key = {(row["offset"], row["queue"]): row for row in found}
    assert len(by_key) == len(found) == len(expected)
    for row in expected:
        same = by_key[row["offset"], row["queue"]]
        assert {name: same[name] for name in row} == row


@pytest.mark.parametrize("seed", range(60))
def test_m7_an_index_keeps_what_the_broker_tells_however_events_come_to_it(seed: int) -> None:
    """Some at a time, some of them twice, packed in between; all but the traceback and the oldest of many consumers."""
    rng = random.Random(seed)
    story = [(time, msgspec.structs.replace(one, queue="q", first=0, count=1)) for time, one in random_story(rng, 4)]
    (whole,) = document(0, Message("x", b"", created=1), ["q"], story).queues
    copy, at = Copy.begun(1, "q"), 0
    while at < len(story):
        stop = rng.randint(at + 1, len(story))
        change: Change | None = None
        for position in range(max(0, at - rng.randrange(3)), stop):
            change = Change(change, story[position][1], story[position][0], position)
        copy, at = unpack(pack(copy.after(change))), stop
    kept = QueueView.of("q", copy.life)
    expected = msgspec.structs.replace(whole, detail=None, consumed_by=whole.consumed_by[-CONSUMPTIONS:])
    assert kept == expected


def test_nothing_gives_nothing() -> None:
    assert fold(*as_tables({}, [])).num_rows == 0
    assert fold(*as_tables({}, random_story(random.Random(1), 5))).num_rows == 0
