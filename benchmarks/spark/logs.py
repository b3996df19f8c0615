"""The logs that the Spark rows read: sealed, and made by the embedded broker itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda import Messages, open_broker
from remuda.broker.delivery import Delivery
from remuda.broker.threads import EmbeddedBroker

QUEUE: Final = "orders"
BODY_BYTES: Final = 200
BATCH: Final = 1000
MIX: Final = (
    "published, fetched and answered 1,000 at a time: 95 % succeed at once, 4 % are retried and succeed then, "
    "1 % are dead; of every 100,000 messages 500 more are fetched and acknowledged one by one"
)
_POOL: Final = 200_000
"""So many bodies are different: more than a row group holds, those of DuckDB and Polars too, so that no engine keeps a
body as a copy of another."""
_RETRIED: Final = 40
_DEAD: Final = 10
_ALONE: Final = 500
_ALONE_EVERY: Final = 100
_OF_SUCCESS: Final = 3
"""Changes of state: fetched, succeeded, completed."""
_OF_DEATH: Final = 2
"""Fetched, dead."""
_OF_RETRY: Final = 3
"""Fetched, to be retried, queued again. What follows is counted as of any other."""
_SMALL_FILE: Final = 400
"""Messages, which fill the smallest segment that there can be."""
_SMALLEST_SEGMENT: Final = 1 << 16
_BEFORE_SEALING: Final = 1000
_SMALL_SEGMENT: Final = 16 << 20
"""So that of a million events, too, nearly all are sealed."""


class Lived(msgspec.Struct, frozen=True):
    """How many messages a log holds, and how often their states changed after they were published."""

    messages: int = 0
    events: int = 0

    def __add__(self, other: Lived) -> Lived:
        return Lived(self.messages + other.messages, self.events + other.events)


def fill(directory: Path, count: int, **options: Any) -> None:
    """Messages that wait, all sealed but the last few."""
    with _broker(directory, **options) as broker:
        for bodies in _batches(count):
            broker.publish(Messages(name=QUEUE, bodies=bodies))
        _seal(broker)


def fill_files(directory: Path, files: int) -> None:
    """Messages that wait, in so many sealed files at least."""
    some = bodies(_SMALL_FILE)
    with _broker(directory, segment_bytes=_SMALLEST_SEGMENT) as broker:
        while len(list((directory / "sealed").glob("messages-*"))) < files:
            for _ in range(min(files, _BEFORE_SEALING)):
                broker.publish(Messages(name=QUEUE, bodies=some))
            _seal(broker)


def tell(directory: Path, count: int) -> int:
    """Messages that tell of objects, each of them twice; how many objects."""
    objects = -(-count // 2)
    with _broker(directory) as broker:
        for number, bodies in enumerate(_batches(count)):
            keys: list[str | None] = [str((number * BATCH + at) % objects) for at in range(len(bodies))]
            broker.publish(Messages(name=QUEUE, bodies=bodies, object="order", key=keys))
        _seal(broker)
    return objects


def live(directory: Path, events: int) -> Lived:
    """Messages whose states changed at least so many times, mixed as `MIX` says."""
    lived = Lived()
    source = random.Random("answers")
    with _broker(directory, segment_bytes=_SMALL_SEGMENT) as broker:
        for number, bodies in enumerate(_batches(events)):
            lived += _together(broker, bodies, source)
            if number % _ALONE_EVERY == 0:
                lived += _one_by_one(broker, bodies[:_ALONE])
            if lived.events >= events:
                break
        _seal(broker)
    return lived


def _together(broker: EmbeddedBroker, bodies: list[bytes], source: random.Random) -> Lived:
    """A batch, of which most succeeds."""
    broker.publish(Messages(name=QUEUE, bodies=bodies))
    first = _taken(broker)
    others = source.sample(range(len(first)), len(first) * (_RETRIED + _DEAD) // BATCH)
    dead = others[: len(first) * _DEAD // BATCH]
    again = others[len(dead) :]
    first.ack(sorted(set(range(len(first))).difference(others)))
    first.dead(dead, reason="no such customer")
    first.retry(again, reason="not yet")
    second = _taken(broker)
    second.ack()
    succeeded = len(first) - len(others) + len(second)
    return Lived(len(bodies), _OF_SUCCESS * succeeded + _OF_DEATH * len(dead) + _OF_RETRY * len(again))


def _one_by_one(broker: EmbeddedBroker, bodies: list[bytes]) -> Lived:
    broker.publish(Messages(name=QUEUE, bodies=bodies))
    for _ in bodies:
        _taken(broker, 1).ack()
    return Lived(len(bodies), _OF_SUCCESS * len(bodies))


def _taken(broker: EmbeddedBroker, count: int = BATCH) -> Delivery:
    delivery = broker.pull(QUEUE, count)
    assert delivery is not None
    return delivery


@contextmanager
def _broker(directory: Path, **options: Any) -> Iterator[EmbeddedBroker]:
    with open_broker(directory, sync="os", **options) as broker:
        broker.create_queue(QUEUE, type="pull")
        yield broker


def _seal(broker: EmbeddedBroker) -> None:
    """Turn every full segment into Parquet. Two checkpoints are kept, so it takes two."""
    broker.checkpoint()
    broker.checkpoint()
    broker.runtime.upkeep.seal()


def _batches(count: int) -> Iterator[list[bytes]]:
    pool = bodies()
    for first in range(0, count, BATCH):
        at = first % _POOL
        yield pool[at : at + min(BATCH, count - first)]


def bodies(count: int = _POOL) -> list[bytes]:
    """Orders in JSON, all different, which compress to about a fifth."""
    source = random.Random("bodies")
    words = ("shipped", "pending", "express", "standard", "gift", "return", "insured", "fragile")

    def body(number: int) -> bytes:
        text = (
            f'{{"order": {number:010d}, "customer": "{source.getrandbits(64):016x}", '
            f'"total": {source.randrange(100, 100_000) / 100:.2f}, "currency": "EUR", '
            f'"lines": [{{"sku": "{source.getrandbits(40):010x}", "count": {source.randrange(1, 10)}}}, '
            f'{{"sku": "{source.getrandbits(40):010x}", "count": {source.randrange(1, 10)}}}], "note": "'
        )
        note = " ".join(source.choices(words, k=8))
        return f"{text}{note}".encode()[: BODY_BYTES - 2] + b'"}'

    return [body(number) for number in range(count)]
