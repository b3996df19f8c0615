"""The rows of flow: what order per key costs, and serial work through four processes beside peers."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.effort import Effort
from benchmarks.flow import peers, tenants
from benchmarks.flow.worker import QUEUE
from benchmarks.results import Result, rate_result
from benchmarks.scratch import scratch
from remuda import Message, open_broker
from tests.servers.postgres import running_postgres

_ROOT: Final = Path(__file__).resolve().parents[2]
_KEYS: Final = 20
_PROCESSES: Final = 4
_LONGEST: Final = 300


def ordered(keys: int, effort: Effort) -> Result:
    """Publish, pull and acknowledge with order per key; the limit is the same without rules. One key lets one message
    out at a time, so that row pulls one by one on both sides."""
    count = max(int(100_000 * effort.seconds), keys if keys > 10_000 else 0)
    each = 1 if keys == 1 else 100
    count = count // 10 if each == 1 else count
    plain = statistics.median(_drain(count, keys, each, rules=False) for _ in range(effort.rounds))
    ours = statistics.median(_drain(count, keys, each, rules=True) for _ in range(effort.rounds))
    return rate_result(f"flow/ordered-{keys}", ours, {}, plain, {"keys": keys, "count": count, "pulled": each})


def _drain(count: int, keys: int, each: int, *, rules: bool) -> float:
    with scratch() as directory, open_broker(directory, sync="os") as broker:
        broker.create_queue(QUEUE, type="pull", ordered=rules)
        begin = time.perf_counter()
        for first in range(0, count, 100):
            broker.publish([Message(QUEUE, b"x" * 100, key=str(row % keys)) for row in range(first, first + 100)])
        left = count
        while left > 0:
            delivery = broker.pull(QUEUE, count=each)
            assert delivery is not None
            left -= len(delivery)
            delivery.ack()
        return count / (time.perf_counter() - begin)


def serial(effort: Effort) -> Result:
    """Jobs of twenty keys, each key's one after the other, through four processes, from the first job to the last."""
    count = max(int(3000 * effort.seconds) // 100 * 100, 200)
    ours = statistics.median(_remuda(count) for _ in range(effort.rounds))
    others: dict[str, float | None] = {}
    settings: dict[str, object] = {"keys": _KEYS, "processes": _PROCESSES, "count": count}
    for name, side in (("procrastinate", _procrastinate), ("pgqueuer", _pgqueuer), ("celery with file locks", _celery)):
        try:
            others[name] = side(max(count // 4 // 100 * 100, 100))
        except Exception as error:
            others[name], settings[name] = None, f"{type(error).__name__}: {error}"[:200]
    return rate_result("flow/serial-4-processes", ours, others, None, settings)


def _remuda(count: int) -> float:
    with scratch() as directory:
        with open_broker(directory / "data", sync="os") as broker:
            broker.create_queue(QUEUE, type="pull", ordered=True)
            for first in range(0, count, 100):
                broker.publish([Message(QUEUE, b"1", key=str(row % _KEYS)) for row in range(first, first + 100)])
        return _timed(
            count, directory / "done", partial(_workers, "remuda", str(directory / "data"), directory / "done")
        )


def _procrastinate(count: int) -> float:
    with running_postgres() as server, server.database() as url, scratch() as directory:
        peers.procrastinate_publish(url, count, _KEYS)
        return _timed(count, directory / "done", partial(_workers, "procrastinate", url, directory / "done"))


def _pgqueuer(count: int) -> float:
    with running_postgres() as server, server.database() as url, scratch() as directory:
        peers.pgqueuer_publish(url, count, _KEYS)
        return _timed(count, directory / "done", partial(_workers, "pgqueuer", url, directory / "done"))


def _celery(count: int) -> float:
    with scratch() as directory:
        recipe = peers.CeleryRecipe(directory, directory / "done")
        try:
            recipe.publish(count, _KEYS)
            return _timed(count, directory / "done", None)
        finally:
            recipe.close()


@contextmanager
def _workers(side: str, place: str, done: Path) -> Iterator[None]:
    environment = {**os.environ, "PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
    command = [sys.executable, "-m", "benchmarks.flow.worker", side, place, str(done), str(_KEYS)]
    running = [
        subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(_PROCESSES)
    ]
    try:
        yield
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.wait(60)


def _timed(count: int, done: Path, workers: Callable[[], object] | None) -> float:
    """Jobs per second between the first that is done and the last."""
    if workers is None:
        return _watched(count, done)
    with workers():  # type: ignore[attr-defined]
        return _watched(count, done)


def _watched(count: int, done: Path) -> float:
    begin, first, seen = time.perf_counter(), 0.0, 0
    while seen < count:
        if time.perf_counter() - begin > _LONGEST:
            raise TimeoutError(f"{seen} of {count} jobs were done in {_LONGEST} s")
        now = done.stat().st_size if done.exists() else 0
        if now and not first:
            first, seen_first = time.perf_counter(), now
        seen = now
        time.sleep(0.002)
    return (count - seen_first) / max(time.perf_counter() - first, 1e-9)


FLOW_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    **{f"flow/ordered-{keys}": partial(ordered, keys) for keys in (1, 1000, 1_000_000)},
    "flow/memory-1000000-keys-1-each": partial(tenants.memory, 1_000_000, 1),
    "flow/memory-100000-keys-10-each": partial(tenants.memory, 100_000, 10),
    "flow/fair-100000-tenants": partial(tenants.fair, 100_000),
    "flow/serial-4-processes": serial,
}
