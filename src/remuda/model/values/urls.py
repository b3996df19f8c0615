"""Where a broker or a log is: one parser for every URL and path that Remuda is given.

A plain path, `file:/x` and `file:///x` are a directory; `memory://` is this process; `remuda://user@host:port` a broker
that listens; `amqp://user@h1,h2:5673/vhost` RabbitMQ.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.values.texts import shown

FILE: Final = "file"
MEMORY: Final = "memory"
REMUDA: Final = "remuda"
AMQP: Final = "amqp"
AMQPS: Final = "amqps"
_BUCKETS: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "abfs", "abfss": "abfss"}
_NETWORK: Final = frozenset({REMUDA, AMQP, AMQPS})
_PORTS: Final = {AMQP: 5672, AMQPS: 5671}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/|$)")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class PathLike(Protocol):
    """A path object."""

    def __fspath__(self) -> str: ...


class Address(NamedTuple):
    """A host, and its port where one is known."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


class Url(msgspec.Struct, frozen=True):
    """A parsed URL. Its text never shows a password, of the login or of a key."""

    scheme: str
    path: str = ""
    """The directory of `file`; what follows the hosts of `remuda`."""
    hosts: tuple[Address, ...] = ()
    user: str | None = None
    password: str | None = None
    vhost: str | None = None
    """AMQP's virtual host."""
    options: tuple[tuple[str, str], ...] = ()
    """The query of the URL, decoded and in order."""

    @property
    def is_directory(self) -> bool:
        return self.scheme == FILE

    @property
    def is_network(self) -> bool:
        return self.scheme in _NETWORK

    def __str__(self) -> str:
        if self.scheme == FILE:
            return self.path
        text = f"{self.scheme}://"
        if self.user is not None:
            text += quote(self.user, safe="") + ("" if self.password is None else ":***") + "@"
        text += ",".join(map(str, self.hosts))
        if self.vhost is not None:
            text += "/" + quote(self.vhost, safe="")
        elif self.path:
            text += quote(self.path)
        if self.options:
            shown = [(name, "***" if name == "password" else quote(value, safe="")) for name, value in self.options]
            text += "?" + "&".join(f"{quote(name, safe='')}={value}" for name, value in shown)
        return text

    __repr__ = __str__


def parse_url(url: str | PathLike | Url) -> Url:
    """The place that a URL or a path names; raises `InvalidOption` where it names none."""
    if isinstance(url, Url):
        return url
    if not isinstance(url, str):
        fspath = getattr(url, "__fspath__", None)
        path = fspath() if callable(fspath) else None
        if not isinstance(path, str):
            raise InvalidOption(f"a URL must be a string or a path, not {shown(url)}")
        return _directory(path, path)
    match = _SCHEME.match(url)
    if match is None:
        return _directory(url, url)
    scheme, rest = match[1].lower(), url[match.end() :]
    if scheme == FILE:
        return _file(url, rest)
    if scheme == MEMORY:
        if rest.strip("/"):
            raise InvalidOption(f"memory:// takes no name: each broker in memory is separate, not {url!r}")
        return Url(MEMORY)
    if scheme in _NETWORK:
        return _network(scheme, rest)
    if not rest.startswith("//"):
        return _directory(url, url)  # a path with a colon in its first name
    raise InvalidOption(
        f"no broker speaks {scheme}://; give a directory, file:///path, memory://, remuda://host:port or "
        "amqp://host/vhost"
    )


def directory_of(url: str | PathLike | Url) -> str:
    """The path of the directory that a URL names; raises `InvalidOption` where it is something else."""
    parsed = parse_url(url)
    if not parsed.is_directory:
        raise InvalidOption(f"{parsed} is not a directory; give a path or file:///path")
    return parsed.path


def bucket_url(text: str) -> str | None:
    """The place in an object store that a URL names, Hadoop's schemes included; None where it names none."""
    scheme, _, rest = text.partition("://")
    known = _BUCKETS.get(scheme.lower())
    if known is None or "://" not in text:
        return None
    if not rest.partition("/")[0]:
        raise InvalidOption(f"{text!r} names no bucket; write {known}://bucket/lake")
    return f"{known}://{rest.rstrip('/')}"


def _directory(path: str, given: str) -> Url:
    if not path:
        raise InvalidOption("the URL is empty; give a directory, file:///path, memory:// or remuda://host:port")
    if "\0" in path:
        raise InvalidOption(f"a path cannot hold a zero byte: {given!r}")
    try:
        path.encode(errors="surrogateescape")  # as Python names files whose names are no text
    except UnicodeEncodeError:
        raise InvalidOption(f"a path cannot hold a lone surrogate: {given!r}") from None
    if path == "~" or path.startswith("~/"):
        raise InvalidOption(
            f"only a shell reads ~ as a home directory: {given!r}; write os.path.expanduser({given!r}), or './~' for a "
            "directory of that name"
        )
    return Url(FILE, path)


def _file(url: str, rest: str) -> Url:
    path = rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
        if host not in ("", "localhost"):
            raise InvalidOption(
                f"{url!r} names the host {host!r}, and a directory is always on this machine; "
                f"write file:///{rest[2:]} or a plain path"
            )
    if not path.startswith("/"):
        raise InvalidOption(f"{url!r} names no path; write file:///absolute/path or a plain path")
    if "?" in path or "#" in path:
        raise InvalidOption(f"a file URL takes no options: {url!r}; write ? as %3F and # as %23")
    return _directory(_decoded(path, url), url)


def _network(scheme: str, rest: str) -> Url:
    shape = f"{scheme}://user@host:port{'/vhost' if scheme != REMUDA else ''}"
    if not rest.startswith("//"):
        raise InvalidOption(f"{scheme}:{rest.rpartition('@')[2]} lacks its //; write {shape}")
    rest, mark, query = rest[2:].partition("?")
    if "#" in rest or "#" in query:
        raise InvalidOption(f"a {scheme} URL takes no fragment; write # as %23")
    authority, slash, path = rest.partition("/")
    login, at, places = split_authority(authority)
    # From here on texts name parts of the URL, never all of it: it may hold a password.
    user = password = None
    if at:
        name, colon, secret = login.partition(":")
        user = _decoded(name, "the user's name")
        password = _decoded(secret, "the password", secret=True) if colon else None
    if not places and scheme in _PORTS:
        places = "localhost"  # as RabbitMQ's URIs mean it
    hosts = tuple(_address(place, scheme, shape) for place in places.split(",")) if places else ()
    if not hosts and not (scheme == REMUDA and path):
        raise InvalidOption(f"the URL {scheme}://{places}{slash}{path} names no host; write {shape}")
    options = tuple(parse_qsl(query, keep_blank_values=True)) if mark else ()
    path = _decoded(path, "the path")
    if scheme == REMUDA:
        return Url(scheme, slash + path if path else "", hosts, user, password, options=options)
    return Url(scheme, "", hosts, user, password, path or "/", options)


def split_authority(authority: str) -> tuple[str, str, str]:
    """The login, an @ if there is one, and the hosts, with commas. Each host may repeat the login, as in
    `user:password@a:5672,user:password@b:5672`."""
    parts = authority.split(",")
    if len(parts) > 1 and all("@" in part for part in parts):
        logins = {part.rpartition("@")[0] for part in parts}
        if len(logins) > 1:
            raise InvalidOption("the hosts of a URL share one login: write user:password@host1,host2")
        return logins.pop(), "@", ",".join(part.rpartition("@")[2] for part in parts)
    return authority.rpartition("@")


def _address(text: str, scheme: str, shape: str) -> Address:
    host, colon, port = text.rpartition(":")
    if text.startswith("["):
        host, bracket, tail = text[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise InvalidOption(f"{text!r} is not a host; write [::1]:5672")
        colon, port = tail[:1], tail[1:]
    elif not colon:
        host, port = text, ""
    if not host or (":" in host and not text.startswith("[")) or any(sign.isspace() for sign in host):
        raise InvalidOption(f"{text!r} is not a host; write {shape}, and an IPv6 address as [::1]:5672")
    if not colon:
        return Address(_decoded(host, "the host"), _PORTS.get(scheme))
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidOption(f"{port!r} is not a port; write a number from 1 to 65535 in {shape}")
    return Address(_decoded(host, "the host"), int(port))


def _decoded(text: str, what: str, *, secret: bool = False) -> str:
    shown = "" if secret else f": {text!r}"
    if _ESCAPE.search(text):
        raise InvalidOption(f"{what} has a % that is not part of an escape{shown}; write % as %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidOption(f"{what} is not UTF-8 when decoded{shown}") from None
