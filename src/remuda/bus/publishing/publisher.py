"""Publishing: builds messages, runs the middleware, and passes them to the broker or the outbox."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from remuda.bus import declaring
from remuda.bus.execution import watchdog
from remuda.bus.execution.processes.parent import parent
from remuda.bus.handlers.call import current
from remuda.bus.handlers.context import child_headers
from remuda.bus.handlers.loops import drive, drive_async
from remuda.bus.handlers.queue_rules import with_prefix
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.publish_options import PublishOptions
from remuda.bus.publishing.typed import TypedMessage, addressed, carried_by
from remuda.model.errors import Duplicate, InvalidMessage, RemudaError
from remuda.model.messages import Messages
from remuda.model.queues.system_queues import UNROUTED
from remuda.model.values.texts import shown

if TYPE_CHECKING:
    from remuda.bus.bus import Bus
    from remuda.bus.companions import TransactionalOutbox


class MessagePublisher:
    """Builds and publishes the messages of one bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._declared: set[tuple[int, TypedMessage]] = set()

    def message(self, topic: Any, body: Any, options: PublishOptions) -> Messages:
        bus = self._bus
        if type(topic) is not str:
            topic, body, carried = addressed(topic, body)
            if carried is not None:
                self._topic_of(carried)
        if bus.prefix:
            topic, options = self._prefixed(topic, options)
        return options.message(topic, body, self._inherited(), bus.encoding, bus.now)

    def messages(self, topic: Any, values: Iterable[Any], options: PublishOptions) -> Messages:
        bus = self._bus
        if type(topic) is not str and (carried := carried_by(topic)) is not None:
            topic = self._topic_of(carried)
        if bus.prefix:
            topic, options = self._prefixed(topic, options)
        return options.messages(topic, values, self._inherited(), bus.encoding, bus.now())

    def _topic_of(self, carried: TypedMessage) -> str:
        # With an outbox the broker may be away; the queue's handler creates it.
        if carried.queue is not None and self._bus.outbox is None:
            self._declare(carried, carried.queue)
        return carried.topic

    def _declare(self, carried: TypedMessage, queue: str) -> None:
        """Create the queue of a type of messages before its first message, if this process may be the first."""
        broker, prefix = self._bus.broker, self._bus.prefix
        known = (id(broker), carried)
        if known not in self._declared and parent() is None:
            if not any(handler.queue == prefix + queue for handler in self._bus.handlers):
                rules = with_prefix(carried.rules, prefix)
                declaring.declare_published(broker, prefix + queue, prefix + carried.topic, rules)
            self._declared.add(known)

    def _inherited(self) -> dict[str, str]:
        """The headers that a message gets from the one being handled, and the bus's user."""
        context = current.get()
        inherited = child_headers(context.message.headers, context.message.id) if context is not None else {}
        if self._bus.user is not None:
            inherited.setdefault(names.USER, self._bus.user)
        return inherited

    @property
    def outbox(self) -> TransactionalOutbox:
        """The outbox of the bus, which must have one."""
        outbox = self._bus.outbox
        if outbox is None:
            raise RemudaError(
                "the bus has no outbox to publish in a transaction with; attach one: Outbox(bus, 'postgresql://…')"
            )
        return outbox

    def publish(self, messages: Messages, transaction: Any = None, once: str | None = None) -> list[str]:
        """Run the middleware, and store the messages: in the outbox inside a transaction, else at the broker."""
        connection = self._connection(transaction)
        stack = self._bus.stack
        if not stack.layers:
            return self._store(messages, connection, once)
        holder = self._bus.loop_holder
        ready = list(messages)
        try:
            for row, message in enumerate(messages):
                ready[row] = drive(stack.publishing(message), holder)
            ids = self._store(Messages.of(ready), connection, once)
        except Exception as error:
            for message in ready:
                drive(stack.unpublished(message, error), holder)
            raise
        for message in ready:
            drive(stack.published(message), holder)
        return ids

    async def publish_async(self, messages: Messages, transaction: Any = None) -> list[str]:
        """`publish` for coroutines."""
        connection = self._connection(transaction)
        stack = self._bus.stack
        if not stack.layers:
            return await self._store_async(messages, connection)
        ready = list(messages)
        try:
            for row, message in enumerate(messages):
                ready[row] = await drive_async(stack.publishing(message))
            ids = await self._store_async(Messages.of(ready), connection)
        except Exception as error:
            for message in ready:
                await drive_async(stack.unpublished(message, error))
            raise
        for message in ready:
            await drive_async(stack.published(message))
        return ids

    def _connection(self, given: Any) -> Any:
        """The connection in whose transaction to publish, if any."""
        if given is not None:
            return self.outbox.connection(given)
        return None if self._bus.outbox is None else self._bus.outbox.connection(None)

    def _store(self, messages: Messages, connection: Any, once: str | None = None) -> list[str]:
        if connection is not None:
            return self.outbox.write(messages, connection)
        if once is not None:
            return self._bus.broker.publish(messages, unbound=UNROUTED, once=once).ids
        return self.deliver(messages)

    async def _store_async(self, messages: Messages, connection: Any) -> list[str]:
        if connection is not None:
            return await self.outbox.write_async(messages, connection)
        if parent() is not None:
            return self.deliver(messages)
        if self._bus.outbox is not None:
            import asyncio

            return await asyncio.to_thread(self.deliver, messages)
        if not messages.bodies:
            return []
        return (await self._bus.broker.aio.publish(messages, unbound=UNROUTED)).ids

    def deliver(self, messages: Messages) -> list[str]:
        """Pass messages to the broker without middleware; from a handler's process, through its parent."""
        if not messages.bodies:
            return []
        connection = parent()
        if connection is not None:
            return connection.publish(messages)
        outbox = self._bus.outbox
        ids = self._to_broker(messages) if outbox is None else outbox.deliver(messages, self._to_broker)
        watchdog.check()
        return ids

    def _to_broker(self, messages: Messages) -> list[str]:
        return self._bus.broker.publish(messages, unbound=UNROUTED).ids

    def publish_once(self, messages: Messages, once: str, transaction: Any = None) -> str:
        """Publish unless a message with this id waits or is being handled ("waiting"), or is known at all ("ever").

        The broker decides, in the same step in which it stores the message.
        """
        if self._connection(transaction) is not None:
            raise InvalidMessage(
                "unique= and idempotency_key= ask the broker, which does not see what a transaction holds; publish "
                "with id= instead. Nothing was stored"
            )
        if parent() is not None:
            raise RemudaError("a handler in a process of its own cannot publish with unique= or idempotency_key=")
        try:
            return self.publish(messages, once=once)[0]
        except Duplicate:
            return messages.id(0)

    def _prefixed(self, topic: str, options: PublishOptions) -> tuple[str, PublishOptions]:
        import msgspec

        if not isinstance(topic, str):
            raise InvalidMessage(f"a topic must be a string, not {shown(topic)}; nothing was stored")
        prefix = self._bus.prefix
        changes: dict[str, Any] = {}
        if isinstance(options.callback, str) and not options.callback.startswith(names.REPLY_TOPIC):
            changes["callback"] = prefix + options.callback
        if isinstance(options.failure_callback, str):
            changes["failure_callback"] = prefix + options.failure_callback
        if prefix and isinstance(options.topics, list | tuple):
            changes["topics"] = [prefix + one if isinstance(one, str) else one for one in options.topics]
        return prefix + topic, msgspec.structs.replace(options, **changes) if changes else options
