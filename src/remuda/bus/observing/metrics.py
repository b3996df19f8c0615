"""Prometheus metrics as middleware. Put it last, so that it times the handler alone.

    metrics = Metrics()
    bus = Bus("data", middleware=[metrics])
    metrics.watch(bus)
    metrics.serve(9100)

Calls in the process executor are not timed, since they run in another process; the numbers of the queues include them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from remuda.bus.broker_api import QueueInfo
from remuda.bus.handlers.context import Context
from remuda.bus.handlers.exceptions import HandlerTimeout, NotInterested, NotNow, Reject, Retry
from remuda.bus.handlers.middleware import Handled, Middleware
from remuda.bus.publishing.bodies import Undecodable
from remuda.model.message import Message
from remuda.model.values.extras import MissingExtra

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import REGISTRY, Collector
except ImportError as error:
    raise MissingExtra("Prometheus metrics", "metrics") from error

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The default buckets of the histogram."""

_OUTCOMES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (HandlerTimeout, "timeout"),
    (Retry, "retry"),
    (NotNow, "not-now"),
    (Reject, "invalid"),
    (Undecodable, "invalid"),
    (NotInterested, "not-interested"),
)


class _StartTime:
    """The key of a call's start time in `context.values`."""


class Metrics(Middleware):
    """Counts published messages, and counts and times handler calls."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, buckets: Sequence[float] = SECONDS) -> None:
        self.registry = registry
        self.published = Counter("remuda_published", "Messages published", ["topic"], registry=registry)
        self.unpublished = Counter("remuda_publish_errors", "Messages refused", ["topic", "error"], registry=registry)
        self.handled = Counter("remuda_handled", "Handler calls by outcome", ["queue", "outcome"], registry=registry)
        self.failures = Counter("remuda_failures", "Calls that failed, by error", ["queue", "error"], registry=registry)
        self.retries = Counter("remuda_retries", "Calls after the first attempt", ["queue"], registry=registry)
        self.running = Gauge("remuda_handlers_running", "Calls in progress", ["queue"], registry=registry)
        self.seconds = Histogram(
            "remuda_handler_seconds", "How long calls take", ["queue"], registry=registry, buckets=tuple(buckets)
        )

    def watch(self, bus: Bus) -> None:
        """Report the numbers of the bus's queues too, read whenever metrics are collected."""
        self.registry.register(QueueCollector(bus))

    def serve(self, port: int, address: str = "127.0.0.1") -> None:
        """Answer Prometheus on a port, in the background."""
        start_http_server(port, addr=address, registry=self.registry)

    def after_publish(self, message: Message) -> None:
        self.published.labels(message.name).inc()

    def publish_error(self, message: Message, error: Exception) -> None:
        self.unpublished.labels(message.name, type(error).__name__).inc()

    def before_handle(self, context: Context) -> None:
        context.values[_StartTime] = time.perf_counter()
        self.running.labels(context.queue).inc()
        if context.attempt > 1:
            self.retries.labels(context.queue).inc()

    def after_handle(self, context: Context, result: Any) -> Any:
        self._end(context, "success")
        return result

    def handle_error(self, context: Context, error: BaseException) -> Handled | None:
        outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "failure")
        if self._end(context, outcome) and outcome in ("failure", "timeout"):
            self.failures.labels(context.queue, type(error).__name__).inc()
        return None

    def _end(self, context: Context, outcome: str) -> bool:
        """Record the end of a call; False if it did not begin here or has ended already."""
        began = context.values.pop(_StartTime, None)
        if not isinstance(began, float):
            return False
        self.running.labels(context.queue).dec()
        self.seconds.labels(context.queue).observe(time.perf_counter() - began)
        self.handled.labels(context.queue, outcome).inc()
        return True

    def __reduce__(self) -> tuple[type[Middleware], tuple[()]]:
        # Nobody collects the numbers of a handler's process, so there it does nothing.
        return Middleware, ()


class QueueCollector(Collector):
    """The numbers of a bus's queues. They cover all processes, since the broker counts them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def describe(self) -> list[Metric]:
        """Known without the broker, which registering must not open."""
        return list(_families())

    def collect(self) -> Iterator[Metric]:
        messages, entered, problems = _families()
        for part in self._bus.health().get("problems", {}):
            problems.add_metric([part], 1)
        for info in () if self._bus.closed else self._bus.broker.queues():
            for place, number in _places(info).items():
                messages.add_metric([info.name, place], number)
            for state, number in info.counts.items():
                entered.add_metric([info.name, state.name.lower()], number)
        yield messages
        yield entered
        yield problems


def _families() -> tuple[GaugeMetricFamily, CounterMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("remuda_queue_messages", "Messages in a queue", labels=["queue", "state"]),
        CounterMetricFamily("remuda_queue_entered", "Messages that ever entered a state", labels=["queue", "state"]),
        GaugeMetricFamily("remuda_problem", "Parts that do not work; see health for the reason", labels=["part"]),
    )


def _places(info: QueueInfo) -> dict[str, int]:
    return {
        "waiting": info.waiting,
        "delayed": info.delayed,
        "in-flight": info.in_flight,
        "dead": info.dead,
        "invalid": info.invalid,
        "not-interested": info.not_interested,
    }
