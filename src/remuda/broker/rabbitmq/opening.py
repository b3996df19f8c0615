"""From a URL to a broker on RabbitMQ."""

from __future__ import annotations

from typing import Any

from remuda.broker.embedded.clock import Clock
from remuda.broker.options import BrokerOptions
from remuda.broker.rabbitmq.records import RecordSink
from remuda.broker.rabbitmq.runtime import Runtime
from remuda.broker.rabbitmq.threads import RabbitBroker
from remuda.model.values.urls import parse_url


def open_rabbit_broker(
    url: str, *, clock: Clock | None = None, records: RecordSink | None = None, **options: Any
) -> RabbitBroker:
    """Open the broker at `amqp://user:password@host1,host2/vhost`."""
    broker = RabbitBroker(Runtime(url, BrokerOptions.parse(**options), clock, records).open())
    broker.place = str(parse_url(url))
    return broker
