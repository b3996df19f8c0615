"""`send`: runs the subscribed handlers at once in the sender's thread; nothing is stored."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.bus.handlers.call import HandlerCall, is_plain
from remuda.bus.handlers.context import Context
from remuda.bus.handlers.environment import CallEnvironment
from remuda.bus.handlers.handler import Handler
from remuda.bus.handlers.handler_registry import HandlerRegistry
from remuda.bus.handlers.loops import drive, drive_async
from remuda.bus.handlers.middleware import MiddlewareStack
from remuda.bus.publishing.publish_options import read_publish_options
from remuda.bus.publishing.publisher import MessagePublisher
from remuda.model.errors import InvalidMessage
from remuda.model.message import Message

if TYPE_CHECKING:
    from remuda.bus.bus import Bus


class Sending:
    """Sends through the middleware of one bus to one handler of each queue."""

    def __init__(
        self,
        bus: Bus,
        publisher: MessagePublisher,
        registry: HandlerRegistry,
        environment: Callable[[MiddlewareStack], CallEnvironment],
    ) -> None:
        self._bus = bus
        self._publisher = publisher
        self._registry = registry
        self._environment = environment

    def send(self, topic: str, body: Any, options: Mapping[str, Any]) -> list[Any]:
        message = self._message(topic, body, options)
        stack, holder = self._bus.stack, self._bus.loop_holder
        try:
            message = drive(stack.publishing(message), holder)
            results = [self._call(handler, message).value() for handler in self._registry.taking(message.name)]
        except Exception as error:
            drive(stack.unpublished(message, error), holder)
            raise
        drive(stack.published(message), holder)
        return results

    async def send_async(self, topic: str, body: Any, options: Mapping[str, Any]) -> list[Any]:
        message = self._message(topic, body, options)
        stack = self._bus.stack
        try:
            message = await drive_async(stack.publishing(message))
            takers = self._registry.taking(message.name)
            results = [await self._call(handler, message).value_async() for handler in takers]
        except Exception as error:
            await drive_async(stack.unpublished(message, error))
            raise
        await drive_async(stack.published(message))
        return results

    def _message(self, topic: str, body: Any, options: Mapping[str, Any]) -> Message:
        for name in ("callback", "delay", "at", "expires", "priority"):
            if options.get(name) is not None:
                raise InvalidMessage(f"send runs the handlers here and now, so it takes no {name}; publish does")
        message = self._publisher.message(topic, body, read_publish_options(options))[0]
        return msgspec.structs.replace(message, id=message.id or f"sent-{uuid.uuid4()}")

    def _call(self, handler: Handler, message: Message) -> HandlerCall:
        context = Context(message, handler.queue, handler.id, 1)
        environment = self._environment(self._bus.stack)
        return HandlerCall(handler, (context,), environment, is_plain(handler, environment))
