"""The RabbitMQ rows: all sides take turns on one node, and the median of each one's rounds counts.

Two rows are about bare clients, three about the whole: a bus with its handlers beside libraries that do the same.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.effort import Effort
from benchmarks.rabbitmq import bus_sides, limits, sides
from benchmarks.rabbitmq.jobs import BATCH, EXCHANGE, WINDOW, Job, Server, Work
from benchmarks.rabbitmq.names import CLIENT_CONSUME, CLIENT_PUBLISH, CONSUME, END_TO_END, PUBLISH
from benchmarks.results import Result, rate_result
from remuda.amqp.client.connection import Connection
from tests.servers.rabbitmq import RabbitNode, end_node

_BODY: Final = b"x" * 100
_PER_SECOND: Final = 20_000
_LEAST: Final = 2_000
_SLOW: Final = {"pika", "aio-pika", "kombu", "faststream", "dramatiq"}

ROWS: Final = (PUBLISH, CONSUME, END_TO_END, CLIENT_PUBLISH, CLIENT_CONSUME)


@contextmanager
def started_server() -> Iterator[Server]:
    """A private node."""
    node = RabbitNode(Path(tempfile.mkdtemp(prefix="remuda-bench-")), "bench", one_scheduler=False)
    try:
        node.start()
        yield Server(node.url, node.pid)
    finally:
        end_node(node)


LOGGED: Final = "remuda with its event log"
BATCHED: Final = "remuda with a handler of batches"
LIMIT: Final = "server"
"""Whatever RabbitMQ carries of the same messages, to and from a client that costs next to nothing."""
BARE_LIMIT: Final = "server, bare messages"
_OF_BUS: Final = frozenset({"remuda", LOGGED, BATCHED, LIMIT})
_BARE: Final = ("pika", "pika-select", "aio-pika")
WORKS: Final[dict[str, dict[str, Work]]] = {
    PUBLISH: {
        "remuda": bus_sides.remuda_publish,
        LOGGED: partial(bus_sides.remuda_publish, logged=True),
        LIMIT: limits.publish_as_the_bus,
        BARE_LIMIT: limits.publish_bare,
        **{side: sides.PUBLISH[side] for side in _BARE},
        "kombu": bus_sides.kombu_publish,
        "faststream": bus_sides.faststream_publish,
        "dramatiq": bus_sides.dramatiq_publish,
    },
    CONSUME: {
        "remuda": bus_sides.remuda_consume,
        LOGGED: partial(bus_sides.remuda_consume, logged=True),
        BATCHED: partial(bus_sides.remuda_consume, batch=BATCH),
        LIMIT: limits.consume_from_the_bus,
        BARE_LIMIT: limits.consume_bare,
        **{side: sides.CONSUME[side] for side in _BARE},
        "kombu": bus_sides.kombu_consume,
        "faststream": bus_sides.faststream_consume,
        "dramatiq": bus_sides.dramatiq_consume,
    },
    END_TO_END: {
        "remuda": bus_sides.remuda_end_to_end,
        LOGGED: partial(bus_sides.remuda_end_to_end, logged=True),
        "faststream": bus_sides.faststream_end_to_end,
        "dramatiq": bus_sides.dramatiq_end_to_end,
    },
    CLIENT_PUBLISH: {**sides.PUBLISH, LIMIT: limits.publish_bare},
    CLIENT_CONSUME: {**sides.CONSUME, LIMIT: limits.consume_bare},
}
_EXTRA: Final = {
    LOGGED: "with_event_log",
    BATCHED: "with_handler_of_batches",
    BARE_LIMIT: "limit_of_bare_messages",
}

_ALL_PUBLISH: Final = (
    "100 B, persistent, mandatory, by topic to a quorum queue, with an id of its own, type and time; confirms are "
    f"awaited, at most {WINDOW} outstanding"
)
_ALL_CONSUME: Final = f"prefetch {WINDOW}, each acknowledged by hand, from a quorum queue filled before"
DOES: Final[dict[str, dict[str, str]]] = {
    PUBLISH: {
        "all": _ALL_PUBLISH,
        "remuda": f"the bus's own topic exchange, batches of {BATCH}; the event log is off, as the others keep none",
        "pika, pika-select, aio-pika, kombu": f"{EXCHANGE}; pika and kombu wait for each confirm, the others for many",
        "faststream": f"{EXCHANGE}, {WINDOW} publishes gathered",
        "dramatiq": "its own classic queue, through the default exchange; each confirm is waited for",
        "limit": "the bus's own bytes, made before, from one socket that does nothing else",
    },
    CONSUME: {
        "all": _ALL_CONSUME,
        "remuda": "a handler of the bus for each message, with its retries and timeouts",
        "pika, pika-select, aio-pika": f"a callback or loop for each message, one acknowledgement for {BATCH}",
        "kombu, faststream": "a callback for each message, each acknowledged alone",
        "dramatiq": "an actor for each message, from its own classic queue",
        "limit": "the bus's own messages to one socket that counts them and acknowledges what it read",
    },
    END_TO_END: {"all": f"{_ALL_PUBLISH}, while handlers take them", "dramatiq": "its own classic queue"},
    CLIENT_PUBLISH: {"all": f"{_ALL_PUBLISH}; through {EXCHANGE}"},
    CLIENT_CONSUME: {"all": _ALL_CONSUME},
}


def row(name: str, server: Server, effort: Effort) -> Result:
    works = WORKS[name]
    jobs: dict[str, list[Job]] = {side: [] for side in works}
    for _ in range(effort.rounds):
        for side, work in works.items():
            count = max(_LEAST, round(_PER_SECOND * effort.seconds)) // (4 if side in _SLOW else 1)
            with _queue(server.url, made=side not in _OF_BUS or "client" in name) as queue:
                job = Job(server, queue, _BODY, count)
                work(job)
                jobs[side].append(job)
    medians = {side: statistics.median(job.count / job.seconds for job in done) for side, done in jobs.items()}
    settings: dict[str, Any] = {
        "body_bytes": len(_BODY), "window": WINDOW, "queue": "quorum", "does": DOES[name],
        # What a side costs is the same on a busy machine, and where the server is the limit.
        "cpu_us_per_message": _median(jobs, lambda job: job.client_cpu / job.count * 1e6),
        "server_cpu_us_per_message": _median(jobs, lambda job: job.server_cpu / job.count * 1e6),
        "server_cores_busy": _median(jobs, lambda job: job.server_cpu / job.seconds, 2),
        "rounds": {side: [round(job.count / job.seconds) for job in done] for side, done in jobs.items()},
    }  # fmt: skip
    for side, called in _EXTRA.items():
        if side in medians:
            settings[called] = round(medians.pop(side))
    ours, limit = medians.pop("remuda"), medians.pop(LIMIT, None)
    settings["bound_by"] = _bound(settings)
    return rate_result(name, ours, dict(medians), limit, settings)


def _median(jobs: dict[str, list[Job]], of: Callable[[Job], float], digits: int = 1) -> dict[str, float]:
    return {side: round(statistics.median(map(of, done)), digits) for side, done in jobs.items()}


def _bound(settings: dict[str, Any]) -> str:
    """Who has the greater part of all CPU that a message takes."""
    server, own = settings["server_cpu_us_per_message"]["remuda"], settings["cpu_us_per_message"]["remuda"]
    shares = f"{server:.0f} µs of CPU for each message in RabbitMQ and {own:.0f} here"
    busy = f"RabbitMQ takes {settings['server_cores_busy']['remuda']:.1f} of {os.cpu_count()} cores"
    return f"{'RabbitMQ' if server > own else 'this process'}: {shares}; {busy}"


@contextmanager
def _queue(url: str, *, made: bool) -> Iterator[str]:
    """A queue's name; the bus makes its own."""
    with Connection(url) as connection:
        channel = connection.channel()
        name = f"bench-{time.time_ns()}"
        if made:
            channel.declare_queue(name, arguments={"x-queue-type": "quorum"})
            channel.bind_queue(name, EXCHANGE, name)
        yield name
        channel.delete_queue(name)


def rabbitmq_rows(server: Server) -> dict[str, Callable[[Effort], Result]]:
    """How each row is measured on a running broker."""
    return {name: partial(row, name, server) for name in ROWS}


def _on_own_node(name: str, effort: Effort) -> Result:
    with started_server() as server:
        return row(name, server, effort)


RABBITMQ_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {name: partial(_on_own_node, name) for name in ROWS}
