"""What a shovel moves from where to where, in the words of RabbitMQ's parameters. Checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from remuda.amqp.codec.tables import encode_table
from remuda.amqp.connection_options import parse_url as parse_amqp
from remuda.amqp.errors import ProtocolError
from remuda.model.errors import InvalidOption
from remuda.model.values.option_reading import unknown
from remuda.model.values.texts import MAX_NAME_BYTES, shown
from remuda.model.values.urls import AMQP, AMQPS, REMUDA, parse_url

COMPONENT: Final = "shovel"
HERE: Final = "amqp://"
"""The URI of this server itself."""
_ACK_MODES: Final = ("on-confirm", "on-publish", "no-ack")
_PROTOCOLS: Final = ("amqp091", REMUDA)
_ENDS: Final = ("uri", "protocol", "queue", "queue-args", "exchange", "exchange-key", "predeclared")
_KNOWN: Final = frozenset(
    {
        *(f"{end}-{name}" for end in ("src", "dest") for name in _ENDS), "src-exchange-queue", "src-prefetch-count",
        "prefetch-count", "src-delete-after", "delete-after", "dest-add-forward-headers", "add-forward-headers",
        "ack-mode", "reconnect-delay",
    }
)  # fmt: skip


class Place(msgspec.Struct, frozen=True):
    """One end of a shovel: a queue or an exchange of a broker."""

    uris: tuple[str, ...]
    """Where the broker is: tried in turn. `HERE` is this server."""
    queue: str | None
    exchange: str | None
    key: str | None
    arguments: dict[str, Any]
    """With which the queue is declared, if it does not exist."""
    predeclared: bool
    """Whether the queue must exist already."""

    @property
    def is_here(self) -> bool:
        return self.uris == (HERE,)

    @property
    def protocol(self) -> str:
        return REMUDA if self.uris[0].startswith(f"{REMUDA}:") else "amqp091"

    def shown(self, uri: str | None = None) -> str:
        """The URI without its login and its options, which may hold passwords."""
        uri = (uri or self.uris[0]).partition("?")[0]
        scheme, _, rest = uri.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"


class Shovel(msgspec.Struct, frozen=True):
    """A checked definition. `value` is what was given."""

    vhost: str
    name: str
    value: dict[str, Any]
    source: Place
    target: Place
    prefetch: int
    reconnect_seconds: float
    delete_after: int | str
    """How many messages to move, or `never` to end, or `queue-length`: as many as wait at the start."""
    forward_headers: bool

    @property
    def own_queue(self) -> str:
        """The queue at the source that collects what comes to the exchange that is followed."""
        found: str = self.value.get("src-exchange-queue") or f"shovel.{self.name}"
        return found


def read_shovel(vhost: str, name: str, value: Any) -> Shovel:
    """A shovel as the management API and the settings take it."""
    if not name.isprintable() or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES // 2:
        raise InvalidOption(f"a shovel's name is printable and at most {MAX_NAME_BYTES // 2} bytes long")
    if not isinstance(value, Mapping):
        raise InvalidOption(f"the value of a shovel must be an object, not {shown(value)}")
    for key in value:
        if key not in _KNOWN:
            raise unknown("setting", str(key), sorted(_KNOWN), f"shovel {name!r}")
    source, target = _place(vhost, value, "src"), _place(vhost, value, "dest")
    if source.is_here and target.is_here and (source.queue or source.exchange) == (target.queue or target.exchange):
        raise InvalidOption("a shovel cannot move messages to where they come from")
    if _text(value, "ack-mode", "on-confirm") not in _ACK_MODES:
        raise InvalidOption(f"ack-mode must be one of {', '.join(_ACK_MODES)}")
    _text(value, "src-exchange-queue", None)
    after = value.get("src-delete-after", value.get("delete-after", "never"))
    if after not in ("never", "queue-length"):
        after = _count("src-delete-after", after, 1)
    delay = value.get("reconnect-delay", 5)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= 86_400:
        raise InvalidOption(f"reconnect-delay must be seconds, from 0 to a day, not {shown(delay)}")
    prefetch = _count("src-prefetch-count", value.get("src-prefetch-count", value.get("prefetch-count", 1000)), 0)
    return Shovel(
        vhost, name, dict(value), source, target, prefetch or 1000, max(float(delay), 0.1), after,
        _flag(value, "dest-add-forward-headers", default=_flag(value, "add-forward-headers", default=False)),
    )  # fmt: skip


def _place(vhost: str, value: Mapping[str, Any], end: str) -> Place:
    given = value.get(f"{end}-uri", HERE)
    uris = given if isinstance(given, list) and given else [given]
    checked = tuple(_uri(vhost, one, f"{end}-uri") for one in uris)
    if len(checked) > 1 and HERE in checked:
        raise InvalidOption(f"{end}-uri names this server among others; give one or the other")
    protocol = _text(value, f"{end}-protocol", None)
    if protocol not in (None, *_PROTOCOLS):
        raise InvalidOption(f"{end}-protocol must be {' or '.join(_PROTOCOLS)}, not {shown(protocol)}")
    queue, exchange = _text(value, f"{end}-queue", None), _text(value, f"{end}-exchange", None)
    if (queue is None) == (exchange is None) or not (queue or exchange):
        raise InvalidOption(f"give one of {end}-queue and {end}-exchange")
    arguments = value.get(f"{end}-queue-args") or {}
    try:
        if not isinstance(arguments, dict):
            raise TypeError
        encode_table(arguments)
    except (ProtocolError, TypeError, ValueError):
        raise InvalidOption(f"{end}-queue-args must be an object of arguments, not {shown(arguments)}") from None
    key = _text(value, f"{end}-exchange-key", None)
    return Place(checked, queue, exchange, key, arguments, _flag(value, f"{end}-predeclared", default=False))


def _uri(vhost: str, uri: Any, what: str) -> str:
    if not isinstance(uri, str):
        raise InvalidOption(f"{what} must be a URI or a list of them")
    scheme, _, rest = uri.partition("://")
    if scheme == AMQP and not rest.partition("?")[0].partition("/")[0]:
        path = unquote(rest.partition("?")[0].partition("/")[2])
        if path not in ("", vhost):
            raise InvalidOption(
                f"{what} without a host is this server, and there the vhost of the shovel, {vhost!r}; give a host and "
                "a login to reach another vhost"
            )
        return HERE
    if scheme in (AMQP, AMQPS):
        if any(name == "password_file" for name, _ in parse_qsl(rest.partition("?")[2], keep_blank_values=True)):
            # Who may set a shovel may not read this machine's files by logging in somewhere with them.
            raise InvalidOption(f"{what} cannot have a password_file; write the password into the URI")
        parse_amqp(uri)
    elif scheme == REMUDA and parse_url(uri).hosts:
        pass
    else:
        raise InvalidOption(f"{what} must begin with amqp://, amqps:// or remuda://, and name a host")
    return uri


def _text(value: Mapping[str, Any], name: str, default: str | None) -> str | None:
    found = value.get(name, default)
    if found is not None and not isinstance(found, str):
        raise InvalidOption(f"{name} must be a text, not {shown(found)}")
    return found


def _count(name: str, found: Any, least: int) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found < 1 << 31:
        raise InvalidOption(f"{name} must be a whole number from {least}, not {shown(found)}")
    return found


def _flag(value: Mapping[str, Any], name: str, *, default: bool) -> bool:
    found = value.get(name, default)
    if not isinstance(found, bool):
        raise InvalidOption(f"{name} must be true or false, not {shown(found)}")
    return found
