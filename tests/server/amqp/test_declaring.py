"""Declarations, bindings and their refusals, as clients of RabbitMQ know them (S1)."""

from __future__ import annotations

from typing import Any

import pika
import pika.exceptions
import pytest

from tests.server.amqp.kit import Client, eventually, fresh
from tests.servers.amqpd import RunningServer


def test_a_missing_queue_or_exchange_is_not_found(client: Client) -> None:
    """S1."""
    assert client.refused(lambda ch: ch.queue_declare("nope", passive=True)) == (
        404, "NOT_FOUND - no queue 'nope' in vhost '/'",
    )  # fmt: skip
    assert client.refused(lambda ch: ch.basic_publish("nope", "k", b"x")) == (
        404, "NOT_FOUND - no exchange 'nope' in vhost '/'",
    )  # fmt: skip
    assert client.refused(lambda ch: ch.exchange_declare("nope", passive=True))[0] == 404
    assert client.refused(lambda ch: ch.basic_get("nope"))[0] == 404
    assert client.refused(lambda ch: ch.queue_purge("nope"))[0] == 404
    name = fresh()
    client.channel.queue_declare(name)
    assert client.refused(lambda ch: ch.queue_bind(name, "nope", "k"))[0] == 404
    assert client.refused(lambda ch: ch.queue_bind("nope", "amq.direct", "k"))[0] == 404


@pytest.mark.parametrize(
    ("first", "second", "argument", "text"),
    [
        ({"durable": True}, {}, "durable", "received 'false' but current is 'true'"),
        ({}, {"auto_delete": True}, "auto_delete", "received 'true' but current is 'false'"),
        (
            {"arguments": {"x-message-ttl": 1000}}, {}, "x-message-ttl",
            "received none but current is the value '1000' of type 'signedint'",
        ),
        (
            {}, {"arguments": {"x-max-length": 3}}, "x-max-length",
            "received the value '3' of type 'signedint' but current is none",
        ),
    ],
)  # fmt: skip
def test_another_declaration_of_a_queue_is_refused(
    client: Client, first: dict[str, Any], second: dict[str, Any], argument: str, text: str
) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name, **first)
    client.channel.queue_declare(name, **first)
    code, told = client.refused(lambda ch: ch.queue_declare(name, **second))
    assert (code, told) == (
        406, f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue '{name}' in vhost '/': {text}",
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": -1}, {"x-message-ttl": "soon"}, {"x-expires": 0}, {"x-max-length": "many"},
        {"x-max-priority": 256}, {"x-overflow": "explode"}, {"x-queue-type": "fancy"},
        {"x-dead-letter-routing-key": "k"}, {"x-dead-letter-exchange": 7}, {"x-single-active-consumer": "yes"},
        {"x-remuda-no-such-option": 1}, {"x-remuda-message-limit": "many"}, {"x-remuda-type": "push"},
    ],
)  # fmt: skip
def test_impossible_arguments_are_refused(client: Client, arguments: dict[str, Any]) -> None:
    """S1, S3."""
    code, text = client.refused(lambda ch: ch.queue_declare(fresh(), arguments=arguments))
    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - ")


def test_exchanges_are_compared_too(client: Client) -> None:
    """S1."""
    name = fresh("x")
    client.channel.exchange_declare(name, "direct", durable=True)
    client.channel.exchange_declare(name, "direct", durable=True)
    assert client.refused(lambda ch: ch.exchange_declare(name, "fanout", durable=True)) == (
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{name}' in vhost '/': received 'fanout' but "
        "current is 'direct'",
    )
    assert client.refused(lambda ch: ch.exchange_declare("amq.mine"))[0] == 403
    assert client.refused(lambda ch: ch.queue_declare("amq.mine"))[0] == 403
    assert client.refused(lambda ch: ch.exchange_declare("", "direct"))[0] == 403
    assert client.refused(lambda ch: ch.queue_bind(fresh(), "", "k"))[0] in (403, 404)
    client.channel.exchange_declare("amq.topic", "topic", durable=True)
    assert client.refused(lambda ch: ch.exchange_declare(fresh("x"), "no-such-type"))[0] == 406


def test_every_kind_of_exchange_routes(client: Client) -> None:
    """S1, Q18."""
    channel = client.channel
    queues = {kind: fresh(kind) for kind in ("direct", "fanout", "topic", "headers")}
    for kind, queue in queues.items():
        channel.exchange_declare(f"{queue}-x", kind)
        channel.queue_declare(queue)
    channel.queue_bind(queues["direct"], f"{queues['direct']}-x", "red")
    channel.queue_bind(queues["fanout"], f"{queues['fanout']}-x")
    channel.queue_bind(queues["topic"], f"{queues['topic']}-x", "fruit.*.ripe.#")
    channel.queue_bind(
        queues["headers"], f"{queues['headers']}-x", arguments={"x-match": "any", "size": 5, "dry": True}
    )
    for queue in queues.values():
        client.publish("red", b"1", exchange=f"{queue}-x", headers={"size": 4, "dry": True})
        client.publish("fruit.apple.ripe", b"2", exchange=f"{queue}-x", headers={"size": 5})
        client.publish("other", b"3", exchange=f"{queue}-x")
    found = {kind: client.bodies(queue) for kind, queue in queues.items()}
    assert found == {"direct": [b"1"], "fanout": [b"1", b"2", b"3"], "topic": [b"2"], "headers": [b"1", b"2"]}
    channel.queue_unbind(queues["direct"], f"{queues['direct']}-x", "red")
    client.publish("red", b"4", exchange=f"{queues['direct']}-x")
    assert client.bodies(queues["direct"]) == []


def test_exchanges_are_bound_to_exchanges(client: Client) -> None:
    """S1, Q18."""
    channel, outer, inner, queue = client.channel, fresh("x"), fresh("x"), fresh()
    channel.exchange_declare(outer, "topic")
    channel.exchange_declare(inner, "fanout")
    channel.queue_declare(queue)
    channel.exchange_bind(inner, outer, "a.#")
    channel.exchange_bind(outer, inner)  # round and round, and each queue gets it once
    channel.queue_bind(queue, inner)
    channel.queue_bind(queue, outer, "a.b")
    client.publish("a.b", b"once", exchange=outer)
    assert client.bodies(queue) == [b"once"]
    channel.exchange_unbind(inner, outer, "a.#")
    client.publish("a.c", b"none", exchange=outer)
    assert client.bodies(queue) == []


def test_what_an_exchange_cannot_route_goes_to_its_alternate(client: Client) -> None:
    """S1."""
    channel, main, other, queue = client.channel, fresh("x"), fresh("x"), fresh()
    channel.exchange_declare(other, "fanout")
    channel.exchange_declare(main, "direct", arguments={"alternate-exchange": other})
    channel.queue_declare(queue)
    channel.queue_bind(queue, other)
    channel.basic_publish(main, "nowhere", b"saved", mandatory=True)
    assert client.bodies(queue) == [b"saved"]


def test_names_are_made_and_remembered(client: Client) -> None:
    """S1."""
    channel = client.channel
    name = channel.queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    channel.queue_bind("", "amq.fanout")
    client.publish("", b"hello", exchange="amq.fanout")
    assert client.bodies(name) == [b"hello"]
    assert client.refused(lambda ch: ch.queue_bind("", "amq.fanout")) == (
        404,
        "NOT_FOUND - no previously declared queue",
    )


def test_unused_and_empty_are_asked_for_before_deleting(client: Client) -> None:
    """S1."""
    channel, name = client.channel, fresh()
    channel.queue_declare(name)
    client.publish(name, b"1", b"2")
    assert client.refused(lambda ch: ch.queue_delete(name, if_empty=True)) == (
        406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty",
    )  # fmt: skip
    tag = channel.basic_consume(name, lambda *found: None)
    assert client.refused(lambda ch: ch.queue_delete(name, if_unused=True)) == (
        406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use",
    )  # fmt: skip
    channel.basic_cancel(tag)
    assert channel.queue_declare(name, passive=True).method.consumer_count == 0
    channel.queue_delete(name)
    assert channel.queue_delete(name).method.message_count == 0
    exchange, queue = fresh("x"), fresh()
    channel.exchange_declare(exchange)
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange, "k")
    assert client.refused(lambda ch: ch.exchange_delete(exchange, if_unused=True))[0] == 406
    channel.queue_delete(queue)
    channel.exchange_delete(exchange, if_unused=True)


def test_exclusive_queues_belong_to_their_connection(server: RunningServer, client: Client) -> None:
    """S1."""
    name = fresh()
    with Client(server.url) as owner:
        owner.channel.queue_declare(name, exclusive=True)
        for ask in (
            lambda ch: ch.queue_declare(name, exclusive=True),
            lambda ch: ch.queue_declare(name),
            lambda ch: ch.queue_declare(name, passive=True),
            lambda ch: ch.basic_consume(name, lambda *found: None),
            lambda ch: ch.queue_delete(name),
        ):
            code, text = client.refused(ask)
            assert code == 405
            assert text.startswith(
                f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'."
            )
        assert owner.refused(lambda ch: ch.queue_declare(name))[0] == 405  # it is exclusive, and this is not
    eventually(lambda: name not in {info.name for info in server.broker.queues()})


def test_auto_delete_queues_and_exchanges_go_with_the_last_user(server: RunningServer, client: Client) -> None:
    """S1."""
    channel, queue, exchange = client.channel, fresh(), fresh("x")
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    channel.queue_declare(queue, auto_delete=True)
    channel.queue_bind(queue, exchange)
    first = channel.basic_consume(queue, lambda *found: None)
    second = channel.basic_consume(queue, lambda *found: None)
    channel.basic_cancel(first)
    channel.queue_declare(queue, passive=True)
    channel.basic_cancel(second)
    assert exchange not in server.broker.routers()
    assert client.refused(lambda ch: ch.queue_declare(queue, passive=True))[0] == 404


def test_auto_delete_exchanges_go_with_a_channel_and_its_queues(server: RunningServer, client: Client) -> None:
    """S2: aio-pika's own tests declare such an exchange again at once, and bind to it."""
    queue, exchange = fresh(), fresh("x")
    other = client.open()
    client.channel.exchange_declare(exchange, auto_delete=True)
    other.queue_declare(queue, auto_delete=True)
    other.queue_bind(queue, exchange, "k")
    other.basic_consume(queue, lambda *found: None)
    other.close()
    assert exchange not in server.broker.routers()
    client.channel.exchange_declare(exchange, auto_delete=True)
    server.run(server.server.topology.drop_unused())  # it had no binding yet, so it stays
    client.channel.queue_declare(queue)
    client.channel.queue_bind(queue, exchange, "k")
    server.broker.remove_queue(queue)  # by itself, as a queue that expires
    assert client.refused(lambda ch: ch.exchange_declare(exchange, passive=True))[0] == 404


def test_auto_delete_exchanges_of_an_earlier_server_go_too(server: RunningServer, client: Client) -> None:
    """S1."""
    queue, exchange = fresh(), fresh("x")
    client.channel.exchange_declare(exchange, durable=True, auto_delete=True)
    client.channel.queue_declare(queue, durable=True)
    client.channel.queue_bind(queue, exchange, "k")
    with RunningServer(broker=server.broker) as later, Client(later.url) as inside:
        inside.channel.queue_unbind(queue, exchange, "k")
        assert exchange not in server.broker.routers()


def test_auto_delete_exchanges_cost_others_nothing(
    server: RunningServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: a hundred of them, and still a channel with a consumer ends with a look or two at all exchanges."""
    channel, queue = client.channel, fresh()
    channel.queue_declare(queue)
    names = [fresh("x") for _ in range(100)]
    for name in names:
        channel.exchange_declare(name, "fanout", auto_delete=True)
        channel.queue_bind(queue, name)
    looks, look = 0, server.server.broker.routers

    async def counted() -> Any:
        nonlocal looks
        looks += 1
        return await look()

    monkeypatch.setattr(server.server.broker, "routers", counted)
    other = client.open(confirms=False)
    other.queue_declare(own := fresh(), auto_delete=True)
    other.basic_consume(own, lambda *found: None)
    other.close()
    assert looks < 50  # two, and one each second besides
    channel.queue_unbind(queue, names[0])
    channel.queue_delete(queue)
    assert not set(names) & set(server.run(look()))


def test_an_auto_delete_exchange_takes_those_along_that_only_led_to_it(client: Client) -> None:
    """S1."""
    first, last, queue = fresh("x"), fresh("x"), fresh()
    client.channel.queue_declare(queue)
    for name in (first, last):
        client.channel.exchange_declare(name, "fanout", auto_delete=True)
    client.channel.exchange_bind(last, first)
    client.channel.queue_bind(queue, last)
    client.channel.queue_delete(queue)
    assert client.refused(lambda ch: ch.exchange_declare(last, passive=True))[0] == 404
    assert client.refused(lambda ch: ch.exchange_declare(first, passive=True))[0] == 404


def test_nothing_without_a_name_can_be_looked_up(client: Client) -> None:
    """S2: aiormq's own tests ask for the default exchange."""
    assert client.refused(lambda ch: ch.exchange_declare("", passive=True)) == (
        403, "ACCESS_REFUSED - operation not permitted on the default exchange",
    )  # fmt: skip
    assert client.refused(lambda ch: ch.queue_declare("", passive=True)) == (
        404, "NOT_FOUND - no queue '' in vhost '/'",
    )  # fmt: skip
    assert client.refused(lambda ch: ch.exchange_delete("amq.direct")) == (
        403, "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed",
    )  # fmt: skip


def test_a_queue_expires_when_nobody_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1. What is wrong with another client does not keep the server from looking after the rest (S4)."""
    with RunningServer() as server, Client(server.url) as client:
        client.channel.queue_declare("q", arguments={"x-expires": 300})
        (connected,) = server.server.clients
        for channel in connected.session.channels.values():
            monkeypatch.setattr(channel.unanswered, "held", lambda: 1 / 0)
        eventually(lambda: not server.broker.queues())
        assert server.server.mistakes.count
        monkeypatch.undo()


def test_vhosts_keep_apart(server: RunningServer, client: Client) -> None:
    """S4."""
    name = fresh()
    other = server.url.replace("%2F", "other")
    with Client(other) as inside:
        inside.channel.queue_declare(name)
        inside.publish(name, b"there")
        client.channel.queue_declare(name)
        client.publish(name, b"here")
        assert client.bodies(name) == [b"here"]
        assert inside.bodies(name) == [b"there"]
    assert client.refused(lambda ch: ch.queue_declare(f"other/{name}", passive=True))[0] == 404
    client.channel.queue_declare(f"other/{name}")  # a name like any other
    assert client.refused(lambda ch: ch.queue_declare(f"vhost:other/{name}"))[0] == 403
    assert client.refused(lambda ch: ch.queue_declare("vhost:new/q"))[0] == 403
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"530.*NOT_ALLOWED - vhost nowhere not found"):
        Client(server.url.replace("%2F", "nowhere"))


def test_own_options_come_as_arguments(server: RunningServer, client: Client) -> None:
    """S3."""
    name = fresh()
    arguments = {"x-remuda-message-limit": 7, "x-remuda-put-back-delay": "2s", "x-remuda-unique-ids": True}
    client.channel.queue_declare(name, durable=True, arguments=arguments)
    options = server.broker.queue(name).options
    assert (options.message_limit, options.put_back_delay, options.unique_ids) == (7, 2_000_000, True)


def test_routers_can_be_declared_too(client: Client) -> None:
    """S3, Q18."""
    channel, exchange, first, second = client.channel, fresh("x"), fresh(), fresh()
    channel.exchange_declare(exchange, "x-remuda-round-robin", durable=True)
    for queue in (first, second):
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange)
    client.publish("k", b"1", b"2", b"3", b"4", exchange=exchange)
    assert (client.waiting(first), client.waiting(second)) == (2, 2)
