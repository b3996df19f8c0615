"""`call`: publishes a message and waits for the handler's reply."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.bus.publishing import bodies
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.publish_options import read_publish_options
from remuda.bus.publishing.replies import ReplyListener
from remuda.model.errors import InvalidMessage, RemudaError
from remuda.model.message import Message
from remuda.model.values.durations import SECOND, Duration
from remuda.model.values.option_reading import read_duration

if TYPE_CHECKING:
    from remuda.bus.bus import Bus
    from remuda.bus.handlers.handler_registry import HandlerRegistry
    from remuda.bus.publishing.publisher import MessagePublisher
    from remuda.bus.testing import TestBus


class Calls:
    """The calls of one bus, whose replies come to one listener."""

    def __init__(self, bus: Bus, publisher: MessagePublisher, registry: HandlerRegistry) -> None:
        self.listener: ReplyListener | None = None
        self.test: TestBus | None = None
        """Set while the bus is under test: a call then lets the test handle messages while it waits."""
        self._bus = bus
        self._publisher = publisher
        self._registry = registry
        self._opening = threading.Lock()

    def call(self, topic: str, body: Any, timeout: Duration, result: Any, options: Mapping[str, Any]) -> Any:
        bodies.read_wanted("result", result)
        self._refuse_to_block_its_handlers(topic)
        message, future = self.ask(topic, body, timeout, options)
        try:
            if (test := self.test) is not None:
                test.serve(future)
            reply = future.result(read_duration("timeout", timeout) / SECOND)
        except TimeoutError:
            if future.done():
                raise
            raise self._no_reply(topic, timeout) from None
        finally:
            self._forget(message)
        return bodies.decode(reply.body, reply.mime_type, result)

    async def call_async(
        self, topic: str, body: Any, timeout: Duration, result: Any, options: Mapping[str, Any]
    ) -> Any:
        import asyncio

        bodies.read_wanted("result", result)
        message, future = await asyncio.to_thread(self.ask, topic, body, timeout, options)
        try:
            if (test := self.test) is not None:
                await test.serve_async(future)
            reply = await asyncio.wait_for(asyncio.wrap_future(future), read_duration("timeout", timeout) / SECOND)
        except TimeoutError:
            raise self._no_reply(topic, timeout) from None
        finally:
            self._forget(message)
        return bodies.decode(reply.body, reply.mime_type, result)

    def ask(self, topic: str, body: Any, timeout: Duration, options: Mapping[str, Any]) -> tuple[str, Future[Message]]:
        """Publish with a callback to this bus; returns the message's id and the future of the reply."""
        bus = self._bus
        if options.get("callback") is not None:
            raise InvalidMessage("call waits for the reply itself, so it takes no callback; nothing was stored")
        if bus.outbox is not None and bus.outbox.connection(None) is not None:
            raise RemudaError(
                "a call inside a transaction would wait for ever: its message is sent only after the commit. Call "
                "before or after the transaction, or publish with a callback; nothing was stored"
            )
        deadline = bus.now() + read_duration("timeout", timeout)
        replies = self._listening()
        chosen = read_publish_options({**options, "callback": replies.topic})
        message = self._publisher.message(topic, body, chosen)[0]
        headers = {**message.headers, names.CALL_DEADLINE: str(deadline)}
        message = msgspec.structs.replace(message, id=message.id or str(uuid.uuid4()), headers=headers)
        future = replies.expect(message.id)
        try:
            bus.publish_messages([message])
        except BaseException:
            replies.forget(message.id)
            raise
        return message.id, future

    def _refuse_to_block_its_handlers(self, topic: str) -> None:
        bus = self._bus
        if not isinstance(topic, str) or not bus.runs_on_this_loop():
            return
        handlers = self._registry.taking(bus.prefix + topic)
        if any(handler.is_async for handler in handlers):
            raise RemudaError(
                f"the handler of {topic} runs on this loop, which call would block until the reply comes; write "
                "await bus.call_async(…). Nothing was stored"
            )

    def _no_reply(self, topic: str, timeout: Duration) -> TimeoutError:
        text = f"no reply from {topic} within {timeout}; the message is kept and may still be handled"
        if not self._bus.running:
            text += ". No handlers run in this process; start them with bus.start(), or elsewhere with remuda run"
        return TimeoutError(text)

    def close(self) -> None:
        with self._opening:
            if self.listener is not None:
                self.listener.close()
                self.listener = None

    def _listening(self) -> ReplyListener:
        broker = self._bus.broker
        with self._opening:
            if self.listener is None:
                self.listener = ReplyListener(broker)
            return self.listener

    def _forget(self, message: str) -> None:
        """Nobody waits for the reply to this message any more."""
        if (replies := self.listener) is not None:
            replies.forget(message)
