"""What a client publishes: gathered, handed to the broker with what others publish, then confirmed or returned."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from remuda.amqp import cap
from remuda.amqp.codec.frames import add_content, method_frame
from remuda.amqp.codec.methods import BasicPublish, BasicReturn
from remuda.amqp.codec.properties import with_property
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
from remuda.server.amqp.declarations.exchanges import TOPICS
from remuda.server.amqp.messages import cap_sorting
from remuda.server.amqp.messages.inbound import delayed
from remuda.server.amqp.protocol.channels import Channel, Gathered, PendingPublications, Transaction
from remuda.server.amqp.protocol.failures import (
    ACCESS_REFUSED,
    INTERNAL_ERROR,
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    Failure,
    no_exchange,
)
from remuda.server.amqp.protocol.request_reader import Publications
from remuda.server.amqp.protocol.vhosts import DEAD_LETTERS, DEFAULT_EXCHANGE, REPLY_TO

if TYPE_CHECKING:
    from remuda.server.amqp.session import ClientSession, Socket

_OVERHEAD: Final = 200
"""About how many bytes a publication takes in memory beside its content."""


class Publisher:
    """The publications of one session."""

    def __init__(self, session: ClientSession, socket: Socket) -> None:
        self._session = session
        self._socket = socket
        self._server = session.server
        self._gathered: list[tuple[Channel, Publications]] = []
        self._uncommitted = 0
        """Bytes that the session's transactions hold."""

    def flush(self) -> None:
        """Hand what was gathered to the broker."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, []
        if len(gathered) == 1:
            channel, alone = gathered[0]
            self._publish_soon(channel, [alone])
            return
        for channel, publications in _runs(gathered):
            self._publish_soon(channel, publications)

    def clear(self) -> None:
        self._gathered.clear()

    def can_publish(self, exchange: str) -> bool:
        """Whether an exchange is known and open to publishers."""
        declared = self._server.topology.exchanges.get(self._session.vhost.exchange(exchange))
        return declared is not None and not declared.internal

    async def find_exchange(self, exchange: str) -> None:
        """Refuse an exchange before anything published after it is accepted: its channel is closed."""
        self._session.check("write", "exchange", exchange)
        declared = await self._server.topology.exchange(self._session.vhost.exchange(exchange))
        if declared is None:
            raise no_exchange(exchange, self._session.vhost.name)
        if declared.internal:
            raise Failure(
                ACCESS_REFUSED,
                f"cannot publish to internal exchange '{exchange}' in vhost '{self._session.vhost.name}'",
            )

    def accept(self, channel: Channel, given: Publications) -> None:
        method, properties, bodies = given.method, given.properties, given.bodies
        if method.immediate:
            raise Failure(NOT_IMPLEMENTED, "immediate=true")
        self._session.check("write", "exchange", method.exchange or DEFAULT_EXCHANGE)
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
        facts = self._server.inbound.facts(properties)
        if facts.user is not None and facts.user != self._session.user.name:
            raise Failure(
                PRECONDITION_FAILED,
                f"user_id property set to '{facts.user}' but authenticated user was '{self._session.user.name}'",
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
        transaction, limits = channel.transaction, self._server.limits
        size = _size(publications) + _OVERHEAD * len(publications.bodies)
        transaction.size += size
        self._uncommitted += size
        if not self._server.intake.gather(size) or self._uncommitted > limits.transaction_bytes + limits.message_max:
            raise Failure(RESOURCE_ERROR, "transactions hold more than there is room for; commit more often")
        transaction.publications.append(publications)

    def end_transaction(self, transaction: Transaction) -> Gathered:
        """Empty a transaction; returns what it held."""
        self._uncommitted -= transaction.size
        self._server.intake.let_go(transaction.size)
        return transaction.clear()

    def _publish_soon(self, channel: Channel, publications: list[Publications]) -> None:
        session = self._session
        if not session.publishes:
            session.publishes = True
            self._server.intake.watch(session)
        size = count = 0
        for one in publications:
            count += len(one.bodies)
            size += _size(one)
        size += _OVERHEAD * count
        session.in_flight += size
        self._server.intake.add(size)
        confirms, soon = channel.confirms, channel.soon
        if soon is not None and soon.publications[0].method.exchange == publications[0].method.exchange:
            soon.publications += publications
            soon.size += size
            soon.count += count
            if confirms is not None and soon.batch is not None:
                confirms.extend(soon.batch, count)
            self._server.gathering.grow(count)
            return
        batch = None if confirms is None else confirms.expect(confirms.next(count), count)
        channel.soon = PendingPublications(publications, batch, size, count)
        done = self._server.gathering.add(partial(self._begin, channel, channel.soon), count)
        session.follow(done)

    def _begin(self, channel: Channel, soon: PendingPublications) -> Coroutine[Any, Any, None]:
        """Start a batch of publications: later ones on the channel go into the next."""
        if channel.soon is soon:
            channel.soon = None
        return self._publish(channel, soon)

    async def _publish(self, channel: Channel, soon: PendingPublications) -> None:
        publications, batch, count = soon.publications, soon.batch, soon.count
        failure: Failure | None = None
        refused: Sequence[int] = ()
        returned: list[bytes] = []
        try:
            refused, returned = await self.publish(channel.number, publications)
        except Failure as error:
            failure = error
        except StorageError as error:
            self._server.intake.full(str(error))
            if channel.confirms is None:
                failure = Failure(RESOURCE_ERROR, str(error))
            refused = range(count)
        except (InvalidMessage, InvalidOption) as error:
            failure = Failure(PRECONDITION_FAILED, str(error))
        except BrokerClosed as error:
            failure = Failure(INTERNAL_ERROR, str(error))
        except RemudaError as error:
            failure = Failure(PRECONDITION_FAILED, str(error))
        except Exception as error:
            failure = self._session.mistake("BasicPublish", error)
        finally:
            self._session.in_flight -= soon.size
            self._server.intake.remove(soon.size)
        if failure is not None:
            if failure.hard or not channel.closed:
                await self._session.fail(channel.number, failure, publications[0].method)
        else:
            self._count(count, None if batch is None else len(refused))
        if failure is None and not channel.closed:
            if batch is not None and channel.confirms is not None:
                returned = channel.confirms.settle(batch, refused, returned)
            if returned:
                self._socket.write(returned, now=True)
        self._socket.resume()

    def _count(self, count: int, refused: int | None) -> None:
        """Count publications and, on a channel that confirms, which of them are confirmed."""
        churn = self._server.churn
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
        full = self._session.vhost.exchange(exchange)
        if exchange and not self.can_publish(exchange):
            await self.find_exchange(exchange)  # it may have been deleted meanwhile
        broker = self._server.broker
        if cap.is_exchange(exchange):
            found = cap_sorting.sort(publications, self._server.inbound.facts)
            if found.invalid:
                await cap_sorting.set_aside(broker, found.invalid)
                publications, rows = found.publications, found.rows
            if not publications:
                return (), frames
        now = broker.now()
        messages = self._server.inbound.batch(exchange, publications, now)
        declared = self._server.topology.exchanges.get(full)
        if declared is not None and declared.delays:
            messages = delayed(messages, now)
        if full == TOPICS:
            receipt = await broker.publish(messages, unbound=UNROUTED, raise_refusals=False)
        else:
            try:
                receipt = await broker.route(full, messages, raise_refusals=False)
            except NotFound:
                self._server.topology.exchanges.pop(full, None)
                raise no_exchange(exchange, self._session.vhost.name) from None
        self._server.streams.published()
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
                await self._server.broker.publish(again, queue=self._session.vhost.queue(method.routing_key))
            elif method.mandatory:
                self._server.churn["returned"] += 1
                frames += self._returned(channel, method, publication.properties_of(row), publication.bodies[row])
            else:
                self._server.churn["dropped"] += 1
        for row, error in receipt.refusals.items():
            await self._dead_letter_refused(messages, row, error)

    async def _adopted(self, name: str) -> bool:
        """Whether a queue of a bus has this name; if so, it is bound to the default exchange."""
        if not name or name.startswith(DEAD_LETTERS):
            return False
        try:
            return await self._server.topology.adopt(self._session.vhost, self._session.vhost.queue(name))
        except (Failure, InvalidOption):
            return False

    async def _dead_letter_refused(self, messages: Messages, row: int, error: Refused) -> None:
        if error.queue is None or not isinstance(error, QueueFull):
            return
        declaration = await self._server.topology.in_force(error.queue)
        if declaration is not None and declaration.overflow == "reject-publish-dlx":
            await self._server.dead_letters.send(error.queue, declaration, [messages[row]], ["maxlen"])

    def _returned(self, channel: int, method: BasicPublish, properties: bytes, body: bytes) -> list[bytes]:
        frame = method_frame(channel, BasicReturn(NO_ROUTE, "NO_ROUTE", method.exchange, method.routing_key))
        frames: list[bytes] = []
        add_content(frames, frame, channel, properties, body, self._session.protocol.frame_max)
        return frames

    def _reply(self, channel: int, replies: list[Publications]) -> list[bytes]:
        """Hand direct replies to the channels that wait for them; returns the frames of those that must be returned."""
        frames: list[bytes] = []
        for one in replies:
            for row, body in enumerate(one.bodies):
                properties = one.properties_of(row)
                if not self._server.reply(one.method.routing_key, properties, body) and one.method.mandatory:
                    frames += self._returned(channel, one.method, properties, body)
        return frames


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
