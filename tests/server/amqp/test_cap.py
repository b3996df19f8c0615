"""M3, S3: services that use CAP work unchanged on `remuda serve`, beside a bus in Python."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner

from remuda import Bus, Context, Message, open_broker
from remuda.amqp import cap
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.connection import Connection
from remuda.cli.app import app
from tests.amqp.cap_frames import as_cap_sends_it, as_java_sends_it
from tests.server.amqp.kit import eventually
from tests.servers.amqpd import RunningServer
from tests.servers.java import cap_client, printed

SOON = 30.0


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus() as made:
        yield made


@pytest.fixture
def url(bus: Bus) -> Iterator[str]:
    with RunningServer(broker=bus.broker) as server:  # type: ignore[arg-type]
        yield server.url


@pytest.fixture
def channel(url: str) -> Iterator[Channel]:
    with Connection(url) as connection:
        yield connection.channel(confirms=True)


def bound(url: str, *arguments: str) -> None:
    done = CliRunner().invoke(app, ["cap", "bind", url, *arguments])
    assert done.exit_code == 0, done.output


HEADERS = {
    "cap-msg-id": "1710034343287373824", "cap-msg-name": "order.placed", "cap-msg-type": "Order",
    "cap-senttime": "11/16/2026 08:30:00", "cap-corr-id": "1710034343287373824", "cap-corr-seq": "0",
    "cap-callback-name": "order.done", "my-header": "ü",
}  # fmt: skip


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_m3_a_handler_takes_what_a_cap_service_sends_and_answers(
    bus: Bus, url: str, channel: Channel, version: str
) -> None:
    """M3, B9: exchange, group queue and binding as CAP declares them; the version is part of both names."""
    exchange, queue = cap.exchange_name(version), f"shop.{version}"
    channel.declare_exchange(exchange, "topic", durable=True)
    channel.declare_queue(queue, arguments={"x-message-ttl": 864000000})
    channel.bind_queue(queue, exchange, "order.placed")
    bound(url, "dotnet", "order.done", "--version", version)
    seen: list[tuple[Any, Context]] = []

    @bus.subscribe("order.placed", queue=queue)
    def place(body: dict[str, int], context: Context) -> dict[str, bool]:
        seen.append((body, context))
        return {"Done": True}

    bus.start()
    raw = as_cap_sends_it(HEADERS)
    channel.publish(exchange, "order.placed", b'{"Id":7}', raw, mandatory=True).wait(SOON)
    eventually(lambda: seen, SOON)
    body, context = seen[0]
    assert body == {"Id": 7}
    assert (context.message.id, context.message.name) == ("1710034343287373824", "order.placed")
    assert context.message.headers["my-header"] == "ü"
    assert context.message.timestamp == 1_794_817_800_000_000
    reply = eventually(lambda: channel.get(f"dotnet.{version}", no_ack=True), SOON)
    answer = cap.read(reply)
    assert (answer.name, answer.body) == ("order.done", b'{"Done":true}')
    assert (answer.headers["cap-corr-id"], answer.headers["cap-corr-seq"]) == ("1710034343287373824", "1")


def test_m3_a_cap_service_takes_what_another_sends(channel: Channel) -> None:
    """M2: properties come out as they went in; a queue of each group gets its own copy."""
    for group in ("one", "two"):
        cap.bind(channel, group, ["stock.*"])
    raw = as_cap_sends_it({**HEADERS, "cap-msg-name": "stock.left"})
    channel.publish("cap.default.router", "stock.left", b"{}", raw, mandatory=True).wait(SOON)
    for queue in ("one.v1", "two.v1"):
        found = eventually(partial(channel.get, queue, no_ack=True), SOON)
        assert (found.raw_properties, found.body) == (raw, b"{}")
        assert found.routing_key == "stock.left"


def test_m3_a_cap_service_takes_what_a_bus_publishes(bus: Bus, url: str, channel: Channel) -> None:
    bound(url, "dotnet", "stock.#")
    own = bus.publish("stock.left", {"Left": 3}, headers={"who": "ann"})
    found = eventually(lambda: channel.get("dotnet.v1", no_ack=True), SOON)
    assert all(isinstance(value, str) for value in (found.properties.headers or {}).values())
    read = cap.read(found)
    assert (read.id, read.name, read.body) == (own, "stock.left", b'{"Left":3}')


def test_m3_the_javas_example_of_caps_documentation(bus: Bus, url: str, channel: Channel) -> None:
    bound(url, "shop", "order.placed")
    seen: list[tuple[Any, str]] = []

    @bus.subscribe("order.placed", queue="shop.v1")
    def place(body: dict[str, int], context: Context) -> None:
        seen.append((body, context.message.id))

    bus.start()
    raw = as_java_sends_it("4f3c9ad2-11", "order.placed")
    channel.publish("cap.default.router", "order.placed", b'{"id": 7}', raw, mandatory=True).wait(SOON)
    eventually(lambda: seen == [({"id": 7}, "4f3c9ad2-11")], SOON)


def test_m3_s2_a_java_system_with_rabbitmqs_own_client(bus: Bus, url: str) -> None:
    """The documentation's example, run: it publishes, a handler answers, and the answer reaches its group's queue."""
    bound(url, "shop", "order.placed")
    bound(url, "java", "order.done")

    @bus.subscribe("order.placed", queue="shop.v1")
    def place(body: dict[str, int]) -> dict[str, int]:
        return {"Done": body["Id"]}

    bus.start()
    with cap_client(url, "order.placed", '{"Id": 7}', "order.done") as client:
        own, answer = printed(client)
    assert answer == f'{own} 1 order.done {{"Done":7}}'


def test_m3_what_is_no_message_is_set_aside_once_and_its_neighbours_arrive(
    bus: Bus, url: str, channel: Channel
) -> None:
    """M3: it reaches no group, is kept as Invalid with the reason, and never comes again."""
    bound(url, "shop", "order.#")
    handled: list[Any] = []

    @bus.subscribe("order.#", queue="shop.v1")
    def place(body: Any) -> None:
        handled.append(body)

    good = as_java_sends_it("1", "order.a")
    wrong = as_cap_sends_it({"cap-msg-id": "5"})
    for number, raw in enumerate([good, wrong, b"\x00\x00", good, wrong]):
        channel.publish("cap.default.router", "order.a", b"%d" % number, raw)
    bus.start()
    eventually(lambda: sorted(handled) == [b"0", b"3"], SOON)
    letters = eventually(lambda: found if len(found := bus.dead_letters("remuda.unrouted")) == 3 else None, SOON)
    assert {letter.state.value for letter in letters} == {"I"}
    assert all("is missing; every CAP message has one" in letter.reason for letter in letters)
    assert {letter.body for letter in letters} == {b"1", b"2", b"4"}
    assert sorted(handled) == [b"0", b"3"]


def test_m3_what_is_no_message_is_set_aside_where_no_bus_runs() -> None:
    """And what else waits there stays as it is."""
    with open_broker("memory://") as broker, RunningServer(broker=broker) as server, Connection(server.url) as peer:
        broker.publish(Message("lost", b"x", headers={"remuda": "kept"}), queue="remuda.unrouted")
        channel = peer.channel(confirms=True)
        cap.bind(channel, "shop", ["#"])
        wrong = as_cap_sends_it({"cap-msg-id": "5"})
        channel.publish("cap.default.router", "order.a", b"1", wrong, mandatory=True).wait(SOON)
        channel.publish("cap.default.router", "order.a", b"2", b"\x00\x00", mandatory=True).wait(SOON)
        info = broker.queue("remuda.unrouted")
        assert (info.invalid, info.waiting) == (2, 1)
        found = broker.parked("remuda.unrouted")
        assert [letter.reason for letter in found] == [
            f"the header {name} is missing; every CAP message has one" for name in ("cap-msg-id", "cap-msg-name")
        ]
        delivery = broker.pull("remuda.unrouted")
        assert delivery is not None
        assert (delivery.bodies, delivery.attempts) == ([b"x"], [1])


def test_b9_an_answer_that_nobody_takes_is_told_with_the_line_that_binds_it(
    bus: Bus, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    @bus.subscribe("order.placed", queue="shop")
    def place(body: Any) -> str:
        return "done"

    bus.start()
    bus.publish("order.placed", 1, callback="order.done")
    eventually(lambda: "remuda cap bind URL GROUP order.done" in caplog.text, SOON)
    eventually(lambda: bus.broker.queue("remuda.unrouted").dead == 1, SOON)
