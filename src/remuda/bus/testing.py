"""A bus for a user's own tests (B18): in memory, in the test's thread, with a clock that the test moves.

    with bus.testing() as test:
        test.publish("order.placed", Order(id=1))
        test.run()
        test.advance("1m")
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from remuda.broker.embedded import EmbeddedBroker
from remuda.bus.crew import Work
from remuda.bus.outcome import Outcome
from remuda.core.info import QueueInfo
from remuda.model.document import Document
from remuda.model.durations import Duration, micros

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

_START: Final = 1_800_000_000_000_000
_PLENTY: Final = 10_000


class ManualClock:
    """Time that stands still until it is moved."""

    def __init__(self, now: int = _START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, duration: Duration) -> None:
        self.now += micros(duration)


class TestBus:
    """The handlers of a bus, run one after another when the test says so."""

    __test__ = False

    def __init__(self, original: Bus) -> None:
        from remuda.bus.bus import Bus as AnyBus

        self.clock = ManualClock()
        self.bus = AnyBus(
            "memory://",
            settings=original.settings,
            middleware=original.stack.layers,
            encoding=original.encoding,
            user=original.user,
            on_threshold=original.on_threshold,
            clock=self.clock,
        )
        self.bus.handlers = list(original.handlers)

    def __enter__(self) -> TestBus:
        return self

    def __exit__(self, *exc: object) -> None:
        self.bus.close()

    def publish(self, topic: str, body: Any = None, **options: Any) -> str:
        return self.bus.publish(topic, body, **options)

    def send(self, topic: str, body: Any = None, **options: Any) -> list[Any]:
        return self.bus.send(topic, body, **options)

    def run(self) -> int:
        """Handle everything that can be handled now. Gives how many calls were made."""
        calls = 0
        works = self.bus.works()
        while made := sum(self._round(work) for work in works):
            calls += made
            if calls > _PLENTY:
                raise RuntimeError(f"after {calls} calls there is still work; do handlers publish to themselves?")
        return calls

    def advance(self, duration: Duration) -> int:
        """Let time pass, and handle what has become due. Gives how many calls were made."""
        self.clock.advance(duration)
        broker = self.bus.broker
        assert isinstance(broker, EmbeddedBroker)
        broker.host.tick()
        return self.run()

    def queue(self, name: str) -> QueueInfo:
        return self.bus.broker.queue(name)

    def message(self, message: str) -> Document:
        return self.bus.broker.message(message)

    def _round(self, work: Work) -> int:
        delivery = self.bus.broker.pull(work.queue, work.settings.batch if work.takes_lists and work.settings.batch else 1)
        if delivery is None:
            return 0
        ended: list[tuple[list[int], Outcome]] = []
        for rows, call in work.calls(delivery):
            if isinstance(call, Outcome):
                ended.append((rows, call))
            else:
                ended.append((rows, asyncio.run(call.run_async()) if call.handler.is_async else call.run()))
        work.conclude(delivery, ended)
        return len(ended)
