"""What clients may send and no request should cause: decimals, void, and errors of this server's own (S1, S4)."""

from __future__ import annotations

import logging
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from tests.server.amqp.kit import Client, closing, eventually, fresh
from tests.servers.amqpd import RunningServer

_DECIMALS: list[Any] = [Decimal("12.5"), [Decimal("-1")], {"a": {"b": [Decimal("0.001")]}}]


@pytest.mark.parametrize("value", _DECIMALS)
def test_s1_decimals_pass_at_any_depth(client: Client, value: Any) -> None:
    name, exchange = fresh(), fresh("x")
    client.channel.queue_declare(name, arguments={"x-note": value})
    client.channel.exchange_declare(exchange, "headers", arguments={"note": value})
    client.channel.queue_bind(name, exchange, arguments={"price": value})
    client.publish("k", b"1", exchange=exchange, headers={"price": value})
    client.publish("k", b"2", exchange=exchange, headers={"price": "something else"})
    _, properties, body = client.get(name)
    assert (body, properties.headers) == (b"1", {"price": value})
    assert client.waiting(name) == 0


def test_s1_a_void_argument_asks_only_whether_the_header_is_there(client: Client) -> None:
    name, exchange = fresh(), fresh("x")
    client.channel.queue_declare(name)
    client.channel.exchange_declare(exchange, "headers")
    client.channel.queue_bind(name, exchange, arguments={"there": None})
    for body, headers in ((b"void", {"there": None}), (b"text", {"there": "x"}), (b"none", {"else": None})):
        client.publish("k", body, exchange=exchange, headers=headers)
    assert client.bodies(name) == [b"void", b"text"]


def test_s1_an_empty_routing_key_has_no_word(client: Client) -> None:
    exchange = fresh("x")
    client.channel.exchange_declare(exchange, "topic")
    queues = {pattern: fresh() for pattern in ("*", "#", "", "#.#", "*.#")}
    for pattern, name in queues.items():
        client.channel.queue_declare(name)
        client.channel.queue_bind(name, exchange, pattern)
    client.publish("", b"empty", exchange=exchange)
    assert [pattern for pattern, name in queues.items() if client.waiting(name)] == ["#", "", "#.#"]


def _declare(name: str, channel: Any) -> None:
    channel.queue_declare(name)


def test_s4_an_error_of_the_server_costs_one_channel_and_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningServer() as server, Client(server.url) as client:
        client.channel.queue_declare("q")

        async def fail(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(server.server.topology, "create_queue", fail)
        monkeypatch.setattr(server.server.broker, "route", fail)
        with caplog.at_level(logging.ERROR, "remuda.amqp"):
            for number in range(3):
                code, text = client.refused(partial(_declare, f"q-{number}"))
                assert (code, text) == (541, "INTERNAL_ERROR - ZeroDivisionError; see the server's log")
            publisher = client.open(confirms=False)
            closed = closing(publisher)
            publisher.basic_publish("amq.fanout", "k", b"x")
            eventually(lambda: client.connection.process_data_events(0.05) or closed)
        assert client.waiting("q") == 0  # the connection and its other channels go on
        assert server.server.mistakes.count == 4
        records = [one for one in caplog.records if "a mistake in this server" in one.message]
        assert len(records) == 4
        assert [bool(one.exc_info) for one in records] == [True, False, False, False]
        assert "QueueDeclare failed" in records[0].message
        assert "(guest, 127.0.0.1:" in records[0].message
        assert "BasicPublish failed" in records[3].message
