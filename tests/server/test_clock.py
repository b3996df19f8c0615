"""L11: a time given over HTTP or AMQP is reckoned by the broker's clock, whatever the machine's is set to meanwhile."""

from __future__ import annotations

import time

import pytest

from remuda import Bus, open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.values.durations import HOUR, MINUTE
from tests.conformance.kit import eventually
from tests.server.amqp.kit import Client
from tests.server.site import serving
from tests.servers.amqpd import RunningServer

set_by = pytest.mark.parametrize("jump", [-HOUR, HOUR])


def set_clock(monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    """The machine's clock, after the broker was opened."""
    before = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: before() + jump * 1000)


@set_by
def test_l11_over_http(monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    with Bus() as bus, serving(bus) as site:
        bus.broker.create_queue("orders", type="pull", patterns=["order.*"])
        set_clock(monkeypatch, jump)
        site.publish("order.placed", expires="10m")
        site.publish("order.placed", delay="20m")
        delivery = bus.broker.pull("orders")
        assert delivery is not None
        assert 9 * MINUTE < (delivery.messages[0].expires or 0) - bus.broker.now() <= 10 * MINUTE
        assert isinstance(bus.broker, EmbeddedBroker)
        due = bus.broker.runtime.engine.core.queues["orders"].delayed.soonest
        assert 19 * MINUTE < due - bus.broker.now() <= 20 * MINUTE


@set_by
def test_l11_over_amqp(monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    with open_broker("memory://") as broker, RunningServer(broker=broker) as server, Client(server.url) as client:
        client.channel.queue_declare("jobs")
        set_clock(monkeypatch, jump)
        client.publish("jobs", b"x", expiration="600000")
        eventually(lambda: any(queue.waiting for queue in broker.queues()))
        (info,) = [queue for queue in broker.queues() if queue.waiting]
        delivery = broker.pull(info.name)
        assert delivery is not None
        assert 9 * MINUTE < (delivery.messages[0].expires or 0) - broker.now() <= 10 * MINUTE
