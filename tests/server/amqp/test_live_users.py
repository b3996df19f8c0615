"""Users and certificates are changed while the server runs (S4, S7)."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pika.exceptions
import pytest
from typer.testing import CliRunner

from remuda.broker.opening import open_broker
from remuda.bus.bus import Bus
from remuda.cli.app import app
from remuda.model.errors import NotAllowed
from remuda.model.message import Message
from remuda.server.http.security.users import Users as DashboardUsers
from remuda.server.http.security.users import add_user as let_in
from remuda.server.users import EVERYTHING, Users, add_user, change_user, from_rabbitmq, list_users, remove_user
from remuda.server.wire import serve_wire
from tests.server.amqp.kit import Client, eventually
from tests.server.amqp.test_serve import serving
from tests.server.site import serving as serving_pages
from tests.servers.amqpd import RunningServer

PASSWORD = "correct horse"
_CLIENTS: list[Client] = []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.toml"
    for name in ("ann", "bob"):
        add_user(path, name, PASSWORD, {"/": EVERYTHING})
    return path


@pytest.fixture
def server(file: Path) -> Iterator[RunningServer]:
    with RunningServer(users=Users.load(file)) as running:
        yield running
        while _CLIENTS:
            _CLIENTS.pop().__exit__()  # as far as the server has not ended them


def _client(server: RunningServer, name: str, password: str = PASSWORD, vhost: str = "%2F") -> Client:
    client = Client(f"amqp://{name}:{password.replace(' ', '%20')}@127.0.0.1:{server.port}/{vhost}")
    _CLIENTS.append(client)
    return client


def _ended(client: Client) -> pika.exceptions.ConnectionClosedByBroker:
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        eventually(lambda: client.connection.process_data_events(0.05))
    return caught.value


def test_s7_a_removed_user_is_out_within_a_second(server: RunningServer, file: Path) -> None:
    ann, bob = _client(server, "ann"), _client(server, "bob")
    begun = time.monotonic()
    remove_user(file, "bob")
    ended = _ended(bob)
    assert time.monotonic() - begun < 5  # 0.5 s on a quiet machine
    assert (ended.reply_code, "user 'bob' is deleted" in ended.reply_text) == (320, True)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        _client(server, "bob")
    ann.channel.queue_declare("still-there")
    remove_user(file, "ann")  # nobody is left, and nobody comes in
    _ended(ann)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        _client(server, "ann")


def test_s7_passwords_permissions_and_vhosts_count_at_once(server: RunningServer, file: Path) -> None:
    ann = _client(server, "ann")
    ann.channel.queue_declare("q")
    add_user(file, "ann", "battery staple", {"/": {"configure": "^ann-", "write": ".*", "read": ".*"}})
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        _client(server, "ann")
    _client(server, "ann", "battery staple").connection.close()
    eventually(lambda: _is_refused(ann))  # on the connection there was
    change_user(file, "ann", vhosts={"brand/new": EVERYTHING})
    eventually(lambda: "brand/new" in server.server.topology.vhosts)
    assert list(list_users(file)["ann"]) == ["/", "brand/new"]
    with _client(server, "ann", "battery staple", "brand%2Fnew") as inside:
        inside.channel.queue_declare("q")
        change_user(file, "ann", vhosts={"brand/new": None})
        assert "may no longer enter vhost 'brand/new'" in _ended(inside).reply_text
    ann.publish("q", b"1")


def _is_refused(client: Client) -> bool:
    try:
        client.connection.channel().queue_declare("other")
    except pika.exceptions.ChannelClosedByBroker as error:
        return bool(error.reply_code == 403)
    return False


def test_s7_a_file_that_is_broken_changes_nothing(
    server: RunningServer, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ann = _client(server, "ann")
    kept = file.read_text()
    file.write_text("users = nonsense")
    with caplog.at_level(logging.ERROR, "remuda.server"):
        eventually(lambda: "the users of before are kept" in caplog.text)
    _client(server, "bob").connection.close()
    file.unlink()
    eventually(lambda: "cannot be read" in caplog.text)
    file.write_text(kept)
    ann.publish("q", b"1")


def test_s7_a_refused_login_names_user_and_peer(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "remuda.amqp"), pytest.raises(pika.exceptions.ProbableAuthenticationError):
        _client(server, "ann", "wrong")
    assert "login refused: user 'ann' from 127.0.0.1:" in caplog.text


def test_s7_the_wire_follows_too(file: Path) -> None:
    with open_broker("memory://") as broker:
        broker.create_queue("q", type="pull")
        with serve_wire(broker, ("127.0.0.1", 0), users=Users.load(file)) as server:
            url = f"remuda://ann:correct%20horse@{server.url.removeprefix('remuda://')}"
            with open_broker(url) as ann:
                ann.publish(Message("q", b"1"))
                change_user(file, "ann", vhosts={"/": {"read": ".*"}})

                def refused() -> bool:
                    try:
                        ann.publish(Message("q", b"2"))
                    except NotAllowed:
                        return True
                    return False

                eventually(refused)
                assert ann.pull("q") is not None
            remove_user(file, "ann")
            with pytest.raises(NotAllowed, match="user or the password is wrong"):
                open_broker(url)


def test_s7_the_dashboard_follows_too(tmp_path: Path) -> None:
    file = tmp_path / "people.toml"
    let_in(file, "ann", PASSWORD, "operator")
    let_in(file, "vic", PASSWORD, "operator")
    with Bus() as bus, serving_pages(bus, users=DashboardUsers.load(file)) as site:

        def status(name: str, password: str = PASSWORD) -> int:
            return httpx.get(f"{site.address}/api/v1/queues", auth=(name, password), timeout=30).status_code

        assert (status("ann"), status("vic")) == (200, 200)
        let_in(file, "ann", "battery staple", "viewer")
        eventually(lambda: status("ann") == 401)
        assert (status("ann", "battery staple"), status("vic")) == (200, 200)


def test_s7_the_command_changes_one_vhost_and_says_who_follows(file: Path) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["users", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    added = run(
        "add", str(file), "ann", "--vhost", "shop", "--write", "^o", "--password", PASSWORD, "--tag", "management"
    )
    assert "ann is still in" in added
    assert "servers that use the file follow within a second" in added
    assert "follow within a second" in run("set", str(file), "ann", "--vhost", "shop", "--read", "")
    run("set", str(file), "ann", "--tag", "administrator")
    assert list_users(file)["ann"] == {"/": EVERYTHING, "shop": {"configure": ".*", "write": "^o", "read": "^$"}}
    assert Users.load(file).find("ann").tags == ("administrator",)  # type: ignore[union-attr]
    run("remove", str(file), "ann", "--vhost", "/")
    assert list(list_users(file)["ann"]) == ["shop"]
    assert "follow within a second" in run("remove", str(file), "ann")
    assert list(list_users(file)) == ["bob"]
    for wrong in (["set", str(file), "ann", "--read", "x"], ["remove", str(file), "bob", "--vhost", "shop"]):
        assert CliRunner().invoke(app, ["users", *wrong]).exit_code != 0


def test_s7_password_hashes_of_rabbitmq_are_taken_over(file: Path) -> None:
    """The example of RabbitMQ's documentation: the password is `test12`."""
    change_user(
        file,
        "tom",
        kept=from_rabbitmq("kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "rabbit_password_hashing_sha256"),
    )
    users = Users.load(file)
    assert users.check("tom", "test12") is not None
    assert users.check("tom", "test13") is None
    change_user(file, "door", kept="")
    for password in ("", "x"):
        assert Users.load(file).check("door", password) is None


def test_s7_sighup_reads_again_and_ends_nothing(file: Path, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"

    def issue(name: str) -> None:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
             "2", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(certificate)],
            capture_output=True, check=True, timeout=100,
        )  # fmt: skip

    def shown(port: str) -> str:
        found = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{port}"], input=b"", capture_output=True, timeout=60
        )
        return found.stdout.decode()

    issue("first")
    arguments = ("--users", str(file), "--tls-cert", str(certificate), "--tls-key", str(key))
    with serving(tmp_path / "data", *arguments) as served:
        port = served.url.rpartition(":")[2]
        assert "CN = first" in shown(port) or "CN=first" in shown(port)
        issue("second")
        os.kill(served.process.pid, signal.SIGHUP)
        eventually(lambda: "second" in shown(port))
        assert served.process.poll() is None
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
