"""M3: a bus and .NET services that use CAP, on one RabbitMQ: messages byte for byte as CAP makes and takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from remuda import Bus, Context
from remuda.amqp import cap
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.connection import Connection
from remuda.cli.app import app
from tests.amqp.cap_frames import as_cap_sends_it, as_java_sends_it
from tests.bus.kit import eventually
from tests.servers.java import cap_client, printed

SOON = 30.0


@pytest.fixture
def channel(clean_url: str) -> Iterator[Channel]:
    with Connection(clean_url) as connection:
        channel = connection.channel(confirms=True)
        yield channel
        for queue in ("shop.v1", "dotnet.v1"):
            channel.delete_queue(queue)
        channel.delete_exchange("cap.default.router")


def bound(url: str, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["cap", "bind", url, *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_m3_a_handler_takes_what_a_cap_service_sends(clean_url: str, channel: Channel) -> None:
    """M3: queue and binding are there before the .NET side starts, which then finds what it would have made."""
    assert "shop.v1 receives order.placed" in bound(clean_url, "shop", "order.placed")
    channel.declare_exchange("cap.default.router", "topic", durable=True)
    channel.declare_queue("shop.v1", arguments={"x-message-ttl": 864000000})
    headers = {
        "cap-msg-id": "1710034343287373824", "cap-msg-name": "order.placed", "cap-msg-type": "Order",
        "cap-senttime": "11/16/2026 08:30:00", "cap-corr-id": "1710034343287373824", "cap-corr-seq": "0",
        "cap-callback-name": "order.done", "my-header": "ü",
    }  # fmt: skip
    channel.publish("cap.default.router", "order.placed", b'{"Id":7}', as_cap_sends_it(headers), mandatory=True).wait(
        SOON
    )
    bound(clean_url, "dotnet", "order.done")
    seen: list[tuple[Any, Context]] = []
    with Bus(clean_url + "?queue_type=classic&existing=use") as bus:

        @bus.subscribe("order.placed", queue="shop.v1")
        def place(body: dict[str, int], context: Context) -> dict[str, bool]:
            seen.append((body, context))
            return {"Done": True}

        bus.start()
        eventually(lambda: seen, SOON)
        body, context = seen[0]
        assert body == {"Id": 7}
        assert (context.message.id, context.message.name) == ("1710034343287373824", "order.placed")
        assert context.message.headers["my-header"] == "ü"
        assert context.message.timestamp == 1_794_817_800_000_000
        eventually(lambda: channel.declare_queue("dotnet.v1", passive=True).message_count == 1, SOON)
    reply = channel.get("dotnet.v1", no_ack=True)
    assert reply is not None
    answer = cap.read(reply)
    assert (answer.name, answer.body) == ("order.done", b'{"Done":true}')
    assert answer.headers["cap-corr-id"] == "1710034343287373824"
    assert answer.headers["cap-corr-seq"] == "1"


def test_m3_a_cap_service_takes_what_a_bus_publishes(clean_url: str, channel: Channel) -> None:
    """M3: all headers are texts, the id stands twice, the message is persistent, the key is the name."""
    bound(clean_url, "dotnet", "stock.#")
    with Bus(clean_url) as bus:
        own = bus.publish("stock.left", {"Left": 3}, headers={"who": "ann"})
    found = channel.get("dotnet.v1", no_ack=True)
    assert found is not None
    assert found.routing_key == "stock.left"
    properties = found.properties
    assert (properties.delivery_mode, properties.message_id) == (2, own)
    assert all(isinstance(value, str) for value in (properties.headers or {}).values())
    read = cap.read(found)
    assert (read.id, read.name, read.body) == (own, "stock.left", b'{"Left":3}')
    assert read.sent is not None


def test_m3_what_is_no_message_is_set_aside_once(clean_url: str, channel: Channel) -> None:
    """M3: without the required headers it is Invalid, with the reason, and never comes again."""
    with Bus(clean_url) as bus:

        @bus.subscribe("x", queue="q")
        def handle(body: Any) -> None:
            raise AssertionError("it must not come here")

        bus.start()
        channel.publish("", "q", b"what?", as_cap_sends_it({"cap-msg-id": "5"}), mandatory=True).wait(SOON)
        channel.publish("", "q", b"", b"\x00\x00", mandatory=True).wait(SOON)
        eventually(lambda: bus.broker.queue("q").dead == 2, SOON)
        assert bus.broker.queue("q").waiting == 0
        letters = bus.dead_letters("q")
    assert {letter.state.value for letter in letters} == {"I"}
    assert all("is missing; every CAP message has one" in letter.reason for letter in letters)
    assert {letter.body for letter in letters} == {b"what?", b""}


def test_m3_a_foreign_message_is_retried_with_all_its_headers(clean_url: str, channel: Channel) -> None:
    """M2: values of other types are kept exactly, through retries too."""
    from remuda.amqp.codec.properties import Properties, encode_properties
    from remuda.amqp.codec.tables import Int64

    raw = encode_properties(
        Properties(headers={"cap-msg-id": "7", "cap-msg-name": "x", "count": Int64(5), "list": [1, True]})
    )
    seen: list[tuple[int, bytes | None]] = []
    with Bus(clean_url, settings={"message.retry.min.interval": "50ms", "message.retry.intervals": "50ms"}) as bus:

        @bus.subscribe("x", queue="q")
        def handle(body: Any, context: Context) -> None:
            seen.append((context.attempt, context.message.wire))
            if context.attempt < 2:
                raise ValueError("once more")

        bus.start()
        channel.publish("", "q", b"{}", raw, mandatory=True).wait(SOON)
        eventually(lambda: len(seen) == 2, SOON)
    assert [attempt for attempt, _ in seen] == [1, 2]
    from remuda.amqp.codec.properties import decode_properties

    for _, wire in seen:
        assert wire is not None
        assert decode_properties(wire).headers == {
            "cap-msg-id": "7", "cap-msg-name": "x", "count": 5, "list": [1, True],
        }  # fmt: skip


def test_cap_bind_refuses_nonsense(clean_url: str) -> None:
    for arguments in (["shop", ""], ["", "x"], ["shop", "x", "--queue-type", "odd"]):
        done = CliRunner().invoke(app, ["cap", "bind", clean_url, *arguments])
        assert done.exit_code != 0


def test_m3_the_javas_example_of_caps_documentation(clean_url: str, channel: Channel) -> None:
    """M3: nothing but the two headers."""
    bound(clean_url, "shop", "order.placed")
    seen: list[tuple[Any, str]] = []
    with Bus(clean_url + "?queue_type=classic&existing=use") as bus:

        @bus.subscribe("order.placed", queue="shop.v1")
        def place(body: dict[str, int], context: Context) -> None:
            seen.append((body, context.message.id))

        bus.start()
        raw = as_java_sends_it("4f3c9ad2-11", "order.placed")
        channel.publish("cap.default.router", "order.placed", b'{"id": 7}', raw, mandatory=True).wait(SOON)
        eventually(lambda: seen == [({"id": 7}, "4f3c9ad2-11")], SOON)


def test_m3_a_java_system_with_rabbitmqs_own_client(clean_url: str, channel: Channel) -> None:
    """The documentation's example, run: it publishes, a handler answers, and the answer reaches its group's queue."""
    bound(clean_url, "shop", "order.placed")
    bound(clean_url, "java", "order.done")
    with Bus(clean_url + "?queue_type=classic&existing=use") as bus:

        @bus.subscribe("order.placed", queue="shop.v1")
        def place(body: dict[str, int]) -> dict[str, int]:
            return {"Done": body["Id"]}

        bus.start()
        with cap_client(clean_url, "order.placed", '{"Id": 7}', "order.done") as client:
            own, answer = printed(client)
    channel.delete_queue("java.v1")
    assert answer == f'{own} 1 order.done {{"Done":7}}'


def test_b9_an_answer_that_nobody_takes_is_told_with_the_line_that_binds_it(
    clean_url: str, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    """And one that a group on the cluster takes is not."""
    bound(clean_url, "dotnet", "order.done")
    with Bus(clean_url) as bus:

        @bus.subscribe("order.placed", queue="q")
        def place(body: Any) -> str:
            return "done"

        bus.start()
        bus.publish("order.placed", 1, callback="order.done")
        eventually(lambda: channel.declare_queue("dotnet.v1", passive=True).message_count == 1, SOON)
        assert "remuda cap bind" not in caplog.text
        bus.publish("order.placed", 2, callback="order.lost")
        eventually(lambda: "remuda cap bind URL GROUP order.lost" in caplog.text, SOON)
        eventually(lambda: bus.broker.queue("remuda.unrouted").dead == 1, SOON)


def test_m4_foreign_messages_without_an_id_have_one_of_their_own(clean_url: str, channel: Channel) -> None:
    """M3, M4: three equal bodies are three messages, each with an id that stays."""
    with Bus(clean_url) as bus:

        @bus.subscribe("x", queue="q")
        def handle(body: Any) -> None:
            raise AssertionError("it must not come here")

        bus.start()
        for _ in range(3):
            channel.publish("", "q", b"same", b"\x00\x00", mandatory=True).wait(SOON)
        channel.publish("", "q", b"same", as_cap_sends_it({"cap-msg-id": "5"}), mandatory=True).wait(SOON)
        eventually(lambda: bus.broker.queue("q").dead == 4, SOON)
        ids = {letter.id for letter in bus.dead_letters("q")}
        assert len(ids) == 4
        assert "5" in ids, "the broker's own message-id wins"
        assert ids == {letter.id for letter in bus.dead_letters("q")}
