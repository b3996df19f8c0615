"""A bus in a user's own tests (B18): in memory, in the test's thread, with a clock that the test moves.

    with bus.testing() as test:
        test.publish("order.placed", Order(id=1))
        test.run()
        test.advance("1m")

The bus itself is the one under test, so handlers that publish through it are part of it. Its executors and timeouts
rest: calls are made one after another.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from remuda.broker.embedded import EmbeddedBroker
from remuda.bus import bodies
from remuda.bus.crew import Work
from remuda.bus.hand import Ended
from remuda.bus.invoke import Call, apart, loop_runs_here
from remuda.bus.letters import DeadLetter
from remuda.bus.outcome import Outcome
from remuda.core.info import QueueInfo
from remuda.model.document import Document
from remuda.model.durations import Duration, micros
from remuda.model.errors import RemudaError

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

_START: Final = 1_800_000_000_000_000
_PLENTY: Final = 10_000
_SOON: Final = 5.0


class ManualClock:
    """Time that stands still until it is moved."""

    def __init__(self, now: int = _START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, duration: Duration) -> None:
        self.now += micros(duration)


class TestBus:
    """A bus whose handlers run when the test says so. Closing it gives the bus back as it was."""

    __test__ = False

    def __init__(self, bus: Bus, url: str | os.PathLike[str], clock: ManualClock | None) -> None:
        if bus._runner is not None and bus._runner.running:
            raise RemudaError("the bus is running; stop it before testing")
        self.bus = bus
        self.clock = clock or ManualClock()
        self._before = (bus.url, bus._clock, bus._broker_options, bus._broker, bus._replies)
        bus.url, bus._clock, bus._broker_options, bus._broker, bus._replies = url, self.clock, {}, None, None

    def close(self) -> None:
        bus = self.bus
        bus.close()
        bus.url, bus._clock, bus._broker_options, bus._broker, bus._replies = self._before

    def __enter__(self) -> TestBus:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def publish(self, topic: str, body: Any = None, **options: Any) -> str:
        return self.bus.publish(topic, body, **options)

    def send(self, topic: str, body: Any = None, **options: Any) -> list[Any]:
        return self.bus.send(topic, body, **options)

    def call(self, topic: str, body: Any = None, *, result: Any = Any, **options: Any) -> Any:
        """Publish, run, and give the answer."""
        _, future = self.bus._ask(topic, body, options)
        self.run()
        answer = future.result(_SOON)
        return bodies.decode(answer.body, answer.mime_type, result)

    def run(self) -> int:
        """Handle everything that can be handled now. Gives how many calls were made."""
        calls = 0
        works = self.bus.works()
        while made := sum(self._round(work) for work in works) + sum(one.pump() for one in self.bus.companions):
            calls += made
            if calls > _PLENTY:
                raise RuntimeError(f"after {calls} calls there is still work; do handlers publish to themselves?")
        return calls

    def advance(self, duration: Duration) -> int:
        """Let time pass, and handle everything when it becomes due. Gives how many calls were made."""
        end = self.clock.now + micros(duration)
        broker = self.bus.broker
        assert isinstance(broker, EmbeddedBroker)
        calls = self.run()
        while (wake := broker.host.tick()) <= end:
            self.clock.now = max(wake, self.clock.now + 1)
            broker.host.tick()
            calls += self.run()
        self.clock.now = max(end, self.clock.now)
        broker.host.tick()
        return calls + self.run()

    def queue(self, name: str) -> QueueInfo:
        return self.bus.broker.queue(name)

    def message(self, message: str) -> Document:
        return self.bus.broker.message(message)

    def dead_letters(self, queue: str, **filters: Any) -> list[DeadLetter]:
        return self.bus.dead_letters(queue, **filters)

    def _round(self, work: Work) -> int:
        delivery = self.bus.broker.pull(
            work.queue, work.settings.batch if work.duties.takes_lists and work.settings.batch else 1
        )
        if delivery is None:
            return 0
        ended: Ended = []
        for rows, call in work.duties.calls(delivery):
            ended.append((rows, call if isinstance(call, Outcome) else _run(call)))
        work.conclude(delivery, ended)
        return len(ended)


def _run(call: Call) -> Outcome:
    """Run a call here; a coroutine in a thread of its own if the test itself is one."""
    return apart(call.run_async()) if call.handler.is_async and loop_runs_here() else call.run()
