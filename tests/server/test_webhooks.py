"""T2 Q18: channels that push to HTTP endpoints."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from remuda.bus.bus import Bus
from remuda.model.errors import InvalidOption
from remuda.model.message import Message
from remuda.model.queues.routing import Binding
from remuda.server.http.security import outgoing_requests
from remuda.server.http.security.outgoing_requests import (
    AddressRefused,
    Endpoint,
    checked_address,
    is_allowed,
    read_networks,
)
from remuda.server.http.webhooks import CircuitBreaker, Webhook, sign, verify, webhook
from tests.server.site import until
from tests.servers.trickling import trickling_server

SECRET = "a secret of some length"
LOCAL = ["127.0.0.0/8"]


class Receiver(ThreadingHTTPServer):
    """An endpoint that answers as told and keeps what it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers), body))
        status, headers = self.server.answers.pop(0) if self.server.answers else (204, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_message_is_pushed_with_its_mime_type_and_signature(receiver: Receiver) -> None:
    """T2"""
    with Bus() as bus:
        webhook(bus, "billing", receiver.url, "order.#", secret=SECRET, allow_private=LOCAL)
        id = bus.publish("order.placed", b"<order/>", mime_type="application/xml")
        bus.publish("other.topic", 1)
        bus.run(until_idle=True)
        ((headers, body),) = receiver.got
        assert body == b"<order/>"
        assert headers["Content-Type"] == "application/xml"
        assert (headers["Remuda-Id"], headers["Remuda-Topic"], headers["Remuda-Attempt"]) == (id, "order.placed", "1")
        assert verify(SECRET, headers, body)
        assert not verify(SECRET, headers, body + b" ")
        assert not verify("another secret, as long", headers, body)
        assert not verify(SECRET, {**headers, "Remuda-Timestamp": "1000"}, body)
        old = sign(SECRET.encode(), id, "1000", body)
        assert not verify(SECRET, {**headers, "Remuda-Timestamp": "1000", "Remuda-Signature": old}, body)


def test_failures_are_retried_by_schedule_and_end_dead_with_the_answer(receiver: Receiver) -> None:
    """T2"""
    receiver.answers = [(500, {}), (302, {"Location": "http://127.0.0.1:1/"}), (200, {})]
    with Bus() as bus:
        webhook(bus, "billing", receiver.url, "order.#", retry=["0s", "0s"], allow_private=LOCAL)
        bus.publish("order.placed", 1)
        bus.run(until_idle=True)
        assert [headers["Remuda-Attempt"] for headers, _ in receiver.got] == ["1", "2", "3"]
        assert bus.broker.queue("billing").dead == 0
        receiver.answers = [(418, {}), (302, {"Location": "http://127.0.0.1:1/"}), (400, {})]
        bus.publish("order.placed", 2)
        bus.run(until_idle=True)
        (letter,) = bus.dead_letters("billing")
        assert "answered 400" in letter.reason
        assert len(receiver.got) == 6


def test_retry_after_is_kept_to(receiver: Receiver) -> None:
    """T2"""
    receiver.answers = [(503, {"Retry-After": "1"})]
    with Bus() as bus:
        webhook(bus, "billing", receiver.url, "order.#", retry=["1h"], allow_private=LOCAL)
        bus.publish("order.placed", 1)
        bus.start()
        until(lambda: len(receiver.got) == 2)
        until(lambda: bus.broker.queue("billing").size == 0)


def test_an_endpoint_that_fails_too_often_is_left_alone_and_costs_no_attempts(receiver: Receiver) -> None:
    """T2"""
    receiver.answers = [(500, {})] * 2
    with Bus() as bus:
        hook = webhook(
            bus, "billing", receiver.url, "order.#", retry=["1ms"] * 5, allow_private=LOCAL, break_after=2,
            break_for="1500ms", threads=1,
        )  # fmt: skip
        id = bus.publish("order.placed", 1)
        bus.start()
        until(lambda: hook.breaker.is_open)
        until(lambda: len(receiver.got) == 3)
        until(lambda: not hook.breaker.is_open)
        until(lambda: bus.broker.message(id).queues[0].completed)
        assert [headers["Remuda-Attempt"] for headers, _ in receiver.got] == ["1", "2", "3"]


def test_the_breaker_lets_one_try_and_waits_longer_each_time() -> None:
    now = 100.0
    breaker = CircuitBreaker(2, 10, lambda: now)
    for _ in range(2):
        assert breaker.enter() == 0
        breaker.failed()
    assert breaker.enter() == 10
    now += 10
    assert breaker.enter() == 0
    assert breaker.enter() > 0  # another tries already
    breaker.failed()
    assert breaker.enter() == 20
    now += 20
    assert breaker.enter() == 0
    breaker.succeeded()
    assert breaker.enter() == 0
    assert not breaker.is_open


def test_an_endpoint_that_does_not_answer_in_time_is_a_failure() -> None:
    """T2"""
    with socket.socket() as silent, Bus() as bus:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        webhook(bus, "billing", url, "order.#", retry="never", timeout="200ms", allow_private=LOCAL)
        bus.publish("order.placed", 1)
        bus.run(until_idle=True)
        assert "timed out" in bus.dead_letters("billing")[0].reason


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\nSlow: ", b"HTTP/1.1 500 Oops\r\n\r\n"])
def test_t2_an_endpoint_that_answers_byte_by_byte_holds_nobody(beginning: bytes) -> None:
    with trickling_server(beginning) as port:
        endpoint = Endpoint.parse(f"http://127.0.0.1:{port}/hook")
        began = time.monotonic()
        with contextlib.suppress(TimeoutError, ConnectionError):
            answer = outgoing_requests.post(endpoint, b"1", {}, timeout=0.2, allowed=read_networks(LOCAL))
            assert answer.status == 500, "the beginning of its text is enough"
        assert time.monotonic() - began < 5


def test_a_router_binds_to_an_endpoint(receiver: Receiver) -> None:
    """Q18"""
    with Bus() as bus:
        webhook(bus, "billing", receiver.url, allow_private=LOCAL)
        bus.broker.create_queue("archive", type="pull")
        bindings = [Binding(queue="billing", priority=1), Binding(queue="archive")]
        bus.broker.create_router("all", "distribute", bindings)
        bus.broker.route("all", Message("order.placed", b"1", mime_type="text/plain"))
        bus.run(until_idle=True)
        assert [body for _, body in receiver.got] == [b"1"]
        assert bus.broker.queue("archive").waiting == 1


@pytest.mark.parametrize(
    "mime_type", ["text/plain\r\nX-Evil: 1", "text/\u2603"], ids=["header-injection", "not-latin"]
)  # fmt: skip
def test_a_message_that_cannot_be_said_over_http_is_invalid(receiver: Receiver, mime_type: str) -> None:
    with Bus() as bus:
        webhook(bus, "billing", receiver.url, "order.#", allow_private=LOCAL)
        bus.publish("order.placed", b"1", mime_type=mime_type)
        bus.run(until_idle=True)
        assert bus.broker.queue("billing").invalid == 1
        assert receiver.got == []


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
     "::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1",
     "fec0::1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1", "192.88.99.1", "::", "2001::1"],
)  # fmt: skip
def test_private_addresses_are_refused(address: str) -> None:
    """T2"""
    assert not is_allowed(ipaddress.ip_address(address), ())
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(InvalidOption, match="allow_private"):
        Webhook(f"http://{host}/")


def test_the_world_is_allowed_and_so_is_what_was_named() -> None:
    assert is_allowed(ipaddress.ip_address("8.8.8.8"), ())
    assert is_allowed(ipaddress.ip_address("2606:4700::1111"), ())
    assert is_allowed(ipaddress.ip_address("64:ff9b::808:808"), ())
    assert is_allowed(ipaddress.ip_address("10.1.2.3"), read_networks(["10.0.0.0/8"]))
    assert not is_allowed(ipaddress.ip_address("10.1.2.3"), read_networks(["192.168.0.0/16", "fd00::/8"]))


def test_a_name_is_resolved_once_and_connected_to_as_checked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: a name that first leads to an allowed address, and to a forbidden one when asked again, cannot cheat."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: str, port: int, *arguments: Any, **more: Any) -> Any:
        if host != "rebinding.example":
            return real(host, port, *arguments, **more)
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    endpoint = Endpoint.parse(f"http://rebinding.example:{receiver.server_port}/hook")
    allowed = read_networks(LOCAL)
    answer = outgoing_requests.post(endpoint, b"1", {}, timeout=60, allowed=allowed)
    assert answer.status == 204
    assert receiver.got[0][0]["Host"] == f"rebinding.example:{receiver.server_port}"
    with pytest.raises(AddressRefused, match=r"169\.254\.169\.254"):
        outgoing_requests.post(endpoint, b"1", {}, timeout=60, allowed=allowed)
    with pytest.raises(AddressRefused, match="allow_private"):
        checked_address(Endpoint.parse("http://localhost/"), ())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "ftp://example.org"}, "https://"),
        ({"url": "example.org"}, "https://"),
        ({"url": "https://"}, "host"),
        ({"url": "https://a:b@example.org"}, "password"),
        ({"url": "https://example.org:99999"}, "https://"),
        ({"url": "https://example.org/a b"}, "percent"),
        ({"url": 5}, "url"),
        ({"secret": "short"}, "16"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "1h"}, "timeout"),
        ({"break_after": 0}, "break_after"),
        ({"allow_private": "10.0.0.0/8"}, "allow_private"),
        ({"allow_private": ["ten"]}, "allow_private"),
        ({"headers": {"a": "b\r\nc"}}, "headers"),
    ],
)
def test_what_is_said_of_a_webhook_is_checked(changes: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"url": "https://example.org/hook", **changes}
    with pytest.raises(InvalidOption, match=said):
        Webhook(**given)


def test_t2_a_refused_webhook_is_named_with_its_place() -> None:
    bus = Bus("memory://")
    for more, said in (
        ({"break_after": 0}, "break_after must be a whole number, 1 or more, not 0"),
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"secret": "short"}, "secret must be a string of at least 16 characters"),
    ):
        with pytest.raises(InvalidOption) as caught:
            webhook(bus, "billing", "https://example.org/hook", **more)
        assert str(caught.value).startswith("webhook 'billing' (")
        assert "test_webhooks.py, line " in str(caught.value)
        assert said in str(caught.value)
