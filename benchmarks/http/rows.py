"""The rows: how many messages a second can be published, and how long each page takes."""

from __future__ import annotations

import atexit
import http.client
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.effort import Effort
from benchmarks.http import filled
from benchmarks.processes import cpu_seconds
from benchmarks.results import Result, latency_result, rate_result
from benchmarks.scratch import scratch
from remuda.broker.opening import open_broker
from remuda.model.messages import Messages

_BATCH: Final = 5_000
_WARM: Final = 5
_ASKED: Final = 60
PAGES: Final = {
    "overview": "/",
    "queue": "/queues/queue.{queue}",
    "messages": "/messages?queue=queue.{queue}",
    "search": "/messages?text=amber+C{customer}",
    "message": "/messages/{id}",
    "dead": "/dead?queue=queue.{queue}",
    "latency": "/latency",
    "topics": "/topics",
    "tail": "/tail",
    "pipelines": "/pipelines",
    "outbox": "/outbox",
}


class Served:
    """A server in a process of its own, and one connection to it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        self._connection.request(method, path, body, {"Content-Type": kind} if body is not None else {})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} was answered with {answer.status}: {content[:200]!r}")
        return content

    def close(self) -> None:
        self._connection.close()

    def cpu(self) -> float:
        """Seconds of processor time that the server has used."""
        return cpu_seconds(self._process.pid)


@contextmanager
def served(directory: Path, *options: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "benchmarks.http.served", str(directory), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            server = Served(process, process.stdout.readline().strip())
            with closing(server):
                yield server
        finally:
            process.terminate()


def publish(size: str, effort: Effort) -> Result:
    """Messages of 200 bytes, each synced to the disk: one by one, and in NDJSON batches. The limit is the broker alone,
    given the same batches by a thread of its own process; one by one, there is also an endpoint that only stores."""
    line = b'{"topic":"order.placed","key":"42","body":{"customer":"' + b"x" * 185 + b'"}}'
    content, many = (line, 1) if size == "one" else (b"\n".join([line] * _BATCH), _BATCH)
    kind = "application/json" if size == "one" else "application/x-ndjson"
    batch = Messages(bodies=[b"x" * 200] * many, name="order.placed", key="42", mime_type="application/json")
    seconds = max(effort.seconds * 3, 0.3)
    ours, theirs, limits = [], [], []
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        server = stack.enter_context(served(folder / "data"))
        simple = stack.enter_context(served(folder / "endpoint", "--bare")) if many == 1 else None
        for _ in range(effort.rounds):
            ours.append(_measure_publishes(server, content, kind, many, seconds))
            if simple is not None:
                theirs.append(_measure_publishes(simple, content, kind, many, seconds))
            with open_broker(folder / "bare") as bare:  # closed again, so that it seals nothing while the server works
                publish_alone = partial(bare.publish, batch, queue="order", options={"type": "pull"})
                limits.append(_repeated(publish_alone, many, seconds)[0])
    rate, cost = map(statistics.median, zip(*ours, strict=True))
    settings = {"batch": many, "bytes": 200, "cpu_us_per_message": round(cost, 2), "clients": 1}
    peers = {}
    if theirs:
        peers["bare endpoint"], cost = map(statistics.median, zip(*theirs, strict=True))
        settings["bare_cpu_us_per_message"] = round(cost, 2)
    return rate_result(f"http/publish/{size}", rate, peers, statistics.median(limits), settings)


def _measure_publishes(server: Served, content: bytes, kind: str, many: int, seconds: float) -> tuple[float, float]:
    """Messages a second, and microseconds of the server's processor for each."""
    server.close()  # by now it may have been closed at the other end
    publish_one = partial(server.ask, "POST", "/api/v1/messages?queue=order", content, kind)
    publish_one()
    cpu = server.cpu()
    rate, sent = _repeated(publish_one, many, seconds)
    return rate, (server.cpu() - cpu) / sent * 1e6


def _repeated(send: Callable[[], object], many: int, seconds: float) -> tuple[float, int]:
    """How many messages a second, and how many in all."""
    began, sent = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or not sent:
        send()
        sent += many
    return sent / (time.perf_counter() - began), sent


def page(name: str, effort: Effort) -> Result:
    """The 95th percentile of the time for one page, with the messages of the effort in the log and in the index."""
    directory, known = _filled(effort.messages)
    chance = random.Random(7)
    with served(directory) as server:

        def ask() -> float:
            path = PAGES[name].format(
                id=chance.choice(known),
                queue=chance.randrange(filled.BUSY),
                customer=chance.randrange(filled.CUSTOMERS),
            )
            began = time.perf_counter()
            server.ask("GET", path)
            return (time.perf_counter() - began) * 1000

        for _ in range(_WARM):
            ask()
        cpu = server.cpu()
        took = [ask() for _ in range(_ASKED)]
        spent = (server.cpu() - cpu) / _ASKED * 1000
    p50, p95 = statistics.median(took), statistics.quantiles(took, n=20)[-1]
    settings = {
        "messages": effort.messages,
        "queues": filled.QUEUES,
        "p50_ms": round(p50, 1),
        "cpu_ms_per_page": round(spent, 1),
    }
    return latency_result(f"dashboard/{name}", round(p95, 1), {}, settings)


_kept: Final = ExitStack()
atexit.register(_kept.close)


@cache
def _filled(messages: int) -> tuple[Path, list[str]]:
    """A directory for all pages, and ids of messages in it."""
    directory = Path(_kept.enter_context(scratch())) / "data"
    known = filled.fill(directory, messages)
    filled.index(directory)
    return directory, known


HTTP_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    **{f"http/publish/{size}": partial(publish, size) for size in ("one", "batch")},
    **{f"dashboard/{name}": partial(page, name) for name in PAGES},
}
