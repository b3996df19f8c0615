"""Encodes a message as AMQP properties, and back.

Fields for which AMQP or CAP have a place are put there; the others are in one header, `remuda`, as JSON. All headers
are strings, since CAP reads nothing else. Applications' headers are sent as they are, except those that RabbitMQ acts
upon.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from struct import Struct
from typing import Any, Final
from uuid import uuid4

import msgspec

from remuda.amqp import cap
from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.codec.properties import (
    PERSISTENT,
    Properties,
    decode_properties,
    raw_headers,
    with_headers,
    without_property,
)
from remuda.amqp.codec.tables import scan
from remuda.amqp.errors import ProtocolError
from remuda.broker.rabbitmq.shared_state.message_ids import number_of
from remuda.model.errors import InvalidMessage
from remuda.model.message import MAX_PRIORITY, Message
from remuda.model.messages import MAX_ID_BYTES, Messages
from remuda.model.state import State
from remuda.model.topics import check_topic
from remuda.model.values.durations import SECOND

META: Final = "remuda"
REASON: Final = "remuda-reason"
STATE: Final = "remuda-state"
HISTORY: Final = "remuda-history"
HISTORY_KEPT: Final = 20
"""How many attempts a message's headers list at most; the log has all of them."""
JSON: Final = "application/json"
MAX_BODY: Final = 134_217_728
"""The largest body that RabbitMQ takes by default."""
MAX_PROPERTIES: Final = 120_000
"""Properties and headers must fit into one frame."""

_OWN: Final = frozenset({META, REASON, STATE, HISTORY, cap.ID, cap.NAME})
_OF_RABBIT: Final = frozenset(
    {"x-death", "x-delivery-count", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
     "x-last-death-exchange", "x-last-death-queue", "x-last-death-reason", "x-acquired-count"}
)  # fmt: skip
_RESERVED: Final = frozenset({*_OWN, cap.SENT, "CC", "BCC", "bcc", "cc"})
_LONG: Final = Struct(">I")
_FLAGS: Final = Struct(">H")
_CONTENT_TYPE, _HEADERS, _MODE, _PRIORITY, _EXPIRATION, _MESSAGE_ID = 0x8000, 0x2000, 0x1000, 0x0800, 0x0100, 0x0080


class Meta(msgspec.Struct, omit_defaults=True, rename={
    "created": "c", "topics": "t", "object": "o", "key": "k", "timestamp": "s", "expires": "x", "due": "d",
    "wait": "u", "attempts": "a", "again": "r", "headers": "h", "foreign": "F", "failed": "f", "who": "w",
    "detail": "D", "consumer": "C", "id": "i",
}):  # fmt: skip
    """The fields that have no place of their own in AMQP."""

    created: int = 0
    id: str = ""
    """Of a message that came without one: what it was given here."""
    topics: tuple[str, ...] = ()
    object: str | None = None
    key: str | None = None
    timestamp: int | None = None
    expires: int | None = None
    due: int | None = None
    wait: int = 0
    """Not to be delivered before this time."""
    attempts: int = 0
    """Attempts that counted so far."""
    again: bool = False
    """Whether it was delivered before."""
    headers: dict[str, str] = {}
    """Headers that cannot be sent as headers."""
    foreign: bool = False
    """Whether another program published it, with headers of any type."""
    failed: int = 0
    """When it was parked."""
    who: str | None = None
    detail: str | None = None
    consumer: str | None = None


class Attempt(msgspec.Struct, omit_defaults=True):
    """One attempt that did not succeed, as a message's headers list it."""

    consumer: str
    fetched: int
    ended: int
    reason: str | None = None


class Incoming(msgspec.Struct, frozen=True):
    """A delivery with its message. `invalid` says why it is not a valid one."""

    delivery: Delivery
    message: Message
    meta: Meta
    number: int
    attempt: int
    redelivered: bool
    invalid: str | None = None

    @property
    def history(self) -> list[Attempt]:
        text = self.delivery.header(HISTORY)
        try:
            return _HISTORIES.decode(text) if isinstance(text, str) else []
        except msgspec.DecodeError:
            return []


_ENCODER: Final = msgspec.json.Encoder()
_METAS: Final = msgspec.json.Decoder(Meta)
_HISTORIES: Final = msgspec.json.Decoder(list[Attempt])


def _entry(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + b"S" + _LONG.pack(len(value)) + value


def _short(value: bytes) -> bytes:
    return bytes((len(value),)) + value


def encode(messages: Messages, now: int) -> list[bytes]:
    """The encoded properties of each message. All must have ids."""
    sent = datetime.fromtimestamp(now / SECOND, UTC).isoformat()
    if _is_uniform(messages):
        return _encode_uniform(messages, sent, now)
    return [_encode_one(message, sent, now) for message in messages.rows()]


def _is_uniform(messages: Messages) -> bool:
    """Whether the messages differ in nothing but body and id."""
    columns = (
        messages.name, messages.topics, messages.object, messages.key, messages.timestamp, messages.mime_type,
        messages.headers, messages.priority, messages.created, messages.expires, messages.due,
    )  # fmt: skip
    return not any(type(column) is list for column in columns) and messages.wire is None and len(messages) > 1


def _encode_uniform(messages: Messages, sent: str, now: int) -> list[bytes]:
    """One encoding for all messages, into which the ids are inserted."""
    mark = uuid4().hex
    whole = _encode_one(msgspec.structs.replace(messages[0], id=mark), sent, now)
    raw, size = mark.encode(), len(mark)
    head, middle, tail = whole.split(raw)
    _check_size(len(whole) + 2 * MAX_ID_BYTES)
    # The id's length comes right before it: in four bytes in the header, and in one in the property. The length of the
    # whole header table depends on it, too.
    table_at = 2 + 1 + head[2]
    table_size = _LONG.unpack_from(head, table_at)[0] - size
    before, after = head[:table_at], head[table_at + 4 : -4]
    middle = middle[:-1]
    known: dict[int, tuple[bytes, bytes]] = {}
    out = []
    ids = messages.ids
    assert ids is not None
    for one in ids:
        text = str(one).encode()
        length = len(text)
        ends = known.get(length)
        if ends is None:
            ends = known[length] = (
                before + _LONG.pack(table_size + length) + after + _LONG.pack(length),
                middle + bytes((length,)),
            )
        out.append(ends[0] + text + ends[1] + text + tail)
    return out


def _encode_one(message: Message, sent: str, now: int) -> bytes:
    meta = Meta(
        created=message.created, topics=message.topics, object=message.object, key=message.key,
        timestamp=message.timestamp, expires=message.expires, due=message.due, wait=message.due or 0,
    )  # fmt: skip
    own = message.id.encode()
    entries = [_entry(b"cap-msg-id", own)]
    apart: dict[str, str] = {}
    for name, value in message.headers.items():
        raw = name.encode()
        if name in _RESERVED or name in _OF_RABBIT or not 0 < len(raw) < 256:
            apart[name] = value
        else:
            entries.append(_entry(raw, value.encode()))
    meta.headers = apart
    entries += [
        _entry(b"cap-msg-name", message.name.encode()),
        _entry(b"cap-senttime", apart.get(cap.SENT, sent).encode()),
        _entry(b"remuda", _ENCODER.encode(meta)),
    ]
    table = b"".join(entries)
    flags = _CONTENT_TYPE | _HEADERS | _MODE | _MESSAGE_ID
    kind = message.mime_type.encode()
    if len(kind) > 255:
        raise InvalidMessage(f"mime_type has {len(kind)} bytes; AMQP takes 255. Nothing was stored")
    parts = [b"", _short(kind), _LONG.pack(len(table)), table, bytes((PERSISTENT,))]
    if message.priority:
        flags |= _PRIORITY
        parts.append(bytes((message.priority,)))
    if message.expires is not None and message.due is None:
        flags |= _EXPIRATION
        parts.append(_short(b"%d" % ttl(message.expires, now)))
    parts.append(_short(own))
    parts[0] = _FLAGS.pack(flags)
    whole = b"".join(parts)
    _check_size(len(whole))
    return whole


def _check_size(size: int) -> None:
    if size > MAX_PROPERTIES:
        raise InvalidMessage(
            f"the headers and names of a message have {size} bytes, and on RabbitMQ at most {MAX_PROPERTIES} fit into "
            "a frame; put the rest into the body. Nothing was stored"
        )


def ttl(until: int, now: int) -> int:
    """Milliseconds until a time, never less than zero and never more than RabbitMQ takes."""
    return min(max((until - now + 999) // 1000, 0), 0xFFFFFFFF)


def decode(delivery: Delivery, now: int) -> Incoming:
    """The message of a delivery. One that is invalid is decoded as far as possible, with the reason."""
    try:
        properties = decode_properties(delivery.raw_properties)
    except ProtocolError as error:
        return _invalid(delivery, Properties(), f"its properties cannot be read: {error.text}", now)
    table = properties.headers or {}
    text = table.get(META)
    if not isinstance(text, str):
        return _foreign(delivery, properties, None, now)
    try:
        meta = _METAS.decode(text)
    except msgspec.DecodeError as error:
        return _invalid(delivery, properties, f"its header {META} cannot be read: {error}", now)
    if meta.foreign:
        return _foreign(delivery, properties, meta, now)
    name, own = table.get(cap.NAME), properties.message_id
    if not isinstance(name, str) or not own:
        return _invalid(delivery, properties, f"the header {cap.NAME} or the message's id is missing", now)
    headers = {
        key: value
        for key, value in table.items()
        if type(value) is str and key not in _RESERVED and key not in _OF_RABBIT
    }
    if meta.headers:
        headers.update(meta.headers)
    message = Message(
        name, delivery.body, own, meta.topics, meta.object, meta.key, meta.timestamp,
        properties.content_type or "application/octet-stream", headers, properties.priority or 0, meta.created,
        meta.expires, meta.due,
    )  # fmt: skip
    return _incoming(delivery, message, meta, table)


def _incoming(delivery: Delivery, message: Message, meta: Meta, table: Mapping[str, Any]) -> Incoming:
    returned = table.get("x-delivery-count")
    if not isinstance(returned, int):  # a classic queue, which only says whether it was delivered before
        returned = int(delivery.redelivered)
    again = delivery.redelivered or meta.again
    return Incoming(delivery, message, meta, number_of(message.id), meta.attempts + returned + 1, again)


def _foreign(delivery: Delivery, properties: Properties, meta: Meta | None, now: int) -> Incoming:
    """A message that another program published, seen for the first time or, with `meta`, again."""
    try:
        found = cap.read(delivery)
        if len(found.id.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
            raise InvalidMessage(f"{cap.ID} is longer than {MAX_ID_BYTES} bytes")
        check_topic(found.name)
    except InvalidMessage as error:
        return _invalid(delivery, properties, str(error).removesuffix("; nothing was stored"), now, meta)
    sent = found.sent
    stamp = None if sent is None else round(sent.timestamp() * SECOND)
    headers = {
        name: value
        for name, value in found.headers.items()
        if name not in _OWN and (name != cap.SENT or stamp is None) and name not in _OF_RABBIT
    }
    if meta is None:
        meta = Meta(created=now, timestamp=stamp, foreign=True)
    message = Message(
        found.name, delivery.body, found.id, timestamp=stamp, mime_type=properties.content_type or JSON,
        headers=headers, priority=min(properties.priority or 0, MAX_PRIORITY), created=meta.created,
        wire=_as_it_came(delivery.raw_properties),
    )  # fmt: skip
    return _incoming(delivery, message, meta, properties.headers or {})


def _as_it_came(raw: bytes) -> bytes:
    ours = frozenset({META, REASON, STATE, HISTORY}) | _OF_RABBIT
    table = raw_headers(raw)
    if any(entry.key.decode("utf-8", "replace") in ours for entry in scan(table)):
        return with_headers(raw, {}, without=ours)
    return raw


def _invalid(delivery: Delivery, properties: Properties, reason: str, now: int, meta: Meta | None = None) -> Incoming:
    own = properties.message_id or (meta.id if meta is not None else "") or f"foreign-{uuid4().hex}"
    message = Message(
        "remuda.foreign", delivery.body, own, mime_type=properties.content_type or "application/octet-stream",
        created=now, wire=delivery.raw_properties,
    )  # fmt: skip
    kept = meta or Meta(created=now, foreign=True)
    if not properties.message_id:
        kept = msgspec.structs.replace(kept, id=own)
    return Incoming(delivery, message, kept, number_of(own), 1, delivery.redelivered, reason)


def again(
    incoming: Incoming, changes: Mapping[str, Any], headers: Mapping[str, str] | None = None, *, parked: bool = True
) -> bytes:
    """The properties of a message that is published again: with changes to `Meta`, and all else as it came."""
    meta = msgspec.structs.replace(incoming.meta, **changes)
    raw = incoming.delivery.raw_properties
    if incoming.invalid is not None:
        try:
            decode_properties(raw)
        except ProtocolError:
            raw = b"\x00\x00"
    entries = {META: _ENCODER.encode(meta).decode(), **(headers or {})}
    gone = _OF_RABBIT
    if not parked:
        entries.pop(STATE, None)
        gone |= {STATE}
    # RabbitMQ would start its time to live again, even while it is delayed; consumers check `expires` themselves.
    return with_headers(without_property(raw, "expiration"), entries, without=gone)


def with_history(incoming: Incoming, attempt: Attempt) -> dict[str, str]:
    """The header that lists earlier attempts, with one more."""
    history = [*incoming.history, attempt][-HISTORY_KEPT:]
    return {HISTORY: _ENCODER.encode(history).decode()}


def state_of(incoming: Incoming) -> tuple[State, str, int]:
    """Of a parked message: its state, the reason and the time. RabbitMQ itself parks what expired or was evicted."""
    table = incoming.delivery.properties.headers or {}
    state = table.get(STATE)
    if isinstance(state, str) and state in State.__members__.values():
        return State(state), str(table.get(REASON) or ""), incoming.meta.failed
    deaths = table.get("x-death")
    death = deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}
    reason = {"expired": "expired", "maxlen": "evicted"}.get(
        str(death.get("reason")), str(death.get("reason") or "dead")
    )
    time = death.get("time")
    return State.DEAD, reason, int(time) * SECOND if isinstance(time, int) else incoming.meta.created
