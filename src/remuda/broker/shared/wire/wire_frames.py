"""The wire protocol of guest and host: frames of a length, a kind and a msgpack payload. No I/O.

Commands are the values that the API builds; messages travel as the log's own columns. Every request has a number, which
its answer repeats.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from remuda.broker.shared.wire.permissions import Grants
from remuda.core.effects import Dispatch
from remuda.log.tail import record_codec
from remuda.model import errors
from remuda.model.document import Document
from remuda.model.errors import InvalidOption, Refused, RemudaError
from remuda.model.messages import Messages
from remuda.model.notes import Note, Noted
from remuda.model.operations.commands import ON_THE_WIRE, Command, NamedOptions, Once, Publish, result_of
from remuda.model.operations.filters import MessageFilter, Which
from remuda.model.operations.results import Differences, Health, ParkedMessage, QueueInfo, Receipt, Removed
from remuda.model.operations.worker_orders import Orders, Worker, WorkerOrder
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.queues.options import QueueOptions
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.records import Appended, Event, QueueChange
from remuda.native import wire

VERSION: Final = 4
HEAD: Final = struct.Struct(">IB")
_HEAD_BYTES: Final = HEAD.size
MAX_FRAME: Final = (1 << 30) + (64 << 20)
"""More than the largest batch that a broker takes."""

# From a guest
HELLO: Final = 1
ATTACH: Final = 2
PUBLISH: Final = 3
COMMAND: Final = 4
ASK: Final = 5
BEGUN: Final = 6
GOODBYE: Final = 7
SINGLE: Final = 9
# From the host
WELCOME: Final = 33
RESULT: Final = 34
FAILED: Final = 35
DELIVERY: Final = 36
CLOSED: Final = 37
CONFIRMED: Final = 38
NOTICES: Final = 39
MOVING: Final = 40

RECEIPT: Final = 42


class WireError(RemudaError):
    """The other side sent something that is not part of the protocol. The connection is closed; nothing was changed."""


class Hello(msgspec.Struct, frozen=True):
    """A guest's first frame. It keeps its `token` for life, so that a host recognizes it."""

    version: int
    token: str
    pid: int
    user: str | None = None
    password: str | None = None
    epoch: int = 0
    """The newest host it has seen."""
    far: bool = False
    """Whether it is on another machine: its commands are checked, and it cannot read the directory."""
    grants: Grants | None = None
    """What it may do; None for everything. Set by the server that has checked its login, never by itself."""


class Welcome(msgspec.Struct, frozen=True):
    version: int
    pid: int
    epoch: int
    now: int
    """The host's clock."""
    options: dict[str, Any] = {}
    local: bool = True
    """Whether the guest can read the directory's files itself."""


class Error(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    text: str
    more: str = ""


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A delivery that a guest held when it lost its host."""

    queue: str
    lease: int
    consumer: str
    runs: list[tuple[int, int]]
    pulled: bool


class Published(msgspec.Struct, frozen=True, array_like=True):
    """A publish, its messages as the log's columns."""

    request: int
    queue: str | None
    unbound: str | None
    exchange: str | None
    options: NamedOptions
    sequence: int
    columns: msgspec.Raw
    once: Once | None = None
    note: Note | None = None


_ONE: Final = msgspec.Meta(min_length=1, max_length=1)


class Single(msgspec.Struct, frozen=True, array_like=True):
    """A publish of one message, the usual case: the command, and the columns in the order of `Messages`."""

    request: int
    queue: str | None
    unbound: str | None
    exchange: str | None
    options: NamedOptions
    bodies: Annotated[list[bytes], _ONE]
    name: str
    ids: Annotated[list[str], _ONE] | None
    topics: tuple[str, ...]
    object: str | None
    key: str | None
    timestamp: record_codec.Time | None
    mime_type: str
    headers: dict[str, str]
    priority: int
    created: record_codec.Time
    expires: record_codec.Time | None
    due: record_codec.Time | None
    wire: bytes | None


class Commanded(msgspec.Struct, frozen=True, array_like=True):
    request: int
    verb: int
    command: msgspec.Raw
    waits: bool = True


class Asked(msgspec.Struct, frozen=True, array_like=True):
    request: int
    query: str
    values: msgspec.Raw


class Answered(msgspec.Struct, frozen=True, array_like=True):
    request: int
    result: msgspec.Raw


Received = tuple[int, int, list[int | str]]
"""The usual answer to a publish: the request, the first offset and the ids, these as the log writes them."""


class Delivered(msgspec.Struct, frozen=True, array_like=True):
    """A delivery with its messages. With `check`, the guest asks the host again before it hands it over."""

    dispatch: Dispatch | None
    check: bool = False
    columns: msgspec.Raw = msgspec.Raw(b"\xc0")


class FullReceipt(msgspec.Struct, frozen=True, array_like=True):
    """A receipt with more than ids: as `Receipt`, with the ids as the log writes them."""

    first: int
    ids: list[int | str]
    refusals: dict[int, Error] = {}
    unchanged: tuple[int, ...] = ()
    watched: bool = False
    differs: dict[str, Differences] = {}
    unroutable: tuple[int, ...] = ()
    partly_refused: dict[int, Error] = {}
    by_key: dict[int, str] = {}


class Pages(msgspec.Struct, frozen=True, array_like=True):
    """Part of a log: records as the log writes them, where to read on, and what was not there."""

    records: list[bytes]
    following: int | None
    """None if there is no more now."""
    gaps: list[tuple[int, int]] = []


class Carried(Dispatch, frozen=True):
    """A delivery that carries its messages."""

    messages: Messages | None = None
    check: bool = False

    def only(self, found: Sequence[tuple[int, int]]) -> Carried:
        kept = super().only(found)
        assert isinstance(kept, Carried)
        assert self.messages is not None
        offsets = [offset for first, count in self.runs for offset in range(first, first + count)]
        rows = {offset: row for row, offset in enumerate(offsets)}
        return msgspec.structs.replace(kept, messages=self.messages.take([rows[offset] for offset, _ in kept.runs]))


_NUMBER: Final[dict[type, int]] = {command: number for number, command in enumerate(ON_THE_WIRE)}
RESULTS: Final[dict[type[Any], Any]] = {command: result_of(command) for command in ON_THE_WIRE}

QUERIES: Final[dict[str, tuple[Any, Any]]] = {
    "health": (tuple[()], Health),
    "info": (tuple[str], QueueInfo),
    "queues": (tuple[()], list[QueueInfo]),
    "parked": (tuple[str, MessageFilter, int], list[ParkedMessage]),
    "flow": (tuple[str, int], FlowInfo),
    "waiting": (tuple[str, Which], list[tuple[int, int]]),
    "notes": (tuple[str, int, int], list[Noted]),
    "exchanges": (tuple[()], dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]),
    "document": (tuple[str | int], Document),
    "known": (tuple[str], tuple[int, list[int]]),
    "flush": (tuple[()], None),
    "checkpoint": (tuple[()], None),
    "collect": (tuple[()], Removed),
    "notices": (tuple[bool], None),
    "watch": (tuple[int, int], bool),
    "workers": (tuple[()], list[Worker]),
    "order_worker": (tuple[str, WorkerOrder, str], None),
    "cancel_running": (tuple[str, int, str], bool),
    "tell_worker": (tuple[Worker], Orders),
    "worker_left": (tuple[str], None),
    "log_ends": (tuple[()], tuple[int, int, int, int]),
    "log_offset_at": (tuple[int], int),
    "log_position_at": (tuple[int], int),
    "log_offset_of": (tuple[str], int | None),
    "log_events_of": (tuple[int], list[tuple[int, Event]]),
    "log_messages": (tuple[int, int | None], Pages),
    "log_events": (tuple[int, int | None], Pages),
    "log_changes": (tuple[str | None], list[QueueChange]),
}
"""Queries by name: the types of the arguments and of the answer."""

_values = msgspec.structs.astuple
_GIVEN: Final = 2
"""The index of the first field of a receipt after its ids."""
_IDS: Final = Messages.__struct_fields__.index("ids")
_HEADERS: Final = Messages.__struct_fields__.index("headers")
_PLAIN: Final = tuple(map(type, _values(Messages([], ""))))
"""The types that the columns of most messages have."""
_encode = msgspec.msgpack.Encoder().encode
_pack_head = HEAD.pack
_decoders: dict[Any, Callable[[Any], Any]] = {}


def decode(kind: Any, payload: Any) -> Any:
    """The value of this type in a payload."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind).decode
    try:
        return decoder(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"a frame is not a {getattr(kind, '__name__', kind)}: {error}") from error


def frame(kind: int, value: Any) -> bytes:
    payload = _encode(value)
    return _pack_head(len(payload), kind) + payload


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


class Buffer:
    """Splits incoming bytes into frames. One that is longer than `limit` is refused before it is read."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.held = bytearray()
        """Bytes of frames that are incomplete, or were not taken."""

    def __len__(self) -> int:
        return len(self.held)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The complete frames. Those that are not taken stay for the next call."""
        if len(data) >= _HEAD_BYTES and not self.held:
            length, kind = HEAD.unpack_from(data)
            if length == len(data) - _HEAD_BYTES and length <= self.limit:  # the usual case: exactly one frame
                return iter(((kind, data[_HEAD_BYTES:]),))
        return self._frames(data)

    def _frames(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        if not self.held:
            buffer: bytes | bytearray = data
        else:
            self.held += data
            buffer = self.held
        at, end = 0, len(buffer)
        try:
            while end - at >= HEAD.size:
                length, kind = HEAD.unpack_from(buffer, at)
                if length > self.limit:
                    raise WireError(f"a frame of {length} bytes is over the limit of {self.limit}")
                if end - at < HEAD.size + length:
                    break
                start = at + HEAD.size
                at = start + length
                yield kind, bytes(memoryview(buffer)[start:at])
        finally:
            if buffer is data:
                if at < end:
                    self.held += memoryview(data)[at:]
            else:
                del self.held[:at]


# Messages, in the log's own columns


def columns_of(messages: Messages) -> msgspec.Raw:
    created = messages.created
    record = Appended(0, created if type(created) is int else 0, messages, (), None)
    return msgspec.Raw(record_codec.encode_appended(record, 0))


def messages_of(columns: msgspec.Raw) -> Messages:
    try:
        record = record_codec.decode(record_codec.MESSAGES, columns).record
    except record_codec.Damaged as error:
        raise WireError(str(error)) from error
    assert isinstance(record, Appended)
    messages = record.messages
    count = len(messages.bodies)
    found = _values(messages)
    if list(map(type, found)).count(list) > 1:  # else only the bodies are a list
        for name, column in zip(Messages.__struct_fields__, found, strict=True):
            if type(column) is list and len(column) != count:
                raise WireError(f"column {name!r} has {len(column)} values for {count} bodies")
    return messages


# Commands


def publish_frame(request: int, command: Publish) -> bytes:
    """A publish as `Published` or as `Single`. The number of the request is the producer's sequence."""
    messages = command.messages
    if len(messages.bodies) == 1 and command.once is None and command.note is None:
        values = _values(messages)
        kinds = tuple(map(type, values))
        if kinds == _PLAIN or _is_single(kinds):
            payload = _encode((request, command.queue, command.unbound, command.exchange, command.options, *values))
            return _pack_head(len(payload), SINGLE) + payload
    columns = columns_of(messages)
    asked = (request, command.queue, command.unbound, command.exchange, command.options, request, columns)
    if command.note is not None:
        return frame(PUBLISH, (*asked, command.once, command.note))
    return frame(PUBLISH, asked if command.once is None else (*asked, command.once))


def _is_single(kinds: tuple[type, ...]) -> bool:
    """Whether every column of one message is a single value, as `Single` needs it."""
    lists = 2 if kinds[_IDS] is list else 1
    return kinds.count(list) == lists and kinds[_IDS] is not range and kinds[_HEADERS] is dict


def single_of(single: Single, producer: str) -> Publish:
    request, queue, unbound, exchange, options, *columns = _values(single)
    if options is not None:
        options = typed_options(options)
    return Publish(Messages(*columns), queue, unbound, exchange, options, None, producer, request)


def publish_of(published: Published, producer: str) -> Publish:
    messages = messages_of(published.columns)
    options = None if published.options is None else typed_options(published.options)
    return Publish(
        messages, published.queue, published.unbound, published.exchange, options, None, producer, published.sequence,
        published.once, published.note,
    )  # fmt: skip


def command_frame(request: int, command: Command, *, waits: bool = True) -> bytes:
    return frame(COMMAND, Commanded(request, _NUMBER[type(command)], raw(command), waits))


def command_of(commanded: Commanded) -> Any:
    if not 0 <= commanded.verb < len(ON_THE_WIRE):
        raise WireError(f"there is no command number {commanded.verb}")
    command = decode(ON_THE_WIRE[commanded.verb], commanded.command)
    options = getattr(command, "options", None)
    if options is not None:
        command = msgspec.structs.replace(command, options=typed_options(options))
    return command


_OPTION_TYPES: Final = {field.name: field.type for field in msgspec.structs.fields(QueueOptions)}


def typed_options(named: Mapping[str, Any]) -> dict[str, Any]:
    """Options from the wire, with the types that `read_options` gives them."""
    values: dict[str, Any] = {}
    for name, value in named.items():
        if name not in _OPTION_TYPES:
            raise InvalidOption(f"unknown queue option {name!r}; the other side may have a newer Remuda")
        try:
            values[name] = msgspec.convert(value, _OPTION_TYPES[name])
        except msgspec.ValidationError as error:
            raise InvalidOption(f"{name}: {error}") from None
    return values


# Answers


def receipt_frame(request: int, receipt: Receipt) -> bytes:
    """The answer to a publish: mostly just the first offset and the ids."""
    if wire is not None:
        data = wire.receipt_frame(request, receipt)
        if data is not None:
            return data
    given = receipt.given
    ids: list[Any] = [given.start, given.stop, given.step] if type(given) is range else given
    if receipt.watch is None and not any(_values(receipt)[_GIVEN:]):
        payload = _encode((request, receipt.first, ids))
        return _pack_head(len(payload), RECEIPT) + payload
    return frame(RESULT, (request, _full_receipt(receipt, ids)))


def _full_receipt(receipt: Receipt, ids: list[Any]) -> FullReceipt:
    return FullReceipt(
        receipt.first,
        ids,
        {row: error_of(refused) for row, refused in receipt.refusals.items()},
        receipt.unchanged,
        receipt.watch is not None,
        receipt.differs,
        receipt.unroutable,
        {row: error_of(refused) for row, refused in receipt.partly_refused.items()},
        receipt.by_key,
    )


def plain_receipt(first: int, ids: Any) -> Receipt:
    return Receipt(first, range(*ids) if len(ids) == 3 and type(ids[0]) is int else ids, {})


def receipt_of(full: FullReceipt) -> Receipt:
    ids: Any = full.ids
    if len(ids) == 3 and type(ids[0]) is int:
        ids = range(*ids)
    refusals, partly = full.refusals, full.partly_refused
    return Receipt(
        full.first,
        ids,
        {row: _refused(error) for row, error in refusals.items()} if refusals else {},
        full.unchanged,
        None,
        full.differs,
        full.unroutable,
        {row: _refused(error) for row, error in partly.items()} if partly else {},
        by_key=full.by_key,
    )


def delivered(dispatch: Dispatch | None, messages: Messages | None, check: bool = False) -> Delivered:
    if dispatch is None or messages is None:
        return Delivered(None)
    return Delivered(dispatch, check, columns_of(messages))


def carried(delivery: Delivered, tag: int | None = None) -> Carried | None:
    sent = delivery.dispatch
    if sent is None:
        return None
    return Carried(
        sent.queue, sent.consumer, sent.tag if tag is None else tag, sent.lease, sent.runs, sent.attempts,
        sent.deadline, sent.remaining, sent.redelivered, sent.hand_over, sent.shared, sent.arrivals,
        messages_of(delivery.columns), delivery.check,
    )  # fmt: skip


# Errors


def error_of(error: BaseException) -> Error:
    if isinstance(error, RemudaError):
        return Error(type(error).__name__, str(error), str(getattr(error, "reason", getattr(error, "feature", ""))))
    return Error("RemudaError", f"{type(error).__name__}: {error}")


_CLASSES: Final = {
    name: one for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, RemudaError)
}
_WITH_MORE: Final = frozenset({"DeliveryFailed", "Unsupported"})


def raised(error: Error) -> RemudaError:
    """The error as it was raised on the other side."""
    kind = _CLASSES.get(error.kind, RemudaError)
    if error.kind in _WITH_MORE:
        return kind(error.text, error.more)
    return RemudaError(error.text) if kind is errors.PartlyRefused else kind(error.text)


def _refused(error: Error) -> Refused:
    refusal = raised(error)
    return refusal if isinstance(refusal, Refused) else Refused(str(refusal))
