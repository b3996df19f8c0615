"""The wire over TCP (S6): login, TLS, versions, limits, and connections that break."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, Message, open_broker
from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.command_checks import checked
from remuda.log.readers.reader import Reader
from remuda.model.errors import HostNotResponding, InvalidOption, NotAllowed, RemudaError, StorageError
from remuda.model.operations.commands import Pull, Settle, Subscribe
from remuda.model.operations.filters import MessageFilter
from remuda.model.settlement import Outcome, Settlement
from remuda.server.users import EVERYTHING, Users, add_user
from remuda.server.wire import WireServer, serve_wire
from tests.conformance.kit import eventually

LOOPBACK = ("127.0.0.1", 0)


@pytest.fixture
def server() -> Iterator[WireServer]:
    with open_broker("memory://") as broker, serve_wire(broker, LOOPBACK) as serving:
        yield serving


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(folder / "key.pem"),
         "-out", str(folder / "cert.pem")],
        capture_output=True, timeout=100,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return folder


def test_s6_a_bus_over_tcp(server: WireServer) -> None:
    bus = Bus(server.url)
    seen: list[int] = []

    @bus.subscribe("order.placed", queue="ship")
    def ship(order: int) -> None:
        seen.append(order)

    bus.publish("order.placed", 7)
    bus.run(until_idle=True, timeout="100s")
    bus.close()
    assert seen == [7]


@pytest.fixture(scope="session")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    file = tmp_path_factory.mktemp("users") / "users.toml"
    add_user(file, "ann", "correct horse", {"/": EVERYTHING})
    return Users.load(file)


def test_s6_an_address_that_cannot_be_used_is_refused_in_one_line(server: WireServer, users: Users) -> None:
    with open_broker("memory://") as broker:
        taken = r"^cannot listen on 127\.0\.0\.1:\d+ for remuda://: Address already in use; choose another address$"
        with pytest.raises(StorageError, match=taken):
            serve_wire(broker, server.address)
        with pytest.raises(
            StorageError, match=r"^cannot listen on a\.\.b:1234 for remuda://: .*; choose another address$"
        ):
            serve_wire(broker, ("a..b", 1234), users=users, insecure=True)


def test_s6_login(tmp_path: Path, users: Users) -> None:
    with open_broker(tmp_path / "d", sync="os") as broker, serve_wire(broker, LOOPBACK, users=users) as server:
        place = server.url.removeprefix("remuda://")
        with open_broker(f"remuda://ann:correct%20horse@{place}") as client:
            client.publish(Message("jobs", b"x"))
            assert broker.queue("jobs").waiting == 1
        for login in ("ann:wrong", "bob:correct%20horse", "ann", ""):
            url = f"remuda://{login}@{place}" if login else f"remuda://{place}"
            with pytest.raises(NotAllowed, match="user or the password is wrong") as refused:
                open_broker(url)
            assert "horse" not in str(refused.value)
        assert broker.queue("jobs").waiting == 1


def test_s6_tls(tmp_path: Path, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with open_broker("memory://") as broker, serve_wire(broker, LOOPBACK, tls=context) as server:
        url = f"{server.url}?tls=true&ca={certificate / 'cert.pem'}"
        with open_broker(url) as client:
            client.create_queue("jobs", type="pull")

            def publish(number: int) -> None:
                for row in range(20):
                    client.publish(Message("jobs", b"%d-%d" % (number, row) + b"." * 50_000))

            threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            delivery = client.pull("jobs", 100)
            assert delivery is not None
            assert len(set(delivery.bodies)) == 80
            assert delivery.ack() == 80
        with pytest.raises(HostNotResponding, match="certificate"):
            open_broker(f"{server.url}?tls=true")
        with pytest.raises(HostNotResponding, match="if the server wants TLS, add tls=true"):
            open_broker(f"{server.url}?timeout=1")


def test_s6_beyond_this_machine_users_and_tls_are_needed(users: Users) -> None:
    with open_broker("memory://") as broker:
        with pytest.raises(InvalidOption, match="give users"):
            serve_wire(broker, ("0.0.0.0", 0))
        with pytest.raises(InvalidOption, match="plain text"):
            serve_wire(broker, ("0.0.0.0", 0), users=users)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?tls=perhaps", "tls must be true or false"), ("?tsl=1", "unknown option 'tsl'"),
        ("?tls=1&verify=2", "verify must be true or false"), ("?timeout=soon", "timeout must be a number"),
        ("?timeout=-1", "timeout must be a number"), ("?timeout=nan", "timeout must be a number"),
        ("?timeout=1e400", "timeout must be a number"), ("?ca=/nowhere", "cannot be read"),
    ],
)  # fmt: skip
def test_s6_impossible_urls_are_refused(query: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        open_broker(f"remuda://localhost:1{query}")


def test_s6_nobody_there() -> None:
    with pytest.raises(HostNotResponding, match=r"no server answers at remuda://127\.0\.0\.1:1"):
        open_broker("remuda://127.0.0.1:1")


def speak(server: WireServer, data: bytes) -> list[tuple[int, bytes]]:
    """What the server says to these bytes before it closes the connection."""
    with socket.create_connection(server.address, 30) as peer:
        peer.settimeout(60)
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        said = b""
        while more := peer.recv(65536):
            said += more
    return list(wire_frames.Buffer().feed(said))


def test_s6_another_version_gets_a_clear_line(server: WireServer) -> None:
    (kind, payload), *_ = speak(server, wire_frames.frame(wire_frames.HELLO, wire_frames.Hello(99, "abc", 1)))
    assert kind == wire_frames.FAILED
    error = wire_frames.decode(tuple[int, wire_frames.Error], payload)[1]
    assert f"speaks version {wire_frames.VERSION} of Remuda's wire, the other one 99" in error.text


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        wire_frames.HEAD.pack(1 << 31, wire_frames.HELLO),
        wire_frames.frame(wire_frames.PUBLISH, 1),
        wire_frames.frame(wire_frames.HELLO, wire_frames.Hello(wire_frames.VERSION, "abc", 1)) + b"\xff" * 64,
        wire_frames.frame(wire_frames.HELLO, wire_frames.Hello(wire_frames.VERSION, "abc", 1))
        + wire_frames.frame(wire_frames.PUBLISH, [1] * 7),
    ],
)
def test_s6_hostile_bytes_cost_that_connection_alone(server: WireServer, said: bytes) -> None:
    with open_broker(server.url) as client:
        speak(server, said)
        assert client.publish(Message("jobs", b"x")).accepted == 1


@pytest.mark.parametrize(
    "command",
    [
        Pull("", "c", 1),
        Pull("q", "c" * 300, 1),
        Pull("q", "c", 1, count=0),
        Pull("q", "c", 1, clear_after="everything"),
        Subscribe("q", "c", 1, batch=0),
        Subscribe("q", "c", 1, credit=-1),
        Subscribe("q", "c", 1, options={"message_limit": -1}),
        Settle("q\0", 1, Settlement(Outcome.ACK)),
        Settle("q", 1, Settlement(Outcome.ACK, to="elsewhere")),
    ],
)
def test_s6_commands_from_afar_are_checked_like_any(command: Any) -> None:
    with pytest.raises(RemudaError):
        checked(command)


def test_s6_questions_from_afar_are_checked_too(server: WireServer) -> None:
    with open_broker(server.url) as client:
        client.create_queue("jobs")
        asked: Any = client.runtime.guest
        with pytest.raises(InvalidOption, match="limit"):
            asked.ask("parked", "jobs", MessageFilter(), -1)
        assert client.publish(Message("jobs", b"x")).accepted == 1


def test_s6_a_broken_connection_is_made_anew_and_nothing_is_doubled(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as broker, serve_wire(broker, LOOPBACK) as server:  # noqa: SIM117
        with open_broker(server.url) as client:
            client.create_queue("jobs", type="pull", acknowledge_timeout="60s")
            client.publish(Message("jobs", b"held"))
            held = client.pull("jobs")
            assert held is not None
            subscription = client.subscribe("other")
            for number in range(20):
                guest = client.runtime.guest
                with guest.line.lock:
                    peer = guest.line.peer
                if peer is not None:
                    peer.shutdown(socket.SHUT_RDWR)
                client.publish(Message("jobs", b"%d" % number))
            assert held.ack() == 1
            client.publish(Message("other", b"!"))
            delivery = subscription.receive(60)
            assert delivery is not None
            assert delivery.ack() == 1
            assert broker.queue("jobs").waiting == 20
            stored = [body for record in client.spectate().messages() for body in record.messages.bodies]
            assert sorted(stored) == sorted([b"held", b"!", *(b"%d" % number for number in range(20))])


def test_s6_the_log_is_read_from_afar(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as broker, serve_wire(broker, LOOPBACK) as server:  # noqa: SIM117
        with open_broker(server.url) as client:
            client.publish([Message("jobs", b"%d" % number * 1000, headers={"a": "b"}) for number in range(3000)])
            delivery = client.pull("jobs", 10)
            assert delivery is not None
            delivery.ack()
            log, near = client.runtime.reader(), broker.runtime.reader()
            assert isinstance(near, Reader)
            assert log.ends() == near.ends()
            far = [message for record in log.messages(5, 2995) for message in record.messages.rows()]
            assert far == [message for record in near.messages(5, 2995) for message in record.messages.rows()]
            assert [row for record in log.events() for row in record.rows] == [
                row for record in near.events() for row in record.rows
            ]
            assert log.message(7) == near.message(7)
            assert log.events_of(3) == near.events_of(3)
            assert log.offset_of(far[0].id) == 5
            assert log.offset_at(0) == near.offset_at(0)
            assert sum(batch.num_rows for batch in log.message_batches(columns=["name"])) == 3000


def test_s6_a_client_that_vanishes_gives_back_what_it_held(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as broker, serve_wire(broker, LOOPBACK) as server:
        client = open_broker(server.url)
        client.create_queue("jobs", type="pull", acknowledge_timeout="600s")
        client.publish([Message("jobs", b"1"), Message("jobs", b"2")])
        held = client.pull("jobs", 2)
        assert held is not None
        held.begin([1])
        client.runtime._stop.set()  # as if its machine were gone: no goodbye, and nobody comes back
        client.runtime.guest.line.peer.shutdown(socket.SHUT_RDWR)
        eventually(lambda: broker.queue("jobs").waiting == 2)
        again = broker.pull("jobs", 2)
        assert again is not None
        assert dict(zip(again.bodies, again.attempts, strict=True)) == {b"1": 1, b"2": 2}
        client.close()


def test_s6_too_many_clients_are_told(tmp_path: Path) -> None:
    with open_broker("memory://") as broker, serve_wire(broker, LOOPBACK, connections=2) as server:  # noqa: SIM117
        with open_broker(server.url), open_broker(server.url):
            with pytest.raises(NotAllowed, match="has 2 clients"):
                open_broker(server.url)


def test_s6_from_coroutines(server: WireServer) -> None:
    async def run() -> int:
        from remuda import open_async_broker

        async with await open_async_broker(server.url) as client:
            await client.create_queue("jobs", type="pull")
            await asyncio.gather(*(client.publish(Message("jobs", b"%d" % number)) for number in range(500)))
            return (await client.queue("jobs")).waiting

    assert asyncio.run(run()) == 500
