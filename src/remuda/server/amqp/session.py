"""One client's session: carries out its requests on the broker, in order.

Publications and answers of a whole received buffer go to the broker as a few batches, and the session reads on while
they are being stored. Every other request waits until they are, so that it sees what came before it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from remuda.amqp.codec.frames import Event, method_frame
from remuda.amqp.codec.methods import (
    BasicCancel,
    BasicNack,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionOpen,
    Method,
)
from remuda.broker.delivery import AsyncDelivery
from remuda.model.errors import (
    BrokerClosed,
    InvalidMessage,
    InvalidOption,
    RemudaError,
    StorageError,
)
from remuda.model.settlement import Settlement
from remuda.server.amqp.messages.consumers import AGAIN, DONE, REJECTED, TOO_OFTEN, AmqpConsumer
from remuda.server.amqp.protocol.channels import (
    Channel,
    Taken,
    UnknownTag,
)
from remuda.server.amqp.protocol.connection import ServerConnection
from remuda.server.amqp.protocol.failures import (
    INTERNAL_ERROR,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    Failure,
    refused,
)
from remuda.server.amqp.protocol.request_reader import Acks, Publications
from remuda.server.amqp.protocol.vhosts import VHost
from remuda.server.amqp.publisher import Publisher
from remuda.server.amqp.requests import Requests
from remuda.server.users import User

if TYPE_CHECKING:
    from remuda.server.amqp.amqp_server import AmqpServer

_log = logging.getLogger("remuda.amqp")


class Socket(Protocol):
    """Where a session's frames go."""

    @property
    def peer(self) -> str: ...
    def write(self, frames: list[bytes], *, now: bool = False) -> None: ...
    def flush(self) -> None: ...
    def resume(self) -> None: ...


class ClientSession:
    """The work of one connection, on the events that its protocol gives."""

    def __init__(self, server: AmqpServer, protocol: ServerConnection, socket: Socket, number: int) -> None:
        self.server = server
        self.protocol = protocol
        self.number = number
        self.user = User("")
        self.vhost = VHost("/")
        self.entered = False
        """Whether the client has opened its vhost."""
        self.channels: dict[int, Channel] = {}
        self.exclusive: set[str] = set()
        """Queues that are deleted with this connection."""
        self.writable = asyncio.Event()
        self.writable.set()
        self.publishes = False
        """Whether it ever published: then it is notified when publishers are blocked."""
        self.in_flight = 0
        """Bytes of publications that the broker has not stored yet."""
        self._held_cancels: list[bytes] | None = None
        self._failed = False
        """Whether the connection is being closed for an error."""
        self._socket = socket
        self._requests = Requests(self)
        self.publisher = Publisher(self, socket)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._granted: dict[tuple[str, str], bool] = {}
        self._answers: dict[tuple[int, int], tuple[Settlement, list[Taken]]] = {}

    @property
    def who(self) -> str:
        """How the log calls this connection."""
        return f"connection {self.number} ({self.user.name or 'not logged in'}, {self._socket.peer})"

    @property
    def log_fields(self) -> dict[str, Any]:
        """The same as fields of a log in JSON."""
        named = {"user": self.user.name} if self.user.name else {}
        return {"connection": self.number, "peer": self._socket.peer, **named, "vhost": self.vhost.name}

    def report(self, what: str, error: BaseException) -> None:
        """Log a mistake of this server that met this client."""
        self.server.mistakes.report(self.who, what, error, self.log_fields)

    # From the shell

    async def handle(self, events: Sequence[Event]) -> None:
        """Carry out what a received buffer asks for."""
        channels, publisher = self.channels, self.publisher
        for number, method, _, _ in events:
            if self._failed:
                break  # what follows the error is ignored: a commit would cover only part of its transaction
            channel = channels.get(number)
            try:
                if isinstance(method, Publications):
                    exchange = method.method.exchange
                    if channel is not None and exchange and not publisher.can_publish(exchange):
                        self.flush()
                        await self.quiet()
                        channel = channels.get(number)
                        if channel is not None:
                            await publisher.find_exchange(exchange)
                    if channel is not None:
                        publisher.accept(channel, method)
                elif isinstance(method, Acks):
                    if channel is not None:
                        for first, last, multiple in method.answers:
                            self._answer(channel, first, last, multiple, DONE)
                elif isinstance(method, BasicNack | BasicReject):
                    if channel is not None:
                        tag, multiple = method.delivery_tag, isinstance(method, BasicNack) and method.multiple
                        self._answer(channel, tag, tag, multiple, AGAIN if method.requeue else REJECTED)
                else:
                    self.flush()
                    await self.quiet()
                    await self._carry_out(number, method)
            except Failure as failure:
                self.flush()
                await self.fail(number, failure, method)
            except (InvalidOption, InvalidMessage) as error:
                self.flush()
                await self.fail(number, Failure(PRECONDITION_FAILED, str(error)), method)
            except StorageError as error:
                await self.fail(number, Failure(RESOURCE_ERROR, str(error)), method)
            except BrokerClosed as error:
                await self.fail(0, Failure(INTERNAL_ERROR, str(error)), method)
            except RemudaError as error:
                await self.fail(number, Failure(PRECONDITION_FAILED, str(error)), method)
            except Exception as error:
                self.flush()
                await self.fail(number, self.mistake(type(method).__name__, error), method)
        self.flush()
        self._socket.flush()

    def flush(self) -> None:
        """Hand the gathered publications and answers to the broker."""
        if self._answers:
            answers, self._answers = self._answers, {}
            for settlement, taken in answers.values():
                delivery = taken[0].handed.delivery
                self.settle(delivery, _rows(delivery, taken), settlement)
        self.publisher.flush()

    async def quiet(self) -> None:
        """Return when everything handed to the broker is done."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self) -> None:
        """Requeue what the connection held, and delete its exclusive queues."""
        self.publisher.clear()
        self._answers.clear()
        self.writable.set()
        for channel in list(self.channels.values()):
            await self._end_channel(channel)
        await self.quiet()
        for full in list(self.exclusive):
            await self.server.drop_queue(full)
        self.exclusive.clear()

    # To the client

    def send(self, channel: int, method: Method) -> None:
        self._socket.write([method_frame(channel, method)])

    def write(self, frames: list[bytes]) -> None:
        self._socket.write(frames)

    def flush_socket(self) -> None:
        self._socket.flush()

    def resume(self) -> None:
        """Read on, unless something else forbids it."""
        self._socket.resume()

    def cancelled(self, consumer: AmqpConsumer) -> None:
        """End a consumer whose queue is gone."""
        consumer.stopped = True
        consumer.channel.consumers.pop(consumer.tag, None)
        self.server.left(consumer)
        if self.protocol.capable("consumer_cancel_notify"):
            frame = method_frame(consumer.channel.number, BasicCancel(consumer.tag, True))
            if self._held_cancels is not None:
                self._held_cancels.append(frame)
                return
            self._socket.write([frame])
            self._socket.flush()

    @contextmanager
    def cancels_held(self) -> Iterator[None]:
        """Have cancellations come behind what is sent meanwhile: a client that deletes a queue which it consumes from
        waits for the answer first, and py-amqp takes a cancellation before it for an error."""
        self._held_cancels = []
        try:
            yield
        finally:
            held, self._held_cancels = self._held_cancels, None
            self._socket.write(held)

    async def fail(self, number: int, failure: Failure, method: Method | None) -> None:
        """Close the channel or, for a hard failure, the connection."""
        channel = self.channels.get(number)
        if failure.hard or channel is None:
            self._failed = True
            self.protocol.fail(failure, method)
            self._socket.flush()
            return
        _log.info(
            "%s: channel %d is closed: %d %s", self.who, number, failure.code, failure.text, extra=self.log_fields
        )
        await self._end_channel(channel)
        self.protocol.close_channel(number, failure, method)
        self._socket.flush()

    # Permissions

    def check(self, access: str, kind: str, name: str) -> None:
        """Refuse what the user was not granted."""
        key = (access, name)
        granted = self._granted.get(key)
        if granted is None:
            granted = self._granted[key] = self.user.may(self.vhost.name, access, name)
            if len(self._granted) > 10_000:
                self._granted.clear()
        if not granted:
            raise refused(access, kind, name, self.vhost.name, self.user.name)

    def forget_granted(self) -> None:
        """The user's permissions have changed."""
        self._granted.clear()

    # Requests

    async def ask(self, channel: Channel, method: Method) -> Method | None:
        """Carry out a request on a channel; returns the answer."""
        return await self._requests.ask(channel, method)

    async def _carry_out(self, number: int, method: Method) -> None:
        if isinstance(method, ConnectionOpen):
            self._enter(method)
        elif isinstance(method, ConnectionClose):
            await self.close()  # before the close-ok: the client may rely on its queues being gone
            self.protocol.part()
        elif isinstance(method, ChannelOpen):
            self.channels[number] = Channel(number)
            self.server.churn["channel_created"] += 1
            self.send(number, ChannelOpenOk())
        elif isinstance(method, ChannelClose):
            channel = self.channels.get(number)
            if channel is not None:
                await self._end_channel(channel)
            self.send(number, ChannelCloseOk())
            self.protocol.part_channel(number)
        elif (channel := self.channels.get(number)) is not None:
            await self._requests.carry_out(channel, method)

    def _enter(self, method: ConnectionOpen) -> None:
        name = method.virtual_host
        vhost = self.server.topology.vhosts.get(name)
        if vhost is None:
            raise Failure(NOT_ALLOWED, f"vhost {name} not found")
        if not self.user.enters(name):
            raise Failure(NOT_ALLOWED, f"access to vhost '{name}' refused for user '{self.user.name}'")
        self.vhost = vhost
        self.entered = True
        self.protocol.open()

    async def _end_channel(self, channel: Channel) -> None:
        self.server.churn["channel_closed"] += not channel.closed
        channel.closed = True
        self.channels.pop(channel.number, None)
        if channel.transaction is not None:
            self.publisher.end_transaction(channel.transaction)
        self.server.replies.pop(channel.reply_token or "", None)
        consumers = list(channel.consumers.values())
        channel.consumers.clear()
        for consumer in consumers:
            self.server.left(consumer)
        live = {id(consumer) for consumer in consumers}
        if consumers:
            await asyncio.gather(*(consumer.stop(keep=False) for consumer in consumers))
            await self.server.topology.drop_unused()  # their queues may have been deleted with them
        # Stopping a consumer requeues what it held; what came by `basic.get` or from a cancelled one is requeued here.
        self.answer([one for one in channel.unanswered.take_all() if id(one.handed.consumer) not in live], AGAIN)
        self.flush()

    # Answers

    def _answer(self, channel: Channel, first: int, last: int, multiple: bool, settlement: Settlement) -> None:
        unanswered = channel.unanswered
        failure: UnknownTag | None = None
        try:
            taken = unanswered.take(last, True) if multiple else unanswered.take_run(first, last)
        except UnknownTag as unknown:
            failure, taken = unknown, unknown.before
        if channel.transaction is not None:
            channel.transaction.answers.append((taken, settlement))
        else:
            self.answer(taken, settlement)
        if failure is not None:
            raise failure

    def answer(self, taken: Iterable[Taken], settlement: Settlement) -> None:
        """Answer messages that the client held, with the next `flush`."""
        for one in taken:
            if settlement is AGAIN and one.handed.limit is not None:
                for too_often, part in one.by_limit(one.handed.limit):
                    self._add_answer(part, TOO_OFTEN if too_often else AGAIN)
            else:
                self._add_answer(one, settlement)

    def _add_answer(self, one: Taken, settlement: Settlement) -> None:
        answers, handed = self._answers, one.handed
        key = (id(handed.delivery), id(settlement))
        if key in answers:
            answers[key][1].append(one)
        else:
            answers[key] = (settlement, [one])
        if settlement is DONE:
            self.server.churn["acknowledged"] += one.size
        if handed.consumer is not None:
            handed.consumer.answered(one.size)

    def settle(self, delivery: AsyncDelivery, rows: Sequence[int] | None, settlement: Settlement) -> None:
        """Answer the broker; `quiet` waits until it has done so."""
        self.spawn(delivery.answer(settlement, rows, wait=False))  # type: ignore[arg-type]

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self.follow(asyncio.ensure_future(self._guarded(work)))

    def follow(self, work: asyncio.Future[Any]) -> None:
        """Have `quiet` wait for this, too."""
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except BrokerClosed as error:
            self.protocol.fail(Failure(INTERNAL_ERROR, str(error)))
            self._socket.flush()
        except RemudaError as error:
            _log.warning("%s: %s", self.who, error, extra=self.log_fields)
        except Exception as error:
            self.report("an answer", error)

    def mistake(self, what: str, error: Exception) -> Failure:
        """Report an error that no request should cause. It costs only the request's channel."""
        self.report(what, error)
        return Failure(INTERNAL_ERROR, f"{type(error).__name__}; see the server's log", hard=False)


def new_token() -> str:
    return secrets.token_urlsafe(16)


def _rows(delivery: AsyncDelivery, taken: list[Taken]) -> Sequence[int] | None:
    """The rows of a delivery that an answer covers; None for all."""
    if sum(one.size for one in taken) == len(delivery):
        return None
    return taken[0].rows if len(taken) == 1 else [row for one in taken for row in one.rows]
