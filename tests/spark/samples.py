"""Directories with a log in them, and short ways to look at DataFrames."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from remuda.broker.opening import open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.message import Message

SMALL = {"sync": "os", "segment_bytes": 1 << 16, "checkpoint_bytes": 1 << 30}
"""Small segments; checkpoints and sealing only when a test asks for them."""


@contextmanager
def broker_at(path: Path, **options: Any) -> Iterator[EmbeddedBroker]:
    with open_broker(path, **{**SMALL, **options}) as broker:
        yield broker


def publish(broker: EmbeddedBroker, count: int, name: str = "orders", *, start: int = 0, size: int = 200) -> None:
    """Messages whose bodies begin with their number."""
    for first in range(start, start + count, 500):
        numbers = range(first, min(first + 500, start + count))
        broker.publish([Message(name, (b"%d " % number).ljust(size, b".")) for number in numbers])


def seal(broker: EmbeddedBroker) -> None:
    """Turn every closed segment into Parquet. Two checkpoints are kept, so it takes two."""
    broker.checkpoint()
    broker.checkpoint()
    broker.runtime.upkeep.seal()


def finish(broker: EmbeddedBroker, queue: str = "orders") -> None:
    """Acknowledge all that waits, however busy the machine is."""
    end = time.monotonic() + 60
    subscription = broker.subscribe(queue, batch=5000)
    while (info := broker.queue(queue)).waiting or info.in_flight:
        assert time.monotonic() < end, "it was not all delivered in time"
        delivery = subscription.receive(1)
        if delivery is not None:
            delivery.ack()
    subscription.close()
    broker.runtime.sync()


def half_sealed(path: Path, count: int = 3000, name: str = "orders") -> None:
    """A log of which the greater part is sealed and the rest is not."""
    with broker_at(path) as broker:
        publish(broker, count, name)
        seal(broker)
        publish(broker, 100, name, start=count)


def load(spark: SparkSession, path: Path, table: str = "messages", **options: Any) -> DataFrame:
    return spark.read.format("remuda").option("table", table).options(**options).load(str(path))


def column(frame: DataFrame, name: str) -> list[Any]:
    """The values of a column, in the order of the rows."""
    return [row[0] for row in frame.select(name).collect()]


def offsets(frame: DataFrame) -> list[int]:
    return sorted(column(frame, "offset"))


def numbers(bodies: Iterable[bytes]) -> list[int]:
    """The numbers that bodies begin with, in order."""
    return sorted(int(bytes(body).split()[0]) for body in bodies)


def plain(frame: DataFrame) -> list[str]:
    """All rows as texts, in an order that does not depend on where they came from."""
    return sorted(map(str, frame.select(*sorted(frame.columns)).collect()))


def play(broker: EmbeddedBroker) -> None:
    """Something of everything that can happen to a message."""
    broker.create_queue("orders", type="pull", put_back_delay="1ms")
    broker.create_queue("both", type="push")
    publish(broker, 60)
    for answer in ("ack", "retry", "dead", "invalid", "release", "dead_to"):
        delivery = broker.pull("orders", 6, consumer=f"c-{answer}")
        assert delivery is not None
        match answer:
            case "ack":
                delivery.ack()
            case "dead":
                delivery.dead(reason="it broke")
            case "invalid":
                delivery.invalid(reason="no such thing")
            case "retry":
                delivery.retry(reason="again", after="1ms")
            case "release":
                delivery.release()
            case _:
                delivery.dead(reason="elsewhere", to="other")
    broker.reprocess("orders")
    delivery = broker.pull("orders", 4, consumer="last")
    assert delivery is not None
    delivery.dead([0, 1], reason="for good", detail="a long story")
    delivery.not_interested([2])
    delivery.release([3])
    broker.publish([Message("things", b"same", object="o", key="k") for _ in range(3)])
    subscriptions = [broker.subscribe("both", consumer=f"s{number}") for number in range(2)]
    broker.publish(Message("both", b"x"))
    for subscription in subscriptions:
        delivery = subscription.receive(60)
        assert delivery is not None
        delivery.ack()
    broker.runtime.sync()


def to_micros(moment: datetime | None) -> int | None:
    """Spark hands out local times without a zone; tests run in whatever zone the machine has."""
    if moment is None:
        return None
    return round((moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
