"""How connections end: the peer hears why, whatever it is sending, and what it held is back at once (S1, S4)."""

from __future__ import annotations

import pytest

from remuda.amqp.codec.frames import PROTOCOL_HEADER, FrameParser, add_content, method_frame
from remuda.amqp.codec.methods import (
    BasicAck,
    BasicConsume,
    BasicPublish,
    ChannelClose,
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    Method,
    QueueDeclare,
)
from remuda.server.amqp.protocol.connection import Stage
from tests.server.amqp.kit import Client, eventually, fresh
from tests.server.amqp.test_faults import RawPeer
from tests.servers.amqpd import RunningServer

_MORE = 16 << 20
"""Bytes that are sent behind a close: more than two sockets hold."""


def _publications(queue: str, size: int, each: int = 100_000) -> bytes:
    frames: list[bytes] = []
    add_content(frames, method_frame(1, BasicPublish(0, "", queue)), 1, b"\0\0", b"x" * each)
    return b"".join(frames) * (size // each)


def _last(peer: RawPeer) -> list[Method]:
    """Everything that comes until the server has no more to say."""
    parser, heard = FrameParser(), list[Method]()
    while not any(isinstance(method, ConnectionClose | ConnectionCloseOk) for method in heard):
        data = peer.socket.recv(65536)
        assert data, "closed without a word"
        heard += [method for _, method, _, _ in parser.feed(data)]
    return heard


def test_who_publishes_on_while_it_closes_hears_that_it_is_closed(server: RunningServer, client: Client) -> None:
    """S2: node's amqplib sends what it has buffered behind its close."""
    name = fresh()
    client.channel.queue_declare(name)
    peer = RawPeer(server.port).open()
    peer.say(method_frame(0, ConnectionClose(200, "bye")), _publications(name, _MORE))
    assert _last(peer) == [ConnectionCloseOk()]
    assert client.waiting(name) == 0
    peer.close()


def test_who_sends_on_behind_a_mistake_hears_what_it_was(server: RunningServer) -> None:
    """S4."""
    peer = RawPeer(server.port).open()
    peer.say(b"\x09\x00\x00\x00\x00\x00\x00\xce", _publications("nowhere", _MORE))
    (close,) = _last(peer)
    assert isinstance(close, ConnectionClose)
    assert close.code == 501
    assert peer.socket.recv(1) == b""
    peer.close()


def test_who_speaks_another_protocol_hears_which_one_is_spoken_here(server: RunningServer) -> None:
    """S1."""
    peer = RawPeer(server.port)
    peer.say(b"GET / HTTP/1.1\r\n", b"x" * _MORE)
    assert peer.socket.recv(100) == PROTOCOL_HEADER
    assert peer.ended()


def test_exclusive_queues_are_gone_when_the_close_is_answered(server: RunningServer) -> None:
    """S1."""
    name = fresh()
    peer = RawPeer(server.port).open()
    peer.say(method_frame(1, QueueDeclare(0, name, exclusive=True)))
    peer.hear("QueueDeclareOk")
    peer.say(method_frame(0, ConnectionClose()))
    peer.hear("ConnectionCloseOk")
    assert name not in {info.name for info in server.broker.queues()}
    peer.close()
    eventually(lambda: all(client.protocol.stage is not Stage.CLOSED for client in server.server.clients))


@pytest.mark.parametrize(
    "mistake", [method_frame(9, QueueDeclare()), b"\x09\x00\x00\x00\x00\x00\x00\xce"], ids=["order", "frame"]
)
def test_what_a_client_held_is_back_when_it_is_closed_for_a_mistake(
    server: RunningServer, client: Client, mistake: bytes
) -> None:
    """S4: also when it does not hang up."""
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, b"kept")
    peer = RawPeer(server.port).open()
    peer.say(method_frame(1, BasicConsume(0, name, "t")))
    assert peer.deliveries(1) == [(1, b"kept")]
    (consuming,) = [one for one in server.server.clients if one.session.channels and one.session.channels[1].consumers]
    peer.say(mistake)
    peer.hear("ConnectionClose")
    eventually(lambda: client.waiting(name) == 1)
    assert consuming in server.server.clients  # its socket is still there
    peer.close()


def test_any_number_will_do_for_a_channel(server: RunningServer) -> None:
    """S2: aiormq's own tests open number 65535."""
    peer = RawPeer(server.port).open()
    peer.say(method_frame(65535, ChannelOpen()))
    peer.hear("ChannelOpenOk")
    peer.close()


def test_what_is_still_sent_on_a_channel_that_is_being_closed_is_passed_over(
    server: RunningServer, client: Client
) -> None:
    """S4: one thread of a client closes it while another acknowledges and publishes."""
    name = fresh()
    client.channel.queue_declare(name)
    peer = RawPeer(server.port).open()
    peer.say(
        method_frame(1, ChannelClose()), method_frame(1, BasicAck(5)), _publications(name, 30, 10),
        method_frame(1, QueueDeclare(0, "amq.mine")),
    )  # fmt: skip
    peer.hear("ChannelCloseOk")
    peer.say(method_frame(1, ChannelOpen()))
    peer.hear("ChannelOpenOk")
    assert client.waiting(name) == 0
    peer.say(method_frame(1, ChannelClose()))
    peer.hear("ChannelCloseOk")
    peer.say(method_frame(1, BasicAck(5)))  # it has been told: now it is a mistake
    (close,) = _last(peer)
    assert isinstance(close, ConnectionClose)
    assert close.code == 504
    peer.close()
