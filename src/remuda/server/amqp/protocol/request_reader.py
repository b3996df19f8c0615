"""The server's parser: consecutive publications come out as one request, and so do acknowledgements.

Publishers repeat themselves: the method, the properties and often the size of the body do not change. What was parsed
once is recognised by its bytes, and only the body is cut out of each further message.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from remuda.amqp.codec.frames import Event, FrameParser
from remuda.amqp.codec.methods import BASIC, BasicAck, BasicPublish, Method, decode_method
from remuda.amqp.errors import ProtocolError
from remuda.model.messages import Column

_HEAD: Final = Struct(">BHI")
_CONTENT: Final = Struct(">BHIHHQ")
_ACK: Final = Struct(">11xQBx")
_PUBLISH: Final = BasicPublish.index
_ACK_SIZE: Final = b"\x00\x00\x00\x0d"
_OVERHEAD: Final = 8
_KINDS: Final = frozenset({1, 2, 3, 8})
_METHODS_KEPT: Final = 10_000


class Publications(Method, frozen=True):
    """Several `basic.publish` of one channel in a row, all with the same method."""

    method: BasicPublish
    properties: Column[bytes]
    bodies: list[bytes]

    def properties_of(self, row: int) -> bytes:
        return self.properties[row] if isinstance(self.properties, list) else self.properties


class Acks(Method, frozen=True):
    """Several `basic.ack` of one channel in a row: the first and last tag of each range, and whether it is a `multiple`
    that covers all tags up to it."""

    answers: list[tuple[int, int, bool]]


# A close names the method that caused it.
Publications.index = BasicPublish.index
Acks.index = BasicAck.index


class _Shape(msgspec.Struct, frozen=True):
    """What a publication looks like on the wire, up to its body."""

    channel: int
    method: BasicPublish
    frame: bytes
    """The method's own."""
    prefix: bytes
    """All frames up to the body."""
    size: int
    """All frames with the body."""
    properties: bytes


class RequestReader:
    """Bytes in, requests out. The first violation ends it: `error` holds it, and nothing more is read."""

    def __init__(self, frame_max: int, *, max_body: int) -> None:
        self._parser = FrameParser(frame_max, max_body=max_body)
        self._chunks: list[bytes] = []
        self._held = 0
        self._needed = _OVERHEAD
        self._shape: _Shape | None = None
        self._methods: dict[bytes, BasicPublish] = {}

    @property
    def error(self) -> ProtocolError | None:
        return self._parser.error

    @property
    def held(self) -> int:
        """Bytes that wait here for the rest of their frame or content."""
        return self._held + (self._parser.held if self._parser.gathering else 0)

    def limit_frames(self, frame_max: int) -> None:
        """Both ends have agreed on the largest frame."""
        self._parser.frame_max = frame_max

    def forget(self, channel: int) -> None:
        """Drop a closed channel's unfinished content."""
        self._parser.forget(channel)

    def feed(self, data: bytes) -> list[Event]:
        """The requests that these bytes complete. Check `error` afterwards."""
        if self._parser.error is not None:
            return []
        self._chunks.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return []  # so that a frame that comes byte by byte is copied once
        buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        requests: list[Event] = []
        position = self._read(buffer, requests)
        rest = buffer[position:] if self._parser.error is None else b""
        self._chunks = [rest] if rest else []
        self._held = len(rest)
        return requests

    def _read(self, buffer: bytes, requests: list[Event]) -> int:
        parser, position, length = self._parser, 0, len(buffer)
        self._needed = _OVERHEAD
        while length - position >= _OVERHEAD and parser.error is None:
            if not parser.gathering:
                after = self._publications(buffer, position, requests)
                after = self._acks(buffer, after, requests)
                if after > position:
                    position = after
                    continue
            kind, _, size = _HEAD.unpack_from(buffer, position)
            end = position + _OVERHEAD + size
            if kind not in _KINDS or size > parser.frame_max - _OVERHEAD:
                end = length  # the parser reports what is wrong with it
            elif end > length:
                self._needed = end - position
                break
            requests += map(_as_request, parser.feed(buffer[position:end]))
            position = end
        return position

    def _publications(self, buffer: bytes, position: int, requests: list[Event]) -> int:
        """Read all publications from here on; returns the offset behind them."""
        startswith, length, shape = buffer.startswith, len(buffer), self._shape
        while True:
            if shape is None or not startswith(shape.prefix, position):
                shape = self._learn(buffer, position)
                if shape is None:
                    return position
            first = shape
            bodies: list[bytes] = []
            varied: list[bytes] | None = None
            while True:
                prefix, size = shape.prefix, shape.size
                skip = len(prefix)
                while startswith(prefix, position):
                    end = position + size
                    if end > length or buffer[end - 1] != 0xCE:
                        break
                    bodies.append(buffer[position + skip : end - 1])
                    position = end
                if varied is not None:
                    varied += [shape.properties] * (len(bodies) - len(varied))
                following = self._learn(buffer, position) if startswith(shape.frame, position) else None
                if following is None:
                    break
                shape = self._shape = following
                if varied is None and shape.properties != first.properties:
                    varied = [first.properties] * len(bodies)
            if not bodies:
                return position
            properties = first.properties if varied is None else varied
            requests.append((first.channel, Publications(first.method, properties, bodies), b"", b""))

    def _learn(self, buffer: bytes, position: int) -> _Shape | None:
        """The shape of the publication at this offset; None if there is none, or it is incomplete or malformed."""
        most, length = self._parser.frame_max - _OVERHEAD, len(buffer)
        if buffer[position + 7 : position + 11] != _PUBLISH:
            return None
        kind, channel, size = _HEAD.unpack_from(buffer, position)
        header = position + _OVERHEAD + size
        if kind != 1 or not channel or size > most or header + 22 > length or buffer[header - 1] != 0xCE:
            return None
        kind, of, size, class_id, _, body_size = _CONTENT.unpack_from(buffer, header)
        body = header + _OVERHEAD + size
        if kind != 2 or of != channel or class_id != BASIC or not 14 <= size <= most or body_size > most:
            return None
        if body_size > self._parser.max_body or body > length or buffer[body - 1] != 0xCE:
            return None
        start, end = body, body
        if body_size:
            start, end = body + 7, body + _OVERHEAD + body_size
            if end > length or _HEAD.unpack_from(buffer, body) != (3, channel, body_size) or buffer[end - 1] != 0xCE:
                return None
        method = self._method(buffer[position + 7 : header - 1])
        if method is None:
            return None
        self._shape = shape = _Shape(
            channel, method, buffer[position:header], buffer[position:start], end - position,
            buffer[header + 19 : body - 1],
        )  # fmt: skip
        return shape

    def _method(self, raw: bytes) -> BasicPublish | None:
        method = self._methods.get(raw)
        if method is None:
            try:
                decoded = decode_method(raw, 0, len(raw))
            except ProtocolError:
                return None
            assert isinstance(decoded, BasicPublish)
            if len(self._methods) >= _METHODS_KEPT:
                self._methods.clear()
            method = self._methods[raw] = decoded
        return method

    def _acks(self, buffer: bytes, position: int, requests: list[Event]) -> int:
        """Read all acknowledgements of one channel from here on; returns the offset behind them."""
        prefix = buffer[position : position + 11]
        channel = int.from_bytes(prefix[1:3], "big")
        if prefix != b"\x01" + prefix[1:3] + _ACK_SIZE + BasicAck.index or not channel:
            return position
        start, length = position, len(buffer)
        while position + 21 <= length and buffer.startswith(prefix, position) and buffer[position + 20] == 0xCE:
            position += 21
        if position > start:
            requests.append((channel, _merged(buffer[start:position]), b"", b""))
        return position


def _merged(raw: bytes) -> Acks:
    """Merge consecutive tags into ranges."""
    answers: list[tuple[int, int, bool]] = []
    first = last = 0
    for tag, bits in _ACK.iter_unpack(raw):
        if bits & 1:
            if last:
                answers.append((first, last, False))
            answers.append((tag, tag, True))
            first = last = 0
        elif last and tag == last + 1:
            last = tag
        else:
            if last:
                answers.append((first, last, False))
            first = last = tag
            if not tag:
                answers.append((0, 0, False))
    if last:
        answers.append((first, last, False))
    return Acks(answers)


def _as_request(event: Event) -> Event:
    channel, method, properties, body = event
    if type(method) is BasicPublish:
        return channel, Publications(method, properties, [body]), b"", b""
    if type(method) is BasicAck:
        return channel, Acks([(method.delivery_tag, method.delivery_tag, method.multiple)]), b"", b""
    return event
