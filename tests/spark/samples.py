"""Directories with a log in them, and short ways to look at DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from remuda.broker.embedded import EmbeddedBroker
from remuda.broker.opening import open_broker
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
    broker.host.upkeep.seal()


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
