"""A directory with many messages, as it is after a busy while: most are done, some wait, some are dead."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.index import LogSource, open_index, rebuild
from remuda.log.disk import DirectoryDisk
from remuda.model.messages import Messages

QUEUES: Final = 10_000
BUSY: Final = 20
"""Queues that hold messages."""
BATCH: Final = 10_000
CUSTOMERS: Final = 50_000
_WAITING: Final = 7
"""One batch of so many is left waiting."""
_DEAD: Final = 5
"""Of each batch that is handled; they are spread over it."""
_COLOURS: Final = ("red", "green", "blue", "white", "black", "amber", "olive", "coral")


def fill(directory: Path, messages: int) -> list[str]:
    """Fill a log. Gives the ids of messages all over it."""
    with open_broker(directory, sync="os") as broker:
        for number in range(QUEUES):
            broker.create_queue(f"queue.{number}", type="pull", patterns=[f"topic{number}.#"])
        known: list[str] = []
        for first in range(0, messages, BATCH):
            number = first // BATCH
            known.append(_publish(broker, number, first, min(BATCH, messages - first)))
            if number % _WAITING:
                _handle(broker, f"queue.{number % BUSY}")
    return known


def _publish(broker: Broker, number: int, first: int, count: int) -> str:
    rows = range(first, first + count)
    bodies = [
        f'{{"customer":"C{row % CUSTOMERS}","text":"{_COLOURS[row % 8]} {_COLOURS[row // 8 % 8]}","n":{row}}}'.encode()
        for row in rows
    ]
    batch = Messages(
        bodies=bodies,
        name=f"topic{number % BUSY}.made",
        object="order",
        key=[str(row) for row in rows],
        mime_type="application/json",
    )
    return broker.publish(batch, queue=f"queue.{number % BUSY}").ids[number % count]


def _handle(broker: Broker, queue: str) -> None:
    delivery = broker.pull(queue, BATCH)
    if delivery is None:
        return
    every = max(len(delivery) // _DEAD, 1)
    dead = set(range(every // 2, len(delivery), every))
    for row in sorted(dead):
        delivery.dead([row], reason=f"ValueError: no stock for {row}")
    delivery.ack([row for row in range(len(delivery)) if row not in dead])


def index(directory: Path) -> None:
    """Build the search index of a directory."""
    made = open_index(directory / "index")
    rebuild(made, LogSource(DirectoryDisk(directory, create=False)))
    made.close()
