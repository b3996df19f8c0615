"""HTTP requests to addresses that others choose: resolved once, checked, and connected to as checked.

A name that is resolved a second time may give another address (DNS rebinding), so the connection goes to the address
that was checked, and the name is used only for TLS and the Host header. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from remuda.model.errors import InvalidOption, RemudaError
from remuda.timed_http import response_until

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ANSWER_BYTES: Final = 4096
_HOLD_IPV4: Final = (
    ipaddress.IPv6Network("::/96"),  # IPv4-compatible, as ::127.0.0.1
    ipaddress.IPv6Network("::ffff:0:0:0/96"),  # translated, as ::ffff:0:127.0.0.1
    ipaddress.IPv6Network("64:ff9b::/96"),
)
"""Networks whose addresses stand for the IPv4 address in their last four bytes."""
_NEVER_PUBLIC: Final = (
    ipaddress.IPv6Network("fec0::/10"),  # site local
    ipaddress.IPv6Network("64:ff9b:1::/48"),  # a translator's own, with IPv4 addresses anywhere in them
    ipaddress.IPv6Network("2001::/32"),  # Teredo
    ipaddress.IPv4Network("192.88.99.0/24"),  # relays of 6to4
)
"""What Python calls global, and may lead inside."""


class AddressRefused(RemudaError):
    """The endpoint's name resolves to an address inside this network, which was not allowed."""


class Endpoint(msgspec.Struct, frozen=True):
    """A URL taken apart and checked."""

    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        try:
            parts = urlsplit(url)
            port = parts.port
        except (ValueError, AttributeError, TypeError):
            raise InvalidOption(f"url must be like https://example.org/hook, not {url!r}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidOption(f"url must begin with https:// or http:// and name a host, not {url!r}")
        if parts.username is not None or parts.password is not None:
            raise InvalidOption("url must not hold a name or a password; give them as a header")
        if not url.isascii() or any(sign.isspace() or not sign.isprintable() for sign in url):
            raise InvalidOption(f"url holds characters that must be percent-encoded: {url!r}")
        secure = parts.scheme == "https"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(secure, parts.hostname, port or (443 if secure else 80), path)


class Answer(NamedTuple):
    """The endpoint's answer."""

    status: int
    headers: Mapping[str, str]
    beginning: bytes


def read_networks(allowed: Iterable[str]) -> tuple[Network, ...]:
    """The private networks that may be reached."""
    if isinstance(allowed, str):
        raise InvalidOption(f"allow_private is a list of networks like 10.0.0.0/8, not {allowed!r}")
    try:
        return tuple(ipaddress.ip_network(one) for one in allowed)
    except ValueError as error:
        raise InvalidOption(f"allow_private is a list of networks like 10.0.0.0/8: {error}") from None


def is_allowed(address: Address, allowed: Sequence[Network]) -> bool:
    """Whether a request may go there: to a public address, or to a network that was named."""
    if any(address.version == network.version and address in network for network in allowed):
        return True
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _HOLD_IPV4):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_allowed(inner, allowed)
    if any(address.version == network.version and address in network for network in _NEVER_PUBLIC):
        return False
    return address.is_global and not address.is_multicast


def checked_address(endpoint: Endpoint, allowed: Sequence[Network]) -> str:
    """The address to connect to. A name is refused if any of its addresses is not allowed."""
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConnectionError(f"{endpoint.host} cannot be resolved: {error}") from None
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    for address in addresses:
        if not is_allowed(ipaddress.ip_address(address), allowed):
            raise AddressRefused(
                f"{endpoint.host} is {address}, an address inside this network; if that is intended, allow it with "
                "allow_private"
            )
    return addresses[0]


def post(
    endpoint: Endpoint, body: bytes, headers: Mapping[str, str], *, timeout: float, allowed: Sequence[Network] = ()
) -> Answer:
    """Send one request and read the beginning of its answer, all within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    address = checked_address(endpoint, allowed)
    connection = _connection(endpoint, address, timeout)
    connection.response_class = response_until(deadline)  # type: ignore[assignment]
    try:
        connection.request("POST", endpoint.path, body, dict(headers))
        response = connection.getresponse()
        beginning = response.read1(_ANSWER_BYTES) if response.status >= 300 else b""
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, beginning)
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer is not HTTP: {type(error).__name__}") from error
    finally:
        connection.close()


def _connection(endpoint: Endpoint, address: str, timeout: float) -> http.client.HTTPConnection:
    if endpoint.secure:
        return _SecureConnection(endpoint, address, timeout)
    return _PlainConnection(endpoint, address, timeout)


class _PlainConnection(http.client.HTTPConnection):
    def __init__(self, endpoint: Endpoint, address: str, timeout: float) -> None:
        super().__init__(endpoint.host, endpoint.port, timeout=timeout)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)


class _SecureConnection(http.client.HTTPSConnection):
    def __init__(self, endpoint: Endpoint, address: str, timeout: float) -> None:
        self._tls = ssl.create_default_context()
        super().__init__(endpoint.host, endpoint.port, timeout=timeout, context=self._tls)
        self._address = address

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self.timeout)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
