"""`remuda serve` as a process: ready, safe, durable, and ending in order (S1, S4)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
import typer

from remuda.broker.opening import open_broker
from remuda.bus.bus import Bus
from remuda.cli.app import app
from remuda.model.errors import InvalidOption, NotAllowed, RemudaError
from remuda.model.message import Message
from remuda.server.addresses import read_address
from remuda.server.amqp.protocol.connection import Limits
from remuda.server.certificates import Certificates
from remuda.server.dashboard import DashboardListener
from remuda.server.serving import AmqpListener, allow_many_connections, capped_by_files
from remuda.server.users import Users, add_user
from tests.server.amqp.kit import Client, eventually
from tests.servers.amqpd import RunningServer

_ROOT = Path(__file__).parents[3]


class Served:
    def __init__(self, process: subprocess.Popen[str], line: str) -> None:
        self.process = process
        self.url, _, self.wire = line.split(" at ")[1].split(" ")[:3]
        self.line = line


@contextmanager
def serving(data: Path, *arguments: str, listen: str = "127.0.0.1:0", **environment: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-m", "remuda.cli", "serve", "--data", str(data), "--listen", listen, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=data.parent,
        env={**os.environ, "PYTHONPATH": str(_ROOT / "src"), "PYTHONUNBUFFERED": "1", **environment},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready: "), process.stderr.read() if process.stderr else ""
        yield Served(process, line)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=100)


def test_it_is_ready_and_ends_in_order(tmp_path: Path) -> None:
    """S4: the readiness line, the dashboard on the same queues, systemd's notice, and SIGTERM."""
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(str(tmp_path / "notify"))
    notices.settimeout(60)
    told = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    with notices, serving(tmp_path / "data", "--dashboard", "127.0.0.1:0", **told) as served:
        assert notices.recv(100) == b"READY=1"
        client = Client(f"{served.url}/")
        client.channel.queue_declare("q", durable=True)
        client.channel.queue_declare("seen-on-the-page")
        page = re.search(r" and (http://127\.0\.0\.1:\d+/) ", served.line)
        assert page is not None
        with urllib.request.urlopen(page[1], timeout=60) as answer:
            assert "seen-on-the-page" in answer.read().decode()
        client.publish("q", b"1", b"2", delivery_mode=2)
        client.get("q", ack=False)
        served.process.send_signal(signal.SIGTERM)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
            eventually(lambda: client.connection.process_data_events(0.2))
        assert caught.value.reply_code == 320
        assert served.process.wait(60) == 0
        assert notices.recv(100) == b"STOPPING=1"
    with open_broker(tmp_path / "data") as broker:
        assert broker.queue("q").waiting == 2


def test_what_was_confirmed_survives_kill_9(tmp_path: Path) -> None:
    """S1, L2."""
    with serving(tmp_path / "data") as served:
        client = Client(f"{served.url}/")
        client.channel.queue_declare("q", durable=True, arguments={"x-max-priority": 3})
        client.publish("q", *(b"%d" % number for number in range(50)), delivery_mode=2)
        for _ in range(10):
            client.get("q")
        held = client.get("q", ack=False)
        assert held[2] == b"10"
        client.waiting("q")  # an answer, so that what came before it is done
        served.process.kill()
        served.process.wait(60)
    with serving(tmp_path / "data") as served, Client(f"{served.url}/") as client:
        client.channel.queue_declare("q", durable=True, arguments={"x-max-priority": 3})
        first = client.get("q")
        assert first[2] in [b"%d" % number for number in range(11)]  # answers may be repeated by a crash, never lost
        rest = client.bodies("q")
        assert rest[-39:] == [b"%d" % number for number in range(11, 50)]


def test_a_bus_elsewhere_shares_its_queues(tmp_path: Path) -> None:
    """S3, S6."""
    with serving(tmp_path / "data") as served, Client(f"{served.url}/") as client:
        client.channel.queue_declare("q", durable=True)
        client.publish("q", b"from afar", delivery_mode=2)
        with open_broker(served.wire) as broker:
            delivery = broker.pull("q", timeout="60s")
            assert delivery is not None
            assert delivery.bodies == [b"from afar"]
            delivery.ack()
            broker.publish(Message("q", b"back"), queue="q")
        assert client.get("q")[2] == b"back"


def test_the_wire_lets_each_do_what_was_granted(tmp_path: Path) -> None:
    """S4, S6."""
    users = str(tmp_path / "users.toml")
    add_user(users, "all", "long enough", {"/": {"configure": ".*", "write": ".*", "read": ".*"}})
    add_user(users, "reader", "long enough", {"/": {"configure": "", "write": "", "read": ".*"}})
    with serving(tmp_path / "data", "--users", users) as served:
        place = served.wire.removeprefix("remuda://")
        with open_broker(f"remuda://all:long%20enough@{place}") as broker:
            broker.publish(Message("q", b"1"), queue="q")
        with open_broker(f"remuda://reader:long%20enough@{place}") as broker:
            with pytest.raises(NotAllowed):
                broker.publish(Message("q", b"2"), queue="q")
            delivery = broker.pull("q", timeout="60s")
            assert delivery is not None
            assert delivery.bodies == [b"1"]


@pytest.mark.parametrize(
    ("arguments", "read"), [(["--dashboard", "--wire", "none"], ""), (["--dashboard", ":99"], ":99"),
                            (["--dashboard"], ""), ([], None)],
)  # fmt: skip
def test_the_dashboard_can_stand_without_an_address(arguments: list[str], read: str | None) -> None:
    commands: Any = typer.main.get_command(app)
    context = commands.commands["serve"].make_context("serve", ["--data", "d", *arguments])
    assert context.params["dashboard"] == read


def _fails(tmp_path: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "remuda.cli", "serve", "--data", str(tmp_path / "data"), *arguments],
        capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "PYTHONPATH": str(_ROOT / "src")},
    )  # fmt: skip
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


def test_beyond_loopback_it_wants_users(tmp_path: Path) -> None:
    """S4."""
    assert "without a password. Give --users FILE" in _fails(tmp_path, "--listen", "0.0.0.0:0")
    with Bus("memory://") as bus:
        with pytest.raises(InvalidOption, match=r"no login.*--dashboard-users users.toml. Nothing was started"):
            DashboardListener(bus, "0.0.0.0:8321")
        with pytest.raises(InvalidOption, match="--dashboard takes HOST:PORT"):
            DashboardListener(bus, "here")
    with pytest.raises(InvalidOption, match="would let everybody on the network in"):
        AmqpListener("::", 5672)
    with open_broker("memory://") as broker, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidOption, match="cannot listen"):
            asyncio.run(AmqpListener("127.0.0.1", port).open(broker))
        with pytest.raises(RemudaError, match="cannot listen"), Bus("memory://") as bus:
            asyncio.run(DashboardListener(bus, f"127.0.0.1:{port}").open(broker))
    with pytest.raises(InvalidOption, match="cannot be used"):
        Certificates(str(tmp_path / "none"), str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "read"),
    [("127.0.0.1:99", ("127.0.0.1", 99)), (":99", ("127.0.0.1", 99)), ("localhost", ("localhost", 5672)),
     ("[::1]:99", ("::1", 99)), ("::1", ("::1", 5672)), ("99", ("127.0.0.1", 99))],
)  # fmt: skip
def test_addresses(text: str, read: tuple[str, int]) -> None:
    assert read_address(text, 5672) == read


@pytest.mark.parametrize("text", ["", "x:", "x:y", "127.0.0.1:65536", "[::1]:x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"--wire takes HOST:PORT, such as 127\.0\.0\.1:5680"):
        read_address(text, 5680, option="--wire")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file = tmp_path_factory.mktemp("users") / "users.toml"
    add_user(
        file, "ann", "correct horse", {"/": {"configure": "^ann-", "write": "^(ann-|amq.default)", "read": "^ann-"}}
    )
    add_user(file, "eve", "battery staple", {"lab": {"configure": ".*", "write": ".*", "read": ".*"}})
    with RunningServer(users=Users.load(file)) as server:
        yield server


def _url(server: RunningServer, user: str, password: str, vhost: str = "%2F") -> str:
    return f"amqp://{user}:{password}@127.0.0.1:{server.port}/{vhost}"


def test_a_wrong_password_is_told_so(guarded: RunningServer) -> None:
    """S4."""
    for user, password in (("ann", "wrong"), ("nobody", "x"), ("guest", "guest")):
        with pytest.raises(
            pika.exceptions.ProbableAuthenticationError, match=r"403.*ACCESS_REFUSED - Login was refused"
        ):
            Client(_url(guarded, user, password))
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="refused for user 'eve'"):
        Client(_url(guarded, "eve", "battery%20staple"))


def test_each_user_does_what_was_granted(guarded: RunningServer) -> None:
    """S4."""
    with Client(_url(guarded, "ann", "correct%20horse")) as ann:
        ann.channel.queue_declare("ann-q")
        ann.publish("ann-q", b"1")
        assert ann.bodies("ann-q") == [b"1"]
        assert ann.refused(lambda ch: ch.queue_declare("bob-q")) == (
            403, "ACCESS_REFUSED - configure access to queue 'bob-q' in vhost '/' refused for user 'ann'",
        )  # fmt: skip
        assert ann.refused(lambda ch: ch.basic_publish("amq.topic", "k", b"x"))[0] == 403
        assert ann.refused(lambda ch: ch.queue_bind("ann-q", "amq.topic", "k"))[0] == 403
        assert ann.refused(lambda ch: ch.exchange_delete("amq.topic"))[0] == 403
        guarded.broker.create_queue("bob-q")
        assert ann.refused(lambda ch: ch.basic_get("bob-q"))[0] == 403
        assert ann.refused(lambda ch: ch.queue_purge("bob-q"))[0] == 403
    with Client(_url(guarded, "eve", "battery%20staple", "lab")) as eve:
        eve.channel.queue_declare("anything")


@pytest.mark.parametrize(
    "arguments",
    [{"x-remuda-topics": ["bob"]}, {"x-remuda-patterns": ["#"]}, {"x-remuda-expired-queue": "bob-late"}],
)  # fmt: skip
def test_own_options_reach_no_farther_than_what_was_granted(guarded: RunningServer, arguments: dict[str, Any]) -> None:
    """S4: neither into the topics of a bus, nor into a queue of somebody else or of another vhost."""
    with Client(_url(guarded, "ann", "correct%20horse")) as ann:
        assert ann.refused(lambda ch: ch.queue_declare("ann-far", arguments=arguments))[0] == 403
        for_own = {"x-remuda-expired-queue": "ann-late"}
        ann.channel.queue_declare("ann-near", arguments=for_own)
        assert ann.refused(
            lambda ch: ch.queue_declare("ann-far", arguments={"x-remuda-expired-queue": "vhost:lab/late"})
        )[0] == 403  # fmt: skip
    with Client(_url(guarded, "eve", "battery%20staple", "lab")) as eve:
        if "x-remuda-expired-queue" in arguments:
            eve.channel.queue_declare("q", arguments=arguments)
            assert guarded.broker.queue("vhost:lab/q").options.expired_queue == "vhost:lab/bob-late"
        else:
            assert eve.refused(lambda ch: ch.queue_declare("far", arguments=arguments))[0] == 403


def test_tls(tmp_path: Path) -> None:
    """S4."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        capture_output=True, check=True, timeout=100,
    )  # fmt: skip
    encrypted = tmp_path / "encrypted.pem"
    subprocess.run(
        ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", str(key), "-out", str(encrypted)],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    with pytest.raises(InvalidOption, match="encrypted"):  # nobody is there to be asked for the passphrase
        Certificates(str(certificate), str(encrypted))
    for wrong in (certificate, tmp_path / "missing", tmp_path):
        with pytest.raises(InvalidOption, match=r"cannot be used"):
            Certificates(str(certificate), str(wrong))
    with serving(tmp_path / "data", "--tls-cert", str(certificate), "--tls-key", str(key)) as served:
        assert served.url.startswith("amqps://127.0.0.1:")
        parameters = pika.URLParameters(f"{served.url}/")
        parameters.ssl_options = pika.SSLOptions(ssl.create_default_context(cafile=str(certificate)), "localhost")
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x" * 300_000)
        assert channel.basic_get("q", auto_ack=True)[2] == b"x" * 300_000
        connection.close()


def test_the_images_health_check_finds_out(guarded: RunningServer) -> None:
    """A server that answers is healthy, one that stands still is not."""
    text = (Path(__file__).parents[3] / "Dockerfile").read_text()
    found = re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.MULTILINE)
    assert found is not None
    python, option, code = json.loads(found[1])
    assert (python, option) == ("python", "-c")
    assert "5672" in code
    exec(code.replace("5672", str(guarded.port)).replace(", 5)", ", 30)"))
    with socket.create_server(("127.0.0.1", 0)) as frozen, pytest.raises(TimeoutError):
        exec(code.replace("5672", str(frozen.getsockname()[1])).replace(", 5)", ", 0.1)"))


def test_connections_leave_files_to_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: by default a system lets a process have 1,024 of them, and more if it asks."""
    allowed = {"files": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: allowed["files"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, files: allowed.update(files=files))
    assert capped_by_files(Limits()).connection_max == 824
    assert capped_by_files(Limits(connection_max=5)).connection_max == 5
    allow_many_connections()
    assert allowed["files"] == (4096, 4096)
    assert capped_by_files(Limits()).connection_max == 3896
    allowed["files"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    allow_many_connections()
    assert capped_by_files(Limits()).connection_max == 10_000
