"""The rows of the shared directory.

Everything is synced before it is confirmed, on both sides: huey's SQLite has `synchronous=FULL` and a write-ahead log,
so each of its messages waits for a sync of its own, whatever the number of processes. Guests that wait for each message
have as many under way as there are guests, so no sync can carry more. The limit of a row `one` is what is left when all
that a broker is for is left out (`bare.py`): processes that send and wait, and one that writes, syncs once for all, and
answers. Of the other rows it is the rate of one process that has the directory for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from benchmarks.effort import Effort
from benchmarks.results import Result, latency_result, rate_result
from benchmarks.scratch import scratch
from benchmarks.shared.bare import bare_host
from benchmarks.shared.guests import QUEUE, Ran, publishing, run, takeovers
from benchmarks.syncs import counted_syncs
from remuda import open_broker

END_TO_END, TAKEOVER = "shared/end-to-end/4g", "shared/takeover"
_BATCHES = {"one": 1, "batch100": 100}


class Round(NamedTuple):
    """One run of Remuda's."""

    rate: float
    messages_per_sync: float
    guest_us: float
    host_us: float


def publish(each: str, guests: int, effort: Effort) -> Result:
    """Guests publish side by side."""
    batch, seconds = _BATCHES[each], _seconds(effort)
    ours: list[Round] = []
    peers: list[Ran] = []
    limits: list[float] = []
    for _ in range(effort.rounds):  # in turn, so that a busy moment of the machine is everybody's
        ours.append(_remuda(guests, "remuda publish", seconds, batch))
        peers.append(_huey(guests, "publish", seconds, batch))
        limits.append(_bare(guests, seconds) if batch == 1 else _alone(seconds, batch))
    rate, huey, limit = (median(one.rate for one in ours), median(one.rate for one in peers), median(limits))
    settings: dict[str, Any] = {
        "guests": guests, "batch": batch, "sync": "always", "seconds": seconds, "huey_sync": "synchronous=FULL, WAL",
        "messages_per_sync": round(median(one.messages_per_sync for one in ours), 2),
        "cpu_us_per_message": {
            "guest": round(median(one.guest_us for one in ours), 1),
            "host": round(median(one.host_us for one in ours), 1),
            "huey": round(median(one.cpu_us for one in peers), 1),
        },
    }  # fmt: skip
    if batch == 1:
        settings["limit_to_huey"] = round(limit / huey, 1)
        settings["bound_by"] = (
            f"each guest waits for its message, so a sync carries {guests} at most (huey's carries 1), and guests and "
            f"host share the cores: with nothing but sockets and syncs it would be {limit / huey:.1f} times huey"
        )
    return rate_result(f"shared/publish/{each}/{guests}g", rate, {"huey": huey}, limit, settings)


def end_to_end(effort: Effort) -> Result:
    """Four guests publish, take and acknowledge ten at a time."""
    seconds = _seconds(effort)
    ours: list[float] = []
    huey: list[float] = []
    for _ in range(effort.rounds):
        ours.append(_remuda(4, "remuda handle", seconds, 10).rate)
        huey.append(_huey(4, "handle", seconds, 10).rate)
    settings = {"guests": 4, "batch": 10, "sync": "always", "seconds": seconds}
    return rate_result(END_TO_END, median(ours), {"huey": median(huey)}, None, settings)


def takeover(effort: Effort) -> Result:
    """From `kill -9` of the host to the next confirmed publish of another process."""
    with scratch() as folder:
        with open_broker(folder / "data") as broker:
            broker.create_queue(QUEUE, type="pull")
        found = takeovers(folder, 5 if effort.rounds == 1 else 30)
    p99 = found[min(int(len(found) * 0.99), len(found) - 1)]
    settings = {
        "p50_ms": round(median(found) * 1000, 1),
        "p99_ms": round(p99 * 1000, 1),
        "kills": len(found),
    }
    return latency_result(TAKEOVER, round(p99 * 1000, 1), {}, settings)


SHARED_ROWS: dict[str, Callable[[Effort], Result]] = {
    **{
        f"shared/publish/{each}/{guests}g": partial(publish, each, guests)
        for each in _BATCHES
        for guests in (1, 4)
    },
    END_TO_END: end_to_end,
    TAKEOVER: takeover,
}  # fmt: skip


def is_shared(result: Result) -> bool:
    return result.name.startswith("shared/")


def _seconds(effort: Effort) -> float:
    return max(effort.seconds, 0.5)


def _remuda(guests: int, work: str, seconds: float, batch: int) -> Round:
    with scratch() as folder, open_broker(folder / "data") as host:
        host.create_queue(QUEUE, type="pull")
        worked = time.process_time()
        with counted_syncs() as syncs:
            ran = run(guests, work, folder, seconds, batch)
        cpu = time.process_time() - worked
    return Round(ran.rate, ran.messages / max(syncs.total, 1), ran.cpu_us, cpu / ran.messages * 1e6)


def _huey(guests: int, work: str, seconds: float, batch: int) -> Ran:
    with scratch() as folder:
        return run(guests, f"huey {work}", folder, seconds, min(batch, 10))


def _bare(guests: int, seconds: float) -> float:
    with scratch() as folder, bare_host(folder, guests):
        return run(guests, "bare publish", folder, seconds, 1).rate


def _alone(seconds: float, batch: int) -> float:
    with scratch() as folder, open_broker(folder / "data") as broker:
        broker.create_queue(QUEUE, type="pull")
        step = publishing(broker, batch)
        step()
        begin, messages = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            messages += step()
        return messages / (time.perf_counter() - begin)
