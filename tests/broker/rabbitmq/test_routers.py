"""Q18 on RabbitMQ, beyond the suite: what full queues refuse, exchanges of AMQP's kinds, several processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.model.errors import NotFound, QueueFull
from remuda.model.message import Message
from remuda.model.queues.routing import Binding, ExchangeKind
from tests.bus.kit import eventually
from tests.conformance.kit import numbered, waiting_bodies

SOON = 30.0


@pytest.fixture
def broker(clean_url: str) -> Iterator[Broker]:
    with open_broker(clean_url + "?queue_type=classic", queue_defaults={"type": "pull"}) as broker:
        for name in ("one", "two", "three"):
            broker.create_queue(name, message_limit=1 if name == "one" else 0)
        yield broker


def test_q18_what_rabbitmq_refuses_goes_on_to_the_next(broker: Broker) -> None:
    """Q18: a full queue is told by its nack, and routers go on."""
    broker.publish(Message("one", b"fills it"), queue="one")
    broker.create_router("first", "first", [Binding(queue="one"), Binding(queue="two")])
    broker.create_router("turns", "round-robin", [Binding(queue="one"), Binding(queue="two"), Binding(topic="three.x")])
    broker.create_router("all", "distribute", [Binding(queue="one"), Binding(queue="two")])
    broker.create_router("only", "first", [Binding(queue="one")])
    assert broker.route("first", numbered(3)).refusals == {}
    assert waiting_bodies(broker, "two") == [b"0", b"1", b"2"]
    assert broker.route("turns", numbered(3)).refusals == {}
    assert sorted(waiting_bodies(broker, "two") + waiting_bodies(broker, "three")) == [b"0", b"1", b"2"]
    receipt = broker.route("all", numbered(2))
    assert receipt.refusals == {}
    assert {row: type(refused) for row, refused in receipt.partly_refused.items()} == {0: QueueFull, 1: QueueFull}
    assert waiting_bodies(broker, "two") == [b"0", b"1"]
    receipt = broker.route("only", numbered(2), raise_refusals=False)
    assert {row: type(refused) for row, refused in receipt.refusals.items()} == {0: QueueFull, 1: QueueFull}
    assert waiting_bodies(broker, "one") == [b"fills it"]


def test_q18_the_kinds_of_amqp(broker: Broker) -> None:
    """Q18: by key, pattern and headers, through exchanges behind exchanges; what nobody takes is told."""
    broker.create_router("direct", "direct", [Binding(queue="two", key="a"), Binding(queue="three", key="b")])
    broker.create_router("topic", "topic", [Binding(queue="two", key="#.new"), Binding(exchange="direct", key="*")])
    broker.create_router("headers", "headers", [Binding(queue="three", arguments={"x-match": "any", "colour": "red"})])
    broker.create_router("fanout", "fanout", [Binding(queue="two"), Binding(queue="three")])
    receipt = broker.route("direct", [Message("a", b"0"), Message("c", b"1"), Message("b", b"2")])
    assert receipt.unroutable == (1,)
    assert (waiting_bodies(broker, "two"), waiting_bodies(broker, "three")) == ([b"0"], [b"2"])
    assert broker.route("topic", [Message("a", b"0"), Message("shop.new", b"1"), Message("x.y", b"2")]).unroutable == (
        2,
    )
    assert waiting_bodies(broker, "two") == [b"0", b"1"]
    broker.route("headers", [Message("x", b"0", headers={"colour": "red"}), Message("x", b"1")])
    assert waiting_bodies(broker, "three") == [b"0"]
    receipt = broker.route("fanout", Message("x", b"0"))
    assert (waiting_bodies(broker, "two"), waiting_bodies(broker, "three")) == ([b"0"], [b"0"])
    told = broker.message(receipt.id)
    assert {view.queue for view in told.queues} == {"two", "three"}


def test_q18_all_processes_know_the_same_routers(clean_url: str, broker: Broker) -> None:
    """Q18: made by one, used, changed and removed by others; a queue that was deleted is made again."""
    broker.create_router("gate", "distribute", [Binding(queue="two")])
    with open_broker(clean_url + "?queue_type=classic&log=no") as other:
        assert other.routers() == {"gate": (ExchangeKind.DISTRIBUTE, (Binding(queue="two"),))}
        other.bind("gate", Binding(queue="three", priority=5))
        eventually(lambda: len(broker.routers()["gate"][1]) == 2, SOON)
        broker.route("gate", Message("x", b"late"))
        assert waiting_bodies(other, "three") == [b"late"]
        other.remove_router("gate")
        with pytest.raises(NotFound, match="there is no router 'gate'"):
            other.bind("gate", Binding(queue="one"))
        eventually(lambda: broker.routers() == {}, SOON)
    with pytest.raises(NotFound, match="nothing was stored"):
        broker.route("gate", Message("x", b""))
