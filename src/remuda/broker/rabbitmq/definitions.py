"""Which queues and routers there are, and with what options: known alike to every process of a virtual host.

RabbitMQ does not tell what a queue was declared with. So every change is a record in a small stream that all processes
read from its beginning and follow. The stream's order decides: of two processes that create a queue at once, the
options of the first stand, and both are told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final
from uuid import uuid4

import msgspec

from remuda.amqp.confirms import Outgoing
from remuda.amqp.connection import Connection
from remuda.amqp.consumer import Consumer
from remuda.amqp.properties import PERSISTENT, Properties, encode_properties
from remuda.broker.rabbitmq.sender import Sender
from remuda.model.errors import RemudaError
from remuda.model.options import QueueOptions, Status
from remuda.model.routing import Binding, ExchangeKind

STREAM: Final = "remuda.definitions"
_ARGUMENTS: Final = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 4 << 20}
_PROPERTIES: Final = encode_properties(Properties(delivery_mode=PERSISTENT, content_type="application/json"))

OPENED: Final = "opened"
CREATED: Final = "created"
CONFIGURED: Final = "configured"
INITIALIZED: Final = "initialized"
STATUS: Final = "status"
REMOVED: Final = "removed"
PARKING: Final = "parking"
ROUTER: Final = "router"
ROUTER_REMOVED: Final = "router removed"


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change, as it stands in the stream."""

    action: str
    name: str
    token: str
    time: int
    options: QueueOptions | None = None
    status: Status | None = None
    kind: ExchangeKind | None = None
    bindings: tuple[Binding, ...] = ()
    who: str | None = None


class QueueDefinition(msgspec.Struct, frozen=True):
    """A queue as all processes know it."""

    options: QueueOptions
    status: Status = Status.RUNNING
    parks: bool = False
    """Whether its queue for dead letters exists."""


class RouterDefinition(msgspec.Struct, frozen=True):
    kind: ExchangeKind
    bindings: tuple[Binding, ...] = ()


Applied = tuple[Change, bool]
"""A change, and whether it changed anything."""


class Definitions:
    """Reads and writes the stream. `on_change` hears of every change, in the connection's thread; it must not wait."""

    def __init__(
        self, reading: Connection, sender: Sender, on_change: Callable[[Change], None], timeout: float = 30.0
    ) -> None:
        self.queues: dict[str, QueueDefinition] = {}
        self.routers: dict[str, RouterDefinition] = {}
        self._reading = reading
        self._sender = sender
        self._on_change = on_change
        self._awaited: dict[str, Future[bool]] = {}
        self._guard = threading.Lock()
        self._next = 0
        self._consumer: Consumer | None = None
        self._timeout = timeout

    def open(self, now: int) -> None:
        """Read all there is so far."""
        channel = self._reading.channel(prefetch=1000)
        channel.declare_queue(STREAM, arguments=_ARGUMENTS)
        consumer = channel.consume(STREAM, arguments={"x-stream-offset": "first"})
        self._consumer = consumer
        consumer.listen(self._arrived)
        self.propose(Change(OPENED, "", uuid4().hex, now))

    def propose(self, change: Change) -> bool:
        """Write a change, and wait until all that came before it, and itself, is known here; whether it changed
        anything."""
        applied: Future[bool] = Future()
        with self._guard:
            self._awaited[change.token] = applied
        try:
            body = msgspec.json.encode(change)
            self._sender.submit([Outgoing("", STREAM, _PROPERTIES, body)]).result(self._timeout).check()
            return applied.result(self._timeout)
        except TimeoutError:
            raise RemudaError(
                f"RabbitMQ did not take a definition within {self._timeout:g} s; nothing was changed that others see"
            ) from None
        finally:
            with self._guard:
                self._awaited.pop(change.token, None)

    def _arrived(self) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        deliveries = consumer.take()
        for delivery in deliveries:
            offset = delivery.header("x-stream-offset")
            if isinstance(offset, int) and offset < self._next:
                continue  # read again after the connection was lost
            self._next = offset + 1 if isinstance(offset, int) else self._next
            try:
                change = _CHANGES.decode(delivery.body)
            except msgspec.DecodeError:
                continue  # written by a later version; what it means is for others
            self._apply(change)
        consumer.ack(deliveries)

    def _apply(self, change: Change) -> None:
        changed = self._play(change)
        if changed:
            self._on_change(change)
        with self._guard:
            awaited = self._awaited.get(change.token)
        if awaited is not None and not awaited.done():
            awaited.set_result(changed)

    def _play(self, change: Change) -> bool:
        name, known = change.name, self.queues.get(change.name)
        match change.action:
            case "created" if known is None and change.options is not None:
                self.queues[name] = QueueDefinition(change.options, change.status or Status.RUNNING)
            case "initialized" if known is not None and known.status is Status.NOT_INITIALIZED and change.options:
                self.queues[name] = msgspec.structs.replace(known, options=change.options, status=Status.RUNNING)
            case "configured" if known is not None and change.options is not None:
                self.queues[name] = msgspec.structs.replace(known, options=change.options)
            case "status" if known is not None and change.status is not None and known.status is not change.status:
                self.queues[name] = msgspec.structs.replace(known, status=change.status)
            case "parking" if known is not None and not known.parks:
                self.queues[name] = msgspec.structs.replace(known, parks=True)
            case "removed" if known is not None:
                del self.queues[name]
            case "router" if change.kind is not None:
                self.routers[name] = RouterDefinition(change.kind, change.bindings)
            case "router removed" if name in self.routers:
                del self.routers[name]
            case _:
                return False
        return True


_CHANGES: Final = msgspec.json.Decoder(Change)


def change(action: str, name: str, now: int, **more: Any) -> Change:
    """A change with a token of its own."""
    return Change(action, name, uuid4().hex, now, **more)
