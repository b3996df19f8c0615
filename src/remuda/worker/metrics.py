"""A worker's counters, and their Prometheus format."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from remuda.model.values.extras import MissingExtra

if TYPE_CHECKING:
    from remuda.worker.worker import Worker


class Counts:
    """The counters of a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: Counter[str] = Counter()
        self.received = 0
        self.started = 0
        self.published = 0
        self.seconds = 0.0

    def add(self, outcome: str) -> None:
        with self._lock:
            self._outcomes[outcome] += 1

    def worked(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds

    @property
    def outcomes(self) -> dict[str, int]:
        """Inputs by outcome: success, failure, exception, invalid, rejected, retried, forwarded, paused,
        inactive, not-now, returned or aborted."""
        with self._lock:
            return dict(self._outcomes)


def exposition(worker: Worker) -> Callable[[], bytes]:
    """A function that returns a worker's metrics in Prometheus' text format."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise MissingExtra("Prometheus metrics", "metrics") from error

    class WorkerCollector(Collector):
        def collect(self) -> Iterator[Any]:
            counts = worker.counts
            ended = CounterMetricFamily("remuda_worker_inputs", "Inputs settled, by outcome", labels=["outcome"])
            for outcome, number in counts.outcomes.items():
                ended.add_metric([outcome], number)
            yield ended
            yield CounterMetricFamily("remuda_worker_received", "Deliveries received", value=counts.received)
            yield CounterMetricFamily("remuda_worker_started", "Tasks begun", value=counts.started)
            yield CounterMetricFamily("remuda_worker_published", "Messages published", value=counts.published)
            yield CounterMetricFamily("remuda_worker_task_seconds", "Time spent in tasks", value=counts.seconds)
            yield CounterMetricFamily("remuda_worker_stray_confirms", "Confirms of nothing sent", value=worker.strays)
            yield GaugeMetricFamily("remuda_worker_in_hand", "Inputs not settled yet", value=len(worker.inputs))
            up = GaugeMetricFamily("remuda_worker_up", "Whether a part of the worker is up", labels=["part"])
            for part in worker.health():
                up.add_metric([part.name], 0 if part.problem else 1)
            yield up

    registry = CollectorRegistry()
    registry.register(WorkerCollector())
    return lambda: generate_latest(registry)
