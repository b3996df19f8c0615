"""Short ways to say what tests of the core say often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remuda.core.core import Core
from remuda.core.effects import Dispatch, Effects
from remuda.model.ids import Snowflakes
from remuda.model.messages import Messages
from remuda.model.operations.commands import (
    Clear,
    Command,
    ConfigureQueue,
    DeclareQueue,
    Forget,
    HandOver,
    Move,
    Publish,
    Pull,
    RemoveQueue,
    Reprocess,
    SetStatus,
    Settle,
    Subscribe,
    Unsubscribe,
)
from remuda.model.operations.filters import MessageFilter
from remuda.model.queues.options import Status, read_options
from remuda.model.records import Appended, Event, Events
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State
from remuda.model.values.durations import SECOND

NOW = 1_800_000_000 * SECOND
PULL = {"type": "pull"}


class Bench:
    """A core with one queue `q`, a clock to wind, and a memory of what it said."""

    def __init__(self, options: Mapping[str, Any] | None = None, **core: Any) -> None:
        self.now = NOW
        self.core = Core(Snowflakes(1), **core)
        self.sent: list[Dispatch] = []
        self.effects: list[Effects] = []
        self._tags = 0
        if options is not None:
            self.declare("q", options)

    def do(self, command: Command) -> Any:
        """Carry out a command and keep what came of it."""
        result = self.core.apply(command, self.now)
        if isinstance(result, Dispatch):
            self.sent.append(result)
        self.drain()
        return result

    def declare(self, name: str, options: Mapping[str, Any] | None = None) -> Any:
        return self.do(DeclareQueue(name, read_options(options)))

    def configure(self, name: str = "q", **options: Any) -> Any:
        return self.do(ConfigureQueue(name, read_options(options) or {}))

    def set_status(self, status: Status, name: str = "q") -> None:
        self.do(SetStatus(name, status))

    def remove(self, name: str = "q", who: str | None = None) -> None:
        self.do(RemoveQueue(name, who))

    def publish(self, *bodies: str, name: str = "q", **columns: Any) -> Any:
        return self.publish_to({}, *bodies, name=name, **columns)

    def publish_to(self, where: dict[str, Any], *bodies: str, name: str | list[str] = "q", **columns: Any) -> Any:
        """Publish to a queue, through an exchange or under options."""
        return self.do(Publish(Messages(bodies=[body.encode() for body in bodies], name=name, **columns), **where))

    def subscribe(self, *consumers: str, queue: str = "q", batch: int = 1, credit: int | None = None,
                  group: str | None = None, options: Mapping[str, Any] | None = None) -> Any:  # fmt: skip
        result = None
        for consumer in consumers:
            self._tags += 1
            own = batch if credit is None else credit
            result = self.do(Subscribe(queue, consumer, self._tags, batch, own, group, read_options(options)))
        return result

    def unsubscribe(self, consumer: str, queue: str = "q") -> None:
        self.do(Unsubscribe(queue, consumer))

    def pull(self, count: int = 1, *, queue: str = "q", consumer: str = "puller", **how: Any) -> Dispatch | None:
        self._tags += 1
        found: Dispatch | None = self.do(Pull(queue, consumer, how.pop("tag", 1000 + self._tags), count, **how))
        return found

    def take(self, dispatch: Dispatch) -> list[tuple[int, int]]:
        """A delivery that was sent ahead reaches its consumer."""
        assert dispatch.lease is not None
        found: list[tuple[int, int]] = self.do(HandOver(dispatch.queue, dispatch.lease, dispatch.consumer))
        return found

    def answer(
        self, dispatch: Dispatch | None, outcome: Outcome, runs: list[tuple[int, int]] | None = None, **more: Any
    ) -> int:
        assert dispatch is not None
        assert dispatch.lease is not None
        settlement = Settlement(outcome, consumer=more.pop("consumer", dispatch.consumer), **more)
        settled: int = self.do(Settle(dispatch.queue, dispatch.lease, settlement, runs))
        return settled

    def clear(self, lanes: str = "all", **more: Any) -> int:
        cleared: int = self.do(Clear("q", lanes, **more))
        return cleared

    def reprocess(self, who: str | None = None, **chosen: Any) -> int:
        sent: int = self.do(Reprocess("q", MessageFilter(**chosen), who))
        return sent

    def forget(self, who: str | None = None, **chosen: Any) -> int:
        gone: int = self.do(Forget("q", MessageFilter(**chosen), who))
        return gone

    def move(self, to: str, who: str | None = None, **chosen: Any) -> int:
        moved: int = self.do(Move("q", to, MessageFilter(**chosen), who))
        return moved

    def wait(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)
        self.core.tick(self.now)
        self.drain()

    def drain(self) -> Effects:
        effects = self.core.drain()
        self.effects.append(effects)
        self.sent += effects.dispatches
        return effects

    # What is to be seen

    @property
    def records(self) -> list[Any]:
        return [record for effects in self.effects for record in effects.records]

    @property
    def appended(self) -> list[Appended]:
        return [record for record in self.records if isinstance(record, Appended)]

    @property
    def events(self) -> list[Event]:
        return [event for record in self.records if isinstance(record, Events) for event in record.rows]

    def states(self) -> str:
        """The letters of all events so far."""
        return "".join(event.state.value for event in self.events)

    def size_of(self, state: State) -> int:
        return self.core.queues["q"].counts.get(state, 0)

    def line(self, queue: str = "q") -> list[int]:
        """Offsets in the order in which they would go out."""
        return [
            offset
            for _, _, level in self.core.queues[queue].ready.levels()
            for first, count, _ in level.runs()
            for offset in range(first, first + count)
        ]

    def sizes(self) -> dict[str, int]:
        return {name: queue.size for name, queue in self.core.queues.items()}

    def restarted(self, begun: list[tuple[int, int]] | None = None, **core: Any) -> Core:
        """A new core from the records alone."""
        fresh = Core(Snowflakes(1), **core)
        for record in self.records:
            fresh.replay(record)
        fresh.resume(self.now, lambda event, first, count: begun)
        return fresh


def offsets(dispatch: Dispatch | None) -> list[int]:
    assert dispatch is not None
    return [offset for first, count in dispatch.runs for offset in range(first, first + count)]
