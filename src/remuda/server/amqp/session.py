"""One client's session: its requests are carried out on the broker, in the order in which they came.

Publications and answers of a whole received buffer go to the broker as a few batches, and the session reads on while
they are kept. Every other request waits until they are, so that it sees what came before it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from remuda.amqp.frames import Event, add_content, method_frame
from remuda.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicNack,
    BasicPublish,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionOpen,
    Method,
)
from remuda.amqp.properties import with_property
from remuda.broker.delivery import AsyncDelivery
from remuda.bus.publishing.system_queues import UNROUTED
from remuda.model.errors import (
    BrokerClosed,
    InvalidMessage,
    InvalidOption,
    NotFound,
    QueueFull,
    Refused,
    RemudaError,
    StorageError,
)
from remuda.model.messages import Messages
from remuda.model.results import Receipt
from remuda.model.settlement import Settlement
from remuda.server.amqp.channels import Channel, Held
from remuda.server.amqp.connection import ServerConnection, Stage
from remuda.server.amqp.consumers import AGAIN, DONE, REJECTED, AmqpConsumer
from remuda.server.amqp.exchanges import TOPICS
from remuda.server.amqp.failures import (
    ACCESS_REFUSED,
    INTERNAL_ERROR,
    NO_ROUTE,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    Failure,
    no_exchange,
    refused,
)
from remuda.server.amqp.inbound import Inbound, Publication
from remuda.server.amqp.names import DEAD_LETTERS, REPLY_TO, VHost
from remuda.server.amqp.requests import Requests
from remuda.server.users import User

if TYPE_CHECKING:
    from remuda.server.amqp.shell import AmqpServer, Wire

_log = logging.getLogger("remuda.amqp")


class Session:
    """What a connection does once it speaks the protocol."""

    def __init__(self, server: AmqpServer, protocol: ServerConnection, wire: Wire, number: int) -> None:
        self.server = server
        self.protocol = protocol
        self.number = number
        self.user = User("")
        self.vhost = VHost("/")
        self.channels: dict[int, Channel] = {}
        self.exclusive: set[str] = set()
        """Queues that go with this connection."""
        self.writable = asyncio.Event()
        self.writable.set()
        self.publishes = False
        """Whether it ever published: then it is told when publishers are blocked."""
        self.in_flight = 0
        """Bytes of publications that the broker has not kept yet."""
        self._wire = wire
        self._inbound = Inbound()
        self._requests = Requests(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._granted: dict[tuple[str, str], bool] = {}
        self._gathered: list[tuple[Channel, Publication]] = []
        self._answers: dict[tuple[int, int], tuple[AsyncDelivery, list[int], Settlement]] = {}

    # From the shell

    async def handle(self, events: Sequence[Event]) -> None:
        """Carry out what a received buffer asks for."""
        channels = self.channels
        for number, method, properties, body in events:
            kind = type(method)
            channel = channels.get(number)
            try:
                if kind is BasicPublish:
                    if channel is not None:
                        self._take_in(channel, method, properties, body)  # type: ignore[arg-type]
                elif kind is BasicAck:
                    if channel is not None:
                        self._answer(channel, method.delivery_tag, method.multiple, DONE)  # type: ignore[attr-defined]
                elif kind is BasicNack or kind is BasicReject:
                    if channel is not None:
                        multiple = getattr(method, "multiple", False)
                        again = AGAIN if method.requeue else REJECTED  # type: ignore[attr-defined]
                        self._answer(channel, method.delivery_tag, multiple, again)  # type: ignore[attr-defined]
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
        self.flush()
        self._wire.flush()

    def flush(self) -> None:
        """Hand what was gathered to the broker."""
        if self._answers:
            answers, self._answers = self._answers, {}
            for delivery, rows, settlement in answers.values():
                self.settle(delivery, rows if len(rows) < len(delivery) else None, settlement)
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            for channel, publications in _stretches(gathered):
                self._publish_soon(channel, publications)

    async def quiet(self) -> None:
        """Return when everything handed to the broker is done."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self) -> None:
        """The connection is over: what it held goes back, and what belonged to it goes."""
        self._gathered.clear()
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
        self._wire.write([method_frame(channel, method)])

    def write(self, frames: list[bytes]) -> None:
        self._wire.write(frames)

    def flush_wire(self) -> None:
        self._wire.flush()

    def resume(self) -> None:
        """Read on, if nothing else speaks against it."""
        self._wire.resume()

    def cancelled(self, consumer: AmqpConsumer) -> None:
        """A consumer's queue is gone."""
        consumer.stopped = True
        consumer.channel.consumers.pop(consumer.tag, None)
        self.server.left(consumer)
        if self.protocol.capable("consumer_cancel_notify"):
            self.send(consumer.channel.number, BasicCancel(consumer.tag, True))
            self._wire.flush()

    async def fail(self, number: int, failure: Failure, method: Method | None) -> None:
        """Close the channel or, where it is worse, the connection."""
        channel = self.channels.get(number)
        if failure.hard or channel is None:
            self.protocol.fail(failure, method)
            self._wire.flush()
            return
        await self._end_channel(channel)
        self.protocol.close_channel(number, failure, method)
        self._wire.flush()

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

    # Requests

    async def _carry_out(self, number: int, method: Method) -> None:
        if isinstance(method, ConnectionOpen):
            self._enter(method)
        elif isinstance(method, ConnectionClose):
            self.protocol.part()
        elif isinstance(method, ChannelOpen):
            self.channels[number] = Channel(number)
            self.send(number, ChannelOpenOk())
        elif isinstance(method, ChannelClose):
            channel = self.channels.get(number)
            if channel is not None:
                await self._end_channel(channel)
            self.send(number, ChannelCloseOk())
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
        self.protocol.open()

    async def _end_channel(self, channel: Channel) -> None:
        channel.closed = True
        self.channels.pop(channel.number, None)
        self.server.replies.pop(channel.reply_token or "", None)
        consumers = list(channel.consumers.values())
        channel.consumers.clear()
        for consumer in consumers:
            self.server.left(consumer)
        live = {id(consumer) for consumer in consumers}
        if consumers:
            await asyncio.gather(*(consumer.stop(keep=False) for consumer in consumers))
        # What a consumer held goes back with it; what was fetched, or was left by one that went, is given back here.
        orphans = [held for held in channel.unanswered.take_all() if held[2] is None or id(held[2]) not in live]
        self.put_back(orphans)

    def put_back(self, held: Iterable[Held]) -> None:
        """Messages go back to where they were in their queues."""
        rows: dict[int, tuple[AsyncDelivery, list[int]]] = {}
        for delivery, row, consumer in held:
            rows.setdefault(id(delivery), (delivery, []))[1].append(row)
            if consumer is not None:
                consumer.answered(1)
        for delivery, chosen in rows.values():
            self.settle(delivery, chosen if len(chosen) < len(delivery) else None, AGAIN)

    # Answers

    def _answer(self, channel: Channel, tag: int, multiple: bool, settlement: Settlement) -> None:
        if channel.transaction is not None:
            channel.transaction.answers.append((channel.unanswered.take_tagged(tag, multiple), settlement))
        else:
            self.answer(channel.unanswered.take(tag, multiple), settlement)

    def answer(self, taken: Iterable[Held], settlement: Settlement) -> None:
        answers, kind = self._answers, id(settlement)
        for delivery, row, consumer in taken:
            key = (id(delivery), kind)
            found = answers.get(key)
            if found is None:
                answers[key] = (delivery, [row], settlement)
            else:
                found[1].append(row)
            if consumer is not None:
                consumer.answered(1)

    def settle(self, delivery: AsyncDelivery, rows: list[int] | None, settlement: Settlement) -> None:
        """Answer the broker; what comes of it is waited for by `quiet`."""
        self.spawn(delivery.answer(settlement, rows, wait=False))  # type: ignore[arg-type]

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except BrokerClosed as error:
            self.protocol.fail(Failure(INTERNAL_ERROR, str(error)))
            self._wire.flush()
        except RemudaError as error:
            _log.warning("connection %d: %s", self.number, error)

    # Publications

    def _take_in(self, channel: Channel, method: BasicPublish, properties: bytes, body: bytes) -> None:
        if method.immediate:
            raise Failure(NOT_IMPLEMENTED, "immediate=true")
        facts = self._inbound.facts(properties)
        if facts.user is not None and facts.user != self.user.name:
            raise Failure(
                PRECONDITION_FAILED,
                f"user_id property set to '{facts.user}' but authenticated user was '{self.user.name}'",
            )
        if facts.reply_to == REPLY_TO:
            if channel.reply_token is None:
                raise Failure(PRECONDITION_FAILED, "fast reply consumer does not exist")
            properties = with_property(properties, "reply_to", f"{REPLY_TO}.{channel.reply_token}")
        self.check("write", "exchange", method.exchange or "amq.default")
        publication = Publication(method, properties, body, 0 if channel.confirms is None else channel.confirms.next())
        if channel.transaction is not None:
            channel.transaction.publications.append(publication)
        else:
            self._gathered.append((channel, publication))

    def _publish_soon(self, channel: Channel, publications: list[Publication]) -> None:
        if not self.publishes:
            self.publishes = True
            self.server.intake.watch(self)
        size = sum(len(one.body) + len(one.properties) for one in publications) + 200 * len(publications)
        self.in_flight += size
        self.server.intake.add(size)
        confirms = channel.confirms
        batch = None if confirms is None else confirms.expect([one.tag for one in publications])
        task = asyncio.ensure_future(self._publish(channel, publications, batch, size))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, channel: Channel, publications: list[Publication], batch: Any, size: int) -> None:
        failure: Failure | None = None
        refusals: set[int] = set()
        returned: list[bytes] = []
        try:
            refusals, returned = await self.publish(channel.number, publications)
        except Failure as error:
            failure = error
        except StorageError as error:
            self.server.intake.full(str(error))
            if channel.confirms is None:
                failure = Failure(RESOURCE_ERROR, str(error))
            refusals = {one.tag for one in publications}
        except (InvalidMessage, InvalidOption) as error:
            failure = Failure(PRECONDITION_FAILED, str(error))
        except BrokerClosed as error:
            failure = Failure(INTERNAL_ERROR, str(error))
        except RemudaError as error:
            failure = Failure(PRECONDITION_FAILED, str(error))
        finally:
            self.in_flight -= size
            self.server.intake.remove(size)
        if failure is not None:
            await self.fail(channel.number, failure, publications[0].method)
        elif not channel.closed:
            if batch is not None and channel.confirms is not None:
                returned = channel.confirms.settle(batch, refusals, returned)
            if returned:
                self._wire.write(returned)
        self._wire.flush()
        self._wire.resume()

    async def publish(self, channel: int, publications: list[Publication]) -> tuple[set[int], list[bytes]]:
        """Publish to one exchange. Gives the tags of what was refused, and the frames that return what nobody took."""
        exchange = publications[0].method.exchange
        replies = [] if exchange else [one for one in publications if one.method.routing_key.startswith(REPLY_TO)]
        frames: list[bytes] = []
        if replies:
            frames += self._reply(channel, replies)
            publications = [one for one in publications if not one.method.routing_key.startswith(REPLY_TO)]
            if not publications:
                return set(), frames
        full = self.vhost.exchange(exchange)
        declared = self.server.topology.exchanges.get(full) or await self.server.topology.exchange(full)
        if declared is None:
            raise no_exchange(exchange, self.vhost.name)
        if declared.internal:
            raise Failure(
                ACCESS_REFUSED, f"cannot publish to internal exchange '{exchange}' in vhost '{self.vhost.name}'"
            )
        broker = self.server.broker
        messages = self._inbound.batch(exchange, publications, time.time_ns() // 1000)
        if full == TOPICS:
            receipt = await broker.publish(messages, unbound=UNROUTED, raise_refusals=False)
        else:
            try:
                receipt = await broker.route(full, messages)
            except NotFound:
                self.server.topology.exchanges.pop(full, None)
                raise no_exchange(exchange, self.vhost.name) from None
        if not receipt.refusals and not receipt.unroutable:
            return set(), frames
        return await self._untaken(channel, exchange, publications, messages, receipt, frames)

    async def _untaken(
        self, channel: int, exchange: str, publications: list[Publication], messages: Messages, receipt: Receipt,
        frames: list[bytes],
    ) -> tuple[set[int], list[bytes]]:  # fmt: skip
        """What some queue refused, or no queue took."""
        taken = [row for row in range(len(publications)) if row not in receipt.refusals]
        for number in receipt.unroutable:
            publication = publications[taken[number]]
            if not exchange and await self._adopted(publication.method.routing_key):
                again = messages.slice(taken[number], taken[number] + 1)
                await self.server.broker.publish(again, queue=self.vhost.queue(publication.method.routing_key))
            elif publication.method.mandatory:
                frames += self._returned(channel, publication)
        for row, error in receipt.refusals.items():
            await self._dead_letter_refused(messages, row, error)
        return {publications[row].tag for row in receipt.refusals}, frames

    async def _adopted(self, name: str) -> bool:
        """Whether a queue of a bus has this name: then it can be reached by it from now on."""
        if not name or name.startswith(DEAD_LETTERS):
            return False
        try:
            return await self.server.topology.adopt(self.vhost, self.vhost.queue(name))
        except (Failure, InvalidOption):
            return False

    async def _dead_letter_refused(self, messages: Messages, row: int, error: Refused) -> None:
        if error.queue is None or not isinstance(error, QueueFull):
            return
        declaration = self.server.topology.queues.get(error.queue)
        if declaration is not None and declaration.overflow == "reject-publish-dlx":
            await self.server.dead_letters.send(error.queue, declaration, [messages[row]], ["maxlen"])

    def _returned(self, channel: int, publication: Publication) -> list[bytes]:
        method = publication.method
        frame = method_frame(channel, BasicReturn(NO_ROUTE, "NO_ROUTE", method.exchange, method.routing_key))
        frames: list[bytes] = []
        add_content(frames, frame, channel, publication.properties, publication.body, self.protocol.frame_max)
        return frames

    def _reply(self, channel: int, replies: list[Publication]) -> list[bytes]:
        """Direct replies go straight to the channel that waits for them."""
        frames: list[bytes] = []
        for one in replies:
            token = one.method.routing_key.removeprefix(f"{REPLY_TO}.")
            if not self.server.reply(token, one) and one.method.mandatory:
                frames += self._returned(channel, one)
        return frames


def new_token() -> str:
    return secrets.token_urlsafe(16)


def is_open(session: Session) -> bool:
    return session.protocol.stage is Stage.RUNNING


def _stretches(gathered: list[tuple[Channel, Publication]]) -> Iterable[tuple[Channel, list[Publication]]]:
    """Neighbours of one channel that go to the same exchange."""
    start = 0
    for at in range(1, len(gathered) + 1):
        if at < len(gathered):
            channel, publication = gathered[start]
            other, another = gathered[at]
            if other is channel and (
                another.method is publication.method or another.method.exchange == publication.method.exchange
            ):
                continue
        yield gathered[start][0], [one for _, one in gathered[start:at]]
        start = at
