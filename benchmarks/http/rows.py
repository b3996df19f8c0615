"""The rows: how many messages a second can be published, and how long each page takes."""

from __future__ import annotations

import atexit
import http.client
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.effort import Effort
from benchmarks.results import Result, latency_result, rate_result
from benchmarks.scratch import scratch
from remuda.bus.bus import Bus
from remuda.index import LogSource, open_index, rebuild
from remuda.log.disk import DirectoryDisk

_BATCH: Final = 5_000
_FILL: Final = 50_000
_QUEUES: Final = 10_000
_BUSY: Final = 20
"""Queues that hold messages."""
_ASKED: Final = 40
_TICK: Final = os.sysconf("SC_CLK_TCK")
PAGES: Final = {
    "overview": "/",
    "queue": "/queues/queue.0",
    "messages": "/messages?queue=queue.0",
    "search": "/messages?text=customer+C777",
    "message": "/messages/{id}",
    "dead": "/dead?queue=queue.0",
    "latency": "/latency",
    "topics": "/topics",
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

    def cpu(self) -> float:
        """Seconds of processor time that the server has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK


@contextmanager
def served(directory: Path) -> Iterator[Served]:
    command = [sys.executable, "-m", "benchmarks.http.served", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Served(process, process.stdout.readline().strip())
        finally:
            process.terminate()


def publish(size: str, effort: Effort) -> Result:
    """Messages of 200 bytes, each synced to the disk: one by one, and in NDJSON batches."""
    line = b'{"topic":"order.placed","key":"42","body":{"customer":"' + b"x" * 175 + b'"}}'
    content, many = (line, 1) if size == "one" else (b"\n".join([line] * _BATCH), _BATCH)
    kind = "application/json" if size == "one" else "application/x-ndjson"
    rates, costs = [], []
    with scratch() as folder, served(Path(folder) / "data") as server:
        server.ask("PUT", "/api/v1/queues/order", b'{"type":"pull"}')
        server.ask("POST", "/api/v1/messages?queue=order", content, kind)
        for _ in range(effort.rounds):
            began, cpu, sent = time.perf_counter(), server.cpu(), 0
            while time.perf_counter() - began < max(effort.seconds * 5, 1):
                server.ask("POST", "/api/v1/messages?queue=order", content, kind)
                sent += many
            rates.append(sent / (time.perf_counter() - began))
            costs.append((server.cpu() - cpu) / sent * 1e6)
    settings = {"batch": many, "bytes": 200, "cpu_us_per_message": round(statistics.median(costs), 2), "clients": 1}
    return rate_result(f"http/publish/{size}", statistics.median(rates), {}, None, settings)


def page(name: str, effort: Effort) -> Result:
    """The 95th percentile of the time for one page, with the messages of the effort in the log and in the index."""
    directory, known = _filled(effort.messages)
    with served(directory) as server:
        path = PAGES[name].format(id=known)
        for _ in range(3):
            server.ask("GET", path)
        took, cpu = [], server.cpu()
        for _ in range(_ASKED):
            began = time.perf_counter()
            server.ask("GET", path)
            took.append((time.perf_counter() - began) * 1000)
        spent = (server.cpu() - cpu) / _ASKED * 1000
    p50, p95 = statistics.median(took), statistics.quantiles(took, n=20)[-1]
    settings = {
        "messages": effort.messages, "queues": _QUEUES, "p50_ms": round(p50, 1), "cpu_ms_per_page": round(spent, 1)
    }  # fmt: skip
    return latency_result(f"dashboard/{name}", round(p95, 1), {}, settings)


_kept: Final = ExitStack()
atexit.register(_kept.close)


@cache
def _filled(messages: int) -> tuple[Path, str]:
    """A directory for all pages, and the id of a message in it."""
    directory = Path(_kept.enter_context(scratch())) / "data"
    known = _fill(directory, messages)
    index = open_index(directory / "index")
    rebuild(index, LogSource(DirectoryDisk(directory, create=False)))
    index.close()
    return directory, known


def _fill(directory: Path, messages: int) -> str:
    """Fill a log; a part of each busy queue is dead. Gives the id of a message."""
    with Bus(directory) as bus:
        for number in range(_QUEUES):
            bus.broker.create_queue(f"queue.{number}", type="pull", patterns=[f"topic{number}.#"])
        known, left, number = "", messages, 0
        while left > 0:
            bodies = [{"customer": f"C{row}", "n": row} for row in range(min(_FILL, left))]
            known = bus.publish_many(f"topic{number % _BUSY}.made", bodies)[0]
            left, number = left - len(bodies), number + 1
        for number in range(_BUSY):
            delivery = bus.broker.pull(f"queue.{number}", 200)
            if delivery is not None:
                delivery.dead(reason="ValueError: no stock")
    return known


HTTP_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    **{f"http/publish/{size}": partial(publish, size) for size in ("one", "batch")},
    **{f"dashboard/{name}": partial(page, name) for name in PAGES},
}
