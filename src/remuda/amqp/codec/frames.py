"""Frames: a whole received buffer is parsed in one loop, and many frames are built into one write."""

from __future__ import annotations

from struct import Struct
from typing import Final

from remuda.amqp.codec.methods import (
    BASIC,
    WITH_CONTENT,
    BasicAck,
    BasicDeliver,
    BasicPublish,
    Heartbeat,
    Method,
    decode_method,
    encode_method,
)
from remuda.amqp.errors import (
    COMMAND_INVALID,
    CONTENT_TOO_LARGE,
    FRAME_ERROR,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    ProtocolError,
)
from remuda.model.errors import InvalidMessage

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
FRAME_MAX: Final = 131072
"""RabbitMQ's own default."""
FRAME_MIN: Final = 4096
"""Every peer must take frames of this size."""

Event = tuple[int, Method, bytes, bytes]
"""Channel, method, raw properties and body; the last two are empty unless the method carries content."""

_BEAT: Final = Heartbeat()
_HEAD: Final = Struct(">BHI")
_CONTENT: Final = Struct(">BHIHHQ")
_DELIVER: Final = BasicDeliver.index
_PUBLISH: Final = BasicPublish.index
_ACK: Final = BasicAck.index
_TAG: Final = Struct(">QB")
_END: Final = b"\xce"
_OVERHEAD: Final = 8
_NAMES_KEPT: Final = 10_000


class _Partial:
    """Content of one channel that has arrived only in part."""

    __slots__ = ("body", "left", "method", "properties")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.properties: bytes | None = None
        self.left = 0
        self.body: list[bytes] = []


class FrameParser:
    """Bytes in, events out. The first violation ends it: `error` holds it, and nothing more is parsed."""

    def __init__(self, frame_max: int = FRAME_MAX, *, max_body: int = 1 << 29) -> None:
        self.frame_max = frame_max
        self.max_body = max_body
        self.error: ProtocolError | None = None
        self._chunks: list[bytes] = []
        self._held = 0
        self._needed = 1
        self.gathering: dict[int, _Partial] = {}
        """Contents that have arrived only in part, by channel."""
        self._names: dict[bytes, tuple[str, str]] = {}
        self._tags: dict[bytes, str] = {}
        self._publishes: dict[bytes, BasicPublish] = {}

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete. Check `error` afterwards."""
        if self.error is not None:
            return []
        self._chunks.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return []  # so that a frame that comes byte by byte is copied once
        buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        events: list[Event] = []
        position = 0
        try:
            position, self._needed = self._parse(buffer, events)
        except ProtocolError as error:
            self.error = error
        rest = buffer[position:] if self.error is None else b""
        self._chunks = [rest] if rest else []
        self._held = len(rest)
        return events

    @property
    def held(self) -> int:
        """Bytes that wait here for the rest of their frame or content."""
        return self._held + sum(len(part) for partial in self.gathering.values() for part in partial.body)

    def forget(self, channel: int) -> None:
        """Drop a closed channel's unfinished content."""
        self.gathering.pop(channel, None)

    def _parse(self, buffer: bytes, events: list[Event]) -> tuple[int, int]:
        position, length, partial = 0, len(buffer), self.gathering
        while length - position >= _OVERHEAD:
            kind, channel, size = _HEAD.unpack_from(buffer, position)
            if kind not in (1, 2, 3, 8):
                raise _unknown_kind(buffer[position : position + 8])
            if size > self.frame_max - _OVERHEAD:
                raise ProtocolError(FRAME_ERROR, f"a frame of {size} bytes is larger than the {self.frame_max} allowed")
            end = position + _OVERHEAD + size
            if end > length:
                return position, end - position
            if buffer[end - 1] != 0xCE:
                raise ProtocolError(FRAME_ERROR, "a frame does not end with its end octet")
            if kind == 1:
                if channel in partial:
                    raise ProtocolError(UNEXPECTED_FRAME, f"a method interrupts the content on channel {channel}")
                index = buffer[position + 7 : position + 11]
                if index == _DELIVER:
                    method: Method = self._deliver(buffer, position + 11, end - 1)
                elif index == _PUBLISH and channel:
                    raw = buffer[position + 7 : end - 1]
                    method = self._publishes.get(raw) or self._learn_publish(raw)
                elif index == _ACK and channel and size == 13:
                    tag, bits = _TAG.unpack_from(buffer, position + 11)
                    method = BasicAck(tag, bits & 1 == 1)
                else:
                    method = decode_method(buffer, position + 7, end - 1)
                    if (channel == 0) != (index[:2] == b"\x00\x0a"):
                        raise ProtocolError(COMMAND_INVALID, f"{type(method).__name__} came on channel {channel}")
                if index in WITH_CONTENT:
                    end = self._content(buffer, position, end, channel, method, events)
                else:
                    events.append((channel, method, b"", b""))
            elif kind == 8:
                if channel or size:
                    raise ProtocolError(FRAME_ERROR, "a heartbeat has content or a channel")
                events.append((0, _BEAT, b"", b""))
            else:
                self._more(kind, channel, buffer, position + 7, end - 1, events)
            position = end
        return position, _OVERHEAD

    def _deliver(self, buffer: bytes, start: int, end: int) -> BasicDeliver:
        """Decode `basic.deliver` by hand; names that repeat are decoded only once."""
        if start >= end or (after := start + 1 + buffer[start]) + 9 > end:
            raise ProtocolError(SYNTAX_ERROR, "BasicDeliver ends in the middle of a field")
        delivery_tag, bits = _TAG.unpack_from(buffer, after)
        raw_tag, raw_names = buffer[start + 1 : after], buffer[after + 9 : end]
        names = self._names.get(raw_names) or self._learn(raw_names)
        tag = self._tags.get(raw_tag)
        if tag is None:
            tag = self._tags[raw_tag] = raw_tag.decode("utf-8", "surrogateescape")
        return BasicDeliver(tag, delivery_tag, bits & 1 == 1, names[0], names[1])

    def _learn_publish(self, raw: bytes) -> BasicPublish:
        method = decode_method(raw, 0, len(raw))
        assert isinstance(method, BasicPublish)
        if len(self._publishes) >= _NAMES_KEPT:
            self._publishes.clear()
        self._publishes[raw] = method
        return method

    def _learn(self, raw: bytes) -> tuple[str, str]:
        cut = 1 + raw[0] if raw else 0
        if not raw or cut >= len(raw) or cut + 1 + raw[cut] != len(raw):
            raise ProtocolError(SYNTAX_ERROR, "BasicDeliver ends in the middle of a field")
        names = raw[1:cut].decode("utf-8", "surrogateescape"), raw[cut + 1 :].decode("utf-8", "surrogateescape")
        if len(self._names) >= _NAMES_KEPT:
            self._names.clear()
            self._tags.clear()
        self._names[raw] = names
        return names

    def _content(self, buffer: bytes, begin: int, start: int, channel: int, method: Method, events: list[Event]) -> int:
        """Read header and body of the method at `begin` if the buffer holds both, as it mostly does; otherwise start to
        collect them. Returns the offset to go on from."""
        if len(buffer) - start >= 22:
            kind, of, size, class_id, _, body_size = _CONTENT.unpack_from(buffer, start)
            header_end: int = start + _OVERHEAD + size
            if (
                kind == 2
                and of == channel
                and class_id == BASIC
                and body_size <= self.max_body
                and 14 <= size <= self.frame_max - _OVERHEAD
                and header_end <= len(buffer)
                and buffer[header_end - 1] == 0xCE
            ):
                properties = buffer[start + 19 : header_end - 1]
                if body_size == 0:
                    events.append((channel, method, properties, b""))
                    return header_end
                end: int = header_end + _OVERHEAD + body_size
                if (
                    end <= len(buffer)
                    and body_size <= self.frame_max - _OVERHEAD
                    and _HEAD.unpack_from(buffer, header_end) == (3, channel, body_size)
                    and buffer[end - 1] == 0xCE
                ):
                    events.append((channel, method, properties, buffer[header_end + 7 : end - 1]))
                    return end
        self.gathering[channel] = _Partial(method)
        return start

    def _more(self, kind: int, channel: int, buffer: bytes, start: int, end: int, events: list[Event]) -> None:
        partial = self.gathering.get(channel)
        if partial is None or (kind == 2) != (partial.properties is None):
            what = "a content header" if kind == 2 else "a body"
            raise ProtocolError(UNEXPECTED_FRAME, f"{what} came out of turn on channel {channel}")
        if kind == 2:
            if end - start < 14:
                raise ProtocolError(SYNTAX_ERROR, "a content header is too short")
            class_id, _, partial.left = _SIZES.unpack_from(buffer, start)
            if class_id != BASIC:
                raise ProtocolError(UNEXPECTED_FRAME, f"a content header of class {class_id} came for class {BASIC}")
            if partial.left > self.max_body:
                raise ProtocolError(
                    CONTENT_TOO_LARGE, f"a body of {partial.left} bytes is larger than the {self.max_body} allowed"
                )
            partial.properties = buffer[start + 12 : end]
        else:
            if end - start > partial.left:
                raise ProtocolError(FRAME_ERROR, "a body is longer than its header says")
            partial.left -= end - start
            partial.body.append(buffer[start:end])
        if partial.left == 0:
            del self.gathering[channel]
            events.append((channel, partial.method, partial.properties or b"", b"".join(partial.body)))


_SIZES: Final = Struct(">HHQ")


def _unknown_kind(raw: bytes) -> ProtocolError:
    if raw.startswith(b"AMQP"):
        version = ".".join(map(str, raw[5:8]))
        return ProtocolError(FRAME_ERROR, f"the peer does not speak AMQP 0-9-1; it offers {version}")
    return ProtocolError(FRAME_ERROR, f"unknown frame type {raw[0]}")


def method_frame(channel: int, method: Method) -> bytes:
    """A method in its frame."""
    payload = encode_method(method)
    return _HEAD.pack(1, channel, len(payload)) + payload + _END


def add_content(
    out: list[bytes], frame: bytes, channel: int, properties: bytes, body: bytes, frame_max: int = FRAME_MAX
) -> None:
    """Append a method's frame, its content header and its body, split as `frame_max` demands."""
    if not isinstance(body, bytes | bytearray) or not isinstance(properties, bytes):
        raise InvalidMessage("the properties and the body of a message must be bytes")
    size = len(body)
    header = _CONTENT.pack(2, channel, 12 + len(properties), BASIC, 0, size)
    most = frame_max - _OVERHEAD
    if 12 + len(properties) > most:
        raise InvalidMessage(f"properties and headers take {len(properties)} bytes; {most - 12} are allowed")
    if size == 0:
        out += (frame, header, properties, _END)
    elif size <= most:
        out += (frame, header, properties, _BODY.pack(0xCE, 3, channel, size), body, _END)
    else:
        out += (frame, header, properties, _END)
        for start in range(0, size, most):
            part = body[start : start + most]
            out += (_HEAD.pack(3, channel, len(part)), part, _END)


_BODY: Final = Struct(">BBHI")
