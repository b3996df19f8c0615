"""One connection's protocol without I/O: bytes go in; valid requests and bytes to send come out.

A violation of the protocol ends the connection with the reply code that AMQP has for it. Nothing here waits, reads a
clock or knows a queue.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from remuda.amqp.codec.frames import FRAME_MAX, FRAME_MIN, HEARTBEAT, PROTOCOL_HEADER, Event, method_frame
from remuda.amqp.codec.methods import (
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Heartbeat,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
    TxCommit,
    TxRollback,
    TxSelect,
)
from remuda.amqp.codec.tables import Table
from remuda.server.amqp.protocol.failures import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    NOT_ALLOWED,
    Failure,
)
from remuda.server.amqp.protocol.login import MECHANISMS
from remuda.server.amqp.protocol.request_reader import Acks, Publications, RequestReader

_FROM_CLIENTS: Final = frozenset(
    (
        Acks, BasicCancel, BasicConsume, BasicGet, BasicNack, BasicQos, BasicRecover, BasicRecoverAsync, BasicReject,
        ChannelFlow, ChannelFlowOk, ConfirmSelect, ExchangeBind, ExchangeDeclare,
        ExchangeDelete, ExchangeUnbind, QueueBind, QueueDeclare, QueueDelete, QueuePurge, QueueUnbind, TxCommit,
        TxRollback, TxSelect, Publications,
    )
)  # fmt: skip

PRODUCT: Final = "RabbitMQ"
PRODUCT_VERSION: Final = "3.13.7"
"""The version of RabbitMQ whose protocol and management API this server speaks."""
_AROUND: Final = 8
"""A frame's header and end octet. Some clients, such as amqpstorm, do not count them, and RabbitMQ accepts that."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one client, and of all of them together."""

    frame_max: int = FRAME_MAX
    message_max: int = 128 << 20
    channel_max: int = 2047
    connection_max: int = 10_000
    heartbeat: int = 60
    login_seconds: float = 10.0
    """How long a client may take to open its connection."""
    backlog_bytes: int = 16 << 20
    """How much one connection may have sent that the broker has not stored; beyond it, its socket is not read."""
    memory_bytes: int = 512 << 20
    """The same for all connections together: beyond it, publishers are blocked."""
    transaction_bytes: int = 128 << 20
    """How much the open transactions of one connection may hold, beyond one message."""
    drop_dead: bool = False
    """Whether messages that die in a queue without a dead-letter exchange are dropped, unless the queue says."""
    product: str = PRODUCT
    """What the server calls itself. Celery gives a worker its limit across all queues only on `RabbitMQ` 3."""
    product_version: str = PRODUCT_VERSION
    consumer_seconds: float = 1800.0
    """How long a consumer may take to answer a delivery, unless its queue says otherwise."""


class Stage(Enum):
    """How far a connection has come: each value names what is expected next."""

    HEADER = "protocol header"
    START = "connection.start-ok"
    LOGIN = "the check of a login"
    TUNE = "connection.tune-ok"
    OPEN = "connection.open"
    OPENING = "the opening of a vhost"
    RUNNING = "anything"
    LEAVING = "nothing more"
    CLOSING = "connection.close-ok"
    CLOSED = "nothing"


class ServerConnection:
    """The server's end of one connection."""

    def __init__(self, limits: Limits, properties: Table) -> None:
        self.limits = limits
        self.stage = Stage.HEADER
        self.client_properties: Table = {}
        self.frame_max = limits.frame_max
        self.channel_max = limits.channel_max
        self.heartbeat = 0
        self.channels: set[int] = set()
        self.mechanisms = MECHANISMS
        self._properties = properties
        self._closing: set[int] = set()
        """Channels that the server has closed and whose close-ok has not come."""
        self._leaving: set[int] = set()
        """Channels that the client has closed and whose close-ok has not been sent."""
        self._reader = RequestReader(limits.frame_max + _AROUND, max_body=limits.message_max)
        self._greeting = b""
        self.out: list[bytes] = []
        """What `output` would give."""
        self.answered = False
        """Whether the client has answered the server's close: then it sends nothing more."""
        self.parted = False
        """Whether the client asked for the close: then it ends the connection itself."""
        self.failure: Failure | None = None
        """Why the server closed the connection, if it did."""

    @property
    def held(self) -> int:
        """Bytes of frames and contents that have arrived only in part."""
        return self._reader.held

    def capable(self, name: str) -> bool:
        """Whether the client says that it understands one of RabbitMQ's extensions."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(name) is True

    def receive(self, data: bytes) -> list[Event]:
        """The requests that these bytes complete, in order. What the connection answers itself is in `output`."""
        if self.stage is Stage.CLOSED:
            return []
        if self.stage is Stage.HEADER:
            data = self._greet(data)
            if not data:
                return []
        requests: list[Event] = []
        for event in self._reader.feed(data):
            channel, method, _, _ = event
            # Nearly everything is a request on a channel that is open.
            if channel in self.channels and type(method) in _FROM_CLIENTS and self.stage is Stage.RUNNING:
                requests.append(event)
                continue
            try:
                self._handle(event, requests)
            except Failure as failure:
                self.fail(failure, method)
        error = self._reader.error
        if error is not None:
            self.fail(Failure(error.code, error.text, hard=True))
            # What follows cannot be read, so no close-ok can be waited for.
            self.stage = Stage.CLOSED
        return requests

    def output(self) -> list[bytes]:
        """The bytes to send."""
        out, self.out = self.out, []
        return out

    # From the server

    def send(self, channel: int, method: Method) -> None:
        if self.stage is not Stage.CLOSED:
            self.out.append(method_frame(channel, method))

    def beat(self) -> None:
        if self.stage not in (Stage.HEADER, Stage.CLOSED):
            self.out.append(HEARTBEAT)

    def accept(self) -> None:
        """The login was right."""
        if self.stage is Stage.LOGIN:
            self.stage = Stage.TUNE
            limits = self.limits
            self.send(0, ConnectionTune(limits.channel_max, limits.frame_max, limits.heartbeat))

    def refuse(self, failure: Failure) -> None:
        """The login was wrong. Clients that do not understand a close at this stage are just disconnected."""
        if self.stage is Stage.LOGIN:
            if self.capable("authentication_failure_close"):
                self.fail(failure)
            else:
                self.stage = Stage.CLOSED

    def open(self) -> None:
        """The vhost may be entered."""
        if self.stage is Stage.OPENING:
            self.stage = Stage.RUNNING
            self.send(0, ConnectionOpenOk())

    def fail(self, failure: Failure, method: Method | None = None) -> None:
        """Close the connection for a reason."""
        if self.stage in (Stage.CLOSING, Stage.CLOSED):
            return
        class_id, method_id = _numbers(method)
        if self.stage is Stage.HEADER:
            self.stage = Stage.CLOSED
            return
        self.failure = failure
        self.send(0, ConnectionClose(failure.code, failure.text, class_id, method_id))
        self.stage = Stage.CLOSING

    def part(self) -> None:
        """The client closed the connection, and everything it asked for before is done."""
        self.send(0, ConnectionCloseOk())
        self.stage = Stage.CLOSED
        self.parted = True

    def close_channel(self, channel: int, failure: Failure, method: Method | None = None) -> None:
        """Close a channel for a reason. What still arrives on it is ignored."""
        if channel in self.channels:
            self.channels.discard(channel)
            self._closing.add(channel)
            class_id, method_id = _numbers(method)
            self.send(channel, ChannelClose(failure.code, failure.text, class_id, method_id))

    def part_channel(self, channel: int) -> None:
        """The client closed a channel, and everything it asked for on it before is done."""
        self._leaving.discard(channel)

    # Inside

    def _greet(self, data: bytes) -> bytes:
        """Read the protocol header; returns what follows it."""
        missing = len(PROTOCOL_HEADER) - len(self._greeting)
        self._greeting += data[:missing]
        if not PROTOCOL_HEADER.startswith(self._greeting):
            self.out.append(PROTOCOL_HEADER)
            self.stage = Stage.CLOSED
            return b""
        if len(self._greeting) < len(PROTOCOL_HEADER):
            return b""
        self.stage = Stage.START
        self.send(0, ConnectionStart(0, 9, self._properties, self.mechanisms, b"en_US"))
        return data[missing:]

    def _handle(self, event: Event, requests: list[Event]) -> None:
        channel, method, _, _ = event
        if isinstance(method, Heartbeat):
            if self.stage in (Stage.START, Stage.LOGIN):
                raise Failure(COMMAND_INVALID, f"a heartbeat came where {self.stage.value} was expected")
            return
        if channel == 0:
            self._handle_own(method, event, requests)
            return
        if self.stage in (Stage.CLOSING, Stage.LEAVING):
            return
        if self.stage is not Stage.RUNNING:
            raise Failure(CHANNEL_ERROR, f"expected {self.stage.value}, got {type(method).__name__}")
        if channel in self._closing:
            if isinstance(method, ChannelCloseOk):
                self._closing.discard(channel)
            elif isinstance(method, ChannelClose):
                self.send(channel, ChannelCloseOk())
            return
        if isinstance(method, ChannelOpen):
            self._open_channel(channel)
        elif channel in self._leaving:
            return  # another thread of the client was still using it
        elif channel not in self.channels:
            raise Failure(CHANNEL_ERROR, "expected 'channel.open'")
        elif isinstance(method, ChannelClose):
            self.channels.discard(channel)
            self._leaving.add(channel)
            self._reader.forget(channel)
        elif isinstance(method, ChannelCloseOk) or type(method) not in _FROM_CLIENTS:
            raise Failure(COMMAND_INVALID, f"clients do not send {type(method).__name__}")
        requests.append(event)

    def _open_channel(self, channel: int) -> None:
        if channel in self.channels:
            raise Failure(CHANNEL_ERROR, "second 'channel.open' seen")
        if len(self.channels) >= self.channel_max:  # as in RabbitMQ, their count matters, not their numbers
            raise Failure(
                NOT_ALLOWED,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max "
                f"({self.channel_max})",
            )
        self._leaving.discard(channel)
        self.channels.add(channel)

    def _handle_own(self, method: Method, event: Event, requests: list[Event]) -> None:
        if isinstance(method, ConnectionClose):
            if self.stage in (Stage.CLOSING, Stage.CLOSED):
                self.part()
            else:
                self.stage = Stage.LEAVING
                requests.append(event)
            return
        match self.stage, method:
            case Stage.CLOSING, ConnectionCloseOk():
                self.stage = Stage.CLOSED
                self.answered = True
            case ((Stage.CLOSING | Stage.LEAVING), _):
                pass
            case Stage.START, ConnectionStartOk():
                self.client_properties = method.client_properties
                self.stage = Stage.LOGIN
                requests.append(event)
            case Stage.TUNE, ConnectionTuneOk():
                self._tune(method)
            case Stage.OPEN, ConnectionOpen():
                self.stage = Stage.OPENING
                requests.append(event)
            case Stage.RUNNING, ConnectionUpdateSecret():
                self.send(0, ConnectionUpdateSecretOk())
            case Stage.RUNNING, _:
                raise Failure(CHANNEL_ERROR, "unexpected method in connection state running")
            case _:
                raise Failure(COMMAND_INVALID, f"expected {self.stage.value}, got {type(method).__name__}")

    def _tune(self, asked: ConnectionTuneOk) -> None:
        limits = self.limits
        if asked.frame_max and asked.frame_max < FRAME_MIN:
            raise Failure(
                NOT_ALLOWED,
                f"negotiated frame_max = {asked.frame_max} is lower than the minimum allowed value ({FRAME_MIN})",
            )
        if asked.frame_max > limits.frame_max:
            raise Failure(
                NOT_ALLOWED,
                _too_high("frame_max", asked.frame_max, limits.frame_max),
            )
        if asked.channel_max > limits.channel_max:
            raise Failure(
                NOT_ALLOWED,
                _too_high("channel_max", asked.channel_max, limits.channel_max),
            )
        self.frame_max = asked.frame_max or limits.frame_max
        self._reader.limit_frames(self.frame_max + _AROUND)
        self.channel_max = asked.channel_max or limits.channel_max
        self.heartbeat = asked.heartbeat
        self.stage = Stage.OPEN


def _too_high(name: str, asked: int, most: int) -> str:
    return f"negotiated {name} = {asked} is higher than the maximum allowed value ({most})"


def _numbers(method: Method | None) -> tuple[int, int]:
    """The class and method that a close names as its cause."""
    index = b"" if method is None else type(method).index
    return (int.from_bytes(index[:2], "big"), int.from_bytes(index[2:], "big")) if len(index) == 4 else (0, 0)
