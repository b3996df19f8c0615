"""The rows of the shared directory. Everything is synced before it is confirmed, on both sides."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from benchmarks.effort import Effort
from benchmarks.results import Result, latency_result, rate_result
from benchmarks.scratch import scratch
from benchmarks.shared.guests import QUEUE, publishing, rate, takeovers
from remuda import open_broker

END_TO_END, TAKEOVER = "shared/end-to-end/4g", "shared/takeover"
_BATCHES = {"one": 1, "batch100": 100}


def publish(each: str, guests: int, effort: Effort) -> Result:
    """Guests publish side by side; the limit is the rate of one process that has the directory for itself."""
    batch, seconds = _BATCHES[each], _seconds(effort)
    ours, huey, alone = _medians(
        effort.rounds,
        lambda: _remuda(guests, "remuda publish", seconds, batch),
        lambda: _huey(guests, "publish", seconds, batch),
        lambda: _alone(seconds, batch),
    )
    settings = {"guests": guests, "batch": batch, "sync": "always", "seconds": seconds}
    return rate_result(f"shared/publish/{each}/{guests}g", ours, {"huey": huey}, alone, settings)


def end_to_end(effort: Effort) -> Result:
    """Four guests publish, take and acknowledge ten at a time."""
    seconds = _seconds(effort)
    ours, huey = _medians(
        effort.rounds,
        lambda: _remuda(4, "remuda handle", seconds, 10),
        lambda: _huey(4, "handle", seconds, 10),
    )
    settings = {"guests": 4, "batch": 10, "sync": "always", "seconds": seconds}
    return rate_result(END_TO_END, ours, {"huey": huey}, None, settings)


def takeover(effort: Effort) -> Result:
    """From `kill -9` of the host to the next confirmed publish of another process."""
    with scratch() as folder:
        with open_broker(folder / "data") as broker:
            broker.create_queue(QUEUE, type="pull")
        found = takeovers(folder, 5 if effort.rounds == 1 else 30)
    p99 = found[min(int(len(found) * 0.99), len(found) - 1)]
    settings = {
        "p50_ms": round(statistics.median(found) * 1000, 1),
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


def _medians(rounds: int, *works: Callable[[], float]) -> list[float]:
    """The median rate of each, in turn, so that a busy moment of the machine is everybody's."""
    found = [[work() for work in works] for _ in range(rounds)]
    return [statistics.median(rates) for rates in zip(*found, strict=True)]


def _seconds(effort: Effort) -> float:
    return max(effort.seconds, 0.5)


def _remuda(guests: int, work: str, seconds: float, batch: int) -> float:
    with scratch() as folder, open_broker(folder / "data") as host:
        host.create_queue(QUEUE, type="pull")
        return rate(guests, work, folder, seconds, batch)


def _huey(guests: int, work: str, seconds: float, batch: int) -> float:
    with scratch() as folder:
        return rate(guests, f"huey {work}", folder, seconds, min(batch, 10))


def _alone(seconds: float, batch: int) -> float:
    with scratch() as folder, open_broker(folder / "data") as broker:
        broker.create_queue(QUEUE, type="pull")
        step = publishing(broker, batch)
        step()
        begin, messages = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            messages += step()
        return messages / (time.perf_counter() - begin)
