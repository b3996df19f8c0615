"""Records and logs to test with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from remuda.log.disk import Disk
from remuda.log.log import Log
from remuda.log.repair.recovery import Recovery
from remuda.log.tail.writer import LogOptions
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages
from remuda.model.queues.options import QueueOptions
from remuda.model.records import CREATED, Appended, Event, Events, QueueChange, Record
from remuda.model.state import State

SMALL = LogOptions(segment_bytes=4096, reserve_bytes=1024, spare_bytes=256)


def open_log(disk: Disk, options: LogOptions = SMALL) -> tuple[Log, list[Record], Recovery]:
    log, recovery = Log.open(disk, options)
    return log, list(recovery.records), recovery


def segments_of(disk: Disk) -> list[str]:
    return [name for name in disk.list() if name.startswith("tail/") and name.endswith(".log")]


def commit(log: Log, records: Iterable[Record] = ()) -> None:
    for record in records:
        log.append(record)
    batch = log.take()
    batch.write()
    batch.sync()


def appended(log: Log, bodies: Sequence[bytes], *, created: int = 1_000) -> Appended:
    first = log.next_offset
    ids = range(first * 1024, (first + len(bodies)) * 1024, 1024)
    return Appended(first, created, Messages(bodies=list(bodies), name="fruit.apple", ids=ids), ("fruit",))


def events(log: Log, first: int, count: int = 1, *, state: State = State.FETCHED, time: int = 2_000) -> Events:
    return Events(log.next_position, time, [Event("fruit", state, first, count, consumer="c")])


def change(number: int = 0) -> QueueChange:
    return QueueChange(CREATED, f"queue-{number}", 3_000, QueueOptions())


def rich_messages(count: int, seed: int = 0) -> Messages:
    """Messages that differ in every column."""
    rng = random.Random(seed)
    return Messages.of(
        Message(
            name=f"fruit.{rng.randrange(3)}",
            body=rng.randbytes(rng.randrange(60)),
            id=f"id-{seed}-{row}",
            topics=("fruit.a", "stone.b") if rng.random() < 0.5 else (),
            object=rng.choice([None, "tree"]),
            key=rng.choice([None, "k1", "k2"]),
            timestamp=rng.choice([None, 17]),
            mime_type=rng.choice(["application/json", "text/plain"]),
            headers={} if rng.random() < 0.5 else {"a": "1", "b": str(row)},
            priority=rng.choice([Priority.NORMAL, Priority.HIGH]),
            created=5_000 + row,
            expires=rng.choice([None, 10**15]),
            due=rng.choice([None, 10**14]),
        )
        for row in range(count)
    )


def rich_appended(log: Log, count: int, seed: int = 0) -> Appended:
    rng = random.Random(seed)
    return Appended(
        log.next_offset,
        5_000,
        rich_messages(count, seed),
        [rng.choice([("fruit",), ("fruit", "stone"), ()]) for _ in range(count)],
        [rng.choice([None, rng.randbytes(8)]) for _ in range(count)],
    )


def fill(log: Log, rounds: int, seed: int = 0) -> list[Record]:
    """Append a mix of everything, committing now and then; the records as they were given."""
    rng = random.Random(seed)
    given: list[Record] = []
    for turn in range(rounds):
        kind = rng.random()
        record: Record
        if kind < 0.35:
            record = appended(log, [rng.randbytes(rng.randrange(120)) for _ in range(rng.randrange(1, 8))])
        elif kind < 0.5:
            record = rich_appended(log, rng.randrange(1, 6), seed * 1000 + turn)
        elif kind < 0.9 and log.next_offset:
            first = rng.randrange(log.next_offset)
            record = events(log, first, rng.randrange(1, log.next_offset - first + 1), time=2_000 + turn)
        else:
            record = change(turn)
        given.append(record)
        commit(log, [record]) if rng.random() < 0.7 else log.append(record)
    commit(log)
    return given


def row_of(record: Appended, row: int) -> tuple[Any, ...]:
    message = record.messages[row]
    queues = record.queues[row] if isinstance(record.queues, list) else record.queues
    digest = record.digest[row] if isinstance(record.digest, list) else record.digest
    created = message.created or record.created
    return (
        record.first + row, message.name, message.body, message.id, message.topics, message.object, message.key,
        message.timestamp, message.mime_type, dict(message.headers), message.priority, created, message.expires,
        message.due, queues, digest,
    )  # fmt: skip


def message_rows(records: Iterable[Record]) -> list[tuple[Any, ...]]:
    """Every message of the records, one tuple each."""
    return [row_of(record, row) for record in records if isinstance(record, Appended) for row in range(len(record))]


def event_rows(records: Iterable[Record]) -> list[tuple[int, int, Event]]:
    return [
        (record.first + row, record.time, event)
        for record in records
        if isinstance(record, Events)
        for row, event in enumerate(record.rows)
    ]


def light(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows as recovery gives them: without bodies."""
    return [(*row[:2], b"", *row[3:]) for row in rows]


def others(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if not isinstance(record, Appended | Events)]
