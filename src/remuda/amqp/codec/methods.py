"""Every method of AMQP 0-9-1 that RabbitMQ has, as frozen values; their annotations are their layout on the wire."""

import struct
from collections.abc import Callable
from struct import Struct
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec

from remuda.amqp.codec.tables import Table, decode_table, encode_table
from remuda.amqp.errors import NOT_IMPLEMENTED, SYNTAX_ERROR, ProtocolError
from remuda.model.errors import InvalidMessage

Bit = Annotated[bool, "bit"]
Octet = Annotated[int, "B"]
Short = Annotated[int, "H"]
Long = Annotated[int, "I"]
LongLong = Annotated[int, "Q"]
ShortStr = Annotated[str, "shortstr"]
LongStr = Annotated[bytes, "longstr"]
FieldTable = Annotated[Table, "table"]

BASIC: Final = 60


class Method(msgspec.Struct, frozen=True):
    """A method of the protocol; `index` is its class and method number as they stand on the wire."""

    index: ClassVar[bytes] = b""
    layout: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = ()


M = TypeVar("M", bound=type[Method])
BY_INDEX: Final[dict[bytes, type[Method]]] = {}


def _method(class_id: int, method_id: int) -> Callable[[M], M]:
    def register(kind: M) -> M:
        kind.index = Struct(">HH").pack(class_id, method_id)
        kind.layout = _layout(kind)
        BY_INDEX[kind.index] = kind
        return kind

    return register


def _layout(kind: type[Method]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The fields in order, neighbouring bits together since they share an octet."""
    steps: list[tuple[str, tuple[str, ...]]] = []
    for name in kind.__struct_fields__:
        wire = kind.__annotations__[name].__metadata__[0]
        if wire == "bit" and steps and steps[-1][0] == "bit":
            steps[-1] = ("bit", (*steps[-1][1], name))
        else:
            steps.append((wire, (name,)))
    return tuple(steps)


class Heartbeat(Method, frozen=True):
    """Not a method: the sign of life that has a frame of its own."""


@_method(10, 10)
class ConnectionStart(Method, frozen=True):
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: FieldTable = {}
    mechanisms: LongStr = b"PLAIN"
    locales: LongStr = b"en_US"


@_method(10, 11)
class ConnectionStartOk(Method, frozen=True):
    client_properties: FieldTable = {}
    mechanism: ShortStr = "PLAIN"
    response: LongStr = b""
    locale: ShortStr = "en_US"


@_method(10, 20)
class ConnectionSecure(Method, frozen=True):
    challenge: LongStr = b""


@_method(10, 21)
class ConnectionSecureOk(Method, frozen=True):
    response: LongStr = b""


@_method(10, 30)
class ConnectionTune(Method, frozen=True):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@_method(10, 31)
class ConnectionTuneOk(Method, frozen=True):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@_method(10, 40)
class ConnectionOpen(Method, frozen=True):
    virtual_host: ShortStr = "/"
    capabilities: ShortStr = ""
    insist: Bit = False


@_method(10, 41)
class ConnectionOpenOk(Method, frozen=True):
    known_hosts: ShortStr = ""


@_method(10, 50)
class ConnectionClose(Method, frozen=True):
    code: Short = 200
    text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


@_method(10, 51)
class ConnectionCloseOk(Method, frozen=True):
    pass


@_method(10, 60)
class ConnectionBlocked(Method, frozen=True):
    reason: ShortStr = ""


@_method(10, 61)
class ConnectionUnblocked(Method, frozen=True):
    pass


@_method(10, 70)
class ConnectionUpdateSecret(Method, frozen=True):
    new_secret: LongStr = b""
    reason: ShortStr = ""


@_method(10, 71)
class ConnectionUpdateSecretOk(Method, frozen=True):
    pass


@_method(20, 10)
class ChannelOpen(Method, frozen=True):
    out_of_band: ShortStr = ""


@_method(20, 11)
class ChannelOpenOk(Method, frozen=True):
    channel_id: LongStr = b""


@_method(20, 20)
class ChannelFlow(Method, frozen=True):
    active: Bit = True


@_method(20, 21)
class ChannelFlowOk(Method, frozen=True):
    active: Bit = True


@_method(20, 40)
class ChannelClose(Method, frozen=True):
    code: Short = 200
    text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


@_method(20, 41)
class ChannelCloseOk(Method, frozen=True):
    pass


@_method(40, 10)
class ExchangeDeclare(Method, frozen=True):
    ticket: Short = 0
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = {}


@_method(40, 11)
class ExchangeDeclareOk(Method, frozen=True):
    pass


@_method(40, 20)
class ExchangeDelete(Method, frozen=True):
    ticket: Short = 0
    exchange: ShortStr = ""
    if_unused: Bit = False
    no_wait: Bit = False


@_method(40, 21)
class ExchangeDeleteOk(Method, frozen=True):
    pass


@_method(40, 30)
class ExchangeBind(Method, frozen=True):
    ticket: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: FieldTable = {}


@_method(40, 31)
class ExchangeBindOk(Method, frozen=True):
    pass


@_method(40, 40)
class ExchangeUnbind(Method, frozen=True):
    ticket: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: FieldTable = {}


@_method(40, 51)
class ExchangeUnbindOk(Method, frozen=True):
    pass


@_method(50, 10)
class QueueDeclare(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = {}


@_method(50, 11)
class QueueDeclareOk(Method, frozen=True):
    queue: ShortStr = ""
    message_count: Long = 0
    consumer_count: Long = 0


@_method(50, 20)
class QueueBind(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: FieldTable = {}


@_method(50, 21)
class QueueBindOk(Method, frozen=True):
    pass


@_method(50, 30)
class QueuePurge(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    no_wait: Bit = False


@_method(50, 31)
class QueuePurgeOk(Method, frozen=True):
    message_count: Long = 0


@_method(50, 40)
class QueueDelete(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


@_method(50, 41)
class QueueDeleteOk(Method, frozen=True):
    message_count: Long = 0


@_method(50, 50)
class QueueUnbind(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: FieldTable = {}


@_method(50, 51)
class QueueUnbindOk(Method, frozen=True):
    pass


@_method(60, 10)
class BasicQos(Method, frozen=True):
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


@_method(60, 11)
class BasicQosOk(Method, frozen=True):
    pass


@_method(60, 20)
class BasicConsume(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: FieldTable = {}


@_method(60, 21)
class BasicConsumeOk(Method, frozen=True):
    consumer_tag: ShortStr = ""


@_method(60, 30)
class BasicCancel(Method, frozen=True):
    consumer_tag: ShortStr = ""
    no_wait: Bit = False


@_method(60, 31)
class BasicCancelOk(Method, frozen=True):
    consumer_tag: ShortStr = ""


@_method(60, 40)
class BasicPublish(Method, frozen=True):
    ticket: Short = 0
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


@_method(60, 50)
class BasicReturn(Method, frozen=True):
    code: Short = 0
    text: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


@_method(60, 60)
class BasicDeliver(Method, frozen=True):
    consumer_tag: ShortStr = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


@_method(60, 70)
class BasicGet(Method, frozen=True):
    ticket: Short = 0
    queue: ShortStr = ""
    no_ack: Bit = False


@_method(60, 71)
class BasicGetOk(Method, frozen=True):
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    message_count: Long = 0


@_method(60, 72)
class BasicGetEmpty(Method, frozen=True):
    cluster_id: ShortStr = ""


@_method(60, 80)
class BasicAck(Method, frozen=True):
    delivery_tag: LongLong = 0
    multiple: Bit = False


@_method(60, 90)
class BasicReject(Method, frozen=True):
    delivery_tag: LongLong = 0
    requeue: Bit = True


@_method(60, 100)
class BasicRecoverAsync(Method, frozen=True):
    requeue: Bit = False


@_method(60, 110)
class BasicRecover(Method, frozen=True):
    requeue: Bit = False


@_method(60, 111)
class BasicRecoverOk(Method, frozen=True):
    pass


@_method(60, 120)
class BasicNack(Method, frozen=True):
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


@_method(85, 10)
class ConfirmSelect(Method, frozen=True):
    no_wait: Bit = False


@_method(85, 11)
class ConfirmSelectOk(Method, frozen=True):
    pass


@_method(90, 10)
class TxSelect(Method, frozen=True):
    pass


@_method(90, 11)
class TxSelectOk(Method, frozen=True):
    pass


@_method(90, 20)
class TxCommit(Method, frozen=True):
    pass


@_method(90, 21)
class TxCommitOk(Method, frozen=True):
    pass


@_method(90, 30)
class TxRollback(Method, frozen=True):
    pass


@_method(90, 31)
class TxRollbackOk(Method, frozen=True):
    pass


WITH_CONTENT: Final = frozenset(kind.index for kind in (BasicPublish, BasicReturn, BasicDeliver, BasicGetOk))
"""Methods that a content header and body follow."""

_NUMBERS: Final = {code: Struct(f">{code}") for code in "BHIQ"}
_LENGTH: Final = _NUMBERS["I"]


def encode_method(method: Method) -> bytes:
    """A method as the payload of its frame."""
    out = [method.index]
    for wire, names in method.layout:
        value = getattr(method, names[0])
        if wire == "bit":
            out.append(bytes((sum(1 << bit for bit, name in enumerate(names) if getattr(method, name)),)))
        elif wire == "shortstr":
            out.append(_short_string(names[0], value))
        elif wire == "table":
            table = encode_table(value)
            out.append(_LENGTH.pack(len(table)) + table)
        elif wire == "longstr":
            out.append(_LENGTH.pack(len(value)) + value)
        else:
            out.append(_packed(wire, names[0], value))
    return b"".join(out)


def decode_method(raw: bytes, start: int, end: int) -> Method:
    """The method whose payload lies between two offsets of a buffer."""
    kind = BY_INDEX.get(raw[start : start + 4]) if end - start >= 4 else None
    if kind is None:
        raise ProtocolError(NOT_IMPLEMENTED, f"unknown method {raw[start : min(start + 4, end)].hex()}")
    try:
        return _decode(kind, raw, start + 4, end)
    except (struct.error, IndexError):
        raise ProtocolError(SYNTAX_ERROR, f"{kind.__name__} ends in the middle of a field") from None


def _decode(kind: type[Method], raw: bytes, position: int, end: int) -> Method:
    values: list[Any] = []
    for wire, names in kind.layout:
        if wire == "bit":
            octet = raw[position]
            values.extend(bool(octet >> bit & 1) for bit in range(len(names)))
            position += 1
        elif wire == "shortstr":
            after = position + 1 + raw[position]
            values.append(raw[position + 1 : after].decode("utf-8", "surrogateescape"))
            position = after
        elif wire in ("table", "longstr"):
            after = position + 4 + _LENGTH.unpack_from(raw, position)[0]
            if after > end:
                raise IndexError
            content = raw[position + 4 : after]
            values.append(decode_table(content) if wire == "table" else content)
            position = after
        else:
            number = _NUMBERS[wire]
            values.extend(number.unpack_from(raw, position))
            position += number.size
        if position > end:
            raise IndexError
    if position != end:
        raise ProtocolError(SYNTAX_ERROR, f"{kind.__name__} is longer than its fields")
    return kind(*values)


def _short_string(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidMessage(f"{name} must be a string, not {value!r}")
    try:
        text = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidMessage(f"{name} cannot be written as UTF-8: {value[:40]!r}") from None
    if len(text) > 255:
        raise InvalidMessage(f"{name} has {len(text)} bytes; 255 are allowed")
    return bytes((len(text),)) + text


def _packed(wire: str, name: str, value: object) -> bytes:
    try:
        return _NUMBERS[wire].pack(value)
    except struct.error:
        limit = 256 ** _NUMBERS[wire].size - 1
        raise InvalidMessage(f"{name} must be a whole number from 0 to {limit}, not {value!r}") from None
