"""Published messages become a batch for the broker: properties stay raw bytes and are decoded once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from remuda.amqp.errors import ProtocolError
from remuda.amqp.properties import EMPTY, decode_properties, with_headers
from remuda.model.durations import MILLISECOND, SECOND
from remuda.model.message import MAX_PRIORITY, NO_HEADERS
from remuda.model.messages import MAX_ID_BYTES, Column, Messages, cell, fold
from remuda.model.texts import is_storable
from remuda.server.amqp.arguments import LONGEST, kind_of
from remuda.server.amqp.exchanges import as_text
from remuda.server.amqp.failures import PRECONDITION_FAILED, SYNTAX_ERROR, Failure
from remuda.server.amqp.reading import Publications

EXCHANGE: Final = "amqp-exchange"
"""The header that names the exchange a message was published to, unless it was the default one."""
_BINARY: Final = "application/octet-stream"
_LONGEST_KNOWN: Final = 512
_MOST_KNOWN: Final = 2000
_LATEST: Final = 1 << 52
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


class Facts(msgspec.Struct, frozen=True):
    """What the broker needs of a message's properties."""

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
    """Whether it has a BCC header, which no consumer may see."""


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

    def batch(self, exchange: str, publications: Sequence[Publications], now: int) -> Messages:
        """Publications to one exchange as columns. `now` is in microseconds."""
        first = publications[0]
        keys = [one.method.routing_key for one in publications]
        counts = [len(one.bodies) for one in publications]
        bodies = first.bodies if len(publications) == 1 else [body for one in publications for body in one.bodies]
        name = keys[0] if keys.count(keys[0]) == len(keys) else _spread(keys, counts)
        shared = first.properties
        if isinstance(shared, bytes) and all(one.properties == shared for one in publications):
            facts = self.facts(shared)
            if facts.lifetime is None and not facts.id:
                return Messages(
                    bodies=bodies, name=name, wire=without_hidden(facts, shared),
                    topics=_topics(name, [facts] * len(bodies)) if facts.keys else (), mime_type=facts.mime_type,
                    headers=_with_exchange(facts.headers, exchange), priority=facts.priority, timestamp=facts.timestamp,
                )  # fmt: skip
        wires = [one.properties_of(row) for one in publications for row in range(len(one.bodies))]
        all_facts = [self.facts(raw) for raw in wires]
        ids = [facts.id for facts in all_facts]
        return Messages(
            bodies=bodies,
            name=name,
            ids=ids if any(ids) else None,
            topics=_topics(name, all_facts) if any(facts.keys for facts in all_facts) else (),
            timestamp=fold([facts.timestamp for facts in all_facts]),
            mime_type=fold([facts.mime_type for facts in all_facts]),
            headers=fold([_with_exchange(facts.headers, exchange) for facts in all_facts]),
            priority=fold([facts.priority for facts in all_facts]),
            expires=fold([None if one.lifetime is None else now + one.lifetime * MILLISECOND for one in all_facts]),
            wire=fold([without_hidden(facts, raw) for facts, raw in zip(all_facts, wires, strict=True)]),
        )


def without_hidden(facts: Facts, raw: bytes) -> bytes:
    """Properties without the BCC header."""
    return with_headers(raw, {}, without=frozenset({"BCC"})) if facts.hidden else raw


def _spread(values: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Each value as often as its count says."""
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def _topics(name: Column[str], facts: Sequence[Facts]) -> list[tuple[str, ...]]:
    return [(cell(name, row), *fact.keys) if fact.keys else () for row, fact in enumerate(facts)]


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
    found = _INTEGER.match(expiration)
    if found is None:
        why = "no_integer"
    elif found.end() < len(expiration):
        why = f'{{leftover_string,"{expiration[found.end() :]}"}}'
    elif (lifetime := int(expiration)) < 0:
        why = f"{{value_negative,{lifetime}}}"
    elif lifetime > LONGEST:
        why = f"{{value_too_large,{lifetime}}}"
    else:
        return lifetime
    raise Failure(PRECONDITION_FAILED, f"invalid expiration '{expiration}': {why}")


def _keys(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = table.get(name)
    if found is None:
        return ()
    if not isinstance(found, list):
        raise Failure(
            PRECONDITION_FAILED, f'invalid message: {{unacceptable_type_in_header,"{name}",{kind_of(found)}}}'
        )
    return tuple(str(one) for one in found if isinstance(one, str))
