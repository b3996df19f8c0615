"""Samples of the queues' numbers, for their depth over time and messages per second."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from remuda.model.operations.results import QueueInfo
from remuda.model.state import State

KEPT: Final = 600
"""The most samples kept of a queue; those that equal their neighbours are merged."""
_SPAN: Final = 10.0
"""Seconds over which a rate is taken."""


class Sample(NamedTuple):
    """A queue at one moment."""

    time: float
    waiting: int
    in_flight: int
    parked: int
    published: int
    done: int
    failed: int
    delayed: int = 0


class Rates:
    """The recent past of every queue. An idle queue costs two samples, however long it is watched."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Sample]] = {}
        self._lock = threading.Lock()

    def sample(self, infos: Iterable[QueueInfo], now: float | None = None) -> None:
        now = time.time() if now is None else now
        with self._lock:
            known = set()
            for info in infos:
                known.add(info.name)
                new = _sample(info, now)
                series = self._samples.setdefault(info.name, deque(maxlen=KEPT))
                if len(series) > 1 and series[-1][1:] == new[1:] == series[-2][1:]:
                    series[-1] = new
                else:
                    series.append(new)
            for gone in self._samples.keys() - known:
                del self._samples[gone]

    def history(self, queue: str) -> list[Sample]:
        with self._lock:
            return list(self._samples.get(queue, ()))

    def per_second(self, queue: str) -> tuple[float, float, float]:
        """Messages published, done and failed per second, over the last ten seconds."""
        with self._lock:
            series = self._samples.get(queue)
            if not series or len(series) < 2:
                return 0.0, 0.0, 0.0
            last = series[-1]
            first = series[-2]
            for sample in reversed(series):
                if sample is last:
                    continue
                first = sample
                if last.time - sample.time >= _SPAN:
                    break
            span = max(last.time - first.time, 0.001)
            return (
                max(last.published - first.published, 0) / span,
                max(last.done - first.done, 0) / span,
                max(last.failed - first.failed, 0) / span,
            )


def _sample(info: QueueInfo, now: float) -> Sample:
    counts: Mapping[State, int] = info.counts
    retried = counts.get(State.RETRY, 0)
    return Sample(
        time=now,
        waiting=info.waiting,
        delayed=info.delayed,
        in_flight=info.in_flight,
        parked=info.dead + info.invalid + info.not_interested,
        published=counts.get(State.QUEUED, 0) - retried,
        done=counts.get(State.COMPLETED, 0) + counts.get(State.KICKED, 0),
        failed=retried + counts.get(State.DEAD, 0),
    )
