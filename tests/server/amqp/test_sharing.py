"""AMQP clients and buses in Python share queues and topics, in both directions (S3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pika
import pytest

from remuda import Bus
from remuda.model.message import Message
from remuda.model.queues.routing import DECLARED, Binding
from remuda.server.amqp.declarations.queues import QueueDeclaration
from tests.server.amqp.kit import Client, eventually, fresh
from tests.servers.amqpd import RunningServer


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus() as made:
        yield made


@pytest.fixture
def shared(bus: Bus) -> Iterator[Client]:
    with RunningServer(broker=bus.broker) as server, Client(server.url) as client:  # type: ignore[arg-type]
        yield client


def test_a_client_consumes_what_a_bus_publishes(bus: Bus, shared: Client) -> None:
    """S3, M3."""
    bus.broker.create_queue("orders", patterns=["order.*"])
    number = bus.publish("order.placed", {"id": 7}, headers={"tenant": "blue"})
    method, properties, body = shared.get("orders")
    assert (method.exchange, method.routing_key, body) == ("", "order.placed", b'{"id":7}')
    assert properties.content_type == "application/json"
    assert properties.message_id == number
    assert properties.headers["tenant"] == "blue"
    assert (properties.headers["cap-msg-id"], properties.headers["cap-msg-name"]) == (number, "order.placed")


def test_a_bus_handles_what_a_client_publishes_to_its_topics(bus: Bus, shared: Client) -> None:
    """S3."""
    got: list[tuple[object, str]] = []

    @bus.subscribe("order.placed")
    def handle(order: dict[str, int]) -> None:
        got.append((order, "handled"))

    bus.start()
    shared.publish("order.placed", b'{"id": 8}', exchange="remuda.topics", content_type="application/json")
    eventually(lambda: got)
    assert got == [({"id": 8}, "handled")]


def test_a_client_follows_a_buss_topics(bus: Bus, shared: Client) -> None:
    """S3."""
    shared.channel.queue_declare("audit", durable=True)
    shared.channel.queue_bind("audit", "remuda.topics", "order.#")
    bus.publish("order.placed.today", {"id": 1})
    assert shared.get("audit")[2] == b'{"id":1}'
    shared.channel.queue_unbind("audit", "remuda.topics", "order.#")
    bus.publish("order.placed.today", {"id": 2})
    assert shared.bodies("audit") == []


def test_a_client_sends_straight_to_a_buss_queue(bus: Bus, shared: Client) -> None:
    """S3: through the default exchange, also without having declared it."""
    bus.broker.create_queue("inbox")
    shared.channel.basic_publish("", "inbox", b"hello", pika.BasicProperties(content_type="text/plain"), mandatory=True)
    delivery = bus.broker.pull("inbox", timeout="60s")
    assert delivery is not None
    message = delivery[0]
    assert (message.body, message.mime_type, message.name) == (b"hello", "text/plain", "inbox")
    delivery.ack()
    assert bus.broker.message(message.id).state == "X"  # logged and searchable, as any other


def test_headers_are_texts_in_python_and_what_they_were_on_the_wire(bus: Bus, shared: Client) -> None:
    """S3, M2."""
    shared.channel.queue_declare("typed")
    shared.channel.exchange_declare("typed-x", "fanout")
    shared.channel.queue_bind("typed", "typed-x")
    headers = {"n": 5, "on": True, "deep": {"list": [1, "x"]}, "none": None}
    shared.publish("k", b"1", exchange="typed-x", headers=headers, message_id="mine")
    delivery = bus.broker.pull("typed", timeout="60s")
    assert delivery is not None
    message = delivery[0]
    assert message.id == "mine"
    assert message.headers == {
        "n": "5",
        "on": "true",
        "deep": '{"list":["1","x"]}',
        "none": "",
        "amqp-exchange": "typed-x",
    }
    delivery.nack(front=True)
    method, properties, _ = shared.get("typed")
    assert (properties.headers, method.redelivered, method.exchange) == (headers, True, "typed-x")


def test_answers_of_both_kinds_meet_in_one_queue(bus: Bus, shared: Client) -> None:
    """S3: a client and a Python consumer compete, and each message is settled once."""
    shared.channel.queue_declare("work", durable=True)
    for number in range(20):
        bus.broker.publish(Message("job", b"%d" % number), queue="work")
    seen: list[bytes] = []
    for turn in range(20):
        if turn % 2:
            seen.append(shared.get("work")[2])
        else:
            delivery = bus.broker.pull("work", timeout="60s")
            assert delivery is not None
            seen.append(delivery.bodies[0])
            delivery.ack()
    assert sorted(seen, key=int) == [b"%d" % number for number in range(20)]
    eventually(lambda: bus.broker.queue("work").size == 0)


def test_a_slow_client_keeps_what_a_bus_wants_back_soon(bus: Bus, shared: Client) -> None:
    """S3, Q3: as long as it lives, a client's time for an answer is renewed."""
    bus.broker.create_queue("hasty", acknowledge_timeout="3s")
    bus.broker.publish(Message("job", b"slow"), queue="hasty")
    channel = shared.open(confirms=False)
    got: list[int] = []
    channel.basic_consume("hasty", lambda ch, method, p, body: got.append(method.delivery_tag))
    eventually(lambda: shared.connection.process_data_events(0.1) or got)
    shared.connection.sleep(4.5)
    assert len(got) == 1
    channel.basic_ack(got[0])
    eventually(lambda: shared.connection.process_data_events(0.1) or bus.broker.queue("hasty").size == 0)
    assert len(got) == 1


def test_what_was_declared_is_there_after_a_restart(tmp_path: Path) -> None:
    """S1: durable queues, exchanges, bindings and messages stay; the others go."""
    path = str(tmp_path / "data")
    with RunningServer(path) as server, Client(server.url) as client:
        channel = client.channel
        channel.exchange_declare("keep-x", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
        channel.queue_declare(
            "keep", durable=True, arguments={"x-max-length": 5, "x-dead-letter-exchange": "amq.fanout"}
        )
        channel.queue_bind("keep", "keep-x", "a.*")
        channel.queue_declare("temporary")
        channel.queue_declare("own", durable=True, exclusive=True)
        client.publish("a.b", b"kept", exchange="keep-x", delivery_mode=2)
        client.publish("temporary", b"lost")
    with RunningServer(path) as server, Client(server.url) as client:
        channel = client.channel
        channel.queue_declare(
            "keep", durable=True, arguments={"x-max-length": 5, "x-dead-letter-exchange": "amq.fanout"}
        )
        assert client.refused(lambda ch: ch.queue_declare("keep", durable=True))[0] == 406
        assert client.refused(lambda ch: ch.exchange_declare("keep-x", "topic", durable=True))[0] == 406
        client.publish("a.c", b"new", exchange="keep-x")
        assert client.bodies("keep") == [b"kept", b"new"]
        assert client.refused(lambda ch: ch.queue_declare("temporary", passive=True))[0] == 404
        assert client.refused(lambda ch: ch.queue_declare("own", passive=True))[0] == 404


def test_a_binding_that_describes_nothing_is_passed_over(bus: Bus, shared: Client) -> None:
    """Whoever may bind can write anything into a binding's arguments."""
    bus.broker.create_queue(name := fresh("q"))
    bus.broker.create_router(router := fresh("r"), "direct")
    for exchange in (router, "amq.default"):
        bus.broker.bind(exchange, Binding(queue=name, key=f"{name}-forged", arguments={DECLARED: b"\xff nonsense"}))
    shared.channel.queue_declare(own := fresh("own"))
    assert shared.channel.queue_declare(name, passive=True).method.message_count == 0
    shared.publish(own, b"fine")
    assert shared.bodies(own) == [b"fine"]


@pytest.mark.parametrize("owner", ["nonsense", "1.2", "x.1.y#3", "99999999999999999999.1.y", "-1.a.b"])
def test_a_forged_owner_does_not_keep_a_server_from_starting(bus: Bus, owner: str) -> None:
    """S4: the queue counts as left behind."""
    name = fresh()
    bus.broker.create_queue(name)
    forged = msgspec.msgpack.encode(QueueDeclaration(exclusive=True, owner=owner))
    bus.broker.create_router("amq.default", "direct", [Binding(queue=name, key=name, arguments={DECLARED: forged})])
    with RunningServer(broker=bus.broker):  # type: ignore[arg-type]
        assert name not in {queue.name for queue in bus.broker.queues()}
