"""From what an application wants to say to messages that the broker has kept."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from remuda.bus.execution import watchdog
from remuda.bus.execution.processes.parent import parent
from remuda.bus.handlers.call import current
from remuda.bus.handlers.context import child_headers
from remuda.bus.handlers.loops import drive, drive_async
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.options import PublishOptions
from remuda.bus.publishing.replies import REPLY_TOPIC
from remuda.bus.publishing.system_queues import UNROUTED
from remuda.model.errors import Duplicate, InvalidMessage, NotFound, PartlyRefused, RemudaError
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.state import LIVE

if TYPE_CHECKING:
    from remuda.bus.bus import Bus


class Publisher:
    """Makes messages of one bus, takes them through its middleware, and hands them to the broker."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._once = threading.Lock()

    def message(self, topic: str, body: Any, options: PublishOptions) -> Messages:
        bus = self._bus
        if bus.prefix:
            topic, options = self._prefixed(topic, options)
        context = current.get()
        inherited = child_headers(context.message.headers, context.message.id) if context is not None else {}
        if bus.user is not None:
            inherited.setdefault(names.USER, bus.user)
        return options.message(topic, body, inherited, bus.encoding, bus.now())

    def messages(self, topic: str, values: Iterable[Any], options: PublishOptions) -> Messages:
        bus = self._bus
        if bus.prefix:
            topic, options = self._prefixed(topic, options)
        context = current.get()
        inherited = child_headers(context.message.headers, context.message.id) if context is not None else {}
        if bus.user is not None:
            inherited.setdefault(names.USER, bus.user)
        return options.messages(topic, values, inherited, bus.encoding, bus.now())

    def publish(self, messages: Messages) -> list[str]:
        """Through all middleware to the broker."""
        stack = self._bus.stack
        if not stack.layers:
            return self.deliver(messages)
        holder = self._bus.loop_holder
        ready = list(messages)
        try:
            for row, message in enumerate(messages):
                ready[row] = drive(stack.publishing(message), holder)
            ids = self.deliver(Messages.of(ready))
        except Exception as error:
            for message in ready:
                drive(stack.unpublished(message, error), holder)
            raise
        for message in ready:
            drive(stack.published(message), holder)
        return ids

    async def publish_async(self, message: Message) -> str:
        stack = self._bus.stack
        try:
            message = await drive_async(stack.publishing(message))
            if parent() is not None:
                given = self.deliver(Messages.of([message]))[0]
            else:
                given = (await self._bus.broker.aio.publish(message, unbound=UNROUTED)).id
        except Exception as error:
            await drive_async(stack.unpublished(message, error))
            raise
        await drive_async(stack.published(message))
        return given

    def deliver(self, messages: Messages) -> list[str]:
        """Give messages to the broker, past all middleware; from a process of a handler, through its parent."""
        if not messages.bodies:
            return []
        connection = parent()
        if connection is not None:
            return connection.publish(messages)
        ids = self._bus.broker.publish(messages, unbound=UNROUTED).ids
        watchdog.check()
        return ids

    def publish_once(self, messages: Messages, message_id: str, *, ever: bool) -> str:
        """Publish unless a message with this id is still waiting or being handled, or, with `ever`, is known at all."""
        if parent() is not None:
            raise RemudaError("a handler in a process of its own cannot publish with unique= or idempotency_key=")
        with self._once:
            if self._is_known(message_id, ever):
                return message_id
            try:
                return self.publish(messages)[0]
            except (Duplicate, PartlyRefused):
                # Another process was faster.
                return message_id

    def _is_known(self, message_id: str, ever: bool) -> bool:
        try:
            document = self._bus.broker.message(message_id)
        except NotFound:
            return False
        return ever or any(view.state in LIVE for view in document.queues)

    def _prefixed(self, topic: str, options: PublishOptions) -> tuple[str, PublishOptions]:
        import msgspec

        if not isinstance(topic, str):
            raise InvalidMessage(f"a topic must be a text, not {topic!r}; nothing was stored")
        prefix = self._bus.prefix
        changes = {}
        if isinstance(options.callback, str) and not options.callback.startswith(REPLY_TOPIC):
            changes["callback"] = prefix + options.callback
        if isinstance(options.failure_callback, str):
            changes["failure_callback"] = prefix + options.failure_callback
        return prefix + topic, msgspec.structs.replace(options, **changes) if changes else options
