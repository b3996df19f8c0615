"""Creates the processor of each queue of a bus, and the runner for all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from remuda.bus import declaring
from remuda.bus.broker_api import Broker
from remuda.bus.execution.failure_policy import Threshold
from remuda.bus.execution.processor import QueueProcessor
from remuda.bus.execution.runner import Runner
from remuda.bus.handlers.context import child_headers
from remuda.bus.handlers.dispatcher import Dispatcher
from remuda.bus.handlers.environment import CallEnvironment
from remuda.bus.handlers.handler import Handler
from remuda.bus.handlers.middleware import MiddlewareStack
from remuda.bus.publishing.result_messages import Reply
from remuda.bus.settings.settings import QueueSettings
from remuda.bus.system_handlers import system_handlers
from remuda.bus.workflows import told
from remuda.model.message import Message
from remuda.model.queues.system_queues import CALLBACKS

if TYPE_CHECKING:
    import asyncio

    from remuda.bus.bus import Bus

_log = logging.getLogger("remuda.bus")


class Processors:
    """Creates processors for each run or test, from the handlers and settings at that time."""

    def __init__(
        self, bus: Bus, environment: Callable[[MiddlewareStack, QueueSettings | None], CallEnvironment]
    ) -> None:
        self._bus = bus
        self._environment = environment

    def queue_settings(self) -> dict[str, QueueSettings]:
        bus = self._bus
        chosen = {
            handler.queue: bus.settings.for_queue(handler.queue.removeprefix(bus.prefix), handler.options)
            for handler in bus.handlers
        }
        if bus.prefix:
            chosen = {
                queue: msgspec.structs.replace(one, failover=self._with_prefix(one.failover))
                for queue, one in chosen.items()
            }

        def failover_of(queue: str) -> str | None:
            if queue in chosen:
                return chosen[queue].failover
            # Its handlers run elsewhere, with the same settings.
            set_here = bus.settings.own("message.failover", queue.removeprefix(bus.prefix))
            return None if set_here is None else self._with_prefix(set_here.value)

        declaring.refuse_cycles(chosen, failover_of)
        handlers = {queue: [one for one in bus.handlers if one.queue == queue] for queue in chosen}
        declaring.refuse_deaf_targets(handlers, failover_of)
        return chosen

    def declare(self, broker: Broker) -> None:
        """Declare the queues of all handlers at a broker."""
        patterns: dict[str, list[str]] = {}
        for handler in self._bus.handlers:
            patterns.setdefault(handler.queue, []).extend(handler.topics)
        declaring.declare_queues(broker, self._bus.schedules.fitted(broker, self.queue_settings()), patterns)

    def all(self) -> list[QueueProcessor]:
        bus = self._bus
        made = []
        for queue, settings in self.queue_settings().items():
            handlers = [handler for handler in bus.handlers if handler.queue == queue]
            made.append(self._processor(handlers, settings, bus.stack, bus.on_threshold))
        for handler in system_handlers(bus):
            settings = bus.settings.for_queue(handler.queue, handler.options)
            made.append(self._processor([handler], settings, MiddlewareStack(), None))
        return made

    def runner(self, loop: asyncio.AbstractEventLoop | None) -> Runner:
        """A runner for all queues. Warns of settings and queues that no handler here has."""
        bus = self._bus
        processors = self.all()
        mine = [processor.queue for processor in processors]
        known = [queue.removeprefix(bus.prefix) for queue in mine]
        for name in sorted(bus.settings.unknown_queues(known)):
            _log.warning("a setting names the queue %s, which no handler here has", name)
        targets = [one.settings.failover for one in processors if one.settings.failover is not None]
        bus.schedules.plan_all()
        runner = Runner(processors, bus.broker, bus.serve_process, loop)
        # Once handlers are running: a broker with many queues takes a while to list them.
        runner.on_started = lambda: declaring.warn_of_orphans(bus.broker, bus.url, mine, targets)
        return runner

    def _processor(
        self,
        handlers: Sequence[Handler],
        settings: QueueSettings,
        stack: MiddlewareStack,
        on_threshold: Threshold | None,
    ) -> QueueProcessor:
        bus = self._bus
        dispatcher = Dispatcher(handlers[0].queue, handlers, settings, self._environment(stack, settings))
        if any(topic in bus.schedules.by_topic for handler in handlers for topic in handler.topics):
            dispatcher.gate = bus.schedules.begin
        return QueueProcessor(dispatcher, bus.broker, self._send_reply, on_threshold, bus.now)

    def _send_reply(self, message: Message, reply: Reply) -> None:
        """Publish the reply of a call. One that cannot be published is kept in `CALLBACKS` and retried from there."""
        bus = self._bus
        if reply.topic.startswith(told.PREFIX):
            told.tell(bus.broker, reply.topic, reply.body, reply.mime_type, reply.headers)
            return
        headers = {**child_headers(message.headers, message.id), **reply.headers}
        answer = Message(reply.topic, reply.body, id=reply.id, mime_type=reply.mime_type, headers=headers)
        if reply.queue is not None:
            bus.broker.publish(answer, queue=reply.queue)
            return
        try:
            bus.publish_messages([answer])
        except Exception as error:
            _log.warning(
                "the reply to %s could not be published to %s; it is kept and will be retried: %s",
                message.id, reply.topic, error,
            )  # fmt: skip
            bus.broker.publish(answer, queue=CALLBACKS)

    def _with_prefix(self, failover: str | None) -> str | None:
        prefix = self._bus.prefix
        return failover if failover is None or failover.startswith(prefix) else prefix + failover
