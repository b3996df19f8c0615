"""The bus: publish, send and call; handlers by decorator; schedules; run."""

from __future__ import annotations

import getpass
import logging
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import msgspec

from remuda.bus import declaring
from remuda.bus.broker_api import Broker, Clock, clear_waiting, open_broker, reprocess_retries, steady_clock
from remuda.bus.companions import Companion, TransactionalOutbox, wait_until_idle
from remuda.bus.execution.failure_policy import Threshold
from remuda.bus.execution.processes.parent import parent
from remuda.bus.execution.processor import QueueProcessor
from remuda.bus.execution.runner import Runner
from remuda.bus.execution.signals import stopped_by_sigterm
from remuda.bus.handlers.call import HandlerCall
from remuda.bus.handlers.context import Context, child_headers
from remuda.bus.handlers.dispatcher import Dispatcher
from remuda.bus.handlers.environment import CallEnvironment
from remuda.bus.handlers.handler import Handler, handler_id
from remuda.bus.handlers.loops import LoopHolder, LoopThread, drive, drive_async, loop_runs_here
from remuda.bus.handlers.middleware import Middleware, MiddlewareStack
from remuda.bus.handlers.providers import Providers
from remuda.bus.handlers.registry import (
    HandlerRegistry,
    RuleKwargs,
    SubscribeKwargs,
    check_queue,
    check_topics,
    marked_methods,
    read_options,
)
from remuda.bus.handlers.signature import read_signature
from remuda.bus.health import BusHealth, bus_health
from remuda.bus.lifecycle import Lifecycle
from remuda.bus.publishing import bodies, tracking
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.checks import Moment
from remuda.bus.publishing.dead_letters import DeadLetter, FilterKwargs, dead_letter, message_filter
from remuda.bus.publishing.options import BatchKwargs, CallKwargs, PublishKwargs, PublishOptions, SendKwargs
from remuda.bus.publishing.publisher import Publisher
from remuda.bus.publishing.replies import ReplyListener
from remuda.bus.publishing.reply import Reply
from remuda.bus.publishing.system_queues import CALLBACKS, SYSTEM_QUEUES
from remuda.bus.publishing.tracking import MessageStatus
from remuda.bus.scheduling.cron import Cron
from remuda.bus.scheduling.runs import Schedules
from remuda.bus.scheduling.schedule import CatchUp, Every, Schedule, topic_of
from remuda.bus.settings.settings import QueueSettings, Settings
from remuda.bus.system_handlers import system_handlers
from remuda.bus.testing import ManualClock, TestBus
from remuda.model.document import Document
from remuda.model.durations import SECOND, Duration, micros
from remuda.model.errors import InvalidMessage, InvalidOption, RemudaError
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages
from remuda.model.options import read_enum

if TYPE_CHECKING:
    import asyncio

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
P = TypeVar("P")
ASGI = Callable[[Any, Any, Any], Awaitable[None]]

_log = logging.getLogger("remuda.bus")


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
        prefix: str | None = None,
        on_threshold: Threshold | None = None,
        clock: Clock | None = None,
        **broker_options: Any,
    ) -> None:
        bodies.check_encoding(encoding)
        self.url = url
        self.user = user
        self.encoding = encoding
        self.stack = MiddlewareStack(middleware)
        self.settings = settings if isinstance(settings, Settings) else Settings.load(settings, config)
        if prefix is not None:
            self.settings.put("message.prefix", prefix, "Bus(prefix=…)")
        self.prefix: str = self.settings.get("message.prefix").value
        self.on_threshold = on_threshold
        self.loop_holder = LoopHolder()
        self._registry = HandlerRegistry()
        self._providers = Providers()
        self._lifecycle = Lifecycle()
        self._publisher = Publisher(self)
        self.schedules = Schedules(self)
        # The broker gets it too: delays and expiry are reckoned by one clock, even if the machine's is set meanwhile.
        self._clock = clock or steady_clock()
        self._broker_options = broker_options
        self._broker: Broker | None = None
        self._replies: ReplyListener | None = None
        self._runner: Runner | None = None
        self._waiting_runs = 0
        self._loop_thread: LoopThread | None = None
        self._closed = False
        self._test: TestBus | None = None
        self._opening = threading.RLock()
        self.outbox: TransactionalOutbox | None = None
        self.companions: list[Companion] = []
        """What runs as long as the bus does: relays."""

    @property
    def handlers(self) -> list[Handler]:
        return self._registry.handlers

    def now(self) -> int:
        """The time by the bus's clock, in microseconds since the epoch."""
        return self._clock()

    # Handlers

    def subscribe(self, *topics: str, **options: Unpack[SubscribeKwargs]) -> Callable[[F], F]:
        """Handle messages under these topics; `*` stands for one word, `#` for any number.

        Handlers with one `group` (or `queue`) share a queue and compete; others each get every message. Rules are
        `retry`, `retry_on`, `give_up_on`, `timeout`, `failover`, `threads`, `executor` and `batch`. With `unique`, a
        message is not taken while one with its id waits or is handled; with `keep_result`, `bus.result(id)` finds
        what the handler returned.
        """
        _check_known(options, SubscribeKwargs, "subscribe")
        check_topics(topics)
        chosen = read_options(options)
        named = check_queue(options.get("queue"), options.get("group"))

        def register(function: F) -> F:
            name = handler_id(function)
            queue = named or name
            signature = read_signature(function, batch=chosen.batch is not None, provided=_Provided(self))
            self._refuse_async_providers(function, name, signature.by_type.values())
            patterns = tuple(self.prefix + topic for topic in topics)
            self.add(Handler(name, self.prefix + queue, patterns, function, self._with_prefix(chosen), signature))
            return function

        return register

    def subscribe_class(self, instance: object) -> None:
        """Register the methods of an object that were marked with `handles`."""
        found = list(marked_methods(instance))
        if not found:
            raise InvalidOption(f"no method of {type(instance).__name__} is marked with @handles")
        for method, topics, options in found:
            name = handler_id(method)
            if "." not in name or not hasattr(method, "__self__"):
                options = {"queue": f"{_class_name(instance)}.{method.__name__}", **options}
            self.subscribe(*topics, **options)(method)

    def every(
        self,
        interval: Duration,
        *,
        name: str | None = None,
        catch_up: CatchUp | str = CatchUp.ONCE,
        **rules: Unpack[RuleKwargs],
    ) -> Callable[[F], F]:
        """Run a function at fixed times that lie `interval` apart, once over all processes and restarts.

        `catch_up` says what becomes of times at which nothing ran: `once`, `all` or `skip`.
        """
        return self._schedule(Every.read(interval), name, catch_up, rules)

    def cron(
        self,
        text: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        catch_up: CatchUp | str = CatchUp.ONCE,
        **rules: Unpack[RuleKwargs],
    ) -> Callable[[F], F]:
        """Run a function at the times of a cron text, `minute hour day month weekday`, in a time zone."""
        return self._schedule(Cron.read(text, tz), name, catch_up, rules)

    def provide(self, wanted: Any) -> Callable[[F], F]:
        """Make values of a type for handlers that ask for it, anew for each message.

        The function may take the `Context`. It may be a coroutine, or a generator that cleans up after its `yield`.
        """

        def register(function: F) -> F:
            self._providers.add(wanted, function)
            return function

        return register

    def on_startup(self, function: F) -> F:
        """Call a function, or await a coroutine, before handlers start. Coroutines run on the handlers' loop."""
        self._lifecycle.startup.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Call a function, or await a coroutine, after handlers have stopped."""
        self._lifecycle.shutdown.append(function)
        return function

    def add(self, handler: Handler) -> None:
        """Register a handler made by hand."""
        if self._runner is not None and self._runner.running:
            raise RemudaError(f"the bus is running; register {handler.id} before it starts")
        before = list(self._registry.handlers)
        self._registry.add(handler)
        if self._broker is not None:
            try:
                self._declare(self._broker)
            except BaseException:
                self._registry.handlers = before
                raise

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
        priority: Priority | int | str = Priority.NORMAL,
        delay: Duration | None = None,
        at: Moment | None = None,
        expires: Duration | None = None,
        user: str | None = None,
        failure_callback: str | None = None,
        keep_result: bool = False,
        unique: str | None = None,
        idempotency_key: str | None = None,
        transaction: Any = None,
    ) -> str:
        """Hand a message over; its id comes back once it is kept. Handlers run elsewhere, later.

        `mime_type` says what bytes are; of other values it is known. With `unique`, nothing is published while a
        message with that key waits or is handled; with `idempotency_key`, while one is known at all. Either is its id.
        With `transaction`, the connection or session of your database, the message is sent if and when its transaction
        is committed.
        """
        if unique is not None or idempotency_key is not None:
            id = _once_id(id, unique, idempotency_key)
        options = PublishOptions(
            callback, headers, id, object, key, mime_type, priority, delay, at, expires, user, failure_callback,
            keep_result,
        )  # fmt: skip
        messages = self._publisher.message(topic, body, options)
        if unique is not None or idempotency_key is not None:
            return self._publisher.publish_once(messages, id, ever=unique is None, transaction=transaction)
        return self._publisher.publish(messages, transaction)[0]

    def publish_many(
        self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[BatchKwargs]
    ) -> list[str]:
        """Publish many bodies under one topic at the price of one; all are kept when it returns."""
        return self._publisher.publish(self._messages(topic, bodies, options), transaction)

    def publish_messages(self, messages: Sequence[Message], *, transaction: Any = None) -> list[str]:
        """Publish messages made by hand."""
        return self._publisher.publish(Messages.of(messages), transaction)

    def transaction(self, connection: Any) -> Any:
        """`with bus.transaction(connection):` publishes inside are part of the connection's transaction, which ends
        with the block; `async with` for connections that are awaited."""
        return self._publisher.outbox.transaction(connection)

    async def publish_async(
        self, topic: str, body: Any = None, *, transaction: Any = None, **options: Unpack[PublishKwargs]
    ) -> str:
        """`publish` for coroutines."""
        if options.get("unique") is not None or options.get("idempotency_key") is not None:
            import asyncio

            return await asyncio.to_thread(self.publish, topic, body, transaction=transaction, **options)
        options.pop("unique", None)
        options.pop("idempotency_key", None)
        messages = self._publisher.message(topic, body, _options(options))
        return (await self._publisher.publish_async(messages, transaction))[0]

    async def publish_many_async(
        self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[BatchKwargs]
    ) -> list[str]:
        """`publish_many` for coroutines."""
        return await self._publisher.publish_async(self._messages(topic, bodies, options), transaction)

    def deliver(self, messages: Messages) -> list[str]:
        """Give messages to the broker, past all middleware; from a process of a handler, through its parent."""
        return self._publisher.deliver(messages)

    def send(self, topic: str, body: Any = None, **options: Unpack[SendKwargs]) -> list[Any]:
        """Run the subscribed handlers now, in this thread, and give their results; their errors are raised here.

        One handler of each queue is run. Nothing is stored, so there is neither a retry nor a timeout.
        """
        message = self._message_to_send(topic, body, options)
        try:
            message = drive(self.stack.publishing(message), self.loop_holder)
            results = [self._call(handler, message).value() for handler in self._registry.taking(message.name)]
        except Exception as error:
            drive(self.stack.unpublished(message, error), self.loop_holder)
            raise
        drive(self.stack.published(message), self.loop_holder)
        return results

    async def send_async(self, topic: str, body: Any = None, **options: Unpack[SendKwargs]) -> list[Any]:
        """`send` for coroutines."""
        message = self._message_to_send(topic, body, options)
        try:
            message = await drive_async(self.stack.publishing(message))
            takers = self._registry.taking(message.name)
            results = [await self._call(handler, message).value_async() for handler in takers]
        except Exception as error:
            await drive_async(self.stack.unpublished(message, error))
            raise
        await drive_async(self.stack.published(message))
        return results

    @overload
    def call(
        self, topic: str, body: Any = None, *, timeout: Duration = "30s", result: type[T], **more: Unpack[CallKwargs]
    ) -> T: ...
    @overload
    def call(
        self,
        topic: str,
        body: Any = None,
        *,
        timeout: Duration = "30s",
        result: Any = Any,
        **options: Unpack[CallKwargs],
    ) -> Any: ...
    def call(
        self,
        topic: str,
        body: Any = None,
        *,
        timeout: Duration = "30s",
        result: Any = Any,
        **options: Unpack[CallKwargs],
    ) -> Any:
        """Publish and wait for the reply of whoever handles it, here or elsewhere; `result` is the type wanted.

        If the handler fails for good, or would be tried again only after the timeout, its error is raised as
        `HandlerFailed`.
        """
        message, future = self._ask(topic, body, timeout, options)
        try:
            if self._test is not None:
                self._test.serve(future)
            reply = future.result(micros(timeout) / SECOND)
        except TimeoutError:
            if future.done():
                raise
            raise _no_reply(topic, timeout) from None
        finally:
            self._forget(message)
        return bodies.decode(reply.body, reply.mime_type, result)

    @overload
    async def call_async(
        self, topic: str, body: Any = None, *, timeout: Duration = "30s", result: type[T], **more: Unpack[CallKwargs]
    ) -> T: ...
    @overload
    async def call_async(
        self,
        topic: str,
        body: Any = None,
        *,
        timeout: Duration = "30s",
        result: Any = Any,
        **options: Unpack[CallKwargs],
    ) -> Any: ...
    async def call_async(
        self,
        topic: str,
        body: Any = None,
        *,
        timeout: Duration = "30s",
        result: Any = Any,
        **options: Unpack[CallKwargs],
    ) -> Any:
        """`call` for coroutines."""
        import asyncio

        message, future = await asyncio.to_thread(self._ask, topic, body, timeout, options)
        try:
            if self._test is not None:
                await self._test.serve_async(future)
            reply = await asyncio.wait_for(asyncio.wrap_future(future), micros(timeout) / SECOND)
        except TimeoutError:
            raise _no_reply(topic, timeout) from None
        finally:
            self._forget(message)
        return bodies.decode(reply.body, reply.mime_type, result)

    # By id

    def status(self, id: str) -> MessageStatus:
        """How a message stands in all its queues; raises `NotFound` for an id that is not known."""
        return tracking.status_of(self.broker.message(_checked_id(id)))

    def cancel(self, id: str, *, who: str | None = None) -> bool:
        """End a message that waits, for its turn, its time or a retry; False if it is being handled or has ended.

        It is then dead with the reason `cancelled`, and can be reprocessed.
        """
        return tracking.cancel(self.broker, _checked_id(id), who or self._who())

    @overload
    def result(self, id: str, result: type[T], *, queue: str | None = None, timeout: Duration = 0) -> T: ...
    @overload
    def result(self, id: str, result: Any = Any, *, queue: str | None = None, timeout: Duration = 0) -> Any: ...
    def result(self, id: str, result: Any = Any, *, queue: str | None = None, timeout: Duration = 0) -> Any:
        """What the handler returned for a message published with `keep_result`; its error is raised here.

        Raises `ResultNotReady` if it has not ended within `timeout`.
        """
        name = None if queue is None else self._queue_name(queue)
        return tracking.result_of(self.broker, _checked_id(id), name, result, micros(timeout) / SECOND)

    # Running

    @property
    def broker(self) -> Broker:
        """The broker, opened when it is first needed."""
        if (broker := self._broker) is not None:
            return broker
        if parent() is not None:
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
                self._closed = False
            return self._broker

    def run(self, *, until_idle: bool = False, grace: Duration = "10s", timeout: Duration | None = None) -> None:
        """Handle messages until `stop` is called, or until none is left to be handled now.

        Ctrl-C and SIGTERM stop it too; handlers that run then have `grace` to end, and nothing is lost.
        """
        seconds = micros(grace) / SECOND
        limit = None if timeout is None else micros(timeout) / SECOND
        self._waiting_runs += 1
        try:
            with stopped_by_sigterm(self, grace):
                try:
                    runner = self.start()
                    if until_idle:
                        wait_until_idle(runner, self.companions, limit)
                    else:
                        runner.wait()
                except KeyboardInterrupt:
                    _log.info("stopping; handlers have %s to finish", grace)
                finally:
                    self._stop(seconds)
        finally:
            self._waiting_runs -= 1

    async def run_async(
        self,
        *,
        until_idle: bool = False,
        grace: Duration = "10s",
        timeout: Duration | None = None,
        loop_per_queue: bool = False,
    ) -> None:
        """`run` on the application's own loop: coroutines, async middleware and hooks run where this is awaited.

        With `loop_per_queue` each queue has a loop of its own, so that a handler that blocks stops no other queue.
        """
        import asyncio

        seconds = micros(grace) / SECOND
        limit = None if timeout is None else micros(timeout) / SECOND
        self._waiting_runs += 1
        try:
            with stopped_by_sigterm(self, grace):
                try:
                    runner = await self.start_async(loop_per_queue=loop_per_queue)
                    if until_idle:
                        await asyncio.to_thread(wait_until_idle, runner, self.companions, limit)
                    else:
                        await asyncio.to_thread(runner.wait)
                except asyncio.CancelledError:
                    self.ask_to_stop()
                    raise
                finally:
                    await self.stop_async(grace=seconds)
        finally:
            self._waiting_runs -= 1

    def start(self) -> Runner:
        """Handle messages in the background; `stop` ends it."""
        self._check_not_running()
        if self._lifecycle.needs_loop and self._loop_thread is None:
            self._loop_thread = LoopThread()
            self.loop_holder.loop = self._loop_thread.loop
        try:
            self._lifecycle.start(self.loop_holder)
            return self._start_runner(self.loop_holder.loop)
        except BaseException:
            self._end_loop_thread()
            raise

    async def start_async(self, *, loop_per_queue: bool = False) -> Runner:
        """Handle messages in the background, coroutines on this loop; `await stop_async()` ends it."""
        import asyncio

        self._check_not_running()
        self.loop_holder.loop = asyncio.get_running_loop()
        await self._lifecycle.start_async()
        loop = None if loop_per_queue else self.loop_holder.loop
        return await asyncio.to_thread(self._start_runner, loop)

    def ask_to_stop(self) -> None:
        """Let `run` end; handlers finish first. May be called from anywhere, signal handlers included."""
        if (runner := self._runner) is not None:
            runner.ask_to_stop()

    def stop(self, grace: Duration = "10s") -> None:
        """Stop handling: handlers have `grace` to finish, the rest goes back to its queue.

        A `run` in another thread is asked to end. After `start` it returns when all handlers have ended.
        """
        seconds = micros(grace) / SECOND
        if self._waiting_runs:
            self.ask_to_stop()
        elif threading.current_thread().name.startswith("remuda-"):
            # A handler that waited for all handlers would wait for itself.
            self.ask_to_stop()
            threading.Thread(target=self._stop, args=(seconds,), name="stop-bus", daemon=True).start()
        else:
            self._refuse_to_wait_on_own_loop("await bus.stop_async()")
            self._stop(seconds)

    async def stop_async(self, grace: Duration = "10s") -> None:
        """`stop` for coroutines, after `start_async`."""
        import asyncio

        runner, self._runner = self._runner, None
        if runner is not None:
            ending = asyncio.to_thread(self._stop_runner, runner, micros(grace) / SECOND)
            await asyncio.shield(asyncio.ensure_future(ending))
            await self._lifecycle.stop_async()
        self.loop_holder.loop = None

    def close(self) -> None:
        """Stop, and let the broker go."""
        self._refuse_to_wait_on_own_loop("await bus.stop_async() first")
        self._stop(10)
        with self._opening:
            self._closed = True
            if self._replies is not None:
                self._replies.close()
                self._replies = None
            if self.outbox is not None:
                self.outbox.close()
            if self._broker is not None:
                self._broker.close()
                self._broker = None

    def _refuse_to_wait_on_own_loop(self, instead: str) -> None:
        if self._runner is not None and loop_runs_here() and self.loop_holder.loop is not None:
            import asyncio

            if asyncio.get_running_loop() is self.loop_holder.loop:
                raise RemudaError(f"handlers run on this loop, which must not wait for them; {instead}")

    def _stop(self, grace: float) -> None:
        # Not under the lock: handlers that are to finish may need it.
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                self._stop_runner(runner, grace)
                self._lifecycle.stop(self.loop_holder)
            finally:
                self._end_loop_thread()

    def _stop_runner(self, runner: Runner, grace: float) -> None:
        for companion in self.companions:
            companion.stop(grace)
        runner.stop(grace)

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Bus:
        """Handle messages on this loop while inside, as an application's lifespan wants it."""
        await self.start_async()
        return self

    async def __aexit__(self, *exc: object) -> None:
        import asyncio

        await self.stop_async()
        await asyncio.to_thread(self.close)

    def health(self) -> BusHealth:
        """Live: the broker goes on, if need be by itself once the disk has room. Ready: handlers are running too, and
        nothing keeps them or the relay from their work. What is wrong, if anything, stands in `problems`, by part."""
        if self._closed:
            return {"live": False, "ready": False}
        try:
            runner = self._runner
            running = runner is not None and runner.running
            return bus_health(self.broker, running, None if runner is None else runner.trouble, self.companions)
        except RemudaError as error:
            return {"live": False, "ready": False, "problems": {"broker": str(error)}}

    def dashboard(self, **options: Any) -> ASGI:
        """The dashboard and the HTTP API as an ASGI application, to mount in another or to serve by itself.

        Without `users=` (a file of names and passwords) or `identify=` (a function from a request to a `User`) it
        answers requests from this machine only.
        """
        from remuda.server.http.mounting import dashboard

        return dashboard(self, **options)

    def testing(self, url: str | os.PathLike[str] = "memory://", *, clock: ManualClock | None = None) -> TestBus:
        """This bus in memory, with a clock that the test moves, until the test is over (B18)."""
        return TestBus(self, url, clock)

    # Dead letters

    def dead_letters(self, queue: str, *, limit: int = 100, **filters: Unpack[FilterKwargs]) -> list[DeadLetter]:
        """Messages of a queue that ended without success, the newest first.

        Filters are `reason` (part of its text), `since` and `until` (when they ended) and `states`.
        """
        name = self._queue_name(queue)
        parked = self.broker.parked(name, message_filter(**filters), limit)
        return [dead_letter(name, one, self.broker.message(one.offset)) for one in parked]

    def reprocess(
        self, queue: str, *, waiting: bool = True, who: str | None = None, **filters: Unpack[FilterKwargs]
    ) -> int:
        """Send messages that failed back to their queue with a fresh count of attempts: dead letters, and with
        `waiting` also those that wait for a retry. Filters as for `dead_letters`."""
        name, chosen = self._queue_name(queue), message_filter(**filters)
        who = who or self._who()
        count = self.broker.reprocess(name, chosen, who=who)
        if waiting and filters.get("states") is None:
            count += reprocess_retries(self.broker, name, chosen, who)
        return count

    def forget(self, queue: str, *, who: str | None = None, **filters: Unpack[FilterKwargs]) -> int:
        """Let dead letters go for good; filters as for `dead_letters`."""
        return self.broker.forget(self._queue_name(queue), message_filter(**filters), who=who or self._who())

    def clear(
        self,
        queue: str,
        *,
        topic: str | None = None,
        reason: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        who: str | None = None,
    ) -> int:
        """End everything that waits in a queue, or what fits the filters: `topic`, `since` and `until` (when it was
        published), `reason` (of its last failure). It is then dead, and can be reprocessed."""
        name, who = self._queue_name(queue), who or self._who()
        if topic is None and reason is None and since is None and until is None:
            return self.broker.clear(name, who=who)
        chosen = message_filter(reason=reason, since=since, until=until)
        full_topic = None if topic is None else self.prefix + topic

        def wanted(document: Document) -> bool:
            reasons = [view.reason or "" for view in document.queues if view.queue == name]
            return (
                (full_topic is None or document.message.name == full_topic)
                and (reason is None or any(reason in text for text in reasons))
                and chosen.since <= document.created
                and (chosen.until is None or document.created < chosen.until)
            )

        return clear_waiting(self.broker, name, wanted, who)

    # Inside

    def queue_settings(self) -> dict[str, QueueSettings]:
        """What holds for each queue; checked as a whole."""
        chosen = {
            handler.queue: self.settings.for_queue(handler.queue.removeprefix(self.prefix), handler.options)
            for handler in self.handlers
        }
        if self.prefix:
            chosen = {queue: self._settings_with_prefix(one) for queue, one in chosen.items()}
        declaring.refuse_cycles(chosen)
        return chosen

    def processors(self) -> list[QueueProcessor]:
        """What works on each queue, for whoever runs it."""
        chosen = self.queue_settings()
        made = []
        for queue, settings in chosen.items():
            handlers = [handler for handler in self.handlers if handler.queue == queue]
            made.append(self._processor(handlers, settings, self.stack, self.on_threshold))
        for handler in system_handlers(self):
            settings = self.settings.for_queue(handler.queue, handler.options)
            made.append(self._processor([handler], settings, MiddlewareStack(), None))
        return made

    def send_reply(self, message: Message, reply: Reply) -> None:
        """Publish what a call caused. If the broker refuses a reply for now, it is kept and tried again by itself."""
        headers = {**child_headers(message.headers, message.id), **reply.headers}
        answer = Message(reply.topic, reply.body, id=reply.id, mime_type=reply.mime_type, headers=headers)
        if reply.queue is not None:
            self.broker.publish(answer, queue=reply.queue)
            return
        try:
            self.publish_messages([answer])
        except Exception as error:
            _log.warning(
                "the reply to %s is kept: %s did not take it, and it will be tried again: %s",
                message.id, reply.topic, error,
            )  # fmt: skip
            self.broker.publish(answer, queue=CALLBACKS)

    def _schedule(
        self, rule: Every | Cron, name: str | None, catch_up: CatchUp | str, rules: RuleKwargs
    ) -> Callable[[F], F]:
        missed = read_enum("catch_up", catch_up, CatchUp)
        _check_known(rules, RuleKwargs, "a schedule")
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidOption(f"name must be a text, not {name!r}")

        def register(function: F) -> F:
            chosen = name or handler_id(function)
            topic = topic_of(chosen)
            self.subscribe(topic, queue=chosen, unique=True, **rules)(function)
            queue = self.prefix + chosen
            self.schedules.add(Schedule(self.prefix + chosen, queue, rule, missed), self.prefix + topic)
            return function

        return register

    def _refuse_async_providers(self, function: Callable[..., Any], name: str, wanted: Iterable[Any]) -> None:
        import inspect

        if inspect.iscoroutinefunction(function):
            return
        for one in wanted:
            provider = self._providers.get(one)
            if provider is not None and provider.is_async:
                raise InvalidOption(
                    f"handler {name} is a plain function, but the provider of {one!r} is a coroutine; "
                    "make the handler a coroutine too"
                )

    def _environment(self, stack: MiddlewareStack, settings: QueueSettings | None = None) -> CallEnvironment:
        retry = None if settings is None else settings.retry
        return CallEnvironment(stack, self._providers, self.encoding, self.loop_holder, retry, self.prefix)

    def _processor(
        self,
        handlers: Sequence[Handler],
        settings: QueueSettings,
        stack: MiddlewareStack,
        on_threshold: Threshold | None,
    ) -> QueueProcessor:
        dispatcher = Dispatcher(handlers[0].queue, handlers, settings, self._environment(stack, settings))
        if any(topic in self.schedules.by_topic for handler in handlers for topic in handler.topics):
            dispatcher.gate = self.schedules.begin
        return QueueProcessor(dispatcher, self.broker, self.send_reply, on_threshold, self._clock)

    def _check_not_running(self) -> None:
        if self._runner is not None and self._runner.running:
            raise RemudaError("the bus is already running")

    def _start_runner(self, loop: asyncio.AbstractEventLoop | None) -> Runner:
        processors = self.processors()
        mine = [processor.queue for processor in processors]
        known = [queue.removeprefix(self.prefix) for queue in mine]
        for name in sorted(self.settings.unknown_queues(known)):
            _log.warning("a setting names the queue %s, which no handler here has", name)
        targets = [one.settings.failover for one in processors if one.settings.failover is not None]
        declaring.warn_of_orphans(self.broker, self.url, mine, targets)
        self.schedules.plan_all()
        runner = self._runner = Runner(processors, self.broker, self.deliver, loop)
        runner.start()
        for companion in self.companions:
            companion.start()
        return runner

    def _end_loop_thread(self) -> None:
        thread, self._loop_thread = self._loop_thread, None
        if thread is not None:
            self.loop_holder.loop = None
            thread.close()

    def _declare(self, broker: Broker) -> None:
        patterns: dict[str, list[str]] = {}
        for handler in self.handlers:
            patterns.setdefault(handler.queue, []).extend(handler.topics)
        declaring.declare_queues(broker, self.schedules.fitted(broker, self.queue_settings()), patterns)

    def _with_prefix(self, options: Any) -> Any:
        if not self.prefix or options.failover is None:
            return options
        return msgspec.structs.replace(options, failover=self.prefix + options.failover)

    def _settings_with_prefix(self, settings: QueueSettings) -> QueueSettings:
        failover = settings.failover
        if failover is None or failover.startswith(self.prefix):
            return settings
        return msgspec.structs.replace(settings, failover=self.prefix + failover)

    def _queue_name(self, queue: str) -> str:
        if not isinstance(queue, str) or not queue:
            raise InvalidOption(f"queue must be the name of a queue, not {queue!r}")
        return queue if queue in SYSTEM_QUEUES or not self.prefix else self.prefix + queue

    def _messages(self, topic: str, bodies: Iterable[Any], options: Mapping[str, Any]) -> Messages:
        if "id" in options:
            raise InvalidMessage("one id cannot be given to many messages; nothing was stored")
        return self._publisher.messages(topic, bodies, _options(options))

    def _message(self, topic: str, body: Any, options: Mapping[str, Any]) -> Message:
        return self._publisher.message(topic, body, _options(options))[0]

    def _message_to_send(self, topic: str, body: Any, options: Mapping[str, Any]) -> Message:
        for name in ("callback", "delay", "at", "expires", "priority"):
            if options.get(name) is not None:
                raise InvalidMessage(f"send runs the handlers here and now, so it takes no {name}; publish does")
        message = self._message(topic, body, options)
        return msgspec.structs.replace(message, id=message.id or f"sent-{uuid.uuid4()}")

    def _who(self) -> str:
        """Who does something at this bus, if nobody is named."""
        if self.user is not None:
            return self.user
        try:
            return getpass.getuser()
        except (KeyError, OSError):
            return "unknown"

    def _call(self, handler: Handler, message: Message) -> HandlerCall:
        context = Context(message, handler.queue, handler.id, 1)
        return HandlerCall(handler, (context,), self._environment(self.stack))

    def _ask(self, topic: str, body: Any, timeout: Duration, options: Mapping[str, Any]) -> tuple[str, Future[Message]]:
        """Publish with a callback to this bus. Gives the message's id, and what will hold the reply."""
        if options.get("callback") is not None:
            raise InvalidMessage("call is given the reply itself, so it takes no callback; nothing was stored")
        if self.outbox is not None and self.outbox.connection(None) is not None:
            raise RemudaError(
                "a call inside a transaction would wait for ever: its message is sent only after the commit. Call "
                "before or after the transaction, or publish with a callback; nothing was stored"
            )
        deadline = self.now() + micros(timeout)
        with self._opening:
            if self._replies is None:
                self._replies = ReplyListener(self.broker)
            replies = self._replies
        message = self._message(topic, body, {**options, "callback": replies.topic})
        headers = {**message.headers, names.CALL_DEADLINE: str(deadline)}
        message = msgspec.structs.replace(message, id=message.id or str(uuid.uuid4()), headers=headers)
        future = replies.expect(message.id)
        try:
            self.publish_messages([message])
        except BaseException:
            replies.forget(message.id)
            raise
        return message.id, future

    def _forget(self, message: str) -> None:
        """Nobody waits for the reply to this message any more."""
        if (replies := self._replies) is not None:
            replies.forget(message)


class _Provided:
    """The types that handlers of a bus may ask for beside those that every bus knows."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def __contains__(self, wanted: object) -> bool:
        return wanted in self._bus._providers or wanted in self._bus.stack.provided


def handles(*topics: str, **options: Unpack[SubscribeKwargs]) -> Callable[[F], F]:
    """Mark a method as a handler; `bus.subscribe_class(instance)` registers all that are marked."""
    _check_known(options, SubscribeKwargs, "handles")

    def mark(function: F) -> F:
        marks = [*getattr(function, "__remuda_handles__", ()), (topics, options)]
        target = function.__func__ if isinstance(function, staticmethod | classmethod) else function
        target.__remuda_handles__ = marks  # type: ignore[attr-defined]
        return function

    return mark


def _options(options: Mapping[str, Any]) -> PublishOptions:
    try:
        return PublishOptions(**options)
    except TypeError:
        unknown = sorted(set(options) - set(PublishOptions.__struct_fields__))
        raise TypeError(
            f"no option is called {', '.join(unknown)}; there are {', '.join(PublishOptions.__struct_fields__)}"
        ) from None


def _check_known(options: Mapping[str, Any], known: Any, what: str) -> None:
    unknown = sorted(set(options) - set(known.__annotations__) - set(RuleKwargs.__annotations__))
    if unknown:
        names = sorted({*known.__annotations__, *RuleKwargs.__annotations__})
        raise TypeError(f"{what} has no option {', '.join(unknown)}; there are {', '.join(names)}")


def _class_name(instance: object) -> str:
    return instance.__name__ if isinstance(instance, type) else type(instance).__name__


def _once_id(id: str, unique: str | None, idempotency_key: str | None) -> str:
    if (unique is not None and idempotency_key is not None) or id:
        raise InvalidMessage("give one of id, unique and idempotency_key, not several; nothing was stored")
    key = unique if unique is not None else idempotency_key
    if not isinstance(key, str) or not key:
        raise InvalidMessage(f"unique and idempotency_key must be texts, not {key!r}; nothing was stored")
    return key


def _checked_id(id: str) -> str:
    if not isinstance(id, str) or not id:
        raise InvalidOption(f"an id must be a text, not {id!r}")
    return id


def _no_reply(topic: str, timeout: Duration) -> TimeoutError:
    return TimeoutError(f"no reply from {topic} within {timeout}; the message is kept and may still be handled")
