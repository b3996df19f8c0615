"""`remuda bench`: Remuda's speed on this machine, next to that of its disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

if TYPE_CHECKING:
    from pathlib import Path

_BATCH: Final = 500
_MOST: Final = 200_000
"""The most messages of one round: enough to measure a fast machine, and the disk has to hold them."""


class Measured(NamedTuple):
    """The result of one round."""

    what: str
    messages: int
    seconds: float

    @property
    def per_second(self) -> int:
        return round(self.messages / self.seconds)


def bench(
    place: Annotated[
        str,
        typer.Argument(
            metavar="[PLACE]", help="A directory on the disk to measure; what bench creates there is removed."
        ),
    ] = ".",
    seconds: Annotated[float, typer.Option(min=0.05, max=60, help="Length of each round.")] = 1.0,
    size: Annotated[int, typer.Option(min=0, max=1_000_000, help="Size of a body in bytes.")] = 100,
    sync: Annotated[str, typer.Option(help="When to sync the log to disk: always, interval or os.")] = "always",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure Remuda on this machine. Compares publishing and handling with the disk; takes a few seconds."""
    import tempfile
    from pathlib import Path

    from remuda.broker.options import BrokerOptions
    from remuda.cli import output
    from remuda.model.errors import InvalidOption

    BrokerOptions.parse(sync=sync)
    if not Path(place).is_dir():
        raise InvalidOption(f"there is no directory {place!r}; nothing was created. Check the path")
    with tempfile.TemporaryDirectory(prefix="remuda-bench-", dir=place) as scratch:
        rows = list(_rounds(Path(scratch), seconds, bytes(size), sync))
    if as_json:
        output.json([{**row._asdict(), "perSecond": row.per_second} for row in rows])
        return
    output.table(
        ["what", "messages", "per second"],
        ((row.what, f"{row.messages:,}", f"{row.per_second:,}") for row in rows),
        right=["messages", "per second"],
    )


def _rounds(scratch: Path, seconds: float, body: bytes, sync: str) -> Iterator[Measured]:
    from remuda.broker.opening import open_broker
    from remuda.model.message import Message
    from remuda.model.messages import Messages

    yield _disk(scratch / "disk", seconds, body)
    with open_broker(scratch / "queues", sync=sync) as broker:
        broker.create_queue("one", type="pull")
        broker.create_queue("many", type="pull")
        one, many = Message("one", body), Messages(name="many", bodies=[body] * _BATCH)

        def pull() -> int:
            delivery = broker.pull("many", _BATCH)
            return 0 if delivery is None else delivery.ack()

        yield _repeat("publish, one by one", seconds, lambda: len(broker.publish(one)))
        yield _repeat(f"publish, {_BATCH} at once", seconds, lambda: len(broker.publish(many)))
        yield _repeat(f"pull and acknowledge, {_BATCH} at once", seconds, pull)
    yield _handlers(scratch / "bus", seconds, body, sync)


def _disk(path: Path, seconds: float, body: bytes) -> Measured:
    """The limit for a publisher that waits for every message: a write and a sync."""
    import os

    from remuda.log.disk.system import datasync

    handle = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:

        def write() -> int:
            os.write(handle, body or b"\0")
            datasync(handle)
            return 1

        return _repeat("the disk alone: write and sync", seconds, write)
    finally:
        os.close(handle)


def _handlers(path: Path, seconds: float, body: bytes, sync: str) -> Measured:
    """A bus from publish to the end of the last handler."""
    import time

    from remuda.bus.bus import Bus
    from remuda.bus.settings.settings import Settings

    with Bus(path, settings=Settings(), sync=sync) as bus:
        bus.subscribe("bench", queue="bench")(_handle)
        began = time.perf_counter()
        published = _repeat("", seconds / 10, lambda: len(bus.publish_many("bench", [body] * _BATCH)))
        bus.run(until_idle=True)
        return Measured("a bus: publish and handle, in one process", published.messages, time.perf_counter() - began)


def _handle(body: bytes) -> None:
    pass


def _repeat(what: str, seconds: float, step: Callable[[], int]) -> Measured:
    """Repeat until the time is up or nothing is left to do."""
    import time

    done, began = 0, time.perf_counter()
    while done < _MOST and time.perf_counter() - began < seconds:
        made = step()
        if not made:
            break
        done += made
    return Measured(what, done, time.perf_counter() - began)
