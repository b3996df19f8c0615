"""One client's session: carries out its requests on the broker, in order.

Publications and answers of a whole received buffer go to the broker as a few batches, and the session reads on while
they are being stored. Every other request waits until they are, so that it sees what came before it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol

from remuda.amqp import cap
from remuda.amqp.codec.frames import Event, add_content, method_frame
from remuda.amqp.codec.methods import (
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
from remuda.amqp.codec.properties import with_property
from remuda.broker.delivery import AsyncDelivery
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
from remuda.model.operations.results import Receipt
from remuda.model.queues.system_queues import UNROUTED
from remuda.model.settlement import Settlement
from remuda.server.amqp.declarations.exchanges import TOPICS
from remuda.server.amqp.messages import cap_sorting
from remuda.server.amqp.messages.consumers import AGAIN, DONE, REJECTED, TOO_OFTEN, AmqpConsumer
from remuda.server.amqp.messages.inbound import delayed
from remuda.server.amqp.protocol.channels import (
    Channel,
    ConfirmBatch,
    Gathered,
    PendingPublications,
    Taken,
    Transaction,
    UnknownTag,
)
from remuda.server.amqp.protocol.connection import ServerConnection
from remuda.server.amqp.protocol.failures import (
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
from remuda.server.amqp.protocol.request_reader import Acks, Publications
from remuda.server.amqp.protocol.vhosts import DEAD_LETTERS, DEFAULT_EXCHANGE, REPLY_TO, VHost
from remuda.server.amqp.requests import Requests
from remuda.server.users import User

if TYPE_CHECKING:
    from remuda.server.amqp.amqp_server import AmqpServer

_log = logging.getLogger("remuda.amqp")
_OVERHEAD: Final = 200
"""About how many bytes a publication takes in memory beside its content."""


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
        self._failed = False
        """Whether the connection is being closed for an error."""
        self._uncommitted = 0
        """Bytes that its transactions hold."""
        self._socket = socket
        self._requests = Requests(self)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._granted: dict[tuple[str, str], bool] = {}
        self._gathered: list[tuple[Channel, Publications]] = []
        self._answers: dict[tuple[int, int], tuple[Settlement, list[Taken]]] = {}

    @property
    def who(self) -> str:
        """How the log calls this connection."""
        return f"connection {self.number} ({self.user.name or 'not logged in'}, {self._socket.peer})"

    # From the shell

    async def handle(self, events: Sequence[Event]) -> None:
        """Carry out what a received buffer asks for."""
        channels = self.channels
        for number, method, _, _ in events:
            if self._failed:
                break  # what follows the error is ignored: a commit would cover only part of its transaction
            channel = channels.get(number)
            try:
                if isinstance(method, Publications):
                    exchange = method.method.exchange
                    if channel is not None and exchange and not self._can_publish(exchange):
                        self.flush()
                        await self.quiet()
                        channel = channels.get(number)
                        if channel is not None:
                            await self._find_exchange(exchange)
                    if channel is not None:
                        self._accept(channel, method)
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
                await self.fail(number, self._mistake(type(method).__name__, error), method)
        self.flush()
        self._socket.flush()

    def flush(self) -> None:
        """Hand the gathered publications and answers to the broker."""
        if self._answers:
            answers, self._answers = self._answers, {}
            for settlement, taken in answers.values():
                delivery = taken[0].handed.delivery
                self.settle(delivery, _rows(delivery, taken), settlement)
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            if len(gathered) == 1:
                channel, alone = gathered[0]
                self._publish_soon(channel, [alone])
                return
            for channel, publications in _runs(gathered):
                self._publish_soon(channel, publications)

    async def quiet(self) -> None:
        """Return when everything handed to the broker is done."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self) -> None:
        """Requeue what the connection held, and delete its exclusive queues."""
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
            self.send(consumer.channel.number, BasicCancel(consumer.tag, True))
            self._socket.flush()

    async def fail(self, number: int, failure: Failure, method: Method | None) -> None:
        """Close the channel or, for a hard failure, the connection."""
        channel = self.channels.get(number)
        if failure.hard or channel is None:
            self._failed = True
            self.protocol.fail(failure, method)
            self._socket.flush()
            return
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
            self.end_transaction(channel.transaction)
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
        task = asyncio.ensure_future(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except BrokerClosed as error:
            self.protocol.fail(Failure(INTERNAL_ERROR, str(error)))
            self._socket.flush()
        except RemudaError as error:
            _log.warning("%s: %s", self.who, error)
        except Exception as error:
            self.server.mistakes.report(self.who, "an answer", error)

    def _mistake(self, what: str, error: Exception) -> Failure:
        """Report an error that no request should cause. It costs only the request's channel."""
        self.server.mistakes.report(self.who, what, error)
        return Failure(INTERNAL_ERROR, f"{type(error).__name__}; see the server's log", hard=False)

    # Publications

    def _can_publish(self, exchange: str) -> bool:
        """Whether an exchange is known and open to publishers."""
        declared = self.server.topology.exchanges.get(self.vhost.exchange(exchange))
        return declared is not None and not declared.internal

    async def _find_exchange(self, exchange: str) -> None:
        """Refuse an exchange before anything published after it is accepted: its channel is closed."""
        self.check("write", "exchange", exchange)
        declared = await self.server.topology.exchange(self.vhost.exchange(exchange))
        if declared is None:
            raise no_exchange(exchange, self.vhost.name)
        if declared.internal:
            raise Failure(
                ACCESS_REFUSED, f"cannot publish to internal exchange '{exchange}' in vhost '{self.vhost.name}'"
            )

    def _accept(self, channel: Channel, given: Publications) -> None:
        method, properties, bodies = given.method, given.properties, given.bodies
        if method.immediate:
            raise Failure(NOT_IMPLEMENTED, "immediate=true")
        self.check("write", "exchange", method.exchange or DEFAULT_EXCHANGE)
        if not isinstance(properties, list):
            own = self.admitted(channel, properties)
            self._gather(channel, given if own is properties else Publications(method, own, bodies))
            return
        admitted: list[bytes] = []
        try:
            for raw in properties:
                admitted.append(self.admitted(channel, raw))
        finally:
            # The messages before the one that is refused are published all the same.
            if admitted:
                self._gather(channel, Publications(method, admitted, bodies[: len(admitted)]))

    def admitted(self, channel: Channel, properties: bytes) -> bytes:
        """The properties with which a message is published."""
        facts = self.server.inbound.facts(properties)
        if facts.user is not None and facts.user != self.user.name:
            raise Failure(
                PRECONDITION_FAILED,
                f"user_id property set to '{facts.user}' but authenticated user was '{self.user.name}'",
            )
        if facts.reply_to != REPLY_TO:
            return properties
        if channel.reply_token is None:
            raise Failure(PRECONDITION_FAILED, "fast reply consumer does not exist")
        return with_property(properties, "reply_to", f"{REPLY_TO}.{channel.reply_token}")

    def _gather(self, channel: Channel, publications: Publications) -> None:
        if channel.transaction is None:
            self._gathered.append((channel, publications))
            return
        transaction, limits = channel.transaction, self.server.limits
        size = _size(publications) + _OVERHEAD * len(publications.bodies)
        transaction.size += size
        self._uncommitted += size
        if not self.server.intake.gather(size) or self._uncommitted > limits.transaction_bytes + limits.message_max:
            raise Failure(RESOURCE_ERROR, "transactions hold more than there is room for; commit more often")
        transaction.publications.append(publications)

    def end_transaction(self, transaction: Transaction) -> Gathered:
        """Empty a transaction; returns what it held."""
        self._uncommitted -= transaction.size
        self.server.intake.let_go(transaction.size)
        return transaction.clear()

    def _publish_soon(self, channel: Channel, publications: list[Publications]) -> None:
        if not self.publishes:
            self.publishes = True
            self.server.intake.watch(self)
        count = sum([len(one.bodies) for one in publications])
        size = sum(map(_size, publications)) + _OVERHEAD * count
        self.in_flight += size
        self.server.intake.add(size)
        confirms, soon = channel.confirms, channel.soon
        if soon is not None and soon.publications[0].method.exchange == publications[0].method.exchange:
            soon.publications += publications
            soon.size += size
            if confirms is not None and soon.batch is not None:
                confirms.extend(soon.batch, count)
            self.server.gathering.grow(count)
            return
        batch = None if confirms is None else confirms.expect(confirms.next(count), count)
        channel.soon = PendingPublications(publications, batch, size)
        done = self.server.gathering.add(partial(self._begin, channel, channel.soon), count)
        self._tasks.add(done)
        done.add_done_callback(self._tasks.discard)

    def _begin(self, channel: Channel, soon: PendingPublications) -> Coroutine[Any, Any, None]:
        """Start a batch of publications: later ones on the channel go into the next."""
        if channel.soon is soon:
            channel.soon = None
        return self._publish(channel, soon.publications, soon.batch, soon.size)

    async def _publish(
        self, channel: Channel, publications: list[Publications], batch: ConfirmBatch | None, size: int
    ) -> None:
        failure: Failure | None = None
        refused: Sequence[int] = ()
        returned: list[bytes] = []
        try:
            refused, returned = await self.publish(channel.number, publications)
        except Failure as error:
            failure = error
        except StorageError as error:
            self.server.intake.full(str(error))
            if channel.confirms is None:
                failure = Failure(RESOURCE_ERROR, str(error))
            refused = range(sum(len(one.bodies) for one in publications))
        except (InvalidMessage, InvalidOption) as error:
            failure = Failure(PRECONDITION_FAILED, str(error))
        except BrokerClosed as error:
            failure = Failure(INTERNAL_ERROR, str(error))
        except RemudaError as error:
            failure = Failure(PRECONDITION_FAILED, str(error))
        except Exception as error:
            failure = self._mistake("BasicPublish", error)
        finally:
            self.in_flight -= size
            self.server.intake.remove(size)
        if failure is not None:
            if failure.hard or not channel.closed:
                await self.fail(channel.number, failure, publications[0].method)
        else:
            self._count(publications, None if batch is None else len(refused))
        if failure is None and not channel.closed:
            if batch is not None and channel.confirms is not None:
                returned = channel.confirms.settle(batch, refused, returned)
            if returned:
                self._socket.write(returned, now=True)
        self._socket.resume()

    def _count(self, publications: list[Publications], refused: int | None) -> None:
        """Count publications and, on a channel that confirms, which of them are confirmed."""
        churn, count = self.server.churn, sum([len(one.bodies) for one in publications])
        churn["received"] += count
        if refused is not None:
            churn["received_confirm"] += count
            churn["confirmed"] += count - refused

    async def publish(self, channel: int, publications: list[Publications]) -> tuple[Sequence[int], list[bytes]]:
        """Publish to one exchange. Returns the refused rows, and the frames that return unroutable messages."""
        exchange = publications[0].method.exchange
        frames: list[bytes] = []
        rows: list[int] | None = None
        if not exchange and True in [one.method.routing_key.startswith(REPLY_TO) for one in publications]:
            frames = self._reply(channel, [one for one in publications if _is_reply(one)])
            rows = list(_rows_without_replies(publications))
            publications = [one for one in publications if not _is_reply(one)]
            if not publications:
                return (), frames
        full = self.vhost.exchange(exchange)
        if exchange and not self._can_publish(exchange):
            await self._find_exchange(exchange)  # it may have been deleted meanwhile
        broker = self.server.broker
        if cap.is_exchange(exchange):
            found = cap_sorting.sort(publications, self.server.inbound.facts)
            if found.invalid:
                await broker.publish(found.invalid, queue=UNROUTED, raise_refusals=False)
                publications, rows = found.publications, found.rows
            if not publications:
                return (), frames
        now = broker.now()
        messages = self.server.inbound.batch(exchange, publications, now)
        declared = self.server.topology.exchanges.get(full)
        if declared is not None and declared.delays:
            messages = delayed(messages, now)
        if full == TOPICS:
            receipt = await broker.publish(messages, unbound=UNROUTED, raise_refusals=False)
        else:
            try:
                receipt = await broker.route(full, messages, raise_refusals=False)
            except NotFound:
                self.server.topology.exchanges.pop(full, None)
                raise no_exchange(exchange, self.vhost.name) from None
        self.server.streams.published()
        if not receipt.refusals and not receipt.unroutable:
            return (), frames
        await self._handle_unaccepted(channel, publications, messages, receipt, frames)
        return [row if rows is None else rows[row] for row in receipt.refusals], frames

    async def _handle_unaccepted(
        self, channel: int, publications: list[Publications], messages: Messages, receipt: Receipt, frames: list[bytes]
    ) -> None:
        """Return, adopt or dead-letter what no queue took or some queue refused."""
        places = [(one, row) for one in publications for row in range(len(one.bodies))]
        for number in receipt.unroutable:
            publication, row = places[number]
            method = publication.method
            if not method.exchange and await self._adopted(method.routing_key):
                again = messages.slice(number, number + 1)
                await self.server.broker.publish(again, queue=self.vhost.queue(method.routing_key))
            elif method.mandatory:
                self.server.churn["returned"] += 1
                frames += self._returned(channel, method, publication.properties_of(row), publication.bodies[row])
            else:
                self.server.churn["dropped"] += 1
        for row, error in receipt.refusals.items():
            await self._dead_letter_refused(messages, row, error)

    async def _adopted(self, name: str) -> bool:
        """Whether a queue of a bus has this name; if so, it is bound to the default exchange."""
        if not name or name.startswith(DEAD_LETTERS):
            return False
        try:
            return await self.server.topology.adopt(self.vhost, self.vhost.queue(name))
        except (Failure, InvalidOption):
            return False

    async def _dead_letter_refused(self, messages: Messages, row: int, error: Refused) -> None:
        if error.queue is None or not isinstance(error, QueueFull):
            return
        declaration = await self.server.topology.in_force(error.queue)
        if declaration is not None and declaration.overflow == "reject-publish-dlx":
            await self.server.dead_letters.send(error.queue, declaration, [messages[row]], ["maxlen"])

    def _returned(self, channel: int, method: BasicPublish, properties: bytes, body: bytes) -> list[bytes]:
        frame = method_frame(channel, BasicReturn(NO_ROUTE, "NO_ROUTE", method.exchange, method.routing_key))
        frames: list[bytes] = []
        add_content(frames, frame, channel, properties, body, self.protocol.frame_max)
        return frames

    def _reply(self, channel: int, replies: list[Publications]) -> list[bytes]:
        """Hand direct replies to the channels that wait for them; returns the frames of those that must be returned."""
        frames: list[bytes] = []
        for one in replies:
            for row, body in enumerate(one.bodies):
                properties = one.properties_of(row)
                if not self.server.reply(one.method.routing_key, properties, body) and one.method.mandatory:
                    frames += self._returned(channel, one.method, properties, body)
        return frames


def new_token() -> str:
    return secrets.token_urlsafe(16)


def _runs(gathered: list[tuple[Channel, Publications]]) -> Iterable[tuple[Channel, list[Publications]]]:
    """Consecutive publications of one channel to the same exchange."""
    for (channel, _), run in groupby(gathered, key=lambda one: (one[0], one[1].method.exchange)):
        yield channel, [publications for _, publications in run]


def _size(publications: Publications) -> int:
    properties = publications.properties
    each = sum(map(len, properties)) if isinstance(properties, list) else len(properties) * len(publications.bodies)
    return sum(map(len, publications.bodies)) + each


def _is_reply(publications: Publications) -> bool:
    return publications.method.routing_key.startswith(REPLY_TO)


def _rows_without_replies(publications: Iterable[Publications]) -> Iterable[int]:
    """The rows of all publications that are not direct replies."""
    row = 0
    for one in publications:
        if not _is_reply(one):
            yield from range(row, row + len(one.bodies))
        row += len(one.bodies)


def _rows(delivery: AsyncDelivery, taken: list[Taken]) -> Sequence[int] | None:
    """The rows of a delivery that an answer covers; None for all."""
    if sum(one.size for one in taken) == len(delivery):
        return None
    return taken[0].rows if len(taken) == 1 else [row for one in taken for row in one.rows]
