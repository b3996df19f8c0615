"""Where to connect to and how, from a URL."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from remuda.amqp.codec.frames import FRAME_MAX, FRAME_MIN
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import SECOND, micros
from remuda.model.values.option_reading import unknown
from remuda.model.values.urls import split_authority

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_TLS_NAMES: Final = ("cafile", "certfile", "keyfile", "password", "verify")
_OTHER_NAMES: Final = {"cacertfile": "cafile", "verify_peer": "yes", "verify_none": "no"}
"""What RabbitMQ's URIs call the same."""
_MECHANISMS: Final = ("PLAIN", "EXTERNAL")
URL_OPTIONS: Final = (
    "name", "heartbeat", "connect_timeout", "reply_timeout", "retry_after", "backoff_max", "attempts", "frame_max",
    "channel_max", "connection_timeout", "auth_mechanism", "password_file", "server_name_indication", "cacertfile",
    *_TLS_NAMES,
)  # fmt: skip
_FORM: Final = "write amqp://user:password@host1,host2:5672/vhost"


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a broker. Times are seconds."""

    hosts: tuple[tuple[str, int], ...] = (("localhost", 5672),)
    user: str = "guest"
    password: str = "guest"
    virtual_host: str = "/"
    tls: ssl.SSLContext | None = None
    heartbeat: int = 30
    frame_max: int = FRAME_MAX
    connect_timeout: float = 10.0
    reply_timeout: float = 30.0
    retry_after: float = 5.0
    """A repeatable request that is not answered for this long is sent again on a fresh channel, then after twice as
    long, and so on within `reply_timeout`."""
    attempts: int | None = None
    backoff: float = 0.2
    backoff_max: float = 15.0
    max_buffered: int = 16 << 20
    name: str = ""
    mechanism: str = "PLAIN"
    """How to log in: PLAIN, or EXTERNAL for a client certificate."""
    server_name: str | None = None
    """The name that the server's certificate must have, if it is not the host's."""
    channel_max: int = 65535
    password_file: str | None = None
    """A file whose first line is the password. It is read at every login, and a new one is sent to the broker."""

    def __post_init__(self) -> None:
        if self.mechanism not in _MECHANISMS:
            raise InvalidOption(f"auth_mechanism must be plain or external, not {self.mechanism.lower()!r}")
        for name in ("connect_timeout", "reply_timeout", "retry_after"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidOption(f"{name} must be longer than zero, not {value!r}")

    def secret(self) -> str:
        """The password to log in with now."""
        if self.password_file is None:
            return self.password
        try:
            return Path(self.password_file).read_text("utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption(f"password_file of the broker's URL cannot be read: {error}") from None

    def __repr__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{'amqps' if self.tls else 'amqp'}://{self.user}@{hosts}/{self.virtual_host.removeprefix('/')}"


def parse_url(url: str, **changes: Any) -> ConnectionOptions:
    """Options from `amqp://user:password@host1,host2:port/vhost?heartbeat=30s`, with some replaced.

    Known in the query: `heartbeat`, `connect_timeout`, `reply_timeout`, `retry_after`, `backoff_max`, `attempts`,
    `name`, `frame_max`, `channel_max`, `password_file`, `auth_mechanism` (`plain` or `external`), and for TLS
    `cafile`, `certfile`, `keyfile`, `password` (the key's), `server_name_indication` and `verify` (`no` takes any
    certificate). RabbitMQ's other names mean the same: `cacertfile`, `verify_peer` and `verify_none`,
    `connection_timeout` in milliseconds.
    """
    if not isinstance(url, str):
        raise InvalidOption(f"the broker's URL must be a string, not {url!r}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _PORTS:
        raise InvalidOption(f"{_hidden(url)!r} is not the URL of a RabbitMQ broker; {_FORM}")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    login, at, places = split_authority(authority)
    named = (places or "localhost").split(",")
    values: dict[str, Any] = {"hosts": tuple(_host(place, _PORTS[scheme]) for place in named)}
    if at:
        user, colon, password = login.partition(":")
        values["user"] = unquote(user)
        values["password"] = unquote(password) if colon else ""
    if slash and path:
        values["virtual_host"] = unquote(path)
    asked = _query(query)
    files: dict[str, str] = {name: asked.pop(name) for name in _TLS_NAMES if name in asked}
    if scheme == "amqps":
        values["tls"] = _tls(files)
    elif files or "server_name" in asked:
        raise InvalidOption(
            f"{next(iter(files), 'server_name_indication')} is about TLS; write amqps:// instead of amqp://"
        )
    if "password_file" in asked and values.get("password"):
        raise InvalidOption("the broker's URL has a password and a password_file; leave one out")
    options = ConnectionOptions(**{**values, **asked, **changes})
    options.secret()  # what cannot be read is told here
    return options


def _host(place: str, port: int) -> tuple[str, int]:
    host, colon, number = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    if not colon:
        host, number = place, str(port)
    if not host or not number.isdecimal() or not 0 < int(number) < 65536:
        raise InvalidOption(f"{place!r} is not a host of a broker's URL; {_FORM}")
    return host.strip("[]"), int(number)


def _query(query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        name = _OTHER_NAMES.get(name, name)
        if name == "connection_timeout":
            values["connect_timeout"] = _whole(name, text, 1) / 1000
        elif name == "auth_mechanism":
            values["mechanism"] = text.upper()
        elif name == "server_name_indication":
            values["server_name"] = text
        elif name in ("heartbeat", "connect_timeout", "reply_timeout", "retry_after", "backoff_max"):
            seconds = micros(text) / SECOND
            values[name] = round(seconds) if name == "heartbeat" else seconds
        elif name in ("attempts", "frame_max", "channel_max"):
            values[name] = _whole(name, text, FRAME_MIN if name == "frame_max" else 1)
        elif name in ("name", "password_file") or name in _TLS_NAMES:
            values[name] = text
        else:
            raise unknown("option", name, URL_OPTIONS, "the broker's URL")
    if not 0 <= values.get("heartbeat", 0) <= 65535:
        raise InvalidOption("heartbeat in the broker's URL must be at most 65535s")
    return values


def _whole(name: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < least:
        raise InvalidOption(f"{name} in the broker's URL must be a whole number from {least}, not {text!r}")
    return int(text)


def _tls(files: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.get("cafile"))
        if "certfile" in files:
            context.load_cert_chain(files["certfile"], files.get("keyfile"), password=files.get("password", ""))
    except (OSError, ssl.SSLError) as error:
        raise InvalidOption(f"the TLS files of the broker's URL cannot be used: {error}") from error
    verify = _OTHER_NAMES.get(files.get("verify", "yes"), files.get("verify", "yes"))
    if verify not in ("yes", "no"):
        raise InvalidOption(f"verify in the broker's URL must be yes or no, not {verify!r}")
    if verify == "no":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _hidden(url: str) -> str:
    """A URL without its password, for error texts."""
    head, at, tail = url.rpartition("@")
    return f"…@{tail}" if at and head else url
