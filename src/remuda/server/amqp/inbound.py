"""Published messages become a batch of the broker's: properties stay raw bytes, and are looked into once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from remuda.amqp.errors import ProtocolError
from remuda.amqp.methods import BasicPublish
from remuda.amqp.properties import EMPTY, decode_properties, with_headers
from remuda.model.durations import MILLISECOND, SECOND
from remuda.model.message import MAX_PRIORITY, NO_HEADERS
from remuda.model.messages import MAX_ID_BYTES, Column, Messages, fold
from remuda.model.texts import is_storable
from remuda.server.amqp.exchanges import as_text
from remuda.server.amqp.failures import PRECONDITION_FAILED, SYNTAX_ERROR, Failure

EXCHANGE: Final = "amqp-exchange"
"""The header that names the exchange a message was published to, unless it was the default one."""
_BINARY: Final = "application/octet-stream"
_LONGEST_KNOWN: Final = 512
_MOST_KNOWN: Final = 2000
_LATEST: Final = 1 << 52


class Publication(msgspec.Struct, frozen=True):
    """One message on its way in."""

    method: BasicPublish
    properties: bytes
    body: bytes
    tag: int = 0
    """Its number on a channel that confirms; 0 where nothing is confirmed."""


class Facts(msgspec.Struct, frozen=True):
    """What the broker knows of a message's properties."""

    mime_type: str = _BINARY
    headers: Mapping[str, str] = NO_HEADERS
    priority: int = 0
    lifetime: int | None = None
    """Milliseconds until it expires."""
    id: str = ""
    timestamp: int | None = None
    user: str | None = None
    reply_to: str | None = None
    keys: tuple[str, ...] = ()
    """Further routing keys, from CC and BCC."""
    hidden: bool = False
    """Whether it has a BCC header, which nobody is to see."""


_PLAIN: Final = Facts()


class Inbound:
    """Reads publications of one connection."""

    def __init__(self) -> None:
        self._known: dict[bytes, Facts] = {EMPTY: _PLAIN}
        self._headers: dict[tuple[str, int], Mapping[str, str]] = {}

    def facts(self, raw: bytes) -> Facts:
        known = self._known.get(raw)
        if known is None:
            known = _read(raw)
            if len(raw) <= _LONGEST_KNOWN:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[raw] = known
        return known

    def batch(self, exchange: str, publications: Sequence[Publication], now: int) -> Messages:
        """Publications to one exchange as columns. `now` is in microseconds."""
        facts = [self.facts(one.properties) for one in publications]
        first = facts[0]
        bodies = [one.body for one in publications]
        name = fold([one.method.routing_key for one in publications])
        wire: Column[bytes | None] = fold([one.properties for one in publications])
        if facts.count(first) == len(facts) and first.lifetime is None and not first.id:
            return Messages(
                bodies=bodies, name=name, wire=without_hidden(first, wire) if first.hidden else wire,
                topics=_topics(publications, facts) if first.keys else (), mime_type=first.mime_type,
                headers=_with_exchange(first.headers, exchange), priority=first.priority, timestamp=first.timestamp,
            )  # fmt: skip
        ids = [one.id for one in facts]
        hidden = any(one.hidden for one in facts)
        if hidden:
            wire = [without_hidden(fact, one.properties) for fact, one in zip(facts, publications, strict=True)]
        return Messages(
            bodies=bodies,
            name=name,
            ids=ids if any(ids) else None,
            topics=_topics(publications, facts) if any(one.keys for one in facts) else (),
            timestamp=fold([one.timestamp for one in facts]),
            mime_type=fold([one.mime_type for one in facts]),
            headers=fold([_with_exchange(one.headers, exchange) for one in facts]),
            priority=fold([one.priority for one in facts]),
            expires=fold([None if one.lifetime is None else now + one.lifetime * MILLISECOND for one in facts]),
            wire=wire,
        )


def without_hidden(facts: Facts, wire: Any) -> Any:
    """Properties without the BCC header."""
    if isinstance(wire, list):
        return [without_hidden(facts, one) for one in wire]
    return with_headers(wire, {}, without=frozenset({"BCC"})) if facts.hidden else wire


def _topics(publications: Sequence[Publication], facts: Sequence[Facts]) -> list[tuple[str, ...]]:
    return [
        (one.method.routing_key, *fact.keys) if fact.keys else () for one, fact in zip(publications, facts, strict=True)
    ]


def _with_exchange(headers: Mapping[str, str], exchange: str) -> Mapping[str, str]:
    return {**headers, EXCHANGE: exchange} if exchange else headers


def _read(raw: bytes) -> Facts:
    try:
        properties = decode_properties(raw)
    except (ProtocolError, IndexError) as error:
        raise Failure(SYNTAX_ERROR, f"the properties of a message cannot be read: {error}") from None
    table = properties.headers or {}
    headers = {}
    for name, value in table.items():
        text = as_text(value)
        if text is not None and name != "BCC":
            headers[name.encode("utf-8", "backslashreplace").decode()] = text
    stamp = properties.timestamp
    own = properties.message_id or ""
    kind = properties.content_type or _BINARY
    return Facts(
        mime_type=kind if is_storable(kind) and kind.isprintable() else _BINARY,
        headers=headers or NO_HEADERS,
        priority=min(properties.priority or 0, MAX_PRIORITY),
        lifetime=_lifetime(properties.expiration),
        id=own if is_storable(own) and len(own.encode()) <= MAX_ID_BYTES else "",
        timestamp=int(stamp) * SECOND if stamp is not None and stamp * SECOND < _LATEST else None,
        user=properties.user_id,
        reply_to=properties.reply_to,
        keys=(*_keys(table, "CC"), *_keys(table, "BCC")),
        hidden="BCC" in table,
    )


def _lifetime(expiration: str | None) -> int | None:
    if expiration is None:
        return None
    if not expiration.isascii() or not expiration.isdecimal() or len(expiration) > 12:
        raise Failure(PRECONDITION_FAILED, f"invalid expiration '{expiration}': not a number of milliseconds")
    return int(expiration)


def _keys(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = table.get(name)
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Failure(
            PRECONDITION_FAILED, f"unacceptable type of the header '{name}': it must be an array of long strings"
        )
    return tuple(str(one) for one in found)
