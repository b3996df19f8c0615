"""Steps of the big rows that want a process of their own: it can be killed, and its memory is its own.

    python -m benchmarks.children STEP DIRECTORY COUNT

prints what the step found out as one line of JSON.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from benchmarks.contenders.remuda_broker import Remuda
from benchmarks.drive import drive
from benchmarks.workload import Workload
from remuda import Binding, Bus, Message, Messages, open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.values.durations import HOUR

QUEUE: Final = "bench"
LIVE: Final = 10_000
_BATCH: Final = 1000
_BODIES: Final = [f"{number:0200d}".encode() for number in range(_BATCH)]
_PULLS: Final = 2000
_WARM: Final = 200
IDLE_SECONDS: Final = 10.0
SINGLE: Final = Workload("embedded/one/1p/os/200B", 1, 1, "os", 200)

Found = dict[str, Any]


def settle_and_die(directory: Path, count: int) -> Found:
    """Publish, take and acknowledge `count` messages, leave 10,000 waiting, and be killed."""
    broker = _open(directory)
    start = time.perf_counter()
    for _ in range(count // _BATCH):
        broker.publish(Messages(name=QUEUE, bodies=_BODIES))
        delivery = broker.pull(QUEUE, _BATCH)
        assert delivery is not None
        delivery.ack()
    _tell({"settled_per_second": round(count / (time.perf_counter() - start))})
    _fill(broker, LIVE)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


def restart(directory: Path, count: int) -> Found:
    """Open, see that the live messages are there, close."""
    start = time.perf_counter()
    broker = open_broker(directory, sync="os")
    seconds = time.perf_counter() - start
    waiting = broker.queue(QUEUE).waiting
    assert waiting == count, f"{waiting} messages wait where {count} should"
    broker.close()
    return {"seconds": round(seconds, 4)}


def backlog(directory: Path, count: int) -> Found:
    """Let `count` messages wait; what that costs in memory, and how soon the head comes."""
    broker = _open(directory)
    start = time.perf_counter()
    _fill(broker, count)
    seconds = time.perf_counter() - start
    found: Found = {"resident_mb": _memory("VmRSS"), "published_per_second": round(count / seconds)}
    found["head_ms"] = _head_latency(broker)
    found["peak_mb"] = _memory("VmHWM")
    broker.close()
    return found


def delayed(directory: Path, count: int) -> Found:
    """Let `count` messages wait, each for a time of its own, and take a checkpoint of them."""
    broker = _open(directory)
    random, begin = Random(1), time.time_ns() // 1000
    for _ in range(count // _BATCH):
        due: list[int | None] = [begin + random.randrange(HOUR, 100 * HOUR) for _ in range(_BATCH)]
        broker.publish(Messages(name=QUEUE, bodies=[b"x"] * _BATCH, due=due))
    broker.checkpoint()
    found: Found = {"resident_mb": _memory("VmRSS"), "peak_mb": _memory("VmHWM")}
    assert broker.queue(QUEUE).delayed == count
    broker.close()
    return found


def batches(directory: Path, count: int) -> Found:
    """Let `count` small messages wait that came in batches."""
    broker = _open(directory)
    bodies = [b"x"] * _BATCH
    for _ in range(count // _BATCH):
        broker.publish(Messages(name=QUEUE, bodies=bodies))
    found: Found = {"resident_mb": _memory("VmRSS"), "head_ms": _head_latency(broker), "peak_mb": _memory("VmHWM")}
    broker.close()
    return found


def single(directory: Path, count: int) -> Found:
    """Publish, take and acknowledge one message after the other."""
    session = Remuda().open(SINGLE, directory)
    drive(session, SINGLE, _WARM)
    seconds = drive(session, SINGLE, count)
    session.close()
    return {"rate": count / seconds}


def ways(directory: Path, count: int) -> Found:
    """CPU time of a publish to a queue by its topic, through an exchange, and through a router."""
    directory.mkdir()
    broker = open_broker(directory / "broker", sync="os")
    broker.create_queue(QUEUE, type="pull")
    broker.create_router("exchange", "topic", [Binding(queue=QUEUE, key=f"{QUEUE}.#")])
    broker.create_router("router", "distribute", [Binding(queue=QUEUE)])
    message = Message(f"{QUEUE}.row", _BODIES[0])
    publishes: dict[str, Callable[[], object]] = {
        "queue": lambda: broker.publish(message),
        "exchange": lambda: broker.route("exchange", message),
        "router": lambda: broker.route("router", message),
    }
    micros: dict[str, list[float]] = {way: [] for way in publishes}
    for _ in range(5):
        for way, publish in publishes.items():
            start = time.process_time()
            for _ in range(count):
                publish()
            micros[way].append(1e6 * (time.process_time() - start) / count)
            broker.clear(QUEUE)
    broker.close()
    return {way: round(sorted(found)[len(found) // 2], 2) for way, found in micros.items()}


def idle(directory: Path, count: int) -> Found:
    """What so many handlers cost while no message comes: the share of a core, and switches between threads."""
    with Bus(directory, sync="os") as bus:
        for number in range(count):
            bus.subscribe(f"idle{number}", queue=f"idle{number}")(_ignore)
        bus.start()
        time.sleep(1)
        before, cpu, start = _switches(), time.process_time(), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        seconds = time.perf_counter() - start
        return {
            "percent": round(100 * (time.process_time() - cpu) / seconds, 3),
            "switches_per_second": round((_switches() - before) / seconds, 1),
        }


def _ignore(body: str) -> None:
    """Handle nothing: no message comes."""


def _switches() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nvcsw + used.ru_nivcsw


STEPS: Final[dict[str, Callable[[Path, int], Found]]] = {
    "settle-and-die": settle_and_die,
    "restart": restart,
    "backlog": backlog,
    "delayed": delayed,
    "batches": batches,
    "single": single,
    "ways": ways,
    "idle": idle,
}


def _open(directory: Path) -> EmbeddedBroker:
    broker = open_broker(directory, sync="os")
    broker.create_queue(QUEUE, type="pull")
    return broker


def _fill(broker: EmbeddedBroker, count: int) -> None:
    for _ in range(count // _BATCH):
        broker.publish(Messages(name=QUEUE, bodies=_BODIES))


def _head_latency(broker: EmbeddedBroker) -> Found:
    """Milliseconds to take and acknowledge the first message, over and over."""
    pulls = min(_PULLS, broker.queue(QUEUE).waiting // 2)
    times = []
    for _ in range(pulls):
        start = time.perf_counter()
        delivery = broker.pull(QUEUE, 1)
        assert delivery is not None
        delivery.ack()
        times.append(time.perf_counter() - start)
    times.sort()
    return {"p50": round(1000 * times[pulls // 2], 4), "p99": round(1000 * times[pulls * 99 // 100], 4)}


def _memory(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith(field + ":"))
    return round(int(kilobytes) / 1000, 1)


def _tell(found: Found) -> None:
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _tell(STEPS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3])))
