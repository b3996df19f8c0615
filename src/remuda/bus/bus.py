"""The bus: publish, send and call; handlers by decorator; run."""

from __future__ import annotations

import asyncio
import getpass
import inspect
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import msgspec

from remuda.broker.clock import Clock, steady_clock
from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.bus import bodies, child, watchdog
from remuda.bus import headers as names
from remuda.bus.calls import Replies
from remuda.bus.companions import Companion, TransactionalOutbox, idle
from remuda.bus.context import Context, child_headers
from remuda.bus.crew import Work
from remuda.bus.duties import Duties
from remuda.bus.handler import ExecutorKind, Handler, HandlerOptions, handler_id, plan
from remuda.bus.internal import CALLBACKS, INTERNAL, UNROUTED, internal_handlers
from remuda.bus.invoke import Call, current
from remuda.bus.judge import Threshold
from remuda.bus.letters import DeadLetter, Moment, Posting, dead_letter, selection
from remuda.bus.middleware import Middleware, Stack
from remuda.bus.outcome import Reply
from remuda.bus.retry import RetrySpec, policy
from remuda.bus.runner import Runner
from remuda.bus.settings import QueueSettings, Settings
from remuda.bus.signals import stopped_by_sigterm
from remuda.bus.testing import ManualClock, TestBus
from remuda.model.durations import SECOND, Duration, micros
from remuda.model.errors import InvalidMessage, InvalidOption, RemudaError
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages
from remuda.model.options import QueueType, read_enum
from remuda.model.topics import check_topic

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
        bodies.check_encoding(encoding)
        self.url = url
        self.user = user
        self.encoding = encoding
        self.stack = Stack(middleware)
        self.settings = settings if isinstance(settings, Settings) else Settings.load(settings, config)
        self.handlers: list[Handler] = []
        self.on_threshold = on_threshold
        # The broker gets it too: delays and expiry are reckoned by one clock, even if the machine's is set meanwhile.
        self._clock = clock or steady_clock()
        self._broker_options = broker_options
        self._broker: Broker | None = None
        self._replies: Replies | None = None
        self._runner: Runner | None = None
        self._opening = threading.RLock()
        self.outbox: TransactionalOutbox | None = None
        self.companions: list[Companion] = []
        """What runs as long as the bus does: relays."""

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
        _check_topics(topics)
        if queue is not None and group is not None and queue != group:
            raise InvalidOption(
                f"a group is a queue that handlers share: give queue={queue!r} or group={group!r}, not both"
            )
        if timeout is not None and not micros(timeout):
            raise InvalidOption(f"timeout must be longer than zero, not {timeout!r}")
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
            chosen = queue or group or name
            if chosen == name and any(other.id == name and other.function != function for other in self.handlers):
                raise InvalidOption(
                    f"two handlers are called {name} and would compete for one queue; give one of them another, "
                    "or both a group if that is meant"
                )
            self.add(Handler(name, chosen, topics, function, options, plan(function, batch=batch is not None)))
            return function

        return register

    def subscribe_class(self, instance: object) -> None:
        """Register the methods of an object that were marked with `handles`."""
        for _, method in inspect.getmembers(instance, inspect.ismethod):
            for topics, options in getattr(method.__func__, "__remuda_handles__", ()):
                self.subscribe(*topics, **options)(method)

    def add(self, handler: Handler) -> None:
        """Register a handler made by hand."""
        if self._runner is not None and self._runner.running:
            raise RemudaError(f"the bus is running; register {handler.id} before it starts")
        if handler.queue in INTERNAL:
            raise InvalidOption(f"the queue {handler.queue} is the bus's own; give {handler.id} another")
        for other in self.handlers:
            if other.queue != handler.queue:
                continue
            if other.options != handler.options:
                raise InvalidOption(
                    f"handlers {other.id} and {handler.id} share the queue {handler.queue} but differ in their "
                    "options; give them the same, or another group"
                )
            if handler.plan.batch and other.function != handler.function:
                raise InvalidOption(
                    f"handlers {other.id} and {handler.id} take lists and cannot share the queue {handler.queue}: "
                    "a list may hold messages for both"
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
        mime_type: str | None = None,
        priority: Priority | str = Priority.NORMAL,
        delay: Duration | None = None,
        at: Moment | None = None,
        expires: Duration | None = None,
        user: str | None = None,
        transaction: Any = None,
    ) -> str:
        """Hand a message over; its id comes back once it is kept. Handlers run elsewhere, later.

        `mime_type` says what bytes are; of other values it is known. With `transaction`, the connection or session of
        your database, the message is sent if and when its transaction is committed.
        """
        posting = Posting(callback, headers, id, object, key, mime_type, priority, delay, at, expires, user)
        return self._publish(self._posted(topic, (body,), posting), transaction)[0]

    def publish_many(self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Any) -> list[str]:
        """Publish many bodies under one topic at the price of one; all are kept when it returns."""
        if options.get("id"):
            raise InvalidMessage("one id cannot be given to many messages; nothing was stored")
        return self._publish(self._posted(topic, bodies, Posting(**options)), transaction)

    def publish_messages(self, messages: Sequence[Message], *, transaction: Any = None) -> list[str]:
        """Publish messages made by hand."""
        return self._publish(Messages.of(messages), transaction)

    def transaction(self, connection: Any) -> Any:
        """`with bus.transaction(connection):` publishes inside are part of the connection's transaction, which ends
        with the block; `async with` for connections that are awaited."""
        return self._outbox().transaction(connection)

    def _outbox(self) -> TransactionalOutbox:
        if self.outbox is None:
            raise RemudaError(
                "the bus has no outbox to publish in a transaction with; attach one: Outbox(bus, 'postgresql://…')"
            )
        return self.outbox

    def _connection(self, given: Any) -> Any:
        """The connection in whose transaction to publish, if any."""
        if given is not None:
            return self._outbox().connection(given)
        return None if self.outbox is None else self.outbox.connection(None)

    def _publish(self, messages: Messages, transaction: Any = None) -> list[str]:
        connection = self._connection(transaction)
        if connection is not None:
            return self._keep(messages, lambda ready: self._outbox().write(ready, connection))
        return self._keep(messages, self.deliver)

    def _keep(self, messages: Messages, keep: Callable[[Messages], list[str]]) -> list[str]:
        if not self.stack.layers:
            return keep(messages)
        ready = list(messages)
        try:
            for row, message in enumerate(messages):
                ready[row] = self.stack.publishing(message)
            ids = keep(Messages.of(ready))
        except Exception as error:
            for message in ready:
                self.stack.unpublished(message, error)
            raise
        for message in ready:
            self.stack.published(message)
        return ids

    def deliver(self, messages: Messages) -> list[str]:
        """Give messages to the broker, past all middleware; from a process of a handler, through its parent."""
        if not messages.bodies:
            return []
        line = child.line()
        if line is not None:
            return line.publish(messages)
        ids = self._give(messages) if self.outbox is None else self.outbox.deliver(messages, self._give)
        watchdog.check()
        return ids

    def _give(self, messages: Messages) -> list[str]:
        return self.broker.publish(messages, unbound=UNROUTED).ids

    async def publish_async(self, topic: str, body: Any = None, *, transaction: Any = None, **options: Any) -> str:
        """`publish` for coroutines."""
        message = self._message(topic, body, **options)
        connection = self._connection(transaction)
        try:
            message = self.stack.publishing(message)
            if connection is not None:
                given = (await self._outbox().write_async(Messages.of([message]), connection))[0]
            elif self.outbox is not None:
                given = (await asyncio.to_thread(self.deliver, Messages.of([message])))[0]
            elif child.line() is not None:
                given = self.deliver(Messages.of([message]))[0]
            else:
                given = (await self.broker.aio.publish(message, unbound=UNROUTED)).id
        except Exception as error:
            self.stack.unpublished(message, error)
            raise
        self.stack.published(message)
        return given

    async def publish_many_async(
        self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Any
    ) -> list[str]:
        """`publish_many` for coroutines."""
        connection = self._connection(transaction)
        if connection is None:
            return await asyncio.to_thread(self.publish_many, topic, bodies, **options)
        if options.get("id"):
            raise InvalidMessage("one id cannot be given to many messages; nothing was stored")
        messages = self._posted(topic, bodies, Posting(**options))
        ready = [self.stack.publishing(message) for message in messages] if self.stack.layers else []
        try:
            ids = await self._outbox().write_async(Messages.of(ready) if ready else messages, connection)
        except Exception as error:
            for message in ready:
                self.stack.unpublished(message, error)
            raise
        for message in ready:
            self.stack.published(message)
        return ids

    def send(self, topic: str, body: Any = None, **options: Any) -> list[Any]:
        """Run the subscribed handlers now, in this thread, and give their results; their errors are raised here.

        One handler of each queue is run. Nothing is stored, so there is neither a retry nor a timeout.
        """
        message = self._message_to_send(topic, body, options)
        try:
            message = self.stack.publishing(message)
            results = [self._call(handler, message).value() for handler in self._subscribed(message.name)]
        except Exception as error:
            self.stack.unpublished(message, error)
            raise
        self.stack.published(message)
        return results

    async def send_async(self, topic: str, body: Any = None, **options: Any) -> list[Any]:
        """`send` for coroutines."""
        message = self._message_to_send(topic, body, options)
        try:
            message = self.stack.publishing(message)
            results = [await self._call(handler, message).value_async() for handler in self._subscribed(message.name)]
        except Exception as error:
            self.stack.unpublished(message, error)
            raise
        self.stack.published(message)
        return results

    def call(
        self, topic: str, body: Any = None, *, timeout: Duration = "30s", result: Any = Any, **options: Any
    ) -> Any:
        """Publish and wait for the answer of whoever handles it, here or elsewhere; `result` is the type wanted."""
        message, future = self._ask(topic, body, options)
        try:
            answer = future.result(micros(timeout) / SECOND)
        except TimeoutError:
            raise _no_answer(topic, timeout) from None
        finally:
            self._forget(message)
        return bodies.decode(answer.body, answer.mime_type, result)

    async def call_async(
        self, topic: str, body: Any = None, *, timeout: Duration = "30s", result: Any = Any, **options: Any
    ) -> Any:
        """`call` for coroutines."""
        message, future = await asyncio.to_thread(self._ask, topic, body, options)
        try:
            answer = await asyncio.wait_for(asyncio.wrap_future(future), micros(timeout) / SECOND)
        except TimeoutError:
            raise _no_answer(topic, timeout) from None
        finally:
            self._forget(message)
        return bodies.decode(answer.body, answer.mime_type, result)

    # Running

    @property
    def broker(self) -> Broker:
        """The broker, opened when it is first needed."""
        if (broker := self._broker) is not None:
            return broker
        if child.line() is not None:
            raise RemudaError("in a process of its own a handler can publish, but the broker is in its parent's")
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
        """Handle messages until `stop` is called, or until none is left to be handled now.

        Ctrl-C and SIGTERM stop it too; handlers that run then have `grace` to end, and nothing is lost.
        """
        seconds = micros(grace) / SECOND
        with stopped_by_sigterm(self, grace):
            try:
                runner = self.start()
                if until_idle:
                    idle(runner.wait_until_idle, self.companions, None if timeout is None else micros(timeout) / SECOND)
                else:
                    runner.wait()
            except KeyboardInterrupt:
                _log.info("stopping; handlers have %s to finish", grace)
            finally:
                self._stop(seconds)

    def start(self) -> Runner:
        """Handle messages in the background."""
        if self._runner is not None and self._runner.running:
            raise RemudaError("the bus is already running")
        works = self.works()
        for name in sorted(self.settings.strangers([work.queue for work in works])):
            _log.warning("a setting names the queue %s, which no handler here has", name)
        runner = self._runner = Runner(works, self.broker, self.deliver)
        runner.start()
        for companion in self.companions:
            companion.start()
        return runner

    def stop(self) -> None:
        """Ask a running bus to stop; handlers finish first."""
        if self._runner is not None:
            self._runner.ask_to_stop()

    def close(self) -> None:
        """Stop, and let the broker go."""
        self._stop(10)
        with self._opening:
            if self._replies is not None:
                self._replies.close()
                self._replies = None
            if self.outbox is not None:
                self.outbox.close()
            if self._broker is not None:
                self._broker.close()
                self._broker = None

    def _stop(self, grace: float) -> None:
        # Not under the lock: handlers that are to finish may need it.
        runner, self._runner = self._runner, None
        if runner is not None:
            for companion in self.companions:
                companion.stop(grace)
            runner.stop(grace)

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def health(self) -> dict[str, bool]:
        """Live: the broker answers. Ready: handlers are running too, and nothing keeps them from their work."""
        try:
            self.broker.queues()
            live = True
        except RemudaError:
            live = False
        runner = self._runner
        return {"live": live, "ready": live and runner is not None and runner.running and runner.trouble is None}

    def testing(self, url: str | os.PathLike[str] = "memory://", *, clock: ManualClock | None = None) -> TestBus:
        """This bus in memory, with a clock that the test moves, until the test is over (B18)."""
        return TestBus(self, url, clock)

    # Dead letters

    def dead_letters(self, queue: str, *, limit: int = 100, **filters: Any) -> list[DeadLetter]:
        """Messages of a queue that ended without success, the newest first.

        Filters are `reason` (part of its text), `since` and `until` (when they ended) and `states`.
        """
        parked = self.broker.parked(queue, selection(**filters), limit)
        return [dead_letter(queue, one, self.broker.message(one.offset)) for one in parked]

    def reprocess(self, queue: str, *, who: str | None = None, **filters: Any) -> int:
        """Send dead letters back to their queue with a fresh count of attempts; filters as for `dead_letters`."""
        return self.broker.reprocess(queue, selection(**filters), who=who or self._who())

    def forget(self, queue: str, *, who: str | None = None, **filters: Any) -> int:
        """Let dead letters go for good; filters as for `dead_letters`."""
        return self.broker.forget(queue, selection(**filters), who=who or self._who())

    def clear(self, queue: str, *, who: str | None = None) -> int:
        """End everything that waits in a queue. It is then dead, and can be reprocessed."""
        return self.broker.clear(queue, who=who or self._who())

    # Inside

    def queue_settings(self) -> dict[str, QueueSettings]:
        """What holds for each queue; checked as a whole."""
        chosen = {handler.queue: self.settings.for_queue(handler.queue, handler.options) for handler in self.handlers}
        _refuse_cycles(chosen)
        return chosen

    def works(self) -> list[Work]:
        """The work on each queue, for whoever runs it."""
        chosen = self.queue_settings()
        works = []
        for queue, settings in chosen.items():
            handlers = [handler for handler in self.handlers if handler.queue == queue]
            works.append(self._work(handlers, settings, self.stack, self.on_threshold))
        for handler in internal_handlers(self):
            settings = self.settings.for_queue(handler.queue, handler.options)
            works.append(self._work([handler], settings, Stack(), None))
        return works

    def _work(
        self, handlers: Sequence[Handler], settings: QueueSettings, stack: Stack, on_threshold: Threshold | None
    ) -> Work:
        duties = Duties(handlers[0].queue, handlers, settings, stack, self.encoding)
        return Work(duties, self.broker, self.send_reply, on_threshold)

    def send_reply(self, message: Message, reply: Reply) -> None:
        """Publish a handler's answer. If the broker refuses it, it is kept and tried again by itself."""
        headers = {**child_headers(message.headers, message.id), **reply.headers}
        answer = Message(reply.topic, reply.body, mime_type=reply.mime_type, headers=headers)
        try:
            self.publish_messages([answer])
        except Exception as error:
            _log.warning(
                "the answer to %s is kept: %s did not take it, and is tried again: %s", message.id, reply.topic, error
            )
            self.broker.publish(answer, queue=CALLBACKS)

    def _declare(self, broker: Broker) -> None:
        patterns: dict[str, list[str]] = {}
        for handler in self.handlers:
            patterns.setdefault(handler.queue, []).extend(handler.topics)
        chosen = self.queue_settings()
        for queue, settings in chosen.items():
            _declare(broker, queue, patterns[queue], settings.queue_size)
        for queue in INTERNAL:
            _declare(broker, queue, [], 500)
        for queue, settings in chosen.items():
            if settings.failover is not None and settings.failover not in chosen:
                _declare_elsewhere(broker, settings.failover, f"message.failover.{queue}")

    def _message(self, topic: str, body: Any, **options: Any) -> Message:
        return self._posted(topic, (body,), Posting(**options))[0]

    def _posted(self, topic: str, values: Iterable[Any], posting: Posting) -> Messages:
        context: Context | None = current.get()
        inherited = child_headers(context.headers, context.message.id) if context is not None else {}
        if self.user is not None:
            inherited.setdefault(names.USER, self.user)
        return posting.messages(topic, values, inherited, self.encoding, self._clock())

    def _message_to_send(self, topic: str, body: Any, options: Mapping[str, Any]) -> Message:
        for name in ("callback", "delay", "at", "expires", "priority"):
            if options.get(name) is not None:
                raise InvalidMessage(f"send runs the handlers here and now, so it takes no {name}; publish does")
        message = self._message(topic, body, **options)
        return msgspec.structs.replace(message, id=message.id or f"sent-{uuid.uuid4()}")

    def _who(self) -> str:
        """Who does something at this bus, if nobody is named."""
        if self.user is not None:
            return self.user
        try:
            return getpass.getuser()
        except (KeyError, OSError):
            return "unknown"

    def _subscribed(self, topic: str) -> list[Handler]:
        """One handler of each queue that takes this topic."""
        chosen: dict[str, Handler] = {}
        for handler in self.handlers:
            if handler.takes(topic):
                chosen.setdefault(handler.queue, handler)
        return list(chosen.values())

    def _call(self, handler: Handler, message: Message) -> Call:
        return Call(handler, [Context(message, handler.queue, handler.id, 1)], self.stack, self.encoding)

    def _ask(self, topic: str, body: Any, options: Mapping[str, Any]) -> tuple[str, Future[Message]]:
        """Publish with a callback to this bus. Gives the message's id, and what will hold the answer."""
        if options.get("callback") is not None:
            raise InvalidMessage("call is given the answer itself, so it takes no callback; nothing was stored")
        with self._opening:
            if self._replies is None:
                self._replies = Replies(self.broker)
            replies = self._replies
        message = self._message(topic, body, **{**options, "callback": replies.topic})
        message = msgspec.structs.replace(message, id=message.id or str(uuid.uuid4()))
        future = replies.expect(message.id)
        try:
            self.publish_messages([message])
        except BaseException:
            replies.forget(message.id)
            raise
        return message.id, future

    def _forget(self, message: str) -> None:
        """Nobody waits for the answer to this message any more."""
        if (replies := self._replies) is not None:
            replies.forget(message)


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


def _declare_elsewhere(broker: Broker, queue: str, setting: str) -> None:
    """A queue that no handler here works on: people do, or another process, whose settings are left alone."""
    declared = broker.create_queue(queue, {"type": "pull", "acknowledge_timeout": LEASE})
    if "type" in declared.differs:
        kind: QueueType = declared.differs["type"][1]
        raise InvalidOption(
            f"{setting}: queue {queue!r} is a {kind.value} queue; messages can only fail over to a pull queue"
        )
    _log.info("%s: no handler here takes messages from %s; they wait there", setting, queue)


def _check_topics(topics: Sequence[str]) -> None:
    if not topics:
        raise InvalidOption("subscribe needs at least one topic")
    for topic in topics:
        if not isinstance(topic, str):
            raise InvalidOption(
                f"a topic must be a text, not {topic!r}; the decorator is written @bus.subscribe('topic')"
            )
        try:
            check_topic(topic)
        except InvalidMessage as error:
            raise InvalidOption(str(error).removesuffix("; nothing was stored")) from None


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
