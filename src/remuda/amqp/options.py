"""Where to connect to and how, from a URL."""

from __future__ import annotations

import ssl
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from remuda.amqp.frames import FRAME_MAX, FRAME_MIN
from remuda.model.durations import SECOND, micros
from remuda.model.errors import InvalidOption

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_TLS_NAMES: Final = ("cafile", "certfile", "keyfile", "verify")
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

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "reply_timeout", "retry_after"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidOption(f"{name} must be longer than zero, not {value!r}")

    def __repr__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{'amqps' if self.tls else 'amqp'}://{self.user}@{hosts}/{self.virtual_host.removeprefix('/')}"


def parse_url(url: str, **changes: Any) -> ConnectionOptions:
    """Options from `amqp://user:password@host1,host2:port/vhost?heartbeat=30s`, with some replaced.

    Known in the query: `heartbeat`, `connect_timeout`, `reply_timeout`, `retry_after`, `backoff_max`, `attempts`,
    `name`, `frame_max`, and for TLS `cafile`, `certfile`, `keyfile` and `verify` (`no` takes any certificate).
    """
    if not isinstance(url, str):
        raise InvalidOption(f"the broker's URL must be a string, not {url!r}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _PORTS:
        raise InvalidOption(f"{_hidden(url)!r} is not the URL of a RabbitMQ broker; {_FORM}")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    login, at, places = authority.rpartition("@")
    values: dict[str, Any] = {"hosts": tuple(_host(place, _PORTS[scheme]) for place in places.split(","))}
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
    elif files:
        raise InvalidOption(f"{next(iter(files))} is about TLS; write amqps:// instead of amqp://")
    return ConnectionOptions(**{**values, **asked, **changes})


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
        if name in ("heartbeat", "connect_timeout", "reply_timeout", "retry_after", "backoff_max"):
            seconds = micros(text) / SECOND
            values[name] = round(seconds) if name == "heartbeat" else seconds
        elif name in ("attempts", "frame_max"):
            least = FRAME_MIN if name == "frame_max" else 1
            if not text.isdecimal() or int(text) < least:
                raise InvalidOption(f"{name} in the broker's URL must be a whole number from {least}, not {text!r}")
            values[name] = int(text)
        elif name == "name" or name in _TLS_NAMES:
            values[name] = text
        else:
            raise InvalidOption(f"unknown option {name!r} in the broker's URL")
    if not 0 <= values.get("heartbeat", 0) <= 65535:
        raise InvalidOption("heartbeat in the broker's URL must be at most 65535s")
    return values


def _tls(files: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.get("cafile"))
        if "certfile" in files:
            context.load_cert_chain(files["certfile"], files.get("keyfile"))
    except (OSError, ssl.SSLError) as error:
        raise InvalidOption(f"the TLS files of the broker's URL cannot be used: {error}") from error
    if files.get("verify", "yes") not in ("yes", "no"):
        raise InvalidOption(f"verify in the broker's URL must be yes or no, not {files['verify']!r}")
    if files.get("verify") == "no":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _hidden(url: str) -> str:
    """A URL without its password, for error texts."""
    head, at, tail = url.rpartition("@")
    return f"…@{tail}" if at and head else url
