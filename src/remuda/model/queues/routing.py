"""Exchanges and their bindings (Q18): a name in front of several queues, topics and other exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import isfinite
from typing import Any, Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.topics import root
from remuda.model.values.texts import MAX_NAME_BYTES, read_name, read_text, shown


class ExchangeKind(StrEnum):
    """How an exchange chooses among its bindings."""

    DISTRIBUTE = "distribute"
    """All bindings."""
    ROUND_ROBIN = "round-robin"
    """Each binding in turn, skipping those that refuse."""
    FIRST = "first"
    """The first binding that accepts."""
    DIRECT = "direct"
    """Bindings whose key is the message's name."""
    FANOUT = "fanout"
    """All bindings, whatever the message's name."""
    TOPIC = "topic"
    """Bindings whose pattern matches the message's name: `*` is one word, `#` zero or more."""
    HEADERS = "headers"
    """Bindings whose arguments match the message's headers."""
    CONSISTENT_HASH = "consistent-hash"
    """One binding, the same for all messages with the same name, or value of a header; its key is its weight."""
    RANDOM = "random"
    """Any one binding."""


DECLARED: Final = "x-remuda-declared"
"""An argument of a binding of an exchange to itself, which only describes the exchange: nothing goes there."""
ALTERNATE: Final = "x-remuda-alternate-exchange"
"""An argument of a binding: the exchange that gets messages no binding of this one takes."""
HASHED: Final = "x-remuda-hash-header"
"""An argument of a binding: the header that a consistent hash goes by, instead of the message's name."""
ROUTERS: Final = frozenset({ExchangeKind.DISTRIBUTE, ExchangeKind.ROUND_ROBIN, ExchangeKind.FIRST})
"""Kinds that ask each binding in turn; the others route by key or headers, as in AMQP."""


class Binding(msgspec.Struct, frozen=True, array_like=True, repr_omit_defaults=True):
    """A target of an exchange: a queue, a topic, or another exchange. Routers try the highest priority first."""

    queue: str | None = None
    topic: str | None = None
    priority: int = 0
    exchange: str | None = None
    key: str = ""
    arguments: Mapping[str, Any] = {}


def read_binding(router: str, given: Binding) -> Binding:
    if not isinstance(given, Binding):
        raise InvalidOption(f"a binding of router {shown(router)} must be a Binding, not {shown(given)}")
    kinds = [kind for kind in ("queue", "topic", "exchange") if getattr(given, kind) is not None]
    if len(kinds) != 1:
        raise InvalidOption(
            f"a binding of router {shown(router)} must name either a queue or a topic or an exchange, "
            f"not {shown(given)}"
        )
    kind = kinds[0]
    target = read_name(f"a binding's {kind}", getattr(given, kind))
    if kind == "topic" and not root(target):
        raise InvalidOption(f"a binding's topic {shown(target)} has no root before its first dot")
    key = read_text("a binding's key", given.key)
    if len(key.encode()) > MAX_NAME_BYTES:
        raise InvalidOption(f"a binding's key {shown(key)} is longer than {MAX_NAME_BYTES} bytes")
    if isinstance(given.priority, bool) or not isinstance(given.priority, int) or abs(given.priority) >= 1 << 62:
        raise InvalidOption(f"a binding's priority must be a whole number, not {shown(given.priority)}")
    if not isinstance(given.arguments, Mapping):
        raise InvalidOption(f"a binding's arguments must be a mapping, not {shown(given.arguments)}")
    arguments = {
        read_text("the name of one of a binding's arguments", name): _argument(name, value)
        for name, value in given.arguments.items()
    }
    return Binding(priority=int(given.priority), key=key, arguments=arguments, **{kind: target})


def _argument(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return read_text(f"a binding's argument {shown(name)}", value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return int(value)
    if isinstance(value, float) and isfinite(value):
        return float(value)
    raise InvalidOption(
        "a binding's arguments must be strings, bytes, booleans, finite floats or 64-bit integers: "
        f"{shown(name)} is {shown(value)}"
    )
