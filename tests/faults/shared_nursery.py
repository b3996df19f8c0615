"""Processes on one directory that are killed at random, and an account of what they were told (S5).

Run as `python -m tests.faults.shared_nursery DIRECTORY KILLS SEED`; prints one line of JSON. The processes are forked
from this one, which has no broker open, so that a hundred of them cost little.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from remuda import Message, open_broker
from remuda.log.disk.directory import DirectoryDisk
from remuda.model.errors import RemudaError

PROCESSES = 4


def live(directory: Path, journal: Path, name: str) -> None:
    """Publish and handle messages until killed; what was confirmed is written down at once."""
    note = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    stop: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    broker = open_broker(directory, sync="os")
    number = 0
    while not stop:
        bodies = [f"{name}-{number + at}".encode() for at in range(1 + number % 3)]
        number += len(bodies)
        broker.publish([Message("jobs", body) for body in bodies])
        now = time.monotonic()
        os.write(note, b"".join(b"P %.6f %s\n" % (now, body) for body in bodies))
        delivery = broker.pull("jobs", 1 + number % 4, timeout=0)
        if delivery is not None:
            got = list(delivery.bodies)
            if delivery.ack() == len(got):
                os.write(note, b"".join(b"S %.6f %s\n" % (time.monotonic(), body) for body in got))
    broker.close()
    os._exit(0)


def start(directory: Path, journals: Path, name: str) -> int:
    child = os.fork()
    if child == 0:
        try:
            live(directory, journals / name, name)
        except RemudaError as error:
            os.write(2, f"{name}: {type(error).__name__}: {error}\n".encode())
        except BaseException:
            os.write(2, f"{name}: {traceback.format_exc()}\n".encode())
        finally:
            os._exit(1)
    return child


def wait_for_progress(journals: Path) -> None:
    """Until something was confirmed since now: else the next kill hits a process that has not yet taken over."""
    before, deadline = volume(journals), time.monotonic() + 60
    while volume(journals) == before and time.monotonic() < deadline:
        time.sleep(0.002)


def volume(journals: Path) -> int:
    return sum(journal.stat().st_size for journal in journals.iterdir())


def storm(directory: Path, kills: int, seed: int) -> dict[str, object]:
    chance = random.Random(seed)
    journals = directory.parent / "journals"
    journals.mkdir()
    with open_broker(directory, sync="os") as broker:
        broker.create_queue("jobs", type="pull", acknowledge_timeout="60s")
    names = (f"p{number}" for number in range(100_000))
    alive = {start(directory, journals, next(names)) for _ in range(PROCESSES)}
    hosts = killed = ended = 0
    host_kills: list[float] = []
    deadline = time.monotonic() + 400
    while killed < kills and time.monotonic() < deadline:
        time.sleep(chance.uniform(0.01, 0.12))
        wait_for_progress(journals)
        with contextlib.suppress(ChildProcessError):
            while (gone := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                # Nobody killed it: it raised, which is a failure of its own.
                alive.discard(gone)
                alive.add(start(directory, journals, next(names)))
                ended += 1
        host = DirectoryDisk(directory, create=False).holder().pid
        victim = host if host in alive and chance.random() < 0.6 else chance.choice(sorted(alive))
        if victim == host:
            hosts += 1
            host_kills.append(time.monotonic())
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        alive.discard(victim)
        alive.add(start(directory, journals, next(names)))
        killed += 1
    wait_for_progress(journals)
    for child in alive:
        os.kill(child, signal.SIGTERM)
    for child in alive:
        os.waitpid(child, 0)
    return {
        **account(directory, journals, host_kills),
        "kills": killed,
        "host_kills": hosts,
        "raised": ended,
    }


def account(directory: Path, journals: Path, host_kills: list[float]) -> dict[str, object]:
    published: dict[bytes, float] = {}
    settled: dict[bytes, int] = {}
    for journal in journals.iterdir():
        for line in journal.read_bytes().splitlines():
            what, when, body = line.split(b" ", 2)
            if what == b"P":
                published[body] = float(when)
            else:
                settled[body] = settled.get(body, 0) + 1
    with open_broker(directory, sync="os") as broker:
        left: set[bytes] = set()
        while (delivery := broker.pull("jobs", 1000)) is not None:
            left.update(delivery.bodies)
            delivery.ack()
        stored: dict[bytes, list[int]] = {}
        offsets: dict[int, bytes] = {}
        for record in broker.spectate().messages():
            for row, body in enumerate(record.messages.bodies):
                stored.setdefault(body, []).append(record.first + row)
                offsets[record.first + row] = body
        completed: set[int] = set()
        again = 0
        for events in broker.spectate().events():
            for event in events.rows:
                run = range(event.first, event.first + event.count)
                if event.state.value == "X":
                    completed.update(run)
                elif event.state.value == "F":
                    again += sum(offset in completed for offset in run)
    times = sorted(published.values())
    takeovers = sorted(next((at - kill for at in times if at > kill), 99.0) for kill in host_kills)
    return {
        "published": len(published),
        "settled": len(settled),
        "lost": len([body for body in published if body not in stored or not set(stored[body]) <= completed]),
        "stored_twice": len([body for body, where in stored.items() if len(where) > 1]),
        "settled_twice": len([body for body, count in settled.items() if count > 1]),
        "delivered_again": again + len(left & settled.keys()),
        "takeover_median": takeovers[len(takeovers) // 2] if takeovers else None,
        "takeover_p99": takeovers[int(len(takeovers) * 0.99)] if takeovers else None,
    }


if __name__ == "__main__":
    print(json.dumps(storm(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
