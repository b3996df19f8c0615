"""Takeovers from one seed (S5): a host that dies at any operation of its disk, guests that outlive it or do not.

Each guest does what the real one does: it numbers its publishes, remembers what was not answered and what it holds, and
brings all of that to the next host. What it was told is compared with what the log says.
"""

from __future__ import annotations

from random import Random

from remuda.broker.embedded.delivering.attempts import FormerGuests
from remuda.broker.embedded.engine import Engine
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.options import BrokerOptions
from remuda.log.readers.reader import Reader
from remuda.model.messages import Messages
from remuda.model.operations.commands import Abandon, Command, DeclareQueue, Publish, Pull, Reclaim, Settle
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State
from tests.simulation.disk import CrashKind, SimulatedCrash, SimulatedDisk

QUEUE = "jobs"
STEPS = 80
START = 1_800_000_000_000_000


class Guest:
    """A process beside the host."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sequence = 0
        self.asked: list[Command] = []
        """What was sent and not answered."""
        self.held: dict[int, tuple[list[tuple[int, int]], list[bytes]]] = {}


class Takeovers:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.clock = START
        self.names = iter(range(10_000))
        self.guests = [self._guest() for _ in range(3)]
        self.confirmed: set[bytes] = set()
        self.settled: set[bytes] = set()
        self.crashes = 0
        self._open()
        self._apply(DeclareQueue(QUEUE, {}))
        self.engine.commit(sync=True)

    def play(self) -> None:
        for _ in range(STEPS):
            self.clock += self.random.randrange(1, 2000)
            try:
                if self.random.random() < 0.08:
                    self.disk.crash_in(self.random.randrange(1, 12), CrashKind.KILL)
                self._turn()
            except SimulatedCrash:
                self._take_over()
        self.disk.disarm()
        self._check()

    def _turn(self) -> None:
        """One turn of the host: some requests, one commit, then the answers."""
        done: list[tuple[Guest, Command, object]] = []
        for guest in self.random.sample(self.guests, self.random.randrange(1, 4)):
            for command in self._wishes(guest):
                guest.asked.append(command)
                done.append((guest, command, self._apply(command)))
        self.engine.commit(sync=True)
        self._answer(done)

    def _wishes(self, guest: Guest) -> list[Command]:
        wishes: list[Command] = []
        for _ in range(self.random.randrange(0, 3)):
            guest.sequence += 1
            bodies = [f"{guest.name}-{guest.sequence}-{row}".encode() for row in range(self.random.randrange(1, 4))]
            batch = Messages(bodies=bodies, name=QUEUE)
            wishes.append(Publish(batch, queue=QUEUE, producer=guest.name, sequence=guest.sequence))
        for lease in list(guest.held):
            if self.random.random() < 0.5:
                settlement = Settlement(Outcome.ACK, consumer=guest.name)
                wishes.append(Settle(QUEUE, lease, settlement, None))
        if self.random.random() < 0.6:
            wishes.append(Pull(QUEUE, guest.name, next(self.names), self.random.randrange(1, 5)))
        return wishes

    def _answer(self, done: list[tuple[Guest, Command, object]]) -> None:
        for guest, command, result in done:
            guest.asked.remove(command)
            if isinstance(command, Publish):
                self.confirmed.update(command.messages.bodies)
            elif isinstance(command, Settle):
                _, bodies = guest.held.pop(command.lease)
                assert result == len(bodies), f"S5: {result} of {len(bodies)} messages were settled"
                self.settled.update(bodies)
            elif result is not None:
                self._give(guest, result)

    def _give(self, guest: Guest, dispatch: object) -> None:
        runs, lease = dispatch.runs, dispatch.lease  # type: ignore[attr-defined]
        held = self.engine.held(dispatch)  # type: ignore[arg-type]
        bodies = (held or self.engine.log.fetch(runs).messages).bodies
        again = self.settled & set(bodies)
        assert not again, f"S5: {again} were settled, and delivered again"
        guest.held[lease] = (runs, bodies)

    # The host dies

    def _take_over(self) -> None:
        self.crashes += 1
        for guest in [one for one in self.guests if self.random.random() < 0.2]:
            self.guests.remove(guest)  # killed with its host
        self.guests += [self._guest() for _ in range(3 - len(self.guests))]
        while True:
            self.disk.restart(CrashKind.KILL)
            if self.random.random() < 0.3:
                self.disk.crash_in(self.random.randrange(1, 20), CrashKind.KILL)
            try:
                self._open()
                self._come_back()
                self.disk.disarm()
                return
            except SimulatedCrash:
                self.crashes += 1

    def _open(self) -> None:
        tokens = frozenset(guest.name for guest in self.guests)
        self.engine = Engine(
            self.disk, BrokerOptions(), Extensions(), 1, self.clock, lambda: FormerGuests(tokens, ())
        )  # fmt: skip

    def _come_back(self) -> None:
        done: list[tuple[Guest, Command, object]] = []
        for guest in self.guests:
            gone = set()
            for lease, (runs, _) in guest.held.items():
                own = self._apply(Reclaim(QUEUE, lease, guest.name, runs, True))
                assert isinstance(own, int)
                if own <= 0:
                    gone.add(lease)
            for command in list(guest.asked):
                result = self._apply(command)
                if isinstance(command, Settle) and not result and command.lease in gone:
                    result = len(guest.held[command.lease][1])  # the host before had kept it
                done.append((guest, command, result))
        self.engine.core.release_unclaimed(self.clock, self.engine.begun)
        self.engine.record()
        self.engine.commit(sync=True)
        self._answer(done)

    def _apply(self, command: Command) -> object:
        result: object = self.engine.core.apply(command, self.clock)
        self.engine.record()
        return result

    def _guest(self) -> Guest:
        return Guest(f"g{next(self.names)}")

    # The end

    def _check(self) -> None:
        for guest in self.guests:
            for lease in list(guest.held):
                self._apply(Abandon(QUEUE, lease, guest.name))
        queue = self.engine.core.queues[QUEUE]
        assert not queue.flights.size, "S5: messages are in flight, and nobody has them"
        self.engine.commit(sync=True)
        stored: dict[bytes, int] = {}
        completed: set[int] = set()
        live = {offset for first, count in queue.live() for offset in range(first, first + count)}
        log = Reader(self.disk)
        for record in log.messages():
            for offset, body in enumerate(record.messages.bodies, record.first):
                assert body not in stored, f"S5: {body!r} is stored twice"
                stored[body] = offset
        for events in log.events():
            for event in events.rows:
                if event.state is State.COMPLETED:
                    completed.update(range(event.first, event.first + event.count))
        lost = self.confirmed - stored.keys()
        assert not lost, f"S5: {lost} were confirmed and are lost"
        for body in self.confirmed | self.settled:
            ended = stored[body] in completed
            assert ended != (stored[body] in live), f"S5: {body!r} is neither waiting nor settled, or both"
            if body in self.settled:
                assert ended, f"S5: {body!r} was settled, and waits again"


def play(seed: int) -> int:
    """Play one seed; gives how often a host died."""
    story = Takeovers(seed)
    story.play()
    return story.crashes
