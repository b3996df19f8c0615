"""Published messages become a batch for the broker: properties stay raw bytes and are decoded once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from sys import intern
from typing import Any, Final

import msgspec

from remuda.amqp import cap
from remuda.amqp.codec.properties import EMPTY, decode_properties, with_headers
from remuda.amqp.errors import ProtocolError
from remuda.model.message import MAX_PRIORITY, NO_HEADERS
from remuda.model.messages import MAX_ID_BYTES, Column, Messages, cell, fold
from remuda.model.values.durations import MILLISECOND, SECOND
from remuda.model.values.texts import is_storable
from remuda.server.amqp.declarations.arguments import LONGEST, kind_of
from remuda.server.amqp.declarations.exchanges import as_text, storable
from remuda.server.amqp.protocol.failures import PRECONDITION_FAILED, SYNTAX_ERROR, Failure
from remuda.server.amqp.protocol.request_reader import Publications

EXCHANGE: Final = "amqp-exchange"
"""The header that names the exchange a message was published to, unless it was the default one."""
_BINARY: Final = "application/octet-stream"
_LONGEST_KNOWN: Final = 512
_MOST_KNOWN: Final = 1000
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
    """Reads publications, those of all connections: what properties say is remembered once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Facts] = {EMPTY: _PLAIN}

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
        bodies, shared = first.bodies, first.properties
        name: Column[str] = first.method.routing_key
        alike = isinstance(shared, bytes)
        if len(publications) > 1:
            keys = [one.method.routing_key for one in publications]
            if keys.count(keys[0]) != len(keys):
                name = _spread(keys, [len(one.bodies) for one in publications])
            bodies = [body for one in publications for body in one.bodies]
            alike = alike and [one.properties for one in publications].count(shared) == len(publications)
        if alike and isinstance(shared, bytes):
            facts = self.facts(shared)
            if facts.lifetime is None and not facts.id:
                return Messages(
                    bodies=bodies, name=name, wire=without_hidden(facts, shared) if facts.hidden else shared,
                    topics=_topics(name, [facts] * len(bodies)) if facts.keys else (), mime_type=facts.mime_type,
                    headers=_with_exchange(facts.headers, exchange) if exchange else facts.headers,
                    priority=facts.priority, timestamp=facts.timestamp,
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


def delayed(messages: Messages, now: int) -> Messages:
    """Messages of a delayed exchange, each due after as many milliseconds as its header `x-delay` says."""
    delays = [_delay(cell(messages.headers, row)) for row in range(len(messages.bodies))]
    if not any(delays):
        return messages
    return msgspec.structs.replace(
        messages, due=fold([now + delay * MILLISECOND if delay else None for delay in delays])
    )


def _delay(headers: Mapping[str, str]) -> int:
    text = headers.get("x-delay", "")
    return min(int(text), LONGEST) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


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
        if name != "BCC":
            # A void header is there, as bindings see: its value is an empty text.
            headers[intern(storable(name))] = as_text(value) or ""
    stamp = properties.timestamp
    own = headers.get(cap.ID) or properties.message_id or ""
    sent = cap.time_of(headers[cap.SENT]) if stamp is None and cap.SENT in headers else None
    kind = properties.content_type or _BINARY
    return Facts(
        mime_type=kind if is_storable(kind) and kind.isprintable() else _BINARY,
        headers=headers or NO_HEADERS,
        priority=min(properties.priority or 0, MAX_PRIORITY),
        lifetime=_lifetime(properties.expiration),
        id=own if is_storable(own) and len(own.encode()) <= MAX_ID_BYTES else "",
        timestamp=_timestamp(stamp if sent is None else int(sent.timestamp())),
        user=properties.user_id,
        reply_to=properties.reply_to,
        keys=(*_keys(table, "CC"), *_keys(table, "BCC")),
        hidden="BCC" in table,
    )


def _timestamp(seconds: int | None) -> int | None:
    return int(seconds) * SECOND if seconds is not None and 0 <= seconds * SECOND < _LATEST else None


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
