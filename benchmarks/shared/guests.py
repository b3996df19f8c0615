"""What each process of a row does, from a common start until its time is up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from huey.storage import SqliteStorage

from benchmarks.shared.bare import bare_guest
from remuda import Message, open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.log.disk.directory import DirectoryDisk

BODY = b"x" * 200
QUEUE = "jobs"
Work = Callable[[], int]


class Ran(NamedTuple):
    """What processes that worked side by side came to."""

    rate: float
    messages: int
    cpu_us: float
    """Of all of them, for each message."""


def run(count: int, work: str, directory: Path, seconds: float, batch: int) -> Ran:
    """Let `count` processes all do this work."""
    context: Any = multiprocessing.get_context("spawn")
    start, results = context.Barrier(count + 1), context.Queue()
    children = [
        context.Process(target=_child, args=(work, str(directory), seconds, batch, start, results), daemon=True)
        for _ in range(count)
    ]
    for child in children:
        child.start()
    start.wait(120)
    done = [results.get(timeout=seconds + 120) for _ in children]
    for child in children:
        child.join(60)
    messages = sum(each for each, _, _ in done)
    return Ran(sum(each / took for each, took, _ in done), messages, sum(cpu for _, _, cpu in done) / messages * 1e6)


def _child(work: str, directory: str, seconds: float, batch: int, start: Any, results: Any) -> None:
    step, close = _WORKS[work](Path(directory), batch)
    step()
    start.wait(120)
    begin, worked, messages = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begin < seconds:
        messages += step()
    took, cpu = time.perf_counter() - begin, time.process_time() - worked
    close()
    results.put((messages, took, cpu))


def publishing(broker: EmbeddedBroker, batch: int) -> Work:
    def step() -> int:
        if batch == 1:
            broker.publish(Message(QUEUE, BODY), queue=QUEUE)
        else:
            broker.publish([Message(QUEUE, BODY)] * batch, queue=QUEUE)
        return batch

    return step


def handling(broker: EmbeddedBroker, batch: int) -> Work:
    """Publish some, and take and acknowledge as many."""
    publish = publishing(broker, batch)

    def step() -> int:
        publish()
        delivery = broker.pull(QUEUE, batch)
        return 0 if delivery is None else delivery.ack()

    return step


def _remuda(work: Callable[[EmbeddedBroker, int], Work]) -> Callable[[Path, int], tuple[Work, Callable[[], None]]]:
    def start(directory: Path, batch: int) -> tuple[Work, Callable[[], None]]:
        broker = open_broker(directory / "data")
        return work(broker, batch), broker.close

    return start


def _huey(directory: Path, batch: int, *, takes: bool) -> tuple[Work, Callable[[], None]]:
    storage = SqliteStorage("bench", filename=str(directory / "huey.db"), fsync=True, timeout=60)

    def step() -> int:
        for _ in range(batch):
            storage.enqueue(BODY)
        if not takes:
            return batch
        return sum(storage.dequeue() is not None for _ in range(batch))

    return step, storage.close


_WORKS: dict[str, Callable[[Path, int], tuple[Work, Callable[[], None]]]] = {
    "remuda publish": _remuda(publishing),
    "remuda handle": _remuda(handling),
    "huey publish": lambda directory, batch: _huey(directory, batch, takes=False),
    "huey handle": lambda directory, batch: _huey(directory, batch, takes=True),
    "bare publish": lambda directory, batch: bare_guest(directory, BODY),
}


def takeovers(directory: Path, times: int) -> list[float]:
    """Seconds from the kill of a host to the next publish that another process is told is kept."""
    context: Any = multiprocessing.get_context("spawn")
    alive: dict[int, tuple[Any, Any]] = {}

    def start() -> None:
        # A pipe for each: a process that is killed while it writes leaves nothing locked that others need.
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_publisher, args=(str(directory / "data"), sender), daemon=True)
        child.start()
        sender.close()
        alive[child.pid] = child, receiver

    def told() -> list[tuple[int, float]]:
        """Who published, and when, as far as it is known by now."""
        pids = {receiver: pid for pid, (_, receiver) in alive.items()}
        ready: list[Any] = wait(list(pids), 120)
        if not ready:
            raise TimeoutError("nobody has published for two minutes")
        return [(pids[receiver], receiver.recv()) for receiver in ready]

    found: list[float] = []
    for _ in range(3):
        start()
    try:
        for _ in range(times):
            heard: set[int] = set()
            while not heard >= alive.keys():  # whoever is still starting cannot take over
                heard |= {pid for pid, _ in told()}
            while (host := DirectoryDisk(directory / "data", create=False).holder().pid) not in alive:
                time.sleep(0.01)
            killed = time.monotonic()
            os.kill(host, signal.SIGKILL)
            child, receiver = alive.pop(host)
            child.join(60)
            receiver.close()
            while not (after := [at for _, at in told() if at > killed + 0.0005]):
                pass
            found.append(min(after) - killed)
            start()
    finally:
        for child, _ in alive.values():
            child.kill()
            child.join(60)
    return sorted(found)


def _publisher(directory: str, told: Any) -> None:
    with open_broker(directory) as broker:
        while True:
            broker.publish(Message(QUEUE, BODY), queue=QUEUE)
            told.send(time.monotonic())
            time.sleep(0.002)
