"""The RabbitMQ rows: all clients take turns on one node, and the median of each one's rounds counts."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.effort import Effort
from benchmarks.rabbitmq import sides
from benchmarks.results import Result, rate_result
from remuda.amqp.connection import Connection
from tests.servers.rabbitmq import RabbitNode, end_node

_BODY: Final = b"x" * 100
_PER_SECOND: Final = 20_000
_LEAST: Final = 2_000
_SLOW: Final = {"pika", "aio-pika"}


@contextmanager
def node() -> Iterator[str]:
    """The URL of a private node."""
    running = RabbitNode(Path(tempfile.mkdtemp(prefix="remuda-bench-")), "bench", one_scheduler=False)
    try:
        running.start()
        yield running.url
    finally:
        end_node(running)


def publish(url: str, effort: Effort) -> Result:
    return _row("rabbitmq/publish", url, sides.PUBLISH, effort, filled=False)


def consume(url: str, effort: Effort) -> Result:
    return _row("rabbitmq/consume", url, sides.CONSUME, effort, filled=True)


def _row(name: str, url: str, works: dict[str, sides.Work], effort: Effort, *, filled: bool) -> Result:
    rates: dict[str, list[float]] = {side: [] for side in works}
    costs: dict[str, list[float]] = {side: [] for side in works}
    for _ in range(effort.rounds):
        for side, work in works.items():
            count = max(_LEAST, round(_PER_SECOND * effort.seconds)) // (4 if side in _SLOW else 1)
            with _queue(url) as queue:
                if filled:
                    sides.remuda_publish(url, queue, _BODY, count)
                began, worked = time.perf_counter(), time.process_time()
                work(url, queue, _BODY, count)
                costs[side].append((time.process_time() - worked) / count * 1e6)
                rates[side].append(count / (time.perf_counter() - began))
    medians = {side: statistics.median(found) for side, found in rates.items()}
    settings = {
        "body_bytes": len(_BODY), "window": sides.WINDOW, "queue": "classic, durable", "persistent": True,
        # What a client costs is the same on a busy machine, and where the server is the limit.
        "cpu_us_per_message": {side: round(statistics.median(found), 1) for side, found in costs.items()},
        "rounds": {side: [round(rate) for rate in found] for side, found in rates.items()},
    }  # fmt: skip
    return rate_result(name, medians.pop("remuda"), dict(medians), None, settings)


@contextmanager
def _queue(url: str) -> Iterator[str]:
    with Connection(url) as connection:
        channel = connection.channel()
        name = f"bench-{time.time_ns()}"
        channel.declare_queue(name, arguments={"x-queue-type": "classic"})
        yield name
        channel.delete_queue(name)


def rabbitmq_rows(url: str) -> dict[str, Callable[[Effort], Result]]:
    """How each row is measured on a running broker."""
    return {"rabbitmq/publish": partial(publish, url), "rabbitmq/consume": partial(consume, url)}
