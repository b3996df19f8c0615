"""Peers that misbehave cost their own connection, and memory stays bounded (S4)."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from pathlib import Path

import aiormq
import pika
import pika.exceptions
import pytest

from remuda.amqp.codec.frames import PROTOCOL_HEADER, FrameParser, add_content, method_frame
from remuda.amqp.codec.methods import (
    BasicAck,
    BasicConsume,
    BasicDeliver,
    BasicPublish,
    BasicQos,
    ChannelOpen,
    ConnectionBlocked,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    ConnectionUnblocked,
    QueueDeclare,
)
from remuda.model.errors import DiskFull
from remuda.server.amqp.protocol.connection import Limits
from tests.server.amqp.kit import Client, eventually, fresh
from tests.servers.amqpd import RunningServer
from tests.servers.faultproxy import FaultProxy

_CAPABLE = {"capabilities": {"connection.blocked": True, "consumer_cancel_notify": True}}


class RawPeer:
    """A socket that says whatever a test wants."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._parser = FrameParser()

    def say(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def open(self) -> RawPeer:
        self.say(PROTOCOL_HEADER)
        self.hear("ConnectionStart")
        self.say(method_frame(0, ConnectionStartOk(_CAPABLE, response=b"\0guest\0guest")))
        self.hear("ConnectionTune")
        self.say(method_frame(0, ConnectionTuneOk(0, 0, 0)), method_frame(0, ConnectionOpen("/")))
        self.hear("ConnectionOpenOk")
        self.say(method_frame(1, ChannelOpen()))
        self.hear("ChannelOpenOk")
        return self

    def hear(self, name: str) -> None:
        """Read until a method of this name comes."""
        while True:
            data = self.socket.recv(65536)
            assert data, f"closed before {name}"
            if any(type(method).__name__ == name for _, method, _, _ in self._parser.feed(data)):
                return

    def deliveries(self, least: int) -> list[tuple[int, bytes]]:
        """Tags and bodies of what is delivered, once there are so many."""
        found: list[tuple[int, bytes]] = []
        while len(found) < least:
            data = self.socket.recv(65536)
            assert data, "closed while deliveries were awaited"
            for _, method, _, body in self._parser.feed(data):
                if isinstance(method, BasicDeliver):
                    found.append((method.delivery_tag, body))
        return found

    def ended(self) -> bool:
        """Whether the server closes the connection, sooner or later."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        self.close()
        return True

    def close(self) -> None:
        self.socket.close()


def _publication(queue: str, body: bytes) -> list[bytes]:
    frames: list[bytes] = []
    add_content(frames, method_frame(1, BasicPublish(0, "", queue)), 1, b"\0\0", body)
    return frames


def test_hostile_bytes_end_only_their_connection(server: RunningServer, client: Client) -> None:
    """S4."""
    chance = random.Random(7)
    name = fresh()
    client.channel.queue_declare(name)
    for turn in range(30):
        peer = RawPeer(server.port)
        if turn % 3:
            peer.open()
        with_frames = [chance.randbytes(chance.randrange(1, 400)) for _ in range(3)]
        try:
            peer.say(*with_frames, b"\x01\x00\x01\x00\x00\x00\x05\xff\xff\xff\xff\xff\x00" * 5)
            peer.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        assert peer.ended()
        peer.close()
    client.publish(name, b"fine")
    assert client.bodies(name) == [b"fine"]


def test_a_peer_that_never_logs_in_is_dropped() -> None:
    """S4: unauthenticated time."""
    with RunningServer(limits=Limits(login_seconds=0.3)) as server:
        silent, halfway = RawPeer(server.port), RawPeer(server.port)
        halfway.say(PROTOCOL_HEADER)
        assert silent.ended()
        assert halfway.ended()
        eventually(lambda: not server.server.clients)


def test_connections_and_channels_are_limited() -> None:
    """S4."""
    with RunningServer(limits=Limits(connection_max=2, channel_max=3)) as server:
        first, second = Client(server.url), Client(server.url)
        third = RawPeer(server.port)
        assert third.ended()
        for _ in range(2):
            first.open()
        second.channel.queue_declare("q")  # who keeps to the limits is served
        with pytest.raises(pika.exceptions.NoFreeChannels):
            first.open()
        first.connection.close()
        second.connection.close()


def test_a_flood_is_held_back_and_nothing_is_lost() -> None:
    """S4: a publisher that never waits is read as fast as the broker keeps, and memory stays bounded."""
    limits = Limits(backlog_bytes=200_000)
    with RunningServer(limits=limits) as server:
        peer = RawPeer(server.port).open()
        peer.say(method_frame(1, QueueDeclare(0, "flood", False, True)))
        peer.hear("QueueDeclareOk")
        most = [0]
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                waits = [client._backlog_bytes + client.session.in_flight for client in list(server.server.clients)]
                most[0] = max([most[0], *waits])
                time.sleep(0.001)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        batch = b"".join(_publication("flood", bytes(1000)) * 100)
        for _ in range(100):
            peer.say(batch)
        eventually(lambda: server.broker.queue("flood").waiting == 10_000)
        done.set()
        thread.join(60)
        assert most[0] < 200_000 + 3 * (256 << 10)  # one read more than allowed
        peer.close()


def test_a_transaction_that_never_ends_costs_its_own_connection() -> None:
    """S4: only its client can end it, so it cannot be asked to wait."""
    limits = Limits(transaction_bytes=50_000, message_max=50_000)
    with RunningServer(limits=limits) as server, Client(server.url) as other:
        other.channel.queue_declare("tx")
        with Client(server.url) as client:
            channel = client.open(confirms=False)
            channel.tx_select()
            for _ in range(5):  # as much as there is room for, again and again
                for _ in range(8):
                    channel.basic_publish("", "tx", bytes(10_000))
                channel.tx_commit()
            channel.basic_publish("", "tx", bytes(40_000))
            channel.tx_rollback()
            assert other.waiting("tx") == 40

            def too_much() -> None:
                for _ in range(10):
                    channel.basic_publish("", "tx", bytes(10_000))
                channel.tx_commit()

            with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"506.*commit more often"):
                too_much()
        eventually(lambda: len(server.server.clients) == 1)
        assert server.server.intake._uncommitted == 0
        assert other.waiting("tx") == 40


def test_publishers_are_told_to_wait_when_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: connection.blocked instead of growth, and what was not kept is not confirmed."""
    with RunningServer() as server, Client(server.url) as client:
        client.channel.queue_declare("q")
        blocked: list[object] = []
        client.connection.add_on_connection_blocked_callback(lambda *told: blocked.append(told))
        client.connection.add_on_connection_unblocked_callback(lambda *told: blocked.append("over"))
        route = server.server.broker.route

        async def full(*args: object, **options: object) -> object:
            raise DiskFull("the disk is full; nothing was stored")

        monkeypatch.setattr(server.server.broker, "route", full)
        with pytest.raises(pika.exceptions.NackError):
            client.publish("q", b"refused")
        eventually(lambda: client.connection.process_data_events(0.1) or blocked)
        monkeypatch.setattr(server.server.broker, "route", route)
        eventually(lambda: client.connection.process_data_events(0.1) or "over" in blocked)
        client.publish("q", b"taken")
        assert client.bodies("q") == [b"taken"]


def test_blocked_is_said_to_all_who_publish() -> None:
    """S4."""
    with RunningServer() as server:
        peer = RawPeer(server.port).open()
        peer.say(method_frame(1, QueueDeclare(0, "q", False)), *_publication("q", b"1"))
        eventually(lambda: server.broker.queues() and server.broker.queue("q").waiting == 1)
        intake = server.server.intake

        async def squeeze() -> None:
            intake.add(1 << 40)

        async def release() -> None:
            intake.remove(1 << 40)

        server.run(squeeze())
        peer.hear(ConnectionBlocked.__name__)
        peer.say(*_publication("q", b"2"))
        server.run(release())
        peer.hear(ConnectionUnblocked.__name__)
        eventually(lambda: server.broker.queue("q").waiting == 2)
        peer.close()


def test_a_consumer_that_does_not_read_costs_no_memory() -> None:
    """S4: what waits for a slow consumer waits in its queue."""
    with RunningServer() as server, Client(server.url) as client:
        client.channel.queue_declare("big")
        unconfirmed = client.open(confirms=False)
        for _ in range(400):
            unconfirmed.basic_publish("", "big", bytes(100_000))
        eventually(lambda: server.broker.queue("big").waiting == 400)
        peer = RawPeer(server.port).open()
        peer.say(method_frame(1, BasicConsume(0, "big", "slow")))
        peer.hear("BasicConsumeOk")
        (consuming,) = [
            one for one in server.server.clients if one.session.channels and one.session.channels[1].consumers
        ]
        transport = consuming._transport
        assert transport is not None
        eventually(lambda: transport.get_write_buffer_size() > 1 << 20)
        client.publish("big", b"others are served")
        assert transport.get_write_buffer_size() < 3 << 20
        found = peer.deliveries(401)
        assert [tag for tag, _ in found] == list(range(1, 402))
        assert [body for _, body in found] == [*[bytes(100_000)] * 400, b"others are served"]
        peer.say(method_frame(1, BasicAck(150, True)), method_frame(1, BasicAck(401, False)))
        eventually(lambda: server.broker.queue("big").in_flight == 250)
        peer.close()
        eventually(lambda: server.broker.queue("big").waiting == 250)
        assert client.get("big")[0].redelivered


def test_cuts_lose_nothing_that_was_confirmed(tmp_path: Path) -> None:
    """S4, L2: the connection is cut again and again under load."""
    with RunningServer(str(tmp_path / "data")) as server, FaultProxy("127.0.0.1", server.port) as proxy:
        proxy.split = 37
        confirmed: list[bytes] = []
        attempts = 0
        with Client(server.url) as admin:
            admin.channel.queue_declare("q", durable=True)
        through = server.url.replace(str(server.port), str(proxy.port))
        for cut in range(6):
            client = Client(through)
            try:
                for number in range(30):
                    body = b"%d-%d" % (cut, number)
                    attempts += 1
                    if number == 20:
                        proxy.cut()
                    client.publish("q", body, delivery_mode=2)
                    confirmed.append(body)
            except (pika.exceptions.AMQPError, OSError):
                continue
        proxy.split = 0
        assert attempts > len(confirmed) >= 100
        with Client(server.url) as reader:
            found = reader.bodies("q")
        assert set(confirmed) <= set(found)


def test_a_stream_with_one_wrong_byte_ends_in_an_error_or_in_order(server: RunningServer, client: Client) -> None:
    """S4."""
    chance = random.Random(11)
    name = fresh()
    stream = PROTOCOL_HEADER + b"".join(
        [
            method_frame(0, ConnectionStartOk(_CAPABLE, response=b"\0guest\0guest")),
            method_frame(0, ConnectionTuneOk(0, 0, 0)),
            method_frame(0, ConnectionOpen("/")),
            method_frame(1, ChannelOpen()),
            method_frame(1, QueueDeclare(0, name)),
            *_publication(name, b"x" * 50) * 3,
        ]
    )
    for _ in range(60):
        wrong = bytearray(stream)
        wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
        peer = RawPeer(server.port)
        try:
            peer.say(bytes(wrong))
            peer.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        assert peer.ended()
    client.channel.queue_declare(name)
    client.publish(name, b"fine")
    assert client.bodies(name)[-1] == b"fine"


def test_a_thousand_connections() -> None:
    """S4."""
    with RunningServer() as server:
        asyncio.run(asyncio.wait_for(_thousand(server), 200))
        eventually(lambda: not server.server.clients)


async def _thousand(server: RunningServer) -> None:
    gate = asyncio.Semaphore(50)

    async def connect() -> aiormq.abc.AbstractConnection:
        async with gate:
            return await aiormq.connect(server.url)

    connections = await asyncio.gather(*(connect() for _ in range(1000)))
    assert len(server.server.clients) == 1000
    for connection in connections[::100]:
        channel = await connection.channel()
        declared = await channel.queue_declare("shared-by-many")
        await channel.basic_publish(b"x", routing_key=declared.queue or "")
    assert server.broker.queue("shared-by-many").waiting == 10
    await asyncio.gather(*(connection.close() for connection in connections))


def test_hundreds_of_queues_on_one_connection() -> None:
    """S4: what one client asks for in one breath is all done, and each queue gets and gives its own."""
    names = [f"one-of-many-{number}" for number in range(300)]
    with RunningServer() as server:
        peer = RawPeer(server.port).open()
        peer.say(*(method_frame(1, QueueDeclare(0, name, no_wait=True)) for name in names))
        peer.say(*(frame for name in names for frame in _publication(name, name.encode())))
        peer.say(*(method_frame(1, BasicConsume(0, name, name, no_wait=True)) for name in names))
        delivered = peer.deliveries(len(names))
        assert sorted(body.decode() for _, body in delivered) == sorted(names)
        peer.say(method_frame(1, BasicAck(0, True)))
        eventually(lambda: not any(info.in_flight for info in server.broker.queues()))
        peer.close()


def test_a_backlog_comes_out_in_order_and_in_little_memory(tmp_path: Path) -> None:
    """S4, Q21: what waits lies in the log, and is read from there as the consumer answers."""
    total, batch = 30_000, 1000
    with RunningServer(str(tmp_path / "data")) as server:
        peer = RawPeer(server.port).open()
        peer.say(method_frame(1, QueueDeclare(0, "q", durable=True, no_wait=True)))
        for start in range(0, total, batch):
            peer.say(*(part for at in range(start, start + batch) for part in _publication("q", b"%08d" % at)))
        eventually(lambda: server.broker.queues() and server.broker.queue("q").waiting == total)
        peer.say(method_frame(1, BasicQos(0, 500)), method_frame(1, BasicConsume(0, "q", "c", no_wait=True)))
        seen = 0
        while seen < total:
            delivered = peer.deliveries(1)
            assert [body for _, body in delivered] == [b"%08d" % at for at in range(seen, seen + len(delivered))]
            seen += len(delivered)
            peer.say(method_frame(1, BasicAck(delivered[-1][0], True)))
            assert server.broker.queue("q").in_flight <= 500
        eventually(lambda: server.broker.queue("q").in_flight == 0)
        peer.close()


def test_churn_leaves_nothing_behind(server: RunningServer, client: Client) -> None:
    """S4: channels, queues, bindings and consumers that come and go."""
    before = len(server.broker.queues())
    for _ in range(60):
        channel = client.open()
        name = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(name, "amq.topic", "a.*")
        tag = channel.basic_consume(name, lambda *found: None)
        channel.basic_publish("amq.topic", "a.b", b"x")
        channel.basic_cancel(tag)
        channel.queue_delete(name)
        channel.close()
    assert len(server.broker.queues()) == before
    assert not [one for one in server.broker.routers()["amq.topic"][1] if one.queue is not None]
    assert all(not client.session.exclusive for client in server.server.clients)
