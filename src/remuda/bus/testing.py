"""A bus for your own tests (B18): in memory, in the test's thread, with a clock that the test moves.

    with bus.testing() as test:
        test.publish("order.placed", Order(id=1))
        test.run(raise_errors=True)
        test.advance("1m")

It is the bus under test itself, so messages that handlers publish through it stay in the test. Executors and timeouts
are off: calls run one after another.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, overload

from remuda.bus.broker_api import EmbeddedBroker, Outcome, QueueInfo, collect_when_due, next_wake
from remuda.bus.errors import HandlerFailed
from remuda.bus.execution.active_delivery import FinishedCalls
from remuda.bus.execution.processor import QueueProcessor
from remuda.bus.handlers.call import HandlerCall
from remuda.bus.handlers.loops import loop_runs_here, run_on_new_loop
from remuda.bus.handlers.result import CallResult
from remuda.bus.lazy_broker import LazyBroker
from remuda.bus.publishing import bodies
from remuda.bus.publishing.dead_letters import DeadLetter, FilterKwargs
from remuda.bus.publishing.publish_options import CallKwargs, PublishKwargs, SendKwargs
from remuda.model.document import Document
from remuda.model.errors import InvalidOption, RemudaError
from remuda.model.message import Message
from remuda.model.topics import matches
from remuda.model.values.durations import Duration
from remuda.model.values.option_reading import read_duration
from remuda.model.values.texts import shown

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

T = TypeVar("T")
_PLENTY: Final = 10_000
_SOON: Final = 5.0
_MOMENT: Final = 0.05
_RULES: Final = frozenset(
    {"auto_queue_creation", "default_queue", "queue_defaults", "compact", "compact_objects", "infer_types",
     "success_retention", "dead_retention", "collect_interval"}
)  # fmt: skip
"""Options of the bus's broker that say what becomes of messages; the others say where and how it keeps them."""


class ManualClock:
    """Time that stands still until you move it. It starts at the current time by default."""

    def __init__(self, now: int | None = None) -> None:
        if now is not None and type(now) is not int:
            raise InvalidOption(f"now must be microseconds since the epoch as a whole number, not {shown(now)}")
        self.now = time.time_ns() // 1000 if now is None else now

    def __call__(self) -> int:
        return self.now

    def __repr__(self) -> str:
        return f"ManualClock({self.now})"

    def advance(self, duration: Duration) -> None:
        self.now += read_duration("duration", duration)


class TestBus:
    """A bus whose handlers run when the test says so. Closing it restores the bus."""

    __test__ = False

    def __init__(self, bus: Bus, url: str | os.PathLike[str], clock: ManualClock | None) -> None:
        if bus._running.running:
            raise RemudaError("the bus is running; stop it before testing")
        if clock is not None and not isinstance(clock, ManualClock):
            raise InvalidOption(f"clock must be a ManualClock, which the test can move, not {shown(clock)}")
        self.bus = bus
        self.clock = clock or ManualClock()
        self._started = False
        self._planned = False
        self._errors: list[CallResult] = []
        self._before = (bus._lazy, bus._calls.listener)
        rules: Any = {name: value for name, value in bus._lazy.options.items() if name in _RULES}
        bus._lazy, bus._calls.listener = LazyBroker(url, self.clock, rules, bus._prepare), None
        bus._calls.test = self

    def __repr__(self) -> str:
        return f"<TestBus of {self.bus!r}>"

    def close(self) -> None:
        bus = self.bus
        if self._started:
            bus._running.lifecycle.stop(bus.loop_holder)
        self._restore()

    def __enter__(self) -> TestBus:
        if self.bus._running.lifecycle.needs_loop:
            raise RemudaError("a startup or shutdown hook is a coroutine; write: async with bus.testing() as test")
        self._started = True
        self.bus._running.lifecycle.start(self.bus.loop_holder)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> TestBus:
        await self.bus._running.lifecycle.start_async()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.bus._running.lifecycle.stop_async()
        self._restore()

    def _restore(self) -> None:
        bus = self.bus
        bus.close()
        bus._calls.test = None
        bus._lazy, bus._calls.listener = self._before

    def publish(self, topic: Any, body: Any = None, **options: Unpack[PublishKwargs]) -> str:
        return self.bus.publish(topic, body, **options)

    def send(self, topic: Any, body: Any = None, **options: Unpack[SendKwargs]) -> list[Any]:
        return self.bus.send(topic, body, **options)

    @overload
    def call(self, topic: str, body: Any = None, *, result: type[T], **options: Unpack[CallKwargs]) -> T: ...
    @overload
    def call(self, topic: str, body: Any = None, *, result: Any = Any, **options: Unpack[CallKwargs]) -> Any: ...
    def call(self, topic: str, body: Any = None, *, result: Any = Any, **options: Unpack[CallKwargs]) -> Any:
        """Publish, run, and return the reply, or raise the handler's error."""
        bodies.read_wanted("result", result)
        _, future = self.bus._calls.ask(topic, body, 0, options)
        self.run()
        reply = future.result(_SOON)
        return bodies.decode(reply.body, reply.mime_type, result)

    def run(self, *, raise_errors: bool = False) -> int:
        """Handle everything that can be handled now, and return the number of calls.

        A failure is retried and ends as a dead letter, as in production; `raise_errors` raises the first one here.
        """
        self._errors.clear()
        calls = 0
        processors = self._processors()
        while made := sum(self._round(processor) for processor in processors) + self._pump():
            calls = self._count(calls, made)
            self._raise_first(raise_errors)
        return calls

    async def run_async(self, *, raise_errors: bool = False) -> int:
        """`run` for a test that is a coroutine: handlers run on its loop."""
        import asyncio

        self._errors.clear()
        calls = 0
        processors = self._processors()
        while True:
            made = 0
            for processor in processors:
                made += await self._round_async(processor)
            made += await asyncio.to_thread(self._pump)
            if not made:
                return calls
            calls = self._count(calls, made)
            self._raise_first(raise_errors)

    def advance(self, duration: Duration, *, raise_errors: bool = False) -> int:
        """Move the clock, handle everything as it becomes due, and return the number of calls."""
        end = self.clock.now + read_duration("duration", duration)
        broker = self.bus.broker
        assert isinstance(broker, EmbeddedBroker)
        calls = self.run(raise_errors=raise_errors)
        while (wake := min(next_wake(broker), self.bus.schedules.next_look or end + 1, self._opens(end))) <= end:
            self.clock.now = max(wake, self.clock.now + 1)
            next_wake(broker)
            calls += self.run(raise_errors=raise_errors)
        self.clock.now = max(end, self.clock.now)
        next_wake(broker)
        collect_when_due(broker)
        return calls + self.run(raise_errors=raise_errors)

    def _opens(self, end: int) -> int:
        """When the rules of a queue let more go out, though nobody waits there while the test stands still."""
        broker = self.bus.broker
        found = [end + 1]
        for queue in {processor.queue for processor in self._processors()}:
            if broker.queue(queue).options.has_flow and (opens := broker.flow(queue, 0).opens) is not None:
                found.append(opens)
        return min(found)

    def published(self, topic: str = "#") -> list[Message]:
        """Everything published so far under a topic, which may contain wildcards, in order."""
        pattern = self.bus.prefix + topic
        return [
            message
            for record in self.bus.broker.spectate().messages()
            for message in record.messages
            if matches(pattern, message.name) and not message.name.startswith(("remuda-reply.", "remuda.result"))
        ]

    def serve(self, future: Future[Message]) -> None:
        """Handle other messages while a handler waits for the reply to its `call`."""
        processors = self._processors()
        made = 1
        while made and not future.done():
            made = sum(self._round(processor) for processor in processors)
            wait([future], _MOMENT)

    async def serve_async(self, future: Future[Message]) -> None:
        processors = self._processors()
        while not future.done():
            made = 0
            for processor in processors:
                made += await self._round_async(processor)
            if not made:
                return
            wait([future], _MOMENT)

    def queue(self, name: str) -> QueueInfo:
        return self.bus.broker.queue(self.bus._operations.queue_name(name))

    def message(self, message: str) -> Document:
        return self.bus.broker.message(message)

    def dead_letters(self, queue: str, **filters: Unpack[FilterKwargs]) -> list[DeadLetter]:
        return self.bus.dead_letters(queue, **filters)

    def _processors(self) -> list[QueueProcessor]:
        processors = self.bus.processors()
        if not self._planned:
            self._planned = True
            self.bus.schedules.plan_all()
        for processor in processors:
            processor.on_result = self._note
        return processors

    def _note(self, result: CallResult) -> None:
        if result.outcome is Outcome.NACK:
            self._errors.append(result)

    def _count(self, calls: int, made: int) -> int:
        if calls + made > _PLENTY:
            raise RuntimeError(f"after {calls + made} calls there is still work; do handlers publish to themselves?")
        return calls + made

    def _raise_first(self, wanted: bool) -> None:
        if wanted and self._errors:
            first = self._errors[0]
            if first.error is not None:
                raise first.error
            raise HandlerFailed(first.reason or "failed", error_type=first.error_type, detail=first.detail)

    def _pump(self) -> int:
        """Let companions, such as relays, do their work."""
        return sum(companion.pump() for companion in self.bus.companions)

    def _pull_count(self, processor: QueueProcessor) -> int:
        return processor.settings.batch if processor.dispatcher.takes_lists and processor.settings.batch else 1

    def _round(self, processor: QueueProcessor) -> int:
        delivery = self.bus.broker.pull(processor.queue, self._pull_count(processor))
        if delivery is None:
            return 0
        finished: FinishedCalls = []
        for rows, call in processor.dispatcher.calls(delivery):
            finished.append((rows, call if isinstance(call, CallResult) else _run(call)))
        processor.settle(delivery, finished)
        return len(finished)

    async def _round_async(self, processor: QueueProcessor) -> int:
        delivery = self.bus.broker.pull(processor.queue, self._pull_count(processor))
        if delivery is None:
            return 0
        finished: FinishedCalls = []
        for rows, call in processor.dispatcher.calls(delivery):
            finished.append((rows, call if isinstance(call, CallResult) else await call.run_async()))
        processor.settle(delivery, finished)
        return len(finished)


def _run(call: HandlerCall) -> CallResult:
    """Run a call here; a coroutine on a thread of its own if the test itself runs on a loop."""
    return run_on_new_loop(call.run_async()) if call.handler.is_async and loop_runs_here() else call.run()
