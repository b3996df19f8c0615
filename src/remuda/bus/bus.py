"""The bus: publishing, handlers, schedules, and running them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from remuda.bus import argument_checks
from remuda.bus.broker_api import (
    Broker,
    BrokerKwargs,
    Clock,
    check_opening,
    steady_clock,
)
from remuda.bus.companions import Companion, TransactionalOutbox
from remuda.bus.execution.failure_policy import Threshold
from remuda.bus.execution.processes.parent import parent
from remuda.bus.execution.processor import QueueProcessor
from remuda.bus.execution.processors import Processors
from remuda.bus.execution.runner import Runner
from remuda.bus.execution.running import Running
from remuda.bus.handlers.environment import CallEnvironment
from remuda.bus.handlers.handler import Handler
from remuda.bus.handlers.handler_registry import (
    HandlerRegistry,
    RuleKwargs,
    SubscribeKwargs,
)
from remuda.bus.handlers.loops import LoopHolder
from remuda.bus.handlers.middleware import Middleware, MiddlewareStack
from remuda.bus.handlers.subscribing import Subscribing
from remuda.bus.health import BusHealth, bus_health
from remuda.bus.lazy_broker import LazyBroker
from remuda.bus.message_operations import IfRunning, Operations
from remuda.bus.observing import progress
from remuda.bus.observing.presence import Presence
from remuda.bus.publishing import bodies
from remuda.bus.publishing.dead_letters import DeadLetter, FilterKwargs
from remuda.bus.publishing.direct_send import Sending
from remuda.bus.publishing.message_checks import Moment
from remuda.bus.publishing.publish_options import (
    BatchKwargs,
    CallKwargs,
    PublishKwargs,
    PublishOptions,
    SendKwargs,
    once_id,
    read_publish_options,
)
from remuda.bus.publishing.publisher import MessagePublisher
from remuda.bus.publishing.request_reply import Calls
from remuda.bus.publishing.tracking import MessageStatus
from remuda.bus.scheduling.cron import Cron
from remuda.bus.scheduling.run_planner import Planner, Schedules
from remuda.bus.scheduling.schedule import CatchUp, Every
from remuda.bus.settings.retry import RetrySpec
from remuda.bus.settings.settings import QueueSettings, Settings
from remuda.bus.testing import ManualClock, TestBus
from remuda.bus.workflows.link import in_thread
from remuda.bus.workflows.work import Work
from remuda.bus.workflows.workflows import Workflows
from remuda.model.errors import InvalidMessage, RemudaError
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages
from remuda.model.values.durations import Duration
from remuda.model.values.texts import read_optional_text
from remuda.model.values.urls import parse_url

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
ASGI = Callable[[Any, Any, Any], Awaitable[None]]


class Bus:
    """A message bus at a URL. It opens nothing until it is used."""

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
        **broker_options: Unpack[BrokerKwargs],
    ) -> None:
        bodies.check_encoding(encoding)
        check_opening(url, broker_options)
        self.user = read_optional_text("user", user)
        self.encoding = encoding
        self.stack = MiddlewareStack(argument_checks.read_middleware(middleware))
        self.settings = settings if isinstance(settings, Settings) else Settings.load(settings, config)
        if prefix is not None:
            self.settings.put("message.prefix", prefix, "Bus(prefix=…)")
        self.prefix: str = self.settings.get("message.prefix").value
        self.on_threshold = argument_checks.read_function("on_threshold", on_threshold)
        self.loop_holder = LoopHolder()
        self._registry = HandlerRegistry()
        self._publisher = MessagePublisher(self)
        self._calls = Calls(self, self._publisher, self._registry)
        self._sending = Sending(self, self._publisher, self._registry, self._environment)
        self.schedules = Schedules(self)
        self.workflows = Workflows(self)
        self._subscribing = Subscribing(self.prefix, self.stack, self.schedules, self.add)
        self._operations = Operations(self)
        # The broker uses it too: one clock for delays and expiry, even if the machine's clock is set meanwhile.
        chosen_clock = argument_checks.read_function("clock", clock) or steady_clock()
        self._lazy = LazyBroker(url, chosen_clock, broker_options, self._prepare)
        self.outbox: TransactionalOutbox | None = None
        self.companions: list[Companion] = [Planner(self.schedules)]
        """Parts that run as long as the bus does, such as relays."""
        self._processors = Processors(self, self._environment)
        self._running = Running(
            self._processors.runner, self.loop_holder, self.companions, self._abandon_opening, self._presence
        )

    def __repr__(self) -> str:
        count = len(self.handlers)
        handlers = f"{count or 'no'} handler{'' if count == 1 else 's'}"
        return f"<Bus at {parse_url(self.url)}, {handlers}{', running' if self.running else ''}>"

    @property
    def url(self) -> str | os.PathLike[str]:
        return self._lazy.url

    @property
    def handlers(self) -> list[Handler]:
        return self._registry.handlers

    def now(self) -> int:
        """The time by the broker's clock, in microseconds since the epoch."""
        broker = self._lazy.broker
        return self._lazy.clock() if broker is None else broker.now()

    # Handlers

    def subscribe(self, *topics: str | type, **options: Unpack[SubscribeKwargs]) -> Callable[[F], F]:
        """Handle messages under these topics; `*` matches one word, `#` any number. A type that carries a topic, see
        `remuda.message`, stands for it.

        Handlers with the same `group` (or `queue`) share a queue and compete; every other handler gets every message.
        The rules are `retry`, `retry_on`, `give_up_on`, `timeout`, `failover`, `threads`, `executor` and `batch`.
        With `unique`, a message is refused while one with the same id is waiting or being handled. With
        `keep_result`, `bus.result(id)` returns what the handler returned. Options of the queue stand beside them, such
        as `message_limit`, `put_back` or `message_timeout`.
        """
        return self._subscribing.subscribe(topics, options)

    def subscribe_class(self, instance: object) -> None:
        """Register the methods of an object that are marked with `handles`."""
        self._subscribing.subscribe_class(instance)

    def every(
        self,
        interval: Duration,
        *,
        name: str | None = None,
        catch_up: CatchUp | str = CatchUp.ONCE,
        **rules: Unpack[RuleKwargs],
    ) -> Callable[[F], F]:
        """Run a function at fixed times, `interval` apart, once across all processes and restarts.

        `catch_up` decides about times at which nothing ran: `once`, `all` or `skip`.
        """
        return self._subscribing.schedule(Every.read(interval), name, catch_up, rules)

    def cron(
        self,
        text: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        catch_up: CatchUp | str = CatchUp.ONCE,
        **rules: Unpack[RuleKwargs],
    ) -> Callable[[F], F]:
        """Run a function on a cron schedule, `minute hour day month weekday`, in a time zone."""
        return self._subscribing.schedule(Cron.read(text, tz), name, catch_up, rules)

    def provide(self, wanted: Any) -> Callable[[F], F]:
        """Create values of a type for handlers that ask for it, one for each message.

        The function may take the `Context`. It may be a coroutine, or a generator that cleans up after its `yield`.
        """
        return self._subscribing.provide(wanted)

    def on_startup(self, function: F) -> F:
        """Call a function, or await a coroutine, before handlers start. Coroutines run on the handlers' loop."""
        self._running.lifecycle.startup.append(argument_checks.read_hook("on_startup", function))
        return function

    def on_shutdown(self, function: F) -> F:
        """Call a function, or await a coroutine, after handlers have stopped."""
        self._running.lifecycle.shutdown.append(argument_checks.read_hook("on_shutdown", function))
        return function

    def add(self, handler: Handler) -> None:
        """Register a `Handler` object."""
        if self._running.running:
            raise RemudaError(f"the bus is running; register {handler.id} before it starts")
        before = list(self._registry.handlers)
        self._registry.add(handler)
        if self._lazy.broker is not None:
            try:
                self._processors.declare(self._lazy.broker)
            except BaseException:
                self._registry.handlers = before
                raise

    def workflow(
        self,
        *topics: str,
        name: str | None = None,
        version: int = 1,
        retry: RetrySpec = None,
        waits_for: str | tuple[str, ...] = (),
        **options: Any,
    ) -> Callable[[F], F]:
        """A function whose steps are recorded: after a crash, a deploy or a move to another process it goes on after
        the last of them. Its first parameter is the run, see `remuda.Run`, the second the body.

        A run is a message: `bus.workflows.start(name, body)` publishes it, as does anything under `topics`. `retry` is
        the policy of its steps, `waits_for` are the topics for which `run.wait_for` waits. Runs that began under an
        older `version` go on with it. Options of the queue stand beside them, such as `threads` and `executor`.
        """
        return self.workflows.register(topics, name, version, retry, waits_for, options)

    # Publishing

    def publish(
        self,
        topic: Any,
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
        topics: Sequence[str] = (),
        timestamp: Moment | None = None,
        flow_key: str | None = None,
        weight: int = 1,
        key_concurrency: int | None = None,
        transaction: Any = None,
    ) -> str:
        """Store a message and return its id. Handlers run later, wherever the bus runs.

        A value of a type that carries its topic, see `remuda.message`, is published without naming it; so are chains
        and groups, see `remuda.chain`.

        `topics` are all topics it goes under, where that is not `topic` alone; a queue gets it once. `timestamp` is
        the producer's own. `mime_type` describes a body of bytes; other values have that of their encoding. With
        `unique`, nothing is published while a message with that key is waiting or being handled; with
        `idempotency_key`, while one is known at all. Either key becomes the message's id. For the rules of its queues,
        `flow_key` counts instead of the key, `weight` is as how many it counts, and `key_concurrency` how many of its
        key may run. With `transaction`, a connection or session of your database, the message is sent if and when that
        transaction commits.
        """
        if type(topic) is not str and isinstance(topic, Work):
            topic, body = self.workflows.message_of(topic, body, topics, mime_type)
            id, idempotency_key = "", idempotency_key or id or None
        if unique is not None or idempotency_key is not None:
            id = once_id(id, unique, idempotency_key)
        options = PublishOptions(
            callback, headers, id, object, key, mime_type, priority, delay, at, expires, user, failure_callback,
            keep_result, topics, timestamp, flow_key, weight, key_concurrency,
        )  # fmt: skip
        messages = self._publisher.message(topic, body, options)
        if unique is not None or idempotency_key is not None:
            return self._publisher.publish_once(messages, "ever" if unique is None else "waiting", transaction)
        return self._publisher.publish(messages, transaction)[0]

    def publish_many(
        self, topic: str | type, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[BatchKwargs]
    ) -> list[str]:
        """Publish many bodies under one topic, or that of a type which carries it, for about the cost of one; all are
        stored when it returns."""
        return self._publisher.publish(self._messages(topic, bodies, options), transaction)

    def publish_messages(self, messages: Message | Iterable[Message], *, transaction: Any = None) -> list[str]:
        """Publish `Message` objects."""
        return self._publisher.publish(argument_checks.read_messages(messages), transaction)

    def transaction(self, connection: Any) -> Any:
        """`with bus.transaction(connection):` makes everything published in the block part of the connection's
        transaction, which ends with the block. Use `async with` for async connections."""
        return self._publisher.outbox.transaction(connection)

    async def publish_async(
        self, topic: Any, body: Any = None, *, transaction: Any = None, **options: Unpack[PublishKwargs]
    ) -> str:
        """`publish` for coroutines."""
        if isinstance(topic, Work):
            return await in_thread(self.publish, topic, body, transaction=transaction, **options)
        if options.get("unique") is not None or options.get("idempotency_key") is not None:
            return await in_thread(self.publish, topic, body, transaction=transaction, **options)
        options.pop("unique", None)
        options.pop("idempotency_key", None)
        messages = self._publisher.message(topic, body, read_publish_options(options))
        return (await self._publisher.publish_async(messages, transaction))[0]

    async def publish_many_async(
        self, topic: str | type, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[BatchKwargs]
    ) -> list[str]:
        """`publish_many` for coroutines."""
        return await self._publisher.publish_async(self._messages(topic, bodies, options), transaction)

    def serve_process(self, asked: Any) -> Any:
        """The answer to a handler's process: the ids of what it publishes, or what a workflow in it asks for."""
        if isinstance(asked, Messages):
            return self.deliver(asked)
        if isinstance(asked, progress.TellProgress):
            return progress.keep(asked.queue, asked.offset, asked.progress)
        return self.workflows.answer(asked)

    def deliver(self, messages: Messages) -> list[str]:
        """Pass messages to the broker without middleware; from a handler's process, through its parent."""
        return self._publisher.deliver(messages)

    def send(self, topic: Any, body: Any = None, **options: Unpack[SendKwargs]) -> list[Any]:
        """Run the subscribed handlers now, in this thread, and return their results; raises their errors.

        Runs one handler of each queue. Nothing is stored, so there are no retries and no timeouts.
        """
        return self._sending.send(topic, body, options)

    async def send_async(self, topic: Any, body: Any = None, **options: Unpack[SendKwargs]) -> list[Any]:
        """`send` for coroutines."""
        return await self._sending.send_async(topic, body, options)

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
        """Publish, wait for the reply of the handler, which may run elsewhere, and return it as a `result`.

        If the handler fails for good, or would be retried only after the timeout, raises its error as
        `HandlerFailed`.
        """
        return self._calls.call(topic, body, timeout, result, options)

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
        return await self._calls.call_async(topic, body, timeout, result, options)

    # By id

    def status(self, id: str) -> MessageStatus:
        """A message's state in each of its queues; raises `NotFound` if the id is unknown."""
        return self._operations.status(id)

    def cancel(self, id: str, *, who: str | None = None, running: IfRunning = "interrupt") -> int:
        """Cancel a message. Returns how many messages with this id end by it: 0 if it has ended.

        One that waits for its turn, its time or a retry ends at once. If it is being handled, its handler is told by
        its `StopToken`, if it asked for one, and interrupted a second later; else interrupted at once, as by a timeout:
        here immediately, elsewhere within two seconds. A handler that returns first has succeeded. With
        `running="leave"`, only what waits is cancelled.

        The message becomes a dead letter with the reason `cancelled`, and can be reprocessed.
        """
        return self._operations.cancel(id, who, running)

    async def cancel_async(self, id: str, *, who: str | None = None, running: IfRunning = "interrupt") -> int:
        """`cancel` for coroutines."""
        return await in_thread(self.cancel, id, who=who, running=running)

    @overload
    def result(self, id: str, result: type[T], *, queue: str | None = None, timeout: Duration = 0) -> T: ...
    @overload
    def result(self, id: str, result: Any = Any, *, queue: str | None = None, timeout: Duration = 0) -> Any: ...
    def result(self, id: str, result: Any = Any, *, queue: str | None = None, timeout: Duration = 0) -> Any:
        """Return what the handler returned for a message published with `keep_result`, or raise the handler's error.

        Raises `ResultNotReady` if the message has not ended within `timeout`.
        """
        return self._operations.result(id, result, queue, timeout)

    async def result_async(self, id: str, result: Any = Any, *, queue: str | None = None, timeout: Duration = 0) -> Any:
        """`result` for coroutines."""
        return await self._operations.result_async(id, result, queue, timeout)

    def results(self, ids: Iterable[str], result: Any = Any, *, timeout: Duration = "30s") -> Iterator[tuple[str, Any]]:
        """What became of many messages, each as soon as it has ended: its id with what the handler returned, or with
        the error. Those that have not ended within `timeout` come last, as `ResultNotReady`."""
        return self._operations.results(ids, result, timeout)

    async def results_async(
        self, ids: Iterable[str], result: Any = Any, *, timeout: Duration = "30s"
    ) -> AsyncIterator[tuple[str, Any]]:
        """`results` for coroutines: `async for id, found in bus.results_async(ids)`."""
        found = self.results(ids, result, timeout=timeout)
        while (one := await in_thread(next, found, None)) is not None:
            yield one

    # Running

    @property
    def broker(self) -> Broker:
        """The broker, opened on first use."""
        if (broker := self._lazy.broker) is not None:
            return broker
        if parent() is not None:
            raise RemudaError(
                "a handler in a process of its own can publish, but only its parent process has the broker"
            )
        return self._lazy.open()

    @property
    def closed(self) -> bool:
        """Whether it was closed and not used since."""
        return self._lazy.closed

    @property
    def running(self) -> bool:
        """Whether this process runs handlers."""
        return self._running.running

    def runs_on_this_loop(self) -> bool:
        """Whether coroutines of its handlers run on the loop from which this is called."""
        return self._running.runs_on_this_loop

    def run(self, *, until_idle: bool = False, grace: Duration = "10s", timeout: Duration | None = None) -> None:
        """Handle messages until `stop` is called, or with `until_idle` until none is left to handle now.

        Ctrl-C and SIGTERM stop it too. Running handlers then have `grace` to finish, and nothing is lost.
        """
        self._running.run(until_idle, grace, timeout)

    async def run_async(
        self,
        *,
        until_idle: bool = False,
        grace: Duration = "10s",
        timeout: Duration | None = None,
        loop_per_queue: bool = False,
    ) -> None:
        """`run` on the application's own event loop: coroutines, async middleware and hooks run on this loop.

        With `loop_per_queue`, each queue has its own loop, so that a blocking handler holds up no other queue.
        """
        await self._running.run_async(until_idle, grace, timeout, loop_per_queue)

    def start(self) -> Runner:
        """Handle messages in the background; `stop` ends it."""
        return self._running.start()

    async def start_async(self, *, loop_per_queue: bool = False) -> Runner:
        """Handle messages in the background, coroutines on this loop; `await stop_async()` ends it."""
        return await self._running.start_async(loop_per_queue=loop_per_queue)

    def ask_to_stop(self) -> None:
        """Ask `run` to end; handlers finish first, and a connection that is being made is given up.

        Safe to call from anywhere, even from signal handlers.
        """
        self._running.ask_to_stop()

    def stop(self, grace: Duration = "10s") -> None:
        """Stop handling: handlers have `grace` to finish, and the rest goes back to the queues.

        Asks a `run` in another thread to end. After `start`, returns when all handlers have ended.
        """
        self._running.stop(grace)

    async def stop_async(self, grace: Duration = "10s") -> None:
        """`stop` for coroutines, after `start_async`."""
        await self._running.stop_async(grace)

    def close(self) -> None:
        """Stop handling and close the broker."""
        self._running.refuse_to_wait_on_own_loop("await bus.stop_async() first")
        self._running.end(10)
        self._lazy.abandon()
        with self._lazy.guard:
            self._calls.close()
            if self.outbox is not None:
                self.outbox.close()
        self._lazy.close()

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Bus:
        """Handle messages on this loop inside the block, as in an application's lifespan."""
        await self.start_async()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop_async()
        await in_thread(self.close)

    def health(self) -> BusHealth:
        """`live`: the broker works, or will again by itself, for example once the disk has room. `ready`: handlers are
        running too, and nothing keeps them or the relay from working. `problems`, if any: the reason for each part."""
        if self.closed:
            return {"live": False, "ready": False}
        try:
            running = self.running
            runner = self._running.runner
            return bus_health(self.broker, running, None if runner is None else runner.trouble, self.companions)
        except RemudaError as error:
            return {"live": False, "ready": False, "problems": {"broker": str(error)}}

    def dashboard(self, **options: Any) -> ASGI:
        """The dashboard and the HTTP API as an ASGI application, to mount in another or serve by itself.

        Without `users=` (a file of names and passwords) or `identify=` (a function or coroutine function from a
        request to a `User`), it answers only requests from this machine.
        """
        from remuda.server.http.mounting import dashboard

        return dashboard(self, **options)

    def testing(self, url: str | os.PathLike[str] = "memory://", *, clock: ManualClock | None = None) -> TestBus:
        """This bus in memory for the duration of a test, with a clock that the test moves (B18)."""
        return TestBus(self, url, clock)

    # Dead letters

    def dead_letters(self, queue: str, *, limit: int = 100, **filters: Unpack[FilterKwargs]) -> list[DeadLetter]:
        """Messages of a queue that ended without success, the newest first.

        Filters are `reason` (a part of it), `since` and `until` (when they ended) and `states`.
        """
        return self._operations.dead_letters(queue, limit, filters)

    def reprocess(
        self, queue: str, *, waiting: bool = True, who: str | None = None, **filters: Unpack[FilterKwargs]
    ) -> int:
        """Send failed messages back to their queue with a fresh count of attempts: dead letters, and with `waiting`
        also those that wait for a retry. Filters as for `dead_letters`."""
        return self._operations.reprocess(queue, waiting, who, filters)

    def forget(self, queue: str, *, who: str | None = None, **filters: Unpack[FilterKwargs]) -> int:
        """Delete dead letters for good; filters as for `dead_letters`."""
        return self._operations.forget(queue, who, filters)

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
        """End all waiting messages of a queue, or those that match `topic`, `since` and `until` (when they were
        published) and `reason` (of the last failure). They become dead letters, and can be reprocessed."""
        return self._operations.clear(queue, topic, reason, since, until, who)

    # Internal

    def queue_settings(self) -> dict[str, QueueSettings]:
        """The effective settings of each queue, checked as a whole."""
        return self._processors.queue_settings()

    def processors(self) -> list[QueueProcessor]:
        """The processor of each queue."""
        return self._processors.all()

    def _prepare(self, broker: Broker) -> None:
        self.workflows.check(broker)
        self._processors.declare(broker)

    def _presence(self, runner: Runner) -> Presence:
        return Presence(runner, self.broker, self.now, lambda: self._running.stop("10s"))

    def _abandon_opening(self) -> None:
        self._lazy.abandon()

    def _environment(self, stack: MiddlewareStack, settings: QueueSettings | None = None) -> CallEnvironment:
        retry = None if settings is None else settings.retry
        return CallEnvironment(stack, self._subscribing.providers, self.encoding, self.loop_holder, retry, self.prefix)

    def _messages(self, topic: Any, bodies: Iterable[Any], options: Mapping[str, Any]) -> Messages:
        if "id" in options:
            raise InvalidMessage("publish_many takes no id, since many messages cannot share one; nothing was stored")
        return self._publisher.messages(topic, argument_checks.read_bodies(bodies), read_publish_options(options))
