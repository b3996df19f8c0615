"""Answers in the order and with the words of RabbitMQ, as its clients' own test suites expect them (S1, S2)."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.amqp.codec.frames import Event, FrameParser, add_content, method_frame
from remuda.amqp.codec.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicDeliver,
    BasicNack,
    BasicPublish,
    BasicRecover,
    BasicRecoverOk,
    ChannelClose,
    ConfirmSelect,
    Method,
    TxSelect,
)
from remuda.amqp.codec.properties import Properties, encode_properties
from tests.server.amqp.kit import Client, eventually, fresh
from tests.server.amqp.test_faults import RawPeer
from tests.servers.amqpd import RunningServer


def _publication(key: str, *, exchange: str = "", body: bytes = b"m", most: int = 131072) -> bytes:
    frames: list[bytes] = []
    add_content(frames, method_frame(1, BasicPublish(0, exchange, key)), 1, encode_properties(Properties()), body, most)
    return b"".join(frames)


def _until(peer: RawPeer, kind: type[Method], parser: FrameParser) -> list[Event]:
    heard: list[Event] = []
    while not any(isinstance(method, kind) for _, method, _, _ in heard):
        data = peer.socket.recv(65536)
        assert data, f"closed before {kind.__name__}"
        heard += parser.feed(data)
    return heard


@pytest.mark.parametrize("transactional", [False, True])
def test_nothing_counts_that_is_published_behind_an_exchange_that_is_not_there(
    server: RunningServer, client: Client, transactional: bool
) -> None:
    """S1: the channel closes there, also in a transaction, and what was before is kept."""
    name = fresh()
    client.channel.queue_declare(name)
    peer = RawPeer(server.port).open()
    select = method_frame(1, TxSelect() if transactional else ConfirmSelect())
    peer.say(select, _publication(name), _publication("k", exchange="nope"), _publication(name), _publication(name))
    (close,) = [method for _, method, _, _ in _until(peer, ChannelClose, FrameParser()) if type(method) is ChannelClose]
    assert (close.code, close.class_id, close.method_id) == (404, 60, 40)
    assert client.waiting(name) == (0 if transactional else 1)
    peer.close()


def test_a_frame_may_have_its_head_and_end_beyond_what_was_agreed(server: RunningServer, client: Client) -> None:
    """S2: amqpstorm fills frames so."""
    name, body = fresh(), bytes(300_000)
    client.channel.queue_declare(name)
    peer = RawPeer(server.port).open()
    peer.say(_publication(name, body=body, most=131072 + 8))
    assert client.get(name)[2] == body
    peer.close()


def test_recover_is_answered_before_messages_come_again(server: RunningServer, client: Client) -> None:
    """S1."""
    name, parser = fresh(), FrameParser()
    client.channel.queue_declare(name)
    client.publish(name, b"m")
    peer = RawPeer(server.port).open()
    peer.say(method_frame(1, BasicConsume(0, name, "t")))
    _until(peer, BasicDeliver, parser)
    peer.say(method_frame(1, BasicRecover(True)))
    kinds = [type(method) for _, method, _, _ in _until(peer, BasicDeliver, parser)]
    assert kinds.index(BasicRecoverOk) < kinds.index(BasicDeliver)
    peer.close()


def test_one_confirm_is_not_multiple(server: RunningServer, client: Client) -> None:
    """S1."""
    name, parser = fresh(), FrameParser()
    client.channel.queue_declare(name)
    peer = RawPeer(server.port).open()
    peer.say(method_frame(1, ConfirmSelect()))
    for tag in (1, 2):
        peer.say(_publication(name))
        acks = [method for _, method, _, _ in _until(peer, BasicAck, parser) if isinstance(method, BasicAck)]
        assert acks == [BasicAck(tag, False)]
    peer.close()


def test_prefetch_for_each_takes_the_place_of_prefetch_for_all(client: Client) -> None:
    """S1."""
    name = fresh()
    channel, found = client.open(confirms=False), list[bytes]()
    channel.queue_declare(name)
    client.publish(name, b"1", b"2", b"3")
    channel.basic_qos(prefetch_count=1, global_qos=True)
    channel.basic_qos(prefetch_count=3)
    channel.basic_consume(name, lambda _c, _m, _p, body: found.append(body))
    eventually(lambda: client.connection.process_data_events(0.02) or found == [b"1", b"2", b"3"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x-priority": "a"}, ': "expected integer, got longstr"'),
        ({"x-priority": True}, ': "expected integer, got bool"'),
    ],
)
def test_priorities_of_consumers_are_numbers(client: Client, arguments: dict[str, Any], why: str) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    assert client.refused(lambda ch: ch.basic_consume(name, print, arguments=arguments)) == (
        406, f"PRECONDITION_FAILED - invalid arg 'x-priority' for queue '{name}' in vhost '/'{why}",
    )  # fmt: skip


def test_consumers_ask_for_what_their_queue_can_do(client: Client) -> None:
    """S1."""
    name, alone = fresh(), fresh()
    client.channel.queue_declare(name)
    client.channel.queue_declare(alone, arguments={"x-single-active-consumer": True})
    client.channel.basic_consume(name, print, arguments={"x-priority": 1 << 40})
    assert client.refused(lambda ch: ch.basic_consume(name, print, arguments={"x-stream-offset": "first"})) == (
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{name}' in vhost '/' of queue type "
        "rabbit_classic_queue",
    )
    assert client.refused(lambda ch: ch.basic_consume(alone, print, exclusive=True))[0] == 403


@pytest.mark.parametrize(
    ("match", "text"),
    [
        ("odd", 'Invalid x-match field value <<"odd">>; expected all, any, all-with-x, or any-with-x'),
        (5, "Invalid x-match field type signedint (value 5); expected longstr"),
    ],
)
def test_a_headers_binding_says_how_it_matches(client: Client, match: Any, text: str) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    arguments = {"x-match": match, "a": 1}
    assert client.refused(lambda ch: ch.queue_bind(name, "amq.headers", "", arguments)) == (
        406, f"PRECONDITION_FAILED - {text}",
    )  # fmt: skip
    client.channel.queue_bind(name, "amq.direct", "", arguments)  # others do not look at it


@pytest.mark.parametrize(
    ("expiration", "why"),
    [
        ("abc", "no_integer"), ("", "no_integer"), (" 5", "no_integer"), ("-1", "{value_negative,-1}"),
        ("1.5", '{leftover_string,".5"}'), ("99999999999999", "{value_too_large,99999999999999}"),
    ],
)  # fmt: skip
def test_impossible_expirations_are_refused_in_the_words_of_rabbitmq(client: Client, expiration: str, why: str) -> None:
    """S1."""
    properties = Client.properties(expiration=expiration)
    assert client.refused(lambda ch: ch.basic_publish("", "k", b"", properties)) == (
        406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {why}",
    )  # fmt: skip


def test_copies_are_asked_for_in_an_array(client: Client) -> None:
    """S1: what is no text in it is passed over."""
    name, copy = fresh(), fresh()
    client.channel.queue_declare(name)
    client.channel.queue_declare(copy)
    client.publish(name, b"m", headers={"CC": [1, copy]})
    assert client.bodies(copy) == [b"m"]
    wrong = Client.properties(headers={"CC": copy})
    assert client.refused(lambda ch: ch.basic_publish("", name, b"", wrong)) == (
        406, 'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}',
    )  # fmt: skip


def test_a_message_that_came_back_too_often_dies_when_it_is_put_back(client: Client) -> None:
    """S1: not only when the next would take it; and who fetches it is told how often it came."""
    name, dead = fresh(), fresh()
    limit = {"x-queue-type": "quorum", "x-delivery-limit": 1, "x-dead-letter-exchange": "",
             "x-dead-letter-routing-key": dead}  # fmt: skip
    client.channel.queue_declare(dead)
    client.channel.queue_declare(name, durable=True, arguments=limit)
    client.publish(name, b"m")
    for count in (0, 1):
        method, properties, _ = client.get(name, ack=False)
        assert properties.headers["x-delivery-count"] == count
        client.channel.basic_nack(method.delivery_tag, requeue=True)
    letter = client.get(dead)
    assert letter[1].headers["x-death"][0]["reason"] == "delivery_limit"
    assert list(letter[1].headers)[-3:] == ["x-first-death-exchange", "x-first-death-queue", "x-first-death-reason"]


def test_a_consumer_that_puts_back_too_often_loses_the_message_at_once(server: RunningServer, client: Client) -> None:
    """S1: of several in one answer, those that have come too often."""
    name, dead = fresh(), fresh()
    limit = {"x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    client.channel.queue_declare(dead)
    client.channel.queue_declare(name, arguments=limit)
    client.publish(name, b"old")
    method, _, _ = client.get(name, ack=False)
    client.channel.basic_nack(method.delivery_tag, requeue=True)
    eventually(lambda: client.waiting(name) == 1)
    client.publish(name, b"new")
    peer = RawPeer(server.port).open()
    peer.say(method_frame(1, BasicConsume(0, name, "t")))
    assert peer.deliveries(2) == [(1, b"old"), (2, b"new")]
    peer.say(method_frame(1, BasicCancel("t")))
    peer.hear("BasicCancelOk")
    peer.say(method_frame(1, BasicNack(2, True, True)))
    assert client.get(dead)[2] == b"old"
    assert client.get(name)[2] == b"new"
    peer.close()


def test_deleting_twice_without_a_name_is_fine(client: Client) -> None:
    """S1."""
    client.channel.queue_declare(fresh())
    client.channel.queue_delete("")
    assert client.channel.queue_delete("").method.message_count == 0
