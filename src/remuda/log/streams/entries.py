"""What one entry of the stream holds, as bytes and back.

`RMD1`, a checksum, and a msgpack of who wrote it, the writer's own count, the time, and parts. Messages are in the
log's own columns. Events are in groups that differ in nothing but the message: one event, and 8 bytes for each
reference.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from remuda.log.state import checked
from remuda.log.streams.stream_numbers import ROWS, first_of, neighbours, reference
from remuda.log.tail import record_codec
from remuda.log.tail.record_codec import Damaged
from remuda.log.tail.regroup import regroup
from remuda.model.errors import InvalidMessage
from remuda.model.records import Appended, Event, Events

MAGIC: Final = b"RMD1"
ENTRY_BYTES: Final = 256 * 1024
"""What a writer puts into one entry, about; a larger message has one of its own."""
_MESSAGES: Final = 1
_EVENTS: Final = 2


class EntryPart(NamedTuple):
    """Encoded rows of one kind."""

    kind: int
    rows: int
    payload: bytes


class _Entry(msgspec.Struct, array_like=True):
    writer: bytes
    sequence: int
    time: int
    parts: list[tuple[int, int, bytes]]


class _Group(msgspec.Struct, array_like=True):
    time: int
    event: Event
    references: bytes


class StreamEntry(msgspec.Struct, frozen=True):
    """An entry as it was read."""

    number: int
    writer: bytes
    sequence: int
    time: int
    parts: list[tuple[int, int, bytes]]

    def messages(self, *, bodies: bool = True) -> Iterator[Appended]:
        """The messages at their offsets."""
        offset = first_of(self.number)
        for kind, rows, payload in self.parts:
            if kind == _MESSAGES:
                record = record_codec.decode(record_codec.MESSAGES, payload, bodies=bodies).record
                if not isinstance(record, Appended) or len(record) != rows:
                    raise Damaged(f"entry {self.number} of the stream does not contain the messages it announces")
                yield msgspec.structs.replace(record, first=offset)
                offset += rows

    def references(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Offsets of first messages, each with the references of all that follow it without a gap."""
        offset = first_of(self.number)
        for kind, rows, payload in self.parts:
            if kind == _MESSAGES:
                yield offset, _references(_decode_ids(payload).ids)
                offset += rows

    def events(self) -> Iterator[tuple[int, int, Event, Sequence[int]]]:
        """Position, time and event of each group, and the references of its messages."""
        position = first_of(self.number)
        for kind, rows, payload in self.parts:
            if kind == _EVENTS:
                counted = 0
                for group in _decode_groups(payload):
                    found = array("q", group.references)
                    yield position + counted, group.time, group.event, found
                    counted += len(found)
                if counted != rows:
                    raise Damaged(f"entry {self.number} of the stream does not contain the events it announces")
                position += rows

    @property
    def message_count(self) -> int:
        return sum(rows for kind, rows, _ in self.parts if kind == _MESSAGES)

    @property
    def event_count(self) -> int:
        return sum(rows for kind, rows, _ in self.parts if kind == _EVENTS)


class _Ids(msgspec.Struct, array_like=True):
    """The beginning of a payload of messages, as far as the ids."""

    position: int
    first: int
    count: int
    created: int
    name: msgspec.Raw
    queues: msgspec.Raw
    ids: list[int | str] | None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_entry: Final = msgspec.msgpack.Decoder(_Entry).decode
_decode_groups: Final = msgspec.msgpack.Decoder(list[_Group]).decode
_ids: Final = msgspec.msgpack.Decoder(_Ids).decode


def encode_entry(writer: bytes, sequence: int, time: int, parts: Sequence[EntryPart]) -> bytes:
    return checked.pack(MAGIC, _encode((writer, sequence, time, parts)))


def decode_entry(number: int, body: bytes) -> StreamEntry:
    """The entry of these bytes; raises `Damaged` where they are none."""
    try:
        entry = _decode_entry(checked.unpack(MAGIC, body))
    except ValueError as error:
        raise Damaged(f"entry {number} of the stream cannot be read: {error}") from error
    found = StreamEntry(number, entry.writer, entry.sequence, entry.time, entry.parts)
    if max(found.message_count, found.event_count) > ROWS:
        raise Damaged(f"entry {number} of the stream claims to hold more than {ROWS} rows")
    return found


def encode_records(records: Sequence[Appended | Events]) -> list[EntryPart]:
    """Records as parts of entries, none larger than an entry should be unless it is one message."""
    parts: list[EntryPart] = []
    groups: list[_Group] = []
    for record in records:
        if isinstance(record, Events):
            groups += _grouped(record)
            continue
        parts += _event_parts(groups)
        groups = []
        if record.messages.ids is None:
            raise InvalidMessage("a message must have its id before it is logged; nothing was logged")
        for piece in regroup([record], ROWS, ENTRY_BYTES):
            parts.append(EntryPart(_MESSAGES, len(piece), record_codec.encode(piece, 0, 0)[1]))
    return parts + _event_parts(groups)


def _grouped(record: Events) -> Iterator[_Group]:
    """Neighbouring events that differ in the message only, together."""
    before: Event | None = None
    references = array("q")
    for row in record.rows:
        alike = msgspec.structs.replace(row, first=0, count=1)
        if before is not None and alike != before:
            yield _Group(record.time, before, references.tobytes())
            references = array("q")
        before = alike
        references.extend(neighbours(row.first, row.count))
    if before is not None:
        yield _Group(record.time, before, references.tobytes())


def _event_parts(groups: Sequence[_Group]) -> list[EntryPart]:
    parts: list[EntryPart] = []
    chosen: list[_Group] = []
    rows = size = 0
    for group in groups:
        for piece in _pieces(group):
            count = len(piece.references) // 8
            weight = len(piece.references) + len(piece.event.detail or "") + len(piece.event.reason or "") + 64
            if chosen and (rows + count > ROWS or size + weight > ENTRY_BYTES):
                parts.append(EntryPart(_EVENTS, rows, _encode(chosen)))
                chosen, rows, size = [], 0, 0
            chosen.append(piece)
            rows += count
            size += weight
    if chosen:
        parts.append(EntryPart(_EVENTS, rows, _encode(chosen)))
    return parts


def _pieces(group: _Group) -> Iterator[_Group]:
    most = ROWS // 4 * 8
    for start in range(0, len(group.references), most):
        yield _Group(group.time, group.event, group.references[start : start + most])


def _decode_ids(payload: bytes) -> _Ids:
    try:
        return _ids(payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Damaged(f"messages of the stream have no ids: {error}") from error


def _references(ids: list[int | str] | None) -> Sequence[int]:
    if ids is None:
        return ()
    if len(ids) == 3 and type(ids[0]) is int:
        return range(*ids)  # type: ignore[arg-type]
    return [reference(str(id)) for id in ids]
