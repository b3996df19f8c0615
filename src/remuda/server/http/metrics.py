"""Metrics for Prometheus: the queues' numbers at the moment of each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from remuda.model.errors import RemudaError
from remuda.model.results import QueueInfo
from remuda.server.http.service import MessagingService


def response(service: MessagingService) -> Response:
    return Response("".join(_lines(service)), media_type=CONTENT_TYPE_LATEST)


def _lines(service: MessagingService) -> Iterator[str]:
    # Written line by line: with ten thousand queues, the library's objects for each number take seconds.
    try:
        infos = service.broker.infos()
    except RemudaError:
        yield from _family("remuda_up", "gauge", "Whether the broker answers", ["remuda_up 0.0\n"])
        return
    named = [(_escaped(info.name), info) for info in infos]
    yield from _family("remuda_up", "gauge", "Whether the broker answers", ["remuda_up 1.0\n"])
    yield from _family("remuda_queue_messages", "gauge", "Messages in a queue", _messages(named))
    yield from _family("remuda_queue_consumers", "gauge", "Consumers of a queue", _consumers(named))
    yield from _family("remuda_queue_entered_total", "counter", "Messages that ever entered a state", _entered(named))
    problems = service.health().get("problems", {})
    lines = [f'remuda_problem{{part="{_escaped(part)}"}} 1.0\n' for part in problems]
    yield from _family("remuda_problem", "gauge", "Parts that do not work; bus.health() says why", lines)


def _messages(named: Iterable[tuple[str, QueueInfo]]) -> Iterator[str]:
    for name, info in named:
        places = (
            ("waiting", info.waiting),
            ("delayed", info.delayed),
            ("in-flight", info.in_flight),
            ("dead", info.dead),
            ("invalid", info.invalid),
            ("not-interested", info.not_interested),
        )
        for place, number in places:
            yield f'remuda_queue_messages{{queue="{name}",state="{place}"}} {number}.0\n'


def _consumers(named: Iterable[tuple[str, QueueInfo]]) -> Iterator[str]:
    for name, info in named:
        yield f'remuda_queue_consumers{{queue="{name}"}} {len(info.consumers)}.0\n'


def _entered(named: Iterable[tuple[str, QueueInfo]]) -> Iterator[str]:
    for name, info in named:
        for state, number in info.counts.items():
            yield f'remuda_queue_entered_total{{queue="{name}",state="{state.name.lower()}"}} {number}.0\n'


def _family(name: str, kind: str, description: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"# HELP {name} {description}\n# TYPE {name} {kind}\n"
    yield from lines


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
