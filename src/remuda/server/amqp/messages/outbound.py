"""Messages as frames, many in one write. Those published over AMQP leave with exactly the properties they came with."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from remuda.amqp.codec.methods import BASIC, BasicDeliver
from remuda.amqp.codec.properties import PERSISTENT, Properties, encode_properties
from remuda.model import cap_headers
from remuda.model.message import Message
from remuda.model.messages import Messages, cell
from remuda.model.values.durations import SECOND
from remuda.server.amqp.messages.inbound import EXCHANGE

_HEAD: Final = Struct(">BHI")
_TAG: Final = Struct(">QB")
_HEADER: Final = Struct(">BBHIHHQ")
"""The end of the frame before, and the content header's frame up to its properties."""
_BODY: Final = Struct(">BBHI")
_END: Final = b"\xce"
_OVERHEAD: Final = 8
_ID, _NAME = cap_headers.ID, cap_headers.NAME


def short(text: str) -> bytes:
    """A short string as it stands on the wire."""
    raw = text.encode("utf-8", "surrogateescape")[:255]
    return bytes((len(raw),)) + raw


def properties_of(message: Message) -> bytes:
    """The encoded properties to deliver a message with."""
    if message.wire is not None:
        return message.wire
    stamp = message.timestamp or message.created
    headers: dict[str, Any] = {name: value for name, value in message.headers.items() if name != EXCHANGE}
    headers.setdefault(_ID, message.id)
    headers.setdefault(_NAME, message.name)
    return encode_properties(
        Properties(
            content_type=_fitting(message.mime_type), headers=headers, delivery_mode=PERSISTENT,
            priority=message.priority or None, message_id=_fitting(message.id) or None,
            timestamp=stamp // SECOND if stamp > 0 else None,
        )
    )  # fmt: skip


def _fitting(text: str) -> str:
    """The text if a short string can hold it, otherwise an empty one."""
    return text if len(text.encode("utf-8", "surrogateescape")) <= 255 else ""


def exchange_of(headers: Mapping[str, str]) -> str:
    return headers.get(EXCHANGE, "")


def deliver_frames(
    channel: int,
    consumer_tag: str,
    first_tag: int,
    messages: Messages,
    redelivered: list[bool],
    frame_max: int,
    properties: list[bytes] | None,
) -> list[bytes]:
    """`basic.deliver` for each message, with tags from `first_tag` on. `properties` replace the messages' own."""
    start = BasicDeliver.index + short(consumer_tag)
    most = frame_max - _OVERHEAD
    if properties is None and isinstance(messages.wire, bytes) and True not in redelivered:
        alike = _alike_frames(channel, start, first_tag, messages, most)
        if alike is not None:
            return alike
    out: list[bytes] = []
    heads: dict[tuple[str, str], tuple[bytes, bytes]] = {}
    wires = messages.wire
    shared = wires if isinstance(wires, bytes) and properties is None else None
    name, headers = messages.name, messages.headers
    names = name if isinstance(name, list) else None
    tables = headers if isinstance(headers, list) else None
    before, after = b"", b""
    if names is None and tables is None:
        before, after = _around(channel, start, exchange_of(headers), name)  # type: ignore[arg-type]
    pack_tag, pack_header, pack_body = _TAG.pack, _HEADER.pack, _BODY.pack
    add = out.append
    for row, body in enumerate(messages.bodies):
        if names is not None or tables is not None:
            key = cell(name, row)
            exchange = exchange_of(cell(headers, row))
            pair = heads.get((exchange, key))
            if pair is None:
                pair = heads[exchange, key] = _around(channel, start, exchange, key)
            before, after = pair
        if shared is not None:
            raw = shared
        elif properties is not None:
            raw = properties[row]
        else:
            own = wires[row] if isinstance(wires, list) else wires
            raw = own if own is not None else properties_of(messages[row])
        size = len(body)
        add(before)
        add(pack_tag(first_tag + row, redelivered[row]))
        add(after)
        add(pack_header(0xCE, 2, channel, 12 + len(raw), BASIC, 0, size))
        add(raw)
        if size == 0:
            add(_END)
        elif size <= most:
            add(pack_body(0xCE, 3, channel, size))
            add(body)
            add(_END)
        else:
            add(_END)
            for at in range(0, size, most):
                part = body[at : at + most]
                add(_HEAD.pack(3, channel, len(part)))
                add(part)
                add(_END)
    return out


def _alike_frames(channel: int, start: bytes, first_tag: int, messages: Messages, most: int) -> list[bytes] | None:
    """The same for messages that differ only in their bodies, each of which fits one frame; None for any others."""
    name, headers, raw, bodies = messages.name, messages.headers, messages.wire, messages.bodies
    sizes = list(map(len, bodies))
    if isinstance(name, list) or isinstance(headers, list) or not isinstance(raw, bytes):
        return None
    if not sizes or min(sizes) == 0 or max(sizes) > most:
        return None
    before, after = _around(channel, start, exchange_of(headers), name)
    between = {
        size: b"\x00" + after + _HEADER.pack(0xCE, 2, channel, 12 + len(raw), BASIC, 0, size) + raw
        + _BODY.pack(0xCE, 3, channel, size)
        for size in set(sizes)
    }  # fmt: skip
    count = len(bodies)
    tags = Struct(f">{count}Q").pack(*range(first_tag, first_tag + count))
    parts: list[bytes] = [_END + before] * (4 * count + 1)
    parts[0] = before
    parts[1::4] = [tags[at : at + 8] for at in range(0, 8 * count, 8)]
    parts[2::4] = map(between.__getitem__, sizes)
    parts[3::4] = bodies
    parts[-1] = _END
    return parts


def _around(channel: int, start: bytes, exchange: str, key: str) -> tuple[bytes, bytes]:
    """The frame before and behind the delivery tag, without its end octet."""
    after = short(exchange) + short(key)
    size = len(start) + _TAG.size + len(after)
    return _HEAD.pack(1, channel, size) + start, after
