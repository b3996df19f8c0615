"""Plain and TLS from one server, and logins by certificate (S4, S7)."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import amqp  # type: ignore[import-untyped]
import pika
import pika.credentials
import pika.exceptions
import pytest

from remuda.amqp.client.connection import Connection
from remuda.amqp.connection_options import parse_url
from remuda.amqp.errors import LoginRefused
from remuda.model.errors import InvalidOption
from remuda.server.users import EVERYTHING, add_user
from tests.server.amqp.kit import Client
from tests.server.amqp.test_serve import serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, the server's certificate, and one of the client `ann`."""
    found = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=found, capture_output=True, check=True, timeout=100)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("localhost", "ann", "stranger"):
        openssl("req", *curve, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (found / "ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-out", f"{name}.pem", "-extfile", "ext",
        )  # fmt: skip
    return found


def _connect(folder: Path, url: str, name: str | None, credentials: object) -> pika.BlockingConnection:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    parameters = pika.URLParameters(f"{url}/%2F")
    parameters.ssl_options = pika.SSLOptions(context, "localhost")
    parameters.credentials = credentials
    return pika.BlockingConnection(parameters)


def test_s7_plain_and_tls_at_once_and_login_by_certificate(folder: Path, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    add_user(users, "ann", "correct horse", {"/": EVERYTHING})
    options = (
        "--tls-listen", "127.0.0.1:0", "--tls-cert", str(folder / "localhost.pem"), "--tls-key",
        str(folder / "localhost.key"), "--tls-ca", str(folder / "ca.pem"), "--users", str(users),
    )  # fmt: skip
    with serving(tmp_path / "data", *options) as served:
        plain, tls = served.line.split(" at ")[1].split(" and ")[:2]
        assert (plain.split(":")[0], tls.split(":")[0]) == ("amqp", "amqps")
        with Client(f"amqp://ann:correct%20horse@{plain.removeprefix('amqp://')}/%2F") as client:
            client.channel.queue_declare("q")
            client.publish("q", b"plain")
        by_password = pika.PlainCredentials("ann", "correct horse")
        by_certificate = pika.credentials.ExternalCredentials()
        for name, credentials in (("ann", by_certificate), (None, by_password), ("stranger", by_password)):
            connection = _connect(folder, tls, name, credentials)
            connection.channel().queue_declare("q", passive=True)
            connection.close()
        # py-amqp, and so Celery, chooses EXTERNAL before a password wherever it is offered.
        own = {"ca_certs": folder / "ca.pem", "certfile": folder / "stranger.pem", "keyfile": folder / "stranger.key"}
        with amqp.Connection(tls.removeprefix("amqps://"), "ann", "correct horse", ssl=own) as connection:
            connection.channel().queue_declare("q", passive=True)
        for name in ("stranger", None):  # a certificate of nobody here, and none
            with pytest.raises((pika.exceptions.AMQPConnectionError, pika.exceptions.AuthenticationError)):
                _connect(folder, tls, name, by_certificate)
    with serving(tmp_path / "more", *options, "--tls-client-cert", "required") as served:
        tls = served.line.split(" at ")[1].split(" and ")[1]
        _connect(folder, tls, "ann", by_certificate).close()
        with pytest.raises((pika.exceptions.AMQPConnectionError, ssl.SSLError)):
            _connect(folder, tls, None, by_password)


def test_s7_the_bus_client_logs_in_by_certificate_too(folder: Path, tmp_path: Path) -> None:
    """RabbitMQ's names in the URI, and a host that has to be known by another name."""
    users = tmp_path / "users.toml"
    add_user(users, "ann", "correct horse", {"/": EVERYTHING})
    options = (
        "--tls-cert", str(folder / "localhost.pem"), "--tls-key", str(folder / "localhost.key"), "--tls-ca",
        str(folder / "ca.pem"), "--users", str(users),
    )  # fmt: skip
    with serving(tmp_path / "data", *options) as served:
        own = f"certfile={folder}/ann.pem&keyfile={folder}/ann.key&auth_mechanism=external&channel_max=7"
        query = f"cacertfile={folder}/ca.pem&{own}&server_name_indication=localhost&connection_timeout=60000"
        with Connection(f"{served.url}/?{query}") as connection:
            connection.channel().declare_queue("by-certificate")
        with pytest.raises(LoginRefused, match="offers no EXTERNAL login"):
            Connection(f"{served.url}/?cafile={folder}/ca.pem&auth_mechanism=external", attempts=1).open()
    for query, why in (
        ("auth_mechanism=kerberos", "plain or external"), ("connection_timeout=x", "whole number"),
        ("server_name_indication=h", "is about TLS"),
    ):  # fmt: skip
        with pytest.raises(InvalidOption, match=why):
            parse_url(f"amqp://h/?{query}")
