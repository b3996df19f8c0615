"""The server's rows: `server/<transient|durable|synced>/<1-1|2-2>/<100B|1KiB>` and `server/sync-share`.

The same clients, in processes of their own, drive Remuda and RabbitMQ in turn, with confirms, manual acknowledgements
and a prefetch of 1000. Measured are messages per second from the first publish to the last acknowledgement, and the CPU
time that the server needs for each. The limit of a synced row is what the same clients make of a server that only
writes, syncs, confirms and hands on (`bare.py`); beside it stands what the disk alone takes in synced writes of a
window.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.effort import Effort
from benchmarks.processes import cpu_seconds
from benchmarks.results import Result, rate_result
from benchmarks.scratch import scratch
from remuda.amqp.client.connection import Connection
from tests.servers.rabbitmq import RabbitNode, end_node

_CLIENT: Final = (sys.executable, "-m", "benchmarks.server.client")
_ROOT: Final = Path(__file__).parents[2]
_PER_SECOND: Final = 40_000
_WINDOW: Final = 1000
_SIZES: Final = {"100B": 100, "1KiB": 1024}
_PAIRS: Final = {"1-1": 1, "2-2": 2}
_LATER: Final = "; sealing is put off to a quiet moment"
_BOUND_BY: Final = {
    "transient": "one core's Python: the server is a single process",
    "durable": f"one core's Python: the server is a single process{_LATER}",
    "synced": f"one core's Python, and a sync for each window of confirms{_LATER}",
}
_LARGER: Final = "; of what a consumer leaves more than 8 MiB behind, the log is read again"
_ROOM: Final = 64 << 20
_PUT_OFF: Final = 15.0
_LOOK: Final = 1.2
"""Longer than a server of ours needs to find that it is quiet now."""
_IDLE: Final = 0.1
_numbers = itertools.count(1)


class Target(NamedTuple):
    """A running server."""

    url: str
    pid: int


class Round(NamedTuple):
    rate: float
    cpu: float
    """Microseconds of the server for each message."""
    client: float
    """The share of a core that the busiest client took: near 1, it is the client that is measured."""


@contextmanager
def remuda(sync: str, syncs: list[int] | None = None, *, warm: bool = True) -> Iterator[Target]:
    """Our server in a process of its own; at its end it adds how often it synced."""
    with scratch() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.server.served", str(folder / "data"), sync, *(["warm"] if warm else [])],
            stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=_environment(),
        )  # fmt: skip
        assert process.stdout is not None
        try:
            yield Target(f"{process.stdout.readline().strip()}/", process.pid)
            process.terminate()
            told = process.communicate(timeout=60)[0]
            if syncs is not None:
                syncs.append(int(told.split()[-1]))
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


@contextmanager
def bare() -> Iterator[Target]:
    """A server that only syncs, confirms and hands on."""
    with scratch() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.server.bare", str(folder)],
            stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=_environment(),
        )  # fmt: skip
        assert process.stdout is not None
        try:
            yield Target(f"{process.stdout.readline().strip()}/", process.pid)
        finally:
            process.kill()
            process.communicate()


@contextmanager
def rabbitmq() -> Iterator[Target]:
    node = RabbitNode(Path(tempfile.mkdtemp(prefix="remuda-bench-")), "server", one_scheduler=False)
    try:
        node.start()
        yield Target(node.url, int((node.directory / "pid").read_text()))
    finally:
        end_node(node)


def measure(
    target: Target, *, pairs: int, size: int, count: int, durable: bool, kind: str, window: int = _WINDOW
) -> Round:
    """Let `pairs` of publishers and consumers, each with a queue, move `count` messages in all."""
    each = count // pairs
    names = [f"bench-{os.getpid()}-{next(_numbers)}" for _ in range(pairs)]
    with Connection(target.url) as connection:
        channel = connection.channel()
        for name in names:
            channel.declare_queue(name, durable=durable, arguments={"x-queue-type": kind})
        clients = [
            subprocess.Popen(
                [*_CLIENT, work, target.url, name, str(each), str(size), str(window)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=_environment(),
            )
            for name in names
            for work in ("publish", "consume")
        ]  # fmt: skip
        try:
            for client in clients:
                assert client.stdout is not None
                assert client.stdout.readline() == "ready\n"
            worked, began = cpu_seconds(target.pid), time.perf_counter()
            for client in clients:
                assert client.stdin is not None
                client.stdin.write("\n")
                client.stdin.flush()
            shares = []
            for client in clients:
                assert client.stdout is not None
                said, share = client.stdout.readline().split()
                assert said == "done"
                shares.append(float(share))
            seconds = time.perf_counter() - began
            cpu = (cpu_seconds(target.pid) - worked) / (each * pairs) * 1e6
        finally:
            for client in clients:
                if client.poll() is None:
                    client.kill()
                client.communicate()
        for name in names:
            channel.delete_queue(name)
    return Round(each * pairs / seconds, cpu, max(shares))


def disk_rate(size: int, window: int, seconds: float) -> float:
    """Messages of a second that the disk takes if nothing is done but to write and sync as many as a window has."""
    data, count = bytes(size * window), 0
    with scratch() as folder:
        handle = os.open(folder / "log", os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(handle, 0, _ROOM)
            began = time.perf_counter()
            while (took := time.perf_counter() - began) < seconds or not count:
                at = count * size % (_ROOM - len(data))
                os.pwrite(handle, data, at)
                os.fdatasync(handle)
                count += window
        finally:
            os.close(handle)
    return count / took


def wait_until_idle(target: Target) -> None:
    """Return when a server does little or nothing, or does not come to an end with it."""
    deadline, worked = time.monotonic() + _PUT_OFF, cpu_seconds(target.pid)
    while time.monotonic() < deadline:
        time.sleep(_LOOK)
        before, worked = worked, cpu_seconds(target.pid)
        if worked - before < _IDLE * _LOOK:
            return


def row(name: str, effort: Effort) -> Result:
    """One row: Remuda, and RabbitMQ with classic queues or, where messages are synced, with quorum queues too."""
    _, mode, pairs, size = name.split("/")
    count = max(2000, round(_PER_SECOND * effort.seconds))
    shape: Any = {"pairs": _PAIRS[pairs], "size": _SIZES[size], "durable": mode != "transient"}
    rounds: dict[str, list[Round]] = {"remuda": [], "classic": []}
    limits: list[float] = []
    disk: list[float] = []
    with contextlib.ExitStack() as servers:
        ours = servers.enter_context(remuda("always" if mode == "synced" else "os"))
        theirs = servers.enter_context(rabbitmq())
        least = servers.enter_context(bare()) if mode == "synced" else None
        measure(ours, **shape, count=2000, kind="classic")
        for _ in range(effort.rounds):
            # About as many as take the same time.
            rounds["remuda"].append(measure(ours, **shape, count=4 * count, kind="classic"))
            wait_until_idle(ours)  # what it put off, as sealing, is not to cost the other side
            rounds["classic"].append(measure(theirs, **shape, count=count, kind="classic"))
            if mode == "synced":
                rounds.setdefault("quorum", []).append(measure(theirs, **shape, count=count, kind="quorum"))
            wait_until_idle(theirs)
            if least is not None:
                limits.append(measure(least, **shape, count=4 * count, kind="classic").rate)
                disk.append(disk_rate(shape["size"], _WINDOW * shape["pairs"], effort.seconds / 4))
    rates = {side: statistics.median(one.rate for one in found) for side, found in rounds.items()}
    settings: dict[str, Any] = {
        "window": _WINDOW, "prefetch": 1000,
        "server_us_per_message": {
            side: round(statistics.median(one.cpu for one in found), 1) for side, found in rounds.items()
        },
        "rounds": {side: [round(one.rate) for one in found] for side, found in rounds.items()},
        "busiest_client": {
            side: round(statistics.median(one.client for one in found), 2) for side, found in rounds.items()
        },
        "bound_by": _BOUND_BY[mode] + (_LARGER if size == "1KiB" else ""),
    }  # fmt: skip
    limit = statistics.median(limits) if limits else None
    if limit is not None:
        alone = statistics.median(disk)
        settings["disk_alone"] = round(alone)
        settings["bound_by"] += (
            f"; one that only syncs, confirms and hands on is {limit / rates['quorum']:.1f} times quorum, and the disk "
            f"alone, in synced writes of a window, {alone / rates['quorum']:.1f} times"
        )
    return rate_result(name, rates.pop("remuda"), dict(rates), limit, settings)


def sync_share(effort: Effort) -> Result:
    """Messages for each sync, as a share of the window that the publisher keeps open; the worse of two windows."""
    shares = {}
    for window in (100, 1000):
        syncs: list[int] = []
        count = max(60 * window, round(_PER_SECOND * effort.seconds / 4))
        with remuda("always", syncs) as ours:
            measure(ours, pairs=1, size=100, count=count, durable=True, kind="classic", window=window)
        shares[window] = count / syncs[0] / window
    settings = {
        "share_by_window": {str(window): round(share, 2) for window, share in shares.items()},
        "bound_by": "how soon the publisher sends the next window after it was confirmed",
    }
    return Result(name=SYNC_SHARE, unit="share", remuda=round(min(shares.values()), 2), settings=settings)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])}


def is_server(result: Result) -> bool:
    return result.name.startswith("server/")


SYNC_SHARE: Final = "server/sync-share"
SERVER_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    **{
        name: partial(row, name)
        for name in (
            f"server/{mode}/{pairs}/{size}"
            for mode in ("transient", "durable", "synced")
            for pairs in _PAIRS
            for size in _SIZES
        )
    },
    SYNC_SHARE: sync_share,
}
