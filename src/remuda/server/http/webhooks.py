"""Webhooks: an HTTP endpoint as a subscriber (T2), retried by schedule like any other handler.

    webhook(bus, "billing", "https://example.org/hooks/orders", "order.#", secret="…")

A router's binding to the webhook's queue is a binding to the endpoint (Q18).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import quote

from remuda.bus.bus import Bus
from remuda.bus.handlers.context import Context
from remuda.bus.handlers.exceptions import NotNow, Reject, Retry
from remuda.bus.settings.retry import RetrySpec
from remuda.model import cap_headers
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import SECOND, Duration, micros
from remuda.model.values.option_reading import read_duration
from remuda.model.values.texts import read_count, shown
from remuda.server.http.security.outgoing_requests import Answer, Endpoint, Network, is_allowed, post, read_networks

SIGNATURE: Final = "Remuda-Signature"
TIMESTAMP: Final = "Remuda-Timestamp"
ID: Final = "Remuda-Id"
_LONGEST_WAIT: Final = 3600
_PASSED_ON: Final = (cap_headers.TRACE, cap_headers.CORRELATION, cap_headers.SEQUENCE, cap_headers.CALLBACK)


class DeliveryRefused(Exception):
    """The endpoint did not accept the message."""


class CircuitBreaker:
    """After several failures in a row nothing is sent for a while, then one message is tried.

    Each failed trial doubles the pause, up to ten minutes.
    """

    def __init__(self, failures: int, pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._first_pause = pause
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._pause = pause
        self._open_until = 0.0
        self._trying = False

    @property
    def is_open(self) -> bool:
        with self._lock:
            return self._failures >= self._limit

    def enter(self) -> float:
        """Seconds to wait before sending; 0 to send now."""
        with self._lock:
            if self._failures < self._limit:
                return 0.0
            left = self._open_until - self._clock()
            if left > 0:
                return left
            if self._trying:
                return min(self._pause, 1.0)
            self._trying = True
            return 0.0

    def leave(self) -> None:
        """Nothing was sent after all."""
        with self._lock:
            self._trying = False

    def succeeded(self) -> None:
        with self._lock:
            self._failures, self._pause, self._trying = 0, self._first_pause, False

    def failed(self) -> None:
        with self._lock:
            again = self._failures >= self._limit
            self._failures += 1
            self._trying = False
            if self._failures >= self._limit:
                self._pause = min(self._pause * 2, 600.0) if again else self._first_pause
                self._open_until = self._clock() + self._pause


class Webhook:
    """Delivers messages to one endpoint. `deliver` is the handler."""

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes | None = None,
        timeout: Duration = "10s",
        headers: Mapping[str, str] | None = None,
        allow_private: Iterable[str] = (),
        break_after: int = 5,
        break_for: Duration = "30s",
    ) -> None:
        self.endpoint = Endpoint.parse(url)
        self.timeout = read_duration("timeout", timeout) / SECOND
        if not 0 < self.timeout <= 300:
            raise InvalidOption(f"timeout must be longer than zero and at most 5m, not {timeout!r}")
        read_count("break_after", break_after, 1)
        if secret is not None and (not isinstance(secret, str | bytes) or len(secret) < 16):
            raise InvalidOption(
                "secret must be a string of at least 16 characters; make one with secrets.token_urlsafe()"
            )
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._headers = _checked(headers or {})
        self._allowed: tuple[Network, ...] = read_networks(allow_private)
        self._refuse_literal()
        self.breaker = CircuitBreaker(break_after, read_duration("break_for", break_for) / SECOND)

    def deliver(self, context: Context) -> None:
        """Send a message; the endpoint's answer decides whether it succeeded."""
        wait = self.breaker.enter()
        if wait:
            raise NotNow(f"{self.endpoint.host} failed too often; waiting before the next attempt", after=wait)
        try:
            answer = self._post(context)
        except Reject:
            self.breaker.leave()
            raise
        except BaseException:
            self.breaker.failed()
            raise
        if 200 <= answer.status < 300:
            self.breaker.succeeded()
            return
        if answer.status in (429, 503) and (after := _seconds(answer.headers.get("retry-after"))) is not None:
            self.breaker.failed()
            raise Retry(f"{self.endpoint.host} answered {answer.status} and asks to retry later", after=after)
        if 400 <= answer.status < 500 and answer.status not in (408, 425, 429):
            # The endpoint works; it refuses this message.
            self.breaker.succeeded()
        else:
            self.breaker.failed()
        detail = f": {answer.beginning.decode('utf-8', 'replace')[:200]}" if answer.beginning else ""
        redirected = ", a redirect, which is not followed" if 300 <= answer.status < 400 else ""
        raise DeliveryRefused(f"{self.endpoint.host} answered {answer.status}{redirected}{detail}")

    def _post(self, context: Context) -> Answer:
        message = context.message
        stamp = str(int(time.time()))
        headers = {
            "Content-Type": message.mime_type,
            "User-Agent": "remuda",
            ID: quote(message.id, safe=""),
            "Remuda-Topic": quote(message.name, safe=""),
            "Remuda-Attempt": str(context.attempt),
            TIMESTAMP: stamp,
            **{name: message.headers[name] for name in _PASSED_ON if name in message.headers},
            **self._headers,
        }
        if self._secret is not None:
            headers[SIGNATURE] = sign(self._secret, headers[ID], stamp, message.body)
        try:
            return post(self.endpoint, message.body, headers, timeout=self.timeout, allowed=self._allowed)
        except (ValueError, UnicodeError) as error:
            if isinstance(error, OSError):
                raise
            raise Reject(f"the message cannot be sent over HTTP: {error}") from None

    def _refuse_literal(self) -> None:
        try:
            address = ipaddress.ip_address(self.endpoint.host)
        except ValueError:
            return
        if not is_allowed(address, self._allowed):
            raise InvalidOption(
                f"{address} is inside this network; if that is intended, add allow_private=[{str(address)!r}]"
            )


def webhook(
    bus: Bus,
    name: str,
    url: str,
    *topics: str,
    secret: str | bytes | None = None,
    timeout: Duration = "10s",
    retry: RetrySpec = None,
    failover: str | None = None,
    threads: int = 4,
    headers: Mapping[str, str] | None = None,
    allow_private: Iterable[str] = (),
    break_after: int = 5,
    break_for: Duration = "30s",
) -> Webhook:
    """Push every message under these topics to an endpoint, from a queue of its own.

    Without a topic it gets what routers and publishers send to the queue `name`.
    """
    try:
        hook = Webhook(
            url, secret=secret, timeout=timeout, headers=headers, allow_private=allow_private, break_after=break_after,
            break_for=break_for,
        )  # fmt: skip
    except InvalidOption as error:
        caller = sys._getframe(1)
        where = f"{caller.f_code.co_filename}, line {caller.f_lineno}"
        raise InvalidOption(f"webhook {shown(name)} ({where}): {error}") from None
    subscribed = topics or (f"{name}.#",)
    limit = hook.timeout * 2 + 5
    bus.subscribe(*subscribed, queue=name, retry=retry, timeout=limit, failover=failover, threads=threads)(hook.deliver)
    return hook


def sign(secret: bytes, id: str, stamp: str, body: bytes) -> str:
    """The signature of a request: over its id, its time and its body."""
    signed = b".".join([id.encode(), stamp.encode(), body])
    return "v1=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()


def verify(secret: str | bytes, headers: Mapping[str, str], body: bytes, *, tolerance: Duration = "5m") -> bool:
    """For the receiver: whether a request was signed with the secret, and recently."""
    given = {name.lower(): value for name, value in headers.items()}
    stamp, id = given.get(TIMESTAMP.lower(), ""), given.get(ID.lower(), "")
    if not stamp.isascii() or not stamp.isdigit() or len(stamp) > 12:
        return False
    fresh = abs(time.time() - int(stamp)) <= micros(tolerance) / SECOND
    key = secret.encode() if isinstance(secret, str) else secret
    right = hmac.compare_digest(sign(key, id, stamp, body).encode(), given.get(SIGNATURE.lower(), "").encode())
    return fresh and right


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if (
            not isinstance(name, str)
            or not isinstance(value, str)
            or not name.isascii()
            or not (name + value).isprintable()
        ):
            raise InvalidOption(f"headers must be printable strings, but {name!r} is {value!r}")
    return dict(headers)


def _seconds(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return None
    return min(int(text), _LONGEST_WAIT)
