"""Metrics for Prometheus: the queues' numbers at the moment of each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from remuda.model.errors import RemudaError
from remuda.model.life import PARKED
from remuda.model.operations.results import QueueInfo
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.values.durations import SECOND
from remuda.server.http.service import MessagingService

_TOP: Final = 10
"""How many keys of a queue are named."""
_NONE_YET: Final = dict.fromkeys(sorted(PARKED), 0)
"""Told from the start: a series that begins with a thousand dead letters has not increased for Prometheus."""


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
    yield from _family("remuda_queue_consumers", "gauge", "Consumers of a queue", _consumers(service, named))
    yield from _family("remuda_queue_oldest_seconds", "gauge", "Age of the oldest waiting", _oldest(service, named))
    yield from _family("remuda_queue_entered_total", "counter", "Messages that ever entered a state", _entered(named))
    flows = list(_flows(service, named))
    if flows:
        yield from _family("remuda_queue_keys", "gauge", "Keys with messages, and how many are held", _keys(flows))
        yield from _family("remuda_queue_held_messages", "gauge", "Messages that a rule holds back", _held(flows))
        yield from _family("remuda_queue_key_messages", "gauge", "The ten keys with most waiting", _top_keys(flows))
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


def _consumers(service: MessagingService, named: Iterable[tuple[str, QueueInfo]]) -> Iterator[str]:
    for name, info in named:
        yield f'remuda_queue_consumers{{queue="{name}"}} {service.broker.consumers(info)}.0\n'


def _oldest(service: MessagingService, named: Iterable[tuple[str, QueueInfo]]) -> Iterator[str]:
    now = service.bus.now()
    for name, info in named:
        published = service.broker.oldest(info)
        if published is not None or not info.waiting:
            age = 0.0 if published is None else max(now - published, 0) / SECOND
            yield f'remuda_queue_oldest_seconds{{queue="{name}"}} {age}\n'


def _flows(service: MessagingService, named: Iterable[tuple[str, QueueInfo]]) -> Iterator[tuple[str, FlowInfo]]:
    for name, info in named:
        if info.options.has_flow:
            with suppress(RemudaError):
                yield name, service.broker.open().flow(info.name, _TOP)


def _keys(flows: Iterable[tuple[str, FlowInfo]]) -> Iterator[str]:
    for name, flow in flows:
        yield f'remuda_queue_keys{{queue="{name}",state="live"}} {flow.keys}.0\n'
        yield f'remuda_queue_keys{{queue="{name}",state="held"}} {flow.held}.0\n'


def _held(flows: Iterable[tuple[str, FlowInfo]]) -> Iterator[str]:
    for name, flow in flows:
        for why, count in flow.waiting.items():
            if why:
                yield f'remuda_queue_held_messages{{queue="{name}",held_by="{why.value}"}} {count}.0\n'


def _top_keys(flows: Iterable[tuple[str, FlowInfo]]) -> Iterator[str]:
    for name, flow in flows:
        for one in flow.top:
            if one.waiting and one.key is not None:
                yield f'remuda_queue_key_messages{{queue="{name}",key="{_escaped(one.key)}"}} {one.waiting}.0\n'


def _entered(named: Iterable[tuple[str, QueueInfo]]) -> Iterator[str]:
    for name, info in named:
        for state, number in (_NONE_YET | info.counts).items():
            yield f'remuda_queue_entered_total{{queue="{name}",state="{state.name.lower()}"}} {number}.0\n'


def _family(name: str, kind: str, description: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"# HELP {name} {description}\n# TYPE {name} {kind}\n"
    yield from lines


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
