"""Exchanges and their bindings (Q18): a name in front of several queues, topics and other exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec


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


ALTERNATE: Final = "x-remuda-alternate-exchange"
"""An argument of a binding: the exchange that gets messages no binding of this one takes."""
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
