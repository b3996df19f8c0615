"""Rows about what must not grow: the cost of one operation with few of something there, and with many."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from benchmarks.effort import Effort
from benchmarks.results import Result
from remuda.core.compacter import Compacter
from remuda.core.core import Core
from remuda.core.effects import Dispatch, Effects
from remuda.core.queues.queue import SLICE
from remuda.core.recovery.snapshot import FrozenCore
from remuda.model.ids import Snowflakes
from remuda.model.messages import Messages
from remuda.model.operations.commands import Command, DeclareQueue, Publish, Pull, Settle, Subscribe
from remuda.model.queues.options import read_options
from remuda.model.settlement import Outcome, Settlement
from remuda.model.values.durations import HOUR, SECOND

SIZES: Final = (1_000, 100_000, 1_000_000)
FEWER: Final = (100, 1_000, 10_000)
"""For what nobody has a million of: consumers, waiting pulls, channels."""
MOST: Final = 2.0
"""What one operation may cost with the most there, as a multiple of what it costs with the fewest."""
LONGEST_MS: Final = 50.0
_BATCH: Final = 1000
_QUEUE: Final = "q"
_OPERATIONS: Final = 500
_ROUNDS: Final = 5


class Stage:
    """A core without files and threads, on a clock that is wound by hand."""

    def __init__(self, size: int, **options: Any) -> None:
        self.size = size
        self.now = 1_800_000_000 * SECOND
        self.core = Core(Snowflakes(1), compacter=Compacter())
        self.random = Random(size)
        self.steps = _OPERATIONS * _ROUNDS
        """How often an operation can be done, or is worth doing."""
        self.once = False
        """Whether that can be done but once, so that the next round wants a stage of its own."""
        self.longest = 0.0
        """The longest time in which nobody else could have come in, in seconds."""
        self._tag = 0
        self.do(DeclareQueue(_QUEUE, read_options({"type": "pull", **options})))

    def do(self, command: Command) -> Any:
        result = self.core.apply(command, self.now)
        self.effects = self.core.drain()
        return result

    def publish(self, count: int = 1, name: str | list[str] = _QUEUE, **columns: Any) -> Any:
        self.now += 1
        return self.do(Publish(Messages(name=name, bodies=[b"x"] * count, **columns)))

    def fill(self, columns: Callable[[int, int], dict[str, Any]]) -> None:
        for first in range(0, self.size, _BATCH):
            count = min(_BATCH, self.size - first)
            self.publish(count, **columns(first, count))

    def pull(self, count: int = 1, wait: int = 0) -> Dispatch | None:
        self._tag += 1
        found: Dispatch | None = self.do(Pull(_QUEUE, "puller", self._tag, count, wait=wait))
        return found

    def answer(self, dispatch: Dispatch | None, outcome: Outcome = Outcome.ACK) -> Effects:
        assert dispatch is not None
        assert dispatch.lease is not None
        self.do(Settle(dispatch.queue, dispatch.lease, Settlement(outcome, consumer=dispatch.consumer)))
        return self.effects

    def subscribe(self, queue: str = _QUEUE) -> None:
        self._tag += 1
        self.do(Subscribe(queue, f"consumer-{self._tag}", self._tag, 1, 1, None, None))

    def tick(self) -> None:
        while self.core.next_wake() <= self.now:
            start = time.thread_time()
            self.core.tick(self.now)
            self.core.drain()
            self.longest = max(self.longest, time.thread_time() - start)

    def freeze_ms(self) -> float:
        """How long a checkpoint keeps everybody out."""
        start = time.thread_time()
        frozen = FrozenCore(self.core)
        seconds = time.thread_time() - start
        frozen.thaw()
        return round(1000 * seconds, 3)


Operation = Callable[[], int]
"""Does something, and gives how many operations that was."""
Growing = Callable[[int], tuple[Stage, Operation]]


def delayed(size: int) -> tuple[Stage, Operation]:
    stage = Stage(size)
    later = partial(stage.random.randrange, HOUR, 24 * HOUR)
    stage.fill(lambda first, count: {"due": [stage.now + later() for _ in range(count)]})

    def operate() -> int:
        stage.publish(due=stage.now + later())
        stage.publish(due=stage.now + 2)
        stage.now += 10
        stage.tick()
        stage.answer(stage.pull())
        return 1

    return stage, operate


def due_together(size: int) -> tuple[Stage, Operation]:
    stage = Stage(size)

    due = stage.now + HOUR
    stage.fill(lambda first, count: {"due": [due + stage.random.randrange(SECOND) for _ in range(count)]})
    stage.now = due + SECOND
    stage.steps = max(size // SLICE, 1) * _ROUNDS
    stage.once = True

    def operate() -> int:
        """The next slice of what is due."""
        start = time.thread_time()
        stage.core.tick(stage.now)
        stage.core.drain()
        stage.longest = max(stage.longest, time.thread_time() - start)
        return SLICE

    return stage, operate


def channels(size: int) -> tuple[Stage, Operation]:
    stage = Stage(size)
    for number in range(size):
        how = {"topics": [f"topic-{number}"]} if number % 2 else {"patterns": [f"*.{number}.#"]}
        stage.do(DeclareQueue(f"channel-{number}", read_options({"type": "push", **how})))
    numbers = iter(range(1 << 30))

    def operate() -> int:
        stage.publish(name=f"q.{size + next(numbers)}")
        stage.answer(stage.pull())
        return 1

    return stage, operate


def pulls(size: int) -> tuple[Stage, Operation]:
    stage = Stage(size)
    for _ in range(size):
        stage.pull(wait=HOUR + stage.random.randrange(HOUR))

    def operate() -> int:
        stage.publish()
        (dispatch,) = stage.effects.dispatches
        stage.answer(dispatch)
        stage.pull(wait=HOUR)
        return 1

    return stage, operate


def priorities(size: int) -> tuple[Stage, Operation]:
    stage = Stage(size)
    mixed = partial(stage.random.randrange, 32)
    stage.fill(lambda first, count: {"priority": [mixed() for _ in range(count)]})

    def operate() -> int:
        stage.answer(stage.pull(_BATCH // 10))
        stage.publish(_BATCH // 10, priority=[mixed() for _ in range(_BATCH // 10)])
        return _BATCH // 10

    return stage, operate


def round_robin(size: int) -> tuple[Stage, Operation]:
    stage = Stage(size, type="round-robin")
    for _ in range(size):
        stage.subscribe()

    def operate() -> int:
        stage.publish()
        stage.answer(stage.effects.dispatches[0])
        return 1

    return stage, operate


def push(size: int) -> tuple[Stage, Operation]:
    stage = Stage(size, type="push", acknowledge="wait")
    for _ in range(size):
        stage.subscribe()

    def operate() -> int:
        stage.publish()
        stage.answer(stage.effects.dispatches[0])
        return size

    return stage, operate


def unique_ids(size: int) -> tuple[Stage, Operation]:
    stage = Stage(size, unique_ids=True)
    stage.fill(lambda first, count: {"ids": [f"id-{first + row}" for row in range(count)]})
    numbers = iter(range(size, 1 << 40))

    def operate() -> int:
        stage.publish(ids=[f"id-{next(numbers)}"])
        stage.answer(stage.pull())
        return 1

    return stage, operate


def parked(size: int) -> tuple[Stage, Operation]:
    stage = Stage(size)

    def park() -> None:
        dispatch = stage.pull()
        assert dispatch is not None
        assert dispatch.lease is not None
        reason = f"reason {stage.random.randrange(1000)}"
        stage.do(Settle(_QUEUE, dispatch.lease, Settlement(Outcome.DEAD, reason, consumer="puller")))

    stage.fill(lambda first, count: {})
    for _ in range(size):
        park()

    def operate() -> int:
        stage.publish()
        park()
        stage.core.info(_QUEUE)
        return 1

    return stage, operate


def compacter(size: int) -> tuple[Stage, Operation]:
    stage = Stage(size)
    stage.fill(lambda first, count: {"object": "customer", "key": [str(first + row) for row in range(count)]})

    def operate() -> int:
        stage.publish(object="customer", key=f"new {stage.now}")
        stage.answer(stage.pull())
        return 1

    return stage, operate


GROWING: Final[dict[str, tuple[Growing, tuple[int, ...]]]] = {
    "delayed": (delayed, SIZES),
    "due-together": (due_together, SIZES),
    "channels": (channels, FEWER),
    "pulls": (pulls, FEWER),
    "priorities": (priorities, SIZES),
    "round-robin": (round_robin, FEWER),
    "push": (push, FEWER),
    "unique-ids": (unique_ids, SIZES),
    "parked": (parked, SIZES),
    "compacter": (compacter, SIZES),
}


def measure(what: str, effort: Effort) -> Result:
    growing, sizes = GROWING[what]
    if effort.rounds == 1:
        sizes = sizes[:2]
    stages = {size: growing(size) for size in sizes}
    gc.collect()
    gc.freeze()  # what was put in is not looked through again and again
    try:
        costs: dict[int, list[float]] = {size: [] for size in sizes}
        for turn in range(_ROUNDS):
            for size, (stage, operate) in stages.items():
                if turn and stage.once:
                    if size > sizes[0]:
                        continue
                    stage, operate = growing(size)
                costs[size].append(_cost(stage, operate))
        frozen = {size: stage.freeze_ms() for size, (stage, _) in stages.items()}
    finally:
        gc.unfreeze()
    micros = {size: round(1e6 * statistics.median(found), 2) for size, found in costs.items()}
    longest = max(stage.longest for stage, _ in stages.values())
    return Result(
        name=f"embedded/grow/{what}",
        unit="times",
        remuda=round(micros[sizes[-1]] / micros[sizes[0]], 2),
        settings={
            "remuda": "CPU time of one operation of the core with the most there, as a multiple of that with the least",
            "micros": {str(size): cost for size, cost in micros.items()},
            "checkpoint_holds_ms": max(frozen.values()),
            "longest_hold_ms": round(1000 * longest, 2),
        },
    )


def _cost(stage: Stage, operate: Operation) -> float:
    done, start = 0, time.thread_time()
    for _ in range(max(stage.steps // _ROUNDS, 1)):
        done += operate()
        if done >= 10 * _OPERATIONS and time.thread_time() - start > 0.05:
            break
    return (time.thread_time() - start) / done


GROW_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    f"embedded/grow/{what}": partial(measure, what) for what in GROWING
}
