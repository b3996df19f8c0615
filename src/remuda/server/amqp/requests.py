"""Requests on a channel, apart from publishing and answering, refused with RabbitMQ's own words."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from remuda.amqp.codec.frames import add_content, method_frame
from remuda.amqp.codec.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from remuda.amqp.codec.properties import with_headers
from remuda.model.errors import ConsumersFull, InvalidOption, NotFound
from remuda.model.operations.results import QueueInfo
from remuda.model.queues.routing import Binding
from remuda.server.amqp.declarations import exchanges, queues
from remuda.server.amqp.declarations.arguments import check_consumer_arguments
from remuda.server.amqp.declarations.exchanges import (
    TOPICS,
    ExchangeDeclaration,
    binding_arguments,
    without_types,
)
from remuda.server.amqp.declarations.queues import QueueDeclaration
from remuda.server.amqp.declarations.topology import owner_of
from remuda.server.amqp.messages.consumers import AGAIN, BATCH, DONE, TOO_OFTEN, AmqpConsumer
from remuda.server.amqp.messages.outbound import exchange_of, properties_of
from remuda.server.amqp.messages.streams import (
    StreamConsumer,
    check_stream_consumer,
    offset_of,
    refuse_on_stream,
    start_of,
)
from remuda.server.amqp.protocol.channels import Channel, Confirms, Transaction
from remuda.server.amqp.protocol.failures import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    Failure,
    locked,
    no_exchange,
    no_queue,
)
from remuda.server.amqp.protocol.vhosts import DEFAULT_EXCHANGE, REPLY_TO

if TYPE_CHECKING:
    from remuda.server.amqp.session import ClientSession

_SOON: Final = 300 * 1_000_000
"""Queues that want an answer within this time have their leases renewed."""


class Requests:
    """Carries out the requests of one session."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def ask(self, channel: Channel, method: Method) -> Method | None:
        """Carry out a request; returns the answer, unless it was sent already."""
        reply: Method | None = await _VERBS[type(method)](self, channel, method)
        return reply

    async def carry_out(self, channel: Channel, method: Method) -> None:
        reply = await self.ask(channel, method)
        if reply is not None and not getattr(method, "no_wait", False):
            self._session.send(channel.number, reply)

    @property
    def _vhost(self) -> str:
        return self._session.vhost.name

    async def _nothing(self, channel: Channel, method: Method) -> None:
        return None

    # The channel

    async def _flow(self, channel: Channel, method: ChannelFlow) -> Method:
        if not method.active:
            raise Failure(NOT_IMPLEMENTED, "active=false")
        return ChannelFlowOk(True)

    async def _confirm(self, channel: Channel, method: ConfirmSelect) -> Method:
        if channel.transaction is not None:
            raise Failure(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        channel.confirms = channel.confirms or Confirms(channel.number)
        return ConfirmSelectOk()

    async def _select(self, channel: Channel, method: TxSelect) -> Method:
        if channel.confirms is not None:
            raise Failure(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        channel.transaction = channel.transaction or Transaction()
        return TxSelectOk()

    async def _commit(self, channel: Channel, method: TxCommit) -> Method:
        if channel.transaction is None:
            raise Failure(PRECONDITION_FAILED, "channel is not transactional")
        session = self._session
        publications, answers = session.publisher.end_transaction(channel.transaction)
        for _, stretch in groupby(publications, key=lambda one: one.method.exchange):
            _, returned = await session.publisher.publish(channel.number, list(stretch))
            session.write(returned)
        for taken, settlement in answers:
            session.answer(taken, settlement)
        session.flush()
        await session.quiet()
        return TxCommitOk()

    async def _rollback(self, channel: Channel, method: TxRollback) -> Method:
        if channel.transaction is None:
            raise Failure(PRECONDITION_FAILED, "channel is not transactional")
        _, answers = self._session.publisher.end_transaction(channel.transaction)
        for taken, _ in answers:
            channel.unanswered.give_back(taken)
        return TxRollbackOk()

    async def _qos(self, channel: Channel, method: BasicQos) -> Method:
        if method.prefetch_size:
            raise Failure(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            channel.shared_prefetch = method.prefetch_count
        else:
            channel.prefetch = method.prefetch_count
            channel.shared_prefetch = 0  # as in RabbitMQ, a limit per consumer replaces the shared one
        wanted = channel.shared_prefetch or channel.prefetch
        for consumer in channel.consumers.values():
            await consumer.set_prefetch(wanted)
        return BasicQosOk()

    async def _recover(self, channel: Channel, method: BasicRecover | BasicRecoverAsync) -> Method | None:
        if not method.requeue:
            raise Failure(NOT_IMPLEMENTED, "requeue=false")
        if isinstance(method, BasicRecover):
            self._session.send(channel.number, BasicRecoverOk())  # redeliveries come behind it
        self._session.answer(channel.unanswered.take_all(), AGAIN)
        self._session.flush()
        await self._session.quiet()
        return None

    # Exchanges

    async def _declare_exchange(self, channel: Channel, method: ExchangeDeclare) -> Method:
        session, name = self._session, method.exchange
        topology, vhost = session.server.topology, session.vhost
        full = vhost.exchange(name)
        standing = await topology.exchange(full)
        if method.passive:
            if not name:
                raise Failure(ACCESS_REFUSED, "operation not permitted on the default exchange")
            if standing is None:
                raise no_exchange(name, self._vhost)
            return ExchangeDeclareOk()
        session.check("configure", "exchange", name or DEFAULT_EXCHANGE)
        if not name:
            raise Failure(ACCESS_REFUSED, "operation not permitted on the default exchange")
        exchanges.check_type(method.type)
        exchanges.check_arguments(name, self._vhost, method.type, method.arguments)
        asked = ExchangeDeclaration(
            method.type, method.durable, method.auto_delete, method.internal, without_types(method.arguments)
        )
        if standing is not None:
            exchanges.check_equivalent(name, self._vhost, asked, standing)
            return ExchangeDeclareOk()
        if name.startswith("amq."):
            raise Failure(ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix 'amq.*'")
        if asked.alternate is not None:
            session.check("read", "exchange", name)
            session.check("write", "exchange", asked.alternate or DEFAULT_EXCHANGE)
        await topology.create_exchange(vhost, full, asked)
        return ExchangeDeclareOk()

    async def _delete_exchange(self, channel: Channel, method: ExchangeDelete) -> Method:
        session, name = self._session, method.exchange
        topology = session.server.topology
        session.check("configure", "exchange", name or DEFAULT_EXCHANGE)
        if not name:
            raise Failure(ACCESS_REFUSED, "operation not permitted on the default exchange")
        if name.startswith("amq.") or name == TOPICS:
            raise Failure(ACCESS_REFUSED, f"deletion of system exchange '{name}' in vhost '{self._vhost}' not allowed")
        full = session.vhost.exchange(name)
        if await topology.exchange(full) is None:
            return ExchangeDeleteOk()
        if method.if_unused and await topology.is_used(full):
            raise Failure(PRECONDITION_FAILED, f"exchange '{name}' in vhost '{self._vhost}' in use")
        await topology.delete_exchange(full)
        return ExchangeDeleteOk()

    async def _bind_exchange(self, channel: Channel, method: ExchangeBind | ExchangeUnbind) -> Method:
        session = self._session
        topology, vhost = session.server.topology, session.vhost
        binds = isinstance(method, ExchangeBind)
        for name in (method.source, method.destination):
            if not name:
                raise Failure(ACCESS_REFUSED, "operation not permitted on the default exchange")
        session.check("write", "exchange", method.destination)
        session.check("read", "exchange", method.source)
        source, destination = vhost.exchange(method.source), vhost.exchange(method.destination)
        for name, full in ((method.source, source), (method.destination, destination)):
            if await topology.exchange(full) is None:
                if not binds:
                    return ExchangeUnbindOk()
                raise no_exchange(name, self._vhost)
        if TOPICS in (source, destination):
            raise Failure(NOT_IMPLEMENTED, f"'{TOPICS}' stands for the topics of a bus; only queues can be bound to it")
        exchanges.check_binding(topology.exchanges[source], method.arguments)
        binding = Binding(exchange=destination, key=method.routing_key, arguments=binding_arguments(method.arguments))
        if source != destination:
            await (topology.bind if binds else topology.unbind)(source, binding)
        return ExchangeBindOk() if binds else ExchangeUnbindOk()

    # Queues

    async def _declare_queue(self, channel: Channel, method: QueueDeclare) -> Method | None:
        session, name = self._session, method.queue
        if name.startswith(f"{REPLY_TO}.") or name == REPLY_TO:
            return self._declare_reply(name)
        if not name:
            name = channel.last_queue if method.passive else f"amq.gen-{secrets.token_urlsafe(16)}"
            if not name:
                raise no_queue(name, self._vhost)
        full = session.vhost.queue(name)
        info = await session.server.topology.find(full)
        session.server.churn["queue_declared"] += 1
        if method.passive:
            if info is None:
                raise no_queue(name, self._vhost)
            await self._own(full, name)
            await self._adopt(full)
        else:
            session.check("configure", "queue", name)
            info = await self._create_queue(name, full, method, info)
        channel.last_queue = name
        session.server.used(full)
        return QueueDeclareOk(name, min(info.waiting, 0xFFFFFFFF), session.server.consumer_count(info))

    def _declare_reply(self, name: str) -> Method:
        if name != REPLY_TO and not self._session.server.has_reply(name):
            raise no_queue(name, self._vhost)
        return QueueDeclareOk(name, 0, 1)

    async def _create_queue(self, name: str, full: str, method: QueueDeclare, info: QueueInfo | None) -> QueueInfo:
        session = self._session
        topology = session.server.topology
        owner = owner_of(topology.server, session.number)
        asked = QueueDeclaration(
            method.durable, method.exclusive, method.auto_delete, without_types(method.arguments),
            owner if method.exclusive or not method.durable else None,
        )  # fmt: skip
        queues.check_arguments(name, self._vhost, asked, method.arguments)
        try:
            options = queues.options_of(session.vhost, full, asked, 1)
        except InvalidOption as error:
            raise Failure(PRECONDITION_FAILED, f"{error} (queue '{name}' in vhost '{self._vhost}')") from None
        if info is not None:
            await self._own(full, name)
            standing = await topology.declaration(full)
            if standing is None:
                standing = queues.as_declared(session.vhost, info, asked)
                await self._adopt(full)
            queues.check_equivalent(name, self._vhost, asked, standing)
            return info
        if method.queue.startswith("amq."):
            raise Failure(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
        exchange = asked.dead_letter_exchange
        if exchange is not None:
            session.vhost.exchange(exchange)  # refused if no exchange of this vhost can have the name
            session.check("read", "queue", name)
            session.check("write", "exchange", exchange or DEFAULT_EXCHANGE)
        if options.expired_queue is not None:
            session.check("read", "queue", name)
            session.check("write", "queue", session.vhost.short(options.expired_queue))
        if options.topics or options.patterns:
            self._check_topics()
        await topology.create_queue(session.vhost, full, asked)
        if asked.exclusive:
            session.exclusive.add(full)
        session.server.dead_letters.follow(full)
        session.server.churn["queue_created"] += 1
        created = await topology.find(full)
        if created is None:
            raise no_queue(name, self._vhost)
        return created

    async def _own(self, full: str, name: str) -> None:
        """Refuse a queue that belongs to another connection."""
        declaration = await self._session.server.topology.declaration(full)
        if declaration is not None and declaration.exclusive and full not in self._session.exclusive:
            raise locked(name, self._vhost)

    async def _adopt(self, full: str) -> None:
        topology = self._session.server.topology
        if await topology.declaration(full) is None:
            await topology.adopt(self._session.vhost, full)

    async def _named(self, channel: Channel, name: str) -> tuple[str, str, QueueInfo]:
        """The queue that a request is for: its name, the broker's name, and what it is now."""
        if not name:
            name = channel.last_queue
            if not name:
                raise Failure(NOT_FOUND, "no previously declared queue")
        full = self._session.vhost.queue(name)
        info = await self._session.server.topology.find(full)
        if info is None:
            raise no_queue(name, self._vhost)
        await self._own(full, name)
        return name, full, info

    async def _bind_queue(self, channel: Channel, method: QueueBind | QueueUnbind) -> Method:
        session = self._session
        binds = isinstance(method, QueueBind)
        key = method.routing_key
        if binds and not method.queue and not key:
            key = channel.last_queue
        try:
            name, full, info = await self._named(channel, method.queue)
        except Failure as failure:
            if failure.code == NOT_FOUND and not binds and method.queue:
                return QueueUnbindOk()
            raise
        session.check("write", "queue", name)
        session.check("read", "exchange", method.exchange or DEFAULT_EXCHANGE)
        if not method.exchange:
            raise Failure(ACCESS_REFUSED, "operation not permitted on the default exchange")
        topology = session.server.topology
        source = session.vhost.exchange(method.exchange)
        if await topology.exchange(source) is None:
            if not binds:
                return QueueUnbindOk()
            raise no_exchange(method.exchange, self._vhost)
        exchanges.check_binding(topology.exchanges[source], method.arguments)
        if source == TOPICS:
            await self._follow_topics(full, info, key, binds)
        else:
            binding = Binding(queue=full, key=key, arguments=binding_arguments(method.arguments))
            await (topology.bind if binds else topology.unbind)(source, binding)
        return QueueBindOk() if binds else QueueUnbindOk()

    def _check_topics(self) -> None:
        """Refuse topics in a queue's options to a user who may not bind a queue to them."""
        if self._session.vhost.exchange(TOPICS) != TOPICS:
            raise Failure(ACCESS_REFUSED, f"the topics of a bus belong to the vhost '/', not to '{self._vhost}'")
        self._session.check("read", "exchange", TOPICS)

    async def _follow_topics(self, full: str, info: QueueInfo, pattern: str, binds: bool) -> None:
        """Have a queue follow topics of a bus, or stop doing so."""
        patterns = [one for one in info.options.patterns if one != pattern]
        if binds:
            patterns.append(pattern)
        await self._session.server.broker.configure_queue(full, patterns=patterns)

    async def _purge(self, channel: Channel, method: QueuePurge) -> Method:
        name, full, _ = await self._named(channel, method.queue)
        self._session.check("read", "queue", name)
        refuse_on_stream("queue.purge", name, self._vhost, await self._session.server.topology.in_force(full))
        cleared = await self._session.server.broker.clear(full, reason="purged", who=self._session.user.name or None)
        return QueuePurgeOk(cleared)

    async def _delete_queue(self, channel: Channel, method: QueueDelete) -> Method | None:
        session = self._session
        try:
            name, full, info = await self._named(channel, method.queue)
        except Failure as failure:
            if failure.code == NOT_FOUND and (method.queue or channel.last_queue):
                return QueueDeleteOk(0)
            raise
        session.check("configure", "queue", name)
        if method.if_unused and session.server.consumer_count(info):
            raise Failure(PRECONDITION_FAILED, f"queue '{name}' in vhost '{self._vhost}' in use")
        if method.if_empty and info.waiting:
            raise Failure(PRECONDITION_FAILED, f"queue '{name}' in vhost '{self._vhost}' not empty")
        session.exclusive.discard(full)
        with session.cancels_held():
            await session.server.drop_queue(full)
            if not method.no_wait:
                session.send(channel.number, QueueDeleteOk(min(info.waiting, 0xFFFFFFFF)))
        return None

    # Consuming

    async def _consume(self, channel: Channel, method: BasicConsume) -> Method | None:
        session = self._session
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if tag in channel.consumers or tag == channel.reply_consumer:
            raise Failure(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if method.queue == REPLY_TO:
            return self._consume_replies(channel, method, tag)
        name, full, info = await self._named(channel, method.queue)
        session.check("read", "queue", name)
        declaration = await session.server.topology.in_force(full)
        kind = "classic" if declaration is None else declaration.type
        priority = check_consumer_arguments(name, self._vhost, method.arguments, kind)
        if declaration is not None and declaration.is_stream:
            await self._consume_stream(channel, method, tag, name, declaration)
            return None
        consumer = AmqpConsumer(session, channel, tag, full, declaration, method.no_ack, method.exclusive)
        session.server.claim(consumer, name, self._vhost, info)
        consumer.arguments = method.arguments
        consumer.renews = info.options.acknowledge_timeout < _SOON
        prefetch = channel.shared_prefetch or channel.prefetch
        credit = consumer.credit_for(prefetch)
        shared = channel.shared_prefetch and not method.no_ack
        try:
            subscription = await session.server.broker.subscribe(
                full,
                consumer=session.server.consumer_name(session, channel.number, tag),
                batch=min(credit, BATCH),
                credit=credit,
                group=f"amqp-{session.server.topology.server}-{session.number}-{channel.number}" if shared else None,
                priority=priority,
            )
        except ConsumersFull:
            raise Failure(ACCESS_REFUSED, f"queue '{name}' in vhost '{self._vhost}' in exclusive use") from None
        channel.consumers[tag] = consumer
        session.server.joined(consumer)
        if not method.no_wait:
            session.send(channel.number, BasicConsumeOk(tag))
        consumer.start(subscription)
        return None

    async def _consume_stream(
        self, channel: Channel, method: BasicConsume, tag: str, name: str, declaration: QueueDeclaration
    ) -> None:
        session, full = self._session, self._session.vhost.queue(name)
        check_stream_consumer(name, self._vhost, method.no_ack, channel)
        start = start_of(method.arguments, name, self._vhost)
        broker = session.server.broker
        waiting, spectator = await broker.waiting(full), await broker.spectate()
        begin = partial(offset_of, spectator, start, waiting, broker.now())
        consumer = StreamConsumer(
            session, channel, tag, full, declaration, spectator, await asyncio.to_thread(begin), channel.prefetch
        )
        consumer.arguments = method.arguments
        channel.consumers[tag] = consumer
        session.server.joined(consumer)
        if not method.no_wait:
            session.send(channel.number, BasicConsumeOk(tag))
        consumer.follow()

    def _consume_replies(self, channel: Channel, method: BasicConsume, tag: str) -> Method:
        if not method.no_ack:
            raise Failure(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if channel.reply_consumer is not None:
            raise Failure(PRECONDITION_FAILED, "reply consumer already set")
        channel.reply_consumer = tag
        channel.reply_token = self._session.server.await_replies(self._session, channel)
        return BasicConsumeOk(tag)

    async def _cancel(self, channel: Channel, method: BasicCancel) -> Method:
        server = self._session.server
        if method.consumer_tag == channel.reply_consumer:
            server.replies.pop(channel.reply_token or "", None)
            channel.reply_consumer = channel.reply_token = None
        consumer = channel.consumers.pop(method.consumer_tag, None)
        if consumer is not None:
            await consumer.stop(keep=True)
            server.left(consumer)
            await server.topology.drop_unused()  # its queue may have been deleted with it
        return BasicCancelOk(method.consumer_tag)

    async def _get(self, channel: Channel, method: BasicGet) -> Method | None:
        session = self._session
        name, full, _ = await self._named(channel, method.queue)
        session.check("read", "queue", name)
        session.server.used(full)
        declaration = await session.server.topology.in_force(full)
        refuse_on_stream("basic.get", name, self._vhost, declaration)
        limit = declaration.delivery_limit if declaration is not None else None
        while True:
            try:
                delivery = await session.server.broker.pull(full, consumer=f"amqp-get-{session.number}")
            except NotFound:
                raise no_queue(name, self._vhost) from None
            if delivery is None:
                session.server.churn["get_empty"] += 1
                return BasicGetEmpty()
            if limit is None or delivery.attempts[0] <= limit + 1:
                break
            await delivery.answer(TOO_OFTEN)
        message = delivery[0]
        session.server.churn["get_no_ack" if method.no_ack else "get"] += 1
        session.server.churn["redeliver"] += delivery.redelivered[0]
        if method.no_ack:
            tag = channel.unanswered.skip(1)
        else:
            tag = channel.unanswered.add(delivery, [0], None, time.monotonic(), limit)
        left = sum(delivery.remaining)
        reply = BasicGetOk(tag, delivery.redelivered[0], exchange_of(message.headers), _short(message.name), left)
        properties = properties_of(message)
        if declaration is not None and declaration.is_quorum:
            properties = with_headers(properties, {"x-delivery-count": delivery.attempts[0] - 1})
        frames: list[bytes] = []
        add_content(
            frames, method_frame(channel.number, reply), channel.number, properties, message.body,
            session.protocol.frame_max,
        )  # fmt: skip
        session.write(frames)
        if method.no_ack:
            session.settle(delivery, None, DONE)
        return None


_VERBS: Final[dict[type[Method], Any]] = {
    BasicQos: Requests._qos,
    BasicConsume: Requests._consume,
    BasicCancel: Requests._cancel,
    BasicGet: Requests._get,
    BasicRecover: Requests._recover,
    BasicRecoverAsync: Requests._recover,
    ChannelFlow: Requests._flow,
    ChannelFlowOk: Requests._nothing,
    ConfirmSelect: Requests._confirm,
    ExchangeDeclare: Requests._declare_exchange,
    ExchangeDelete: Requests._delete_exchange,
    ExchangeBind: Requests._bind_exchange,
    ExchangeUnbind: Requests._bind_exchange,
    QueueDeclare: Requests._declare_queue,
    QueueBind: Requests._bind_queue,
    QueueUnbind: Requests._bind_queue,
    QueuePurge: Requests._purge,
    QueueDelete: Requests._delete_queue,
    TxSelect: Requests._select,
    TxCommit: Requests._commit,
    TxRollback: Requests._rollback,
}


def _short(text: str) -> str:
    return text.encode("utf-8", "surrogateescape")[:255].decode("utf-8", "ignore")
