"""The RabbitMQ rows: all sides take turns on one node, and the median of each one's rounds counts.

Two rows are about bare clients, three about the whole: a bus with its handlers beside libraries that do the same.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.effort import Effort
from benchmarks.processes import cpu_seconds
from benchmarks.rabbitmq import bus_sides, sides
from benchmarks.results import Result, rate_result
from remuda.amqp.connection import Connection
from tests.servers.rabbitmq import RabbitNode, end_node

_BODY: Final = b"x" * 100
_PER_SECOND: Final = 20_000
_LEAST: Final = 2_000
_SLOW: Final = {"pika", "aio-pika", "kombu", "faststream", "dramatiq"}
_CLASSIC: Final = "classic, durable"

ROWS: Final = (
    "rabbitmq/publish", "rabbitmq/consume", "rabbitmq/end-to-end", "rabbitmq/client-publish", "rabbitmq/client-consume",
)  # fmt: skip


class Server(NamedTuple):
    """A running RabbitMQ."""

    url: str
    pid: int

    @property
    def cpu(self) -> float:
        """Seconds of CPU that it has used so far."""
        return cpu_seconds(self.pid)


@contextmanager
def started_server() -> Iterator[Server]:
    """A private node."""
    node = RabbitNode(Path(tempfile.mkdtemp(prefix="remuda-bench-")), "bench", one_scheduler=False)
    try:
        node.start()
        yield Server(node.url, node.pid)
    finally:
        end_node(node)


def _timed(work: sides.Work, *, filled: bool) -> bus_sides.Timed:
    """A bare client's work, with the time it took."""

    def run(url: str, queue: str, body: bytes, count: int) -> float:
        if filled:
            sides.remuda_publish(url, queue, body, count)
        began = time.perf_counter()
        work(url, queue, body, count)
        return time.perf_counter() - began

    return run


LOGGED: Final = "remuda with its event log"
BATCHED: Final = "remuda with a handler of batches"
LIMIT: Final = "server"
"""Whatever RabbitMQ carries of the same messages, to and from a client that costs next to nothing."""
_OURS: Final = ("remuda", LOGGED, BATCHED, LIMIT)
_BARE: Final = ("pika", "pika-select", "aio-pika")
WORKS: Final[dict[str, dict[str, bus_sides.Timed]]] = {
    "rabbitmq/publish": {
        "remuda": bus_sides.remuda_publish,
        LOGGED: partial(bus_sides.remuda_publish, logged=True),
        LIMIT: bus_sides.server_publish,
        **{side: _timed(sides.PUBLISH[side], filled=False) for side in _BARE},
        "kombu": bus_sides.kombu_publish,
        "faststream": bus_sides.faststream_publish,
        "dramatiq": bus_sides.dramatiq_publish,
    },
    "rabbitmq/consume": {
        "remuda": bus_sides.remuda_consume,
        LOGGED: partial(bus_sides.remuda_consume, logged=True),
        BATCHED: partial(bus_sides.remuda_consume, batch=250),
        LIMIT: bus_sides.server_consume,
        **{side: _timed(sides.CONSUME[side], filled=True) for side in _BARE},
        "kombu": bus_sides.kombu_consume,
        "faststream": bus_sides.faststream_consume,
        "dramatiq": bus_sides.dramatiq_consume,
    },
    "rabbitmq/end-to-end": {
        "remuda": bus_sides.remuda_end_to_end,
        LOGGED: partial(bus_sides.remuda_end_to_end, logged=True),
        "faststream": bus_sides.faststream_end_to_end,
        "dramatiq": bus_sides.dramatiq_end_to_end,
    },
    "rabbitmq/client-publish": {side: _timed(work, filled=False) for side, work in sides.PUBLISH.items()},
    "rabbitmq/client-consume": {side: _timed(work, filled=True) for side, work in sides.CONSUME.items()},
}


def row(name: str, server: Server, effort: Effort) -> Result:
    works, url = WORKS[name], server.url
    rates: dict[str, list[float]] = {side: [] for side in works}
    costs: dict[str, list[float]] = {side: [] for side in works}
    of_server: dict[str, list[float]] = {side: [] for side in works}
    for _ in range(effort.rounds):
        for side, work in works.items():
            count = max(_LEAST, round(_PER_SECOND * effort.seconds)) // (4 if side in _SLOW else 1)
            with _queue(url, made=side not in _OURS or "client" in name) as queue:
                worked, served = time.process_time(), server.cpu
                rates[side].append(count / work(url, queue, _BODY, count))
                costs[side].append((time.process_time() - worked) / count * 1e6)
                of_server[side].append((server.cpu - served) / count * 1e6)
    medians = {side: statistics.median(found) for side, found in rates.items()}
    settings = {
        "body_bytes": len(_BODY), "window": sides.WINDOW, "queue": _CLASSIC, "persistent": True,
        # What a side costs is the same on a busy machine, and where the server is the limit. It includes getting ready.
        "cpu_us_per_message": {side: round(statistics.median(found), 1) for side, found in costs.items()},
        # Of both cores of the machine, of which the client needs one: who fills the queue first is counted, too.
        "server_cpu_us_per_message": {side: round(statistics.median(found), 1) for side, found in of_server.items()},
        "rounds": {side: [round(rate) for rate in found] for side, found in rates.items()},
    }  # fmt: skip
    for name_of_it, side in (("with_event_log", LOGGED), ("with_handler_of_batches", BATCHED)):
        if side in medians:
            settings[name_of_it] = round(medians.pop(side))
    ours, limit = medians.pop("remuda"), medians.pop(LIMIT, None)
    return rate_result(name, ours, dict(medians), limit, settings)


@contextmanager
def _queue(url: str, *, made: bool) -> Iterator[str]:
    """A queue's name; the bus makes its own."""
    with Connection(url) as connection:
        channel = connection.channel()
        name = f"bench-{time.time_ns()}"
        if made:
            channel.declare_queue(name, arguments={"x-queue-type": "classic"})
        yield name
        channel.delete_queue(name)


def rabbitmq_rows(server: Server) -> dict[str, Callable[[Effort], Result]]:
    """How each row is measured on a running broker."""
    return {name: partial(row, name, server) for name in ROWS}


def _on_own_node(name: str, effort: Effort) -> Result:
    with started_server() as server:
        return row(name, server, effort)


RABBITMQ_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {name: partial(_on_own_node, name) for name in ROWS}
