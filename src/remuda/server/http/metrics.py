"""Prometheus: the queues' numbers, asked for whenever they are collected."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from remuda.model.errors import RemudaError
from remuda.server.http.service import MessagingService


class _Queues(Collector):
    def __init__(self, service: MessagingService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("remuda_up", "Whether the broker answers")
        messages = GaugeMetricFamily("remuda_queue_messages", "Messages in a queue", labels=["queue", "state"])
        consumers = GaugeMetricFamily("remuda_queue_consumers", "Consumers of a queue", labels=["queue"])
        entered = CounterMetricFamily(
            "remuda_queue_entered", "Messages that ever entered a state", labels=["queue", "state"]
        )
        try:
            infos = self._service.broker.infos()
        except RemudaError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        for info in infos:
            places = {
                "waiting": info.waiting,
                "delayed": info.delayed,
                "in-flight": info.in_flight,
                "dead": info.dead,
                "invalid": info.invalid,
                "not-interested": info.not_interested,
            }
            for place, number in places.items():
                messages.add_metric([info.name, place], number)
            consumers.add_metric([info.name], len(info.consumers))
            for state, number in info.counts.items():
                entered.add_metric([info.name, state.name.lower()], number)
        problems = GaugeMetricFamily("remuda_problem", "Parts that do not work; health tells why", labels=["part"])
        for part in self._service.health().get("problems", {}):
            problems.add_metric([part], 1)
        yield from (up, messages, consumers, entered, problems)


def response(service: MessagingService) -> Response:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Queues(service))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
