"""Plays one seed: an engine on a simulated disk, actors who use it, crashes that end it, and a model that watches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from remuda.broker.embedded.delivering.attempts import FILE as MARKS
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.options import Sync
from remuda.core.effects import Dispatch, Effects
from remuda.log.tail.tail_frames import MARKER_BYTES
from remuda.model.errors import RemudaError, StorageError
from remuda.model.operations.commands import Command
from remuda.model.queues.options import Acknowledge, QueueType
from remuda.model.records import Appended, Event, Events, Record
from tests.simulation import checks, recovery
from tests.simulation.actors import Actors, Held
from tests.simulation.disk import CrashKind, SimulatedCrash, SimulatedDisk
from tests.simulation.extensions import ones_own
from tests.simulation.journal import Journal, WatchedEngine
from tests.simulation.meetings import Meetings
from tests.simulation.model import Lease, Model, QueueModel, Step, require
from tests.simulation.routers import Routing
from tests.simulation.scenario import START, Aim, Scenario

T = TypeVar("T")
TRACE = 20
HEAD = 64
_EXTENDED = 0.2
"""How many seeds have queues with parts of one's own."""
RANGES = 3
"""How many runs of a delivery the marks can tell apart."""
DiskFor = Callable[[Random], SimulatedDisk]


@dataclass
class Tally:
    """What a run did, for the summary."""

    steps: int = 0
    operations: int = 0
    crashes: int = 0
    recoveries: int = 0
    messages: int = 0
    deliveries: int = 0
    settled: int = 0
    stalls: int = 0
    faults: int = 0

    def add(self, other: Tally) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Mark(NamedTuple):
    """A delivery made by some events, of which a consumer said what it began with."""

    event: int
    events: int
    begun: set[int]


class Failure(AssertionError):
    """A seed that failed, with all that is needed to look into it."""

    def __init__(self, seed: int, step: int, cause: BaseException, trace: list[str], *, rules: bool) -> None:
        self.seed = seed
        lines = "\n".join(f"  {line}" for line in trace)
        super().__init__(
            f"seed {seed} failed at step {step}: {type(cause).__name__}: {cause}\n"
            f"The last {len(trace)} operations:\n{lines}\n"
            f"Replay it with: make simulate SEED={seed}{' RULES=1' if rules else ''}"
        )


class Simulation:
    """One seed's play."""

    def __init__(self, seed: int, disk_for: DiskFor = SimulatedDisk, *, rules: bool = False) -> None:
        self.seed = seed
        self.rules = rules
        """Whether its queues have rules of flow."""
        self.random = Random(seed)
        self.scenario = Scenario(
            self.random,
            Random(f"rules {seed}") if rules else None,
            Aim(Random(f"aim {seed}")) if seed % 2 == 0 and not rules else None,
            merges=rules and seed % 4 == 1,
        )
        own = Random(f"extensions {seed}")
        self.extensions = ones_own(own) if own.random() < _EXTENDED else Extensions()
        routes = Random(f"routes {seed}")
        self.routing = Routing(self, routes) if seed % 10 == 7 and not rules else None
        self.scenario.routes = routes if self.routing is not None else None
        self.disk = disk_for(Random(self.random.random()))
        self.model = Model()
        self.base = Model()
        self.journal = Journal()
        self.clock = START
        self.latest = START
        self.hands: list[Held] = []
        self.inbox: list[Dispatch] = []
        """What was sent ahead and not taken yet."""
        self.events: dict[int, tuple[int, Event]] = {}
        self.collected = False
        self.damaged = False
        """Whether a power loss took records that were not synced from between others."""
        self.power_was_lost = False
        self.marks: list[Mark] = []
        self.tally = Tally()
        self.meetings = Meetings()
        self.step_number = 0
        self.trace: deque[str] = deque(maxlen=TRACE)
        self.engine: WatchedEngine
        self._outbox: list[Dispatch] = []
        self._must_sync = False
        self._actors = Actors(self)

    def play(self) -> Tally:
        """All steps of the seed; raises `Failure`."""
        try:
            with (
                TemporaryDirectory() as self.disk.folder,
                patch("remuda.broker.embedded.delivering.attempts._boot", self.disk.boot),
                patch("remuda.log.log.new_marker", self._marker),
                patch("remuda.core.queues.credit.WINDOW", self.scenario.window),
                patch("remuda.core.queues.strategies.WINDOW", self.scenario.window),
                patch("remuda.core.queues.queue.SLICE", self.scenario.slice),
                patch("remuda.core.registry.SLICE", self.scenario.slice),
            ):
                self._play()
        except (Exception, SimulatedCrash) as error:
            raise Failure(self.seed, self.step_number, error, list(self.trace), rules=self.rules) from error
        self.tally.steps = self.step_number
        self.tally.operations = self.disk.operations
        return self.tally

    def _play(self) -> None:
        recovery.open_engine(self)
        for action in self.scenario.opening:
            self._act(action)
        for number in range(1, self.scenario.steps + 1):
            self.step_number = number
            self._act(self.scenario.action())
        self.note("end: reopen and read it all")
        self._actors.reopen()
        recovery.check_reader(self)

    def _marker(self) -> bytes:
        """A file's random mark, which must come from the seed as everything else."""
        return bytes(self.random.randint(1, 255) for _ in range(MARKER_BYTES))

    def _act(self, action: str) -> None:
        try:
            if self.engine.stalled and action not in ("crash", "arm_crash", "reopen"):
                self._wait_for_room(action)
                return
            getattr(self._actors, action)()
            if self.random.random() >= self.scenario.commits_late:
                self.commit()
        except SimulatedCrash:
            kind = self.disk.crash_kind
            assert kind is not None
            self.recover(kind)
        except StorageError as error:
            self.note(f"  {type(error).__name__}: {error}")
            if error.passing:
                self.meetings.full_at = self.step_number
            # A write that failed for good stops the log, which must then be opened again. Nothing else may follow.
            self.disk.disarm()
            if self.broken:
                self.tally.faults += 1
                self.recover(CrashKind.POWER if self.disk.sync_failed else CrashKind.KILL)

    def _wait_for_room(self, action: str) -> None:
        """As the host does: all is refused until what waits is written, and time goes on without anything done."""
        if action == "pass_time":
            self.clock += abs(self.scenario.pause())
        self.note("try again to write what waits")
        self.meetings.full_at = self.step_number
        self.tally.stalls += 1
        self.commit()

    @property
    def broken(self) -> bool:
        """Whether a failed write stopped the log, which then must be opened again."""
        try:
            self.engine.log.mark()
            self.engine.log.reserve(0, use_spare=True)
        except StorageError as error:
            return not error.passing
        return False

    def note(self, text: str) -> None:
        self.trace.append(f"{self.step_number:4} {text}")

    # What actors use

    def apply(self, step: Step, command: Command, verb: Callable[[], Any] | None = None) -> Any:
        """Give the core one command, and check all that comes of it."""
        moments = self.meetings.moments(self)
        try:
            return self.run(step, verb or (lambda: self.engine.core.apply(command, self.clock)))
        finally:
            self.meetings.note(step, command, moments, self)

    def run(self, step: Step, verb: Callable[[], T]) -> T:
        """Do one thing to the core, and check all that comes of it."""
        self.note(step.text)
        self.model.now = max(self.model.now, self.clock)
        self.latest = self.model.latest = max(self.latest, self.clock)
        before = {name: queue.size for name, queue in self.model.queues.items()}
        try:
            result = verb()
        except RemudaError as error:
            self.note(f"  {type(error).__name__}: {error}")
            self.observe(step, self.engine.record())
            raise
        effects = self.engine.record()
        if isinstance(result, Dispatch):
            effects.dispatches.append(result)
        self.observe(step, effects)
        checks.check_limits(before, self.model)
        checks.compare(self.engine.core, self.model, self.model.now)
        checks.check_numbers(self.engine, self.model)
        checks.check_flow(self.engine.core, self.model, self.scenario.window, ticked=step.ticks)
        return result

    def observe(self, step: Step, effects: Effects) -> None:
        for record in effects.records:
            self.model.play(record, step)
            self.tally.messages += len(record) if isinstance(record, Appended) else 0
            self.remember(record)
        for queue in self.model.queues.values():
            queue.end_leases(self.model.now, ticks=step.ticks)
        sent: set[tuple[str, int]] = set()
        for dispatch in effects.dispatches:
            self._observe_dispatch(dispatch, step, sent)
        missing = set(step.fetched) - sent
        require(not missing, f"messages were fetched and sent to nobody: {sorted(missing)[:5]}")
        for (name, offset), source in step.moved.items():
            there = self.model.queues.get(name)
            known = there is None or offset in there.entries or (name, offset) in step.told
            require(known, f"message {offset} left {source} for {name} and never arrived")
        self._outbox += effects.dispatches
        self._must_sync = self._must_sync or effects.durable

    def remember(self, record: Record) -> None:
        if isinstance(record, Events):
            for position, event in enumerate(record.rows, record.first):
                self.events[position] = (record.time, event)

    def _observe_dispatch(self, dispatch: Dispatch, step: Step, sent: set[tuple[str, int]]) -> None:
        queue = self.model.queues.get(dispatch.queue)
        offsets = _offsets(dispatch.runs)
        counts = [count for _, count in dispatch.runs]
        attempts = [one for one, count in zip(dispatch.attempts, counts, strict=True) for _ in range(count)]
        told = dispatch.redelivered or (False,) * len(counts)
        again = [one for one, count in zip(told, counts, strict=True) for _ in range(count)]
        for offset, attempt, redelivered in zip(offsets, attempts, again, strict=True):
            key = (dispatch.queue, offset)
            require(key in step.fetched, f"{dispatch.queue}: message {offset} was sent without being fetched")
            consumers, wanted, before = step.fetched[key]
            require(
                dispatch.consumer in consumers.split(", "), f"{offset} was sent to {dispatch.consumer}, not {consumers}"
            )
            require(attempt == wanted, f"{offset} was sent as attempt {attempt}, not {wanted}")
            require(redelivered == before, f"B12: {offset} was sent as redelivered={redelivered}")
            sent.add(key)
        if queue is None or dispatch.lease is None:
            return
        label = step.fetched[dispatch.queue, offsets[0]][0]
        self._grant(queue, dispatch, tuple(label.split(", ")), offsets)

    def _grant(self, queue: QueueModel, dispatch: Dispatch, consumers: tuple[str, ...], offsets: list[int]) -> None:
        assert dispatch.lease is not None
        if dispatch.lease in queue.leases:
            return
        core = self.engine.core.queues[dispatch.queue].leases.get(dispatch.lease)
        lease = queue.leases[dispatch.lease] = Lease(
            consumers,
            offsets,
            dispatch.deadline,
            needed=1 if core is None else core.needed,
            pulled=dispatch.consumer.startswith("p"),
            kicks=queue.options.acknowledge is Acknowledge.NONE,
            sent=len(offsets) if dispatch.hand_over and queue.options.acknowledge is not Acknowledge.WAIT else 0,
            awaited=set(consumers) if dispatch.hand_over else set(),
        )
        for offset in offsets:
            entry = queue.entries.get(offset)
            if entry is not None and entry.state == "F":
                entry.lease = dispatch.lease
        if lease.sent:
            for name in consumers:
                reached = checks.under_way(queue, name)
                window = self.scenario.window
                require(reached <= window, f"Q2: {reached} are sent ahead to {name}, the window is {window}")
        elif not lease.pulled and len(consumers) == 1 and consumers[0] in queue.credits:
            credit = queue.credits[consumers[0]]
            held = checks.in_hands(self.model, credit)
            pushed = queue.options.type is QueueType.PUSH or credit.group is not None
            require(pushed or held <= credit.limit, f"Q2: {held} are in {consumers[0]}'s hands of {credit.limit}")

    def commit(self) -> None:
        """Write what was recorded and hand out the deliveries, as the host does."""
        self.engine.commit(sync=self._must_sync and self.scenario.sync is Sync.ALWAYS)
        outbox, self._outbox = self._outbox, []
        self._must_sync = False
        for dispatch in outbox:
            self._deliver(dispatch)

    def _deliver(self, dispatch: Dispatch) -> None:
        offsets = _offsets(dispatch.runs)
        messages = self.engine.held(dispatch)
        if messages is None:
            fetched = self.engine.log.fetch(dispatch.runs)
            if fetched.missing:
                require(self.damaged, f"{dispatch.queue}: the log has lost {fetched.missing}, which are delivered")
                self._actors.lose(dispatch.queue, fetched.missing)
                offsets = _offsets(fetched.offsets)
            messages = fetched.messages
        require(len(messages) == len(offsets), f"{len(messages)} messages came for {len(offsets)} offsets")
        for offset, message in zip(offsets, messages, strict=True):
            recovery.check_message(offset, message, self.model)
        self.tally.deliveries += len(offsets)
        if dispatch.hand_over:
            self.inbox.append(dispatch)
        else:
            self.hands.append(Held(dispatch.queue, dispatch.consumer, dispatch.lease, tuple(offsets)))
            self.begin(dispatch, offsets)

    def begin(self, dispatch: Dispatch, offsets: list[int]) -> None:
        """B4: a consumer begins with some of its messages, in order, and tells."""
        few = len(dispatch.runs) <= RANGES
        if dispatch.lease is None or dispatch.shared or len(offsets) < 2 or not few or self.random.random() < 0.3:
            return
        begun = offsets[: self.random.randint(1, len(offsets))]
        marks = self.engine.attempts.track(dispatch.lease, len(dispatch.runs))
        for offset in begun:
            marks.begin(offset)
        self.marks.append(Mark(dispatch.lease, len(dispatch.runs), set(begun)))

    def begun(self) -> Callable[[int], set[int] | None]:
        """What the next process may know of what this one began with: all, unless the power failed or one before it
        has read it."""
        path = self.disk.path(MARKS)
        assert path is not None
        data = Path(path).read_bytes() if Path(path).exists() else b""
        known = data.startswith(self.disk.boot()) and any(data[HEAD:])
        marks = list(self.marks) if known else []

        def of(position: int) -> set[int] | None:
            return next((mark.begun for mark in marks if 0 <= position - mark.event < mark.events), None)

        return of

    def recover(self, kind: CrashKind) -> None:
        self.note(f"  {kind.value}")
        self.tally.crashes += 1
        self.drop_everything()
        recovery.recover(self, kind)

    def drop_everything(self) -> None:
        """What dies with the process."""
        self.hands.clear()
        self.inbox.clear()
        self._outbox.clear()
        self._must_sync = False


def _offsets(runs: Sequence[tuple[int, int]]) -> list[int]:
    return [offset for first, count in runs for offset in range(first, first + count)]


def play(seed: int, disk_for: DiskFor = SimulatedDisk, *, rules: bool = False) -> Tally:
    return Simulation(seed, disk_for, rules=rules).play()
