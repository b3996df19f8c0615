"""The bus: publish, send and call; handlers by decorator; run."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import msgspec

from remuda.broker.clock import Clock
from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.bus import bodies, child
from remuda.bus import headers as names
from remuda.bus.calls import Replies
from remuda.bus.context import Context, child_headers
from remuda.bus.crew import Work
from remuda.bus.handler import ExecutorKind, Handler, HandlerOptions, handler_id, plan
from remuda.bus.internal import CALLBACKS, UNROUTED, internal_handlers
from remuda.bus.invoke import Call, current
from remuda.bus.middleware import Middleware, Stack
from remuda.bus.outcome import Reply
from remuda.bus.retry import RetrySpec, policy
from remuda.bus.runner import Runner
from remuda.bus.settings import QueueSettings, Settings
from remuda.bus.testing import TestBus
from remuda.core.operators import Selection
from remuda.core.receipts import Receipt
from remuda.model.durations import SECOND, Duration, micros
from remuda.model.errors import InvalidOption, RemudaError
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages
from remuda.model.options import read_enum
from remuda.model.topics import matches

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("remuda.bus")

LEASE: Final = "60s"
"""How long a worker may be silent; it renews its lease while a handler runs."""


class Bus:
    """A message bus at a URL. Nothing is opened before it is used."""

    def __init__(
        self,
        url: str | os.PathLike[str] = "memory://",
        *,
        settings: Mapping[str, Any] | Settings | None = None,
        config: str | os.PathLike[str] | None = None,
        middleware: Sequence[Middleware] = (),
        encoding: str = "json",
        user: str | None = None,
        on_threshold: Callable[[str, str, str], None] | None = None,
        clock: Clock | None = None,
        **broker_options: Any,
    ) -> None:
        self.url = url
        self.user = user
        self.encoding = encoding
        self.stack = Stack(middleware)
        self.settings = settings if isinstance(settings, Settings) else Settings.load(settings, config)
        self.handlers: list[Handler] = []
        self.on_threshold = on_threshold
        self._clock = clock
        self._broker_options = broker_options
        self._broker: Broker | None = None
        self._replies: Replies | None = None
        self._runner: Runner | None = None
        self._opening = threading.RLock()

    # Handlers

    def subscribe(
        self,
        *topics: str,
        queue: str | None = None,
        group: str | None = None,
        retry: RetrySpec = None,
        timeout: Duration | None = None,
        failover: str | None = None,
        threads: int | None = None,
        executor: ExecutorKind | str | None = None,
        batch: int | None = None,
    ) -> Callable[[F], F]:
        """Handle messages under these topics; `*` stands for one word, `#` for any number.

        Handlers with one `group` (or `queue`) share a queue and compete; others each get every message.
        """
        if not topics:
            raise InvalidOption("subscribe needs at least one topic")
        options = HandlerOptions(
            retry=policy(retry),
            timeout=None if timeout is None else micros(timeout),
            failover=failover,
            threads=_at_least_one("threads", threads),
            executor=None if executor is None else read_enum("executor", executor, ExecutorKind),
            batch=_at_least_one("batch", batch),
        )

        def register(function: F) -> F:
            name = handler_id(function)
            call = plan(function, batch=batch is not None)
            self.add(Handler(name, queue or group or name, topics, function, options, call))
            return function

        return register

    def subscribe_class(self, instance: object) -> None:
        """Register the methods of an object that were marked with `handles`."""
        for _, method in inspect.getmembers(instance, inspect.ismethod):
            for topics, options in getattr(method.__func__, "__remuda_handles__", ()):
                self.subscribe(*topics, **options)(method)

    def add(self, handler: Handler) -> None:
        """Register a handler made by hand."""
        for other in self.handlers:
            if other.queue == handler.queue and other.options != handler.options:
                raise InvalidOption(
                    f"handlers {other.id} and {handler.id} share the queue {handler.queue} but differ in their options; "
                    "give them the same, or another group"
                )
        self.handlers.append(handler)
        if self._broker is not None:
            self._declare(self._broker)

    # Publishing

    def publish(
        self,
        topic: str,
        body: Any = None,
        *,
        callback: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str = "",
        object: str | None = None,
        key: str | None = None,
        priority: Priority = Priority.NORMAL,
        delay: Duration | None = None,
        at: int | None = None,
        expires: Duration | None = None,
        user: str | None = None,
    ) -> str:
        """Hand a message over; its id comes back once it is kept. Handlers run elsewhere, later."""
        message = self._message(
            topic, body, callback=callback, headers=headers, id=id, object=object, key=key, priority=priority,
            delay=delay, at=at, expires=expires, user=user,
        )  # fmt: skip
        return self.publish_messages([message])[0]

    def publish_many(self, topic: str, bodies: Iterable[Any], **options: Any) -> list[str]:
        """Publish many bodies under one topic at the price of one; all are kept when it returns."""
        return self.publish_messages([self._message(topic, body, **options) for body in bodies])

    def publish_messages(self, messages: Sequence[Message]) -> list[str]:
        """Publish messages made by hand."""
        ready = [self.stack.publishing(message) for message in messages]
        if not ready:
            return []
        try:
            if child.in_child():
                ids: list[str] = child.ask_parent(child.PUBLISH, (ready,))
            else:
                ids = self.deliver(ready)
        except Exception as error:
            for message in ready:
                self.stack.unpublished(message, error)
            raise
        for message in ready:
            self.stack.published(message)
        return ids

    def deliver(self, messages: Sequence[Message]) -> list[str]:
        """Give messages to the broker, past all middleware."""
        receipt: Receipt = self.broker.publish(Messages.of(messages), unbound=UNROUTED)
        return receipt.ids

    async def publish_async(self, topic: str, body: Any = None, **options: Any) -> str:
        """`publish` for coroutines."""
        message = self.stack.publishing(self._message(topic, body, **options))
        try:
            receipt = await self.broker.aio.publish(message, unbound=UNROUTED)
        except Exception as error:
            self.stack.unpublished(message, error)
            raise
        self.stack.published(message)
        return receipt.id

    def send(self, topic: str, body: Any = None, **options: Any) -> list[Any]:
        """Run the subscribed handlers now, in this thread, and give their results; their errors are raised here."""
        message = self.stack.publishing(self._message(topic, body, **options))
        return [self._call(handler, message).value() for handler in self._subscribed(topic)]

    async def send_async(self, topic: str, body: Any = None, **options: Any) -> list[Any]:
        """`send` for coroutines."""
        message = self.stack.publishing(self._message(topic, body, **options))
        return [await self._call(handler, message).value_async() for handler in self._subscribed(topic)]

    def call(self, topic: str, body: Any = None, *, timeout: Duration = "30s", result: Any = Any, **options: Any) -> Any:
        """Publish and wait for the answer of whoever handles it, here or elsewhere."""
        future = self._ask(topic, body, options)
        return self._answer(future, timeout, result, topic)

    async def call_async(
        self, topic: str, body: Any = None, *, timeout: Duration = "30s", result: Any = Any, **options: Any
    ) -> Any:
        """`call` for coroutines."""
        future = await asyncio.to_thread(self._ask, topic, body, options)
        try:
            message = await asyncio.wait_for(asyncio.wrap_future(future), micros(timeout) / SECOND)
        except TimeoutError:
            raise _no_answer(topic, timeout) from None
        return bodies.decode(message.body, message.mime_type, result)

    # Running

    @property
    def broker(self) -> Broker:
        """The broker, opened when it is first needed."""
        with self._opening:
            if self._broker is None:
                broker = open_broker(self.url, clock=self._clock, **self._broker_options)
                try:
                    self._declare(broker)
                except BaseException:
                    broker.close()
                    raise
                self._broker = broker
            return self._broker

    def run(self, *, until_idle: bool = False, grace: Duration = "10s", timeout: Duration | None = None) -> None:
        """Handle messages until `stop` is called, or until none is left to be handled now."""
        runner = self.start()
        try:
            if until_idle:
                runner.wait_until_idle(None if timeout is None else micros(timeout) / SECOND)
            else:
                runner.wait()
        except KeyboardInterrupt:
            _log.info("stopping; handlers have %s to finish", grace)
        finally:
            runner.stop(micros(grace) / SECOND)
            self._runner = None

    def start(self) -> Runner:
        """Handle messages in the background."""
        if self._runner is not None and self._runner.running:
            raise RemudaError("the bus is already running")
        self._runner = Runner(self.works(), self.broker, self.encoding, self.publish_messages)
        self._runner.start()
        return self._runner

    def stop(self) -> None:
        """Ask a running bus to stop; handlers finish first."""
        if self._runner is not None:
            self._runner.ask_to_stop()

    def close(self) -> None:
        """Stop, and let the broker go."""
        with self._opening:
            if self._runner is not None:
                self._runner.stop(10)
                self._runner = None
            if self._replies is not None:
                self._replies.close()
                self._replies = None
            if self._broker is not None:
                self._broker.close()
                self._broker = None

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def health(self) -> dict[str, bool]:
        """Live: the broker answers. Ready: handlers are running too."""
        try:
            self.broker.queues()
            live = True
        except RemudaError:
            live = False
        return {"live": live, "ready": live and self._runner is not None and self._runner.running}

    def testing(self) -> TestBus:
        """The same handlers on a bus in memory, with a clock that the test moves (B18)."""
        return TestBus(self)

    # Dead letters

    def reprocess(self, queue: str, *, who: str | None = None, **filters: Any) -> int:
        """Send dead, invalid and unwanted messages back to their queue."""
        return self.broker.reprocess(queue, Selection(**filters), who=who or self.user)

    def clear(self, queue: str, *, who: str | None = None) -> int:
        """End everything that waits in a queue."""
        return self.broker.clear(queue, who=who or self.user)

    # Inside

    def queue_settings(self) -> dict[str, QueueSettings]:
        """What holds for each queue; checked as a whole."""
        chosen = {handler.queue: self.settings.for_queue(handler.queue, handler.options) for handler in self.handlers}
        for name in self.settings.queue_names() - set(chosen):
            _log.warning("a setting names the queue %s, which no handler here has", name)
        _refuse_cycles(chosen)
        return chosen

    def works(self) -> list[Work]:
        """The work on each queue, for whoever runs it."""
        chosen = self.queue_settings()
        works = [
            Work(
                queue, [handler for handler in self.handlers if handler.queue == queue], settings, self.broker,
                self.stack, self.encoding, self.send_reply, self.on_threshold,
            )
            for queue, settings in chosen.items()
        ]  # fmt: skip
        for handler in internal_handlers(self):
            settings = self.settings.for_queue(handler.queue, handler.options)
            works.append(
                Work(handler.queue, [handler], settings, self.broker, Stack(), self.encoding, self.send_reply, None)
            )
        return works

    def send_reply(self, message: Message, reply: Reply) -> None:
        """Publish a handler's answer. If the broker refuses it, it is kept and tried again by itself."""
        headers = {**child_headers(message.headers, message.id), **reply.headers}
        answer = Message(reply.topic, reply.body, mime_type=reply.mime_type, headers=headers)
        try:
            self.publish_messages([answer])
        except RemudaError as error:
            _log.warning("the answer to %s could not be published to %s: %s; it will be tried again", message.id, reply.topic, error)
            self.broker.publish(answer, queue=CALLBACKS)

    def _declare(self, broker: Broker) -> None:
        patterns: dict[str, list[str]] = {}
        for handler in self.handlers:
            patterns.setdefault(handler.queue, []).extend(handler.topics)
        for queue, settings in self.queue_settings().items():
            _declare(broker, queue, patterns[queue], settings.queue_size)
        for queue in (UNROUTED, CALLBACKS):
            _declare(broker, queue, [], 500)

    def _message(
        self,
        topic: str,
        body: Any = None,
        *,
        callback: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str = "",
        object: str | None = None,
        key: str | None = None,
        priority: Priority = Priority.NORMAL,
        delay: Duration | None = None,
        at: int | None = None,
        expires: Duration | None = None,
        user: str | None = None,
    ) -> Message:
        context: Context | None = current.get()
        merged = child_headers(context.headers, context.message.id) if context is not None else {}
        merged.update(headers or {})
        if callback is not None:
            merged[names.CALLBACK] = callback
        if (who := user or merged.get(names.USER) or self.user) is not None:
            merged[names.USER] = who
        encoded, mime_type = bodies.encode(body, self.encoding)
        if body is not None and not isinstance(body, bytes):
            merged.setdefault(names.MESSAGE_TYPE, bodies.type_name(body))
        now = self._now() if delay is not None or expires is not None else 0
        return Message(
            topic, encoded, id=id, object=object, key=key, mime_type=mime_type, headers=merged, priority=priority,
            due=now + micros(delay) if delay is not None else at,
            expires=now + micros(expires) if expires is not None else None,
        )  # fmt: skip

    def _now(self) -> int:
        return self._clock() if self._clock is not None else time.time_ns() // 1000

    def _subscribed(self, topic: str) -> list[Handler]:
        """One handler of each queue that takes this topic."""
        chosen: dict[str, Handler] = {}
        for handler in self.handlers:
            if any(matches(pattern, topic) for pattern in handler.topics):
                chosen.setdefault(handler.queue, handler)
        return list(chosen.values())

    def _call(self, handler: Handler, message: Message) -> Call:
        named = msgspec.structs.replace(message, id=message.id or f"sent-{uuid.uuid4()}")
        return Call(handler, [Context(named, handler.queue, handler.id, 1)], self.stack, self.encoding)

    def _ask(self, topic: str, body: Any, options: Mapping[str, Any]) -> Future[Message]:
        with self._opening:
            if self._replies is None:
                self._replies = Replies(self.broker)
        message = self._message(topic, body, callback=self._replies.topic, **options)
        message = msgspec.structs.replace(message, id=message.id or str(uuid.uuid4()))
        future = self._replies.expect(message.id)
        try:
            self.publish_messages([message])
        except BaseException:
            self._replies.forget(message.id)
            raise
        return future

    def _answer(self, future: Future[Message], timeout: Duration, result: Any, topic: str) -> Any:
        try:
            message = future.result(micros(timeout) / SECOND)
        except TimeoutError:
            raise _no_answer(topic, timeout) from None
        return bodies.decode(message.body, message.mime_type, result)


def handles(*topics: str, **options: Any) -> Callable[[F], F]:
    """Mark a method as a handler; `bus.subscribe_class(instance)` registers all that are marked."""

    def mark(function: F) -> F:
        marks = [*getattr(function, "__remuda_handles__", ()), (topics, options)]
        function.__remuda_handles__ = marks  # type: ignore[attr-defined]
        return function

    return mark


def _declare(broker: Broker, queue: str, patterns: Sequence[str], size: int) -> None:
    wanted: dict[str, Any] = {
        "type": "pull",
        "patterns": sorted(set(patterns)),
        "acknowledge_timeout": LEASE,
        "queue_size": size,
    }
    differs = broker.create_queue(queue, wanted).differs
    if "type" in differs:
        raise InvalidOption(f"queue {queue!r} exists as a {differs['type'][1].value} queue; the bus needs a pull queue")
    changes = {name: wanted[name] for name in differs if name in wanted}
    if changes:
        broker.configure_queue(queue, who="bus", **changes)


def _refuse_cycles(chosen: Mapping[str, QueueSettings]) -> None:
    for start in chosen:
        seen, queue = [start], chosen[start].failover
        while queue is not None and queue in chosen:
            if queue in seen:
                raise InvalidOption(f"failover goes in a circle: {' → '.join([*seen, queue])}; one of them must end it")
            seen.append(queue)
            queue = chosen[queue].failover


def _at_least_one(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InvalidOption(f"{name} must be at least 1, not {value!r}")
    return value


def _no_answer(topic: str, timeout: Duration) -> TimeoutError:
    return TimeoutError(f"no answer from {topic} within {timeout}; the message is kept and may still be handled")
