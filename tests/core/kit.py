"""Short ways to say what tests of the core say often."""

from __future__ import annotations

from typing import Any

from remuda.core.core import Core
from remuda.core.effects import Answer, Effects, Sending
from remuda.core.settling import Verdict
from remuda.model.durations import SECOND
from remuda.model.ids import Snowflakes
from remuda.model.messages import Messages
from remuda.model.records import Event, Events
from remuda.model.state import State

NOW = 1_800_000_000 * SECOND


class Bench:
    """A core with one queue `q`, a clock to wind, and a memory of what it said."""

    def __init__(self, options: dict[str, Any] | None = None, **core: Any) -> None:
        self.now = NOW
        self.core = Core(Snowflakes(1), **core)
        self.sent: list[Sending] = []
        self.effects: list[Effects] = []
        if options is not None:
            self.core.declare("q", options, self.now)

    def publish(self, *bodies: str, name: str = "q", **columns: Any) -> Any:
        receipt = self.core.publish(Messages(bodies=[body.encode() for body in bodies], name=name, **columns), self.now)
        self.drain()
        return receipt

    def pull(self, count: int = 1, **how: Any) -> Sending | None:
        before = len(self.sent)
        self.core.pull("q", "puller", self.now, count=count, **how)
        self.drain()
        return self.sent[before] if len(self.sent) > before else None

    def answer(self, sending: Sending, answer: Answer, runs: list[tuple[int, int]] | None = None, **more: Any) -> int:
        assert sending.lease is not None
        to = more.pop("to", None)
        verdict = Verdict(answer, consumer=more.pop("consumer", sending.consumer), **more)
        count = self.core.settle(sending.queue, sending.lease, verdict, self.now, runs=runs, to=to)
        self.drain()
        return count

    def wait(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)
        self.core.tick(self.now)
        self.drain()

    def drain(self) -> Effects:
        effects = self.core.drain()
        self.effects.append(effects)
        self.sent += effects.sendings
        return effects

    @property
    def events(self) -> list[Event]:
        return [
            event
            for effects in self.effects
            for record in effects.records
            if isinstance(record, Events)
            for event in record.rows
        ]

    def states(self) -> str:
        """The letters of all events so far."""
        return "".join(event.state.value for event in self.events)

    def size_of(self, state: State) -> int:
        return self.core.queue("q").counts.get(state, 0)
