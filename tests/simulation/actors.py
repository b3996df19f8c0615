"""Publishers, consumers, operators, time and upkeep: each knows what should come of what it does."""

from __future__ import annotations

import threading
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from remuda.broker.host import Host
from remuda.broker.upkeep import Upkeep
from remuda.core.effects import Answer
from remuda.core.operators import Selection
from remuda.core.receipts import Receipt
from remuda.core.settling import Verdict
from remuda.model.durations import MILLISECOND, SECOND
from remuda.model.errors import Conflict, ConsumersFull, DiskFull
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.options import PutBack, QueueType, Status
from remuda.model.state import State
from tests.simulation import checks, recovery
from tests.simulation.disk import CrashKind
from tests.simulation.model import QueueModel, Step, Tally, require
from tests.simulation.scenario import DEAD_LETTERS, START

if TYPE_CHECKING:
    from tests.simulation.runner import Held, Simulation

FIRST_STATES = {
    Answer.ACKNOWLEDGE: "S",
    Answer.RETRY: "R",
    Answer.RELEASE: "Q",
    Answer.INVALID: "I",
    Answer.NOT_INTERESTED: "N",
    Answer.DEAD: "E",
}


class Actors:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.random = sim.random
        self._names = 0
        self._clocks = [sim.clock]

    # Publishers

    def publish(self) -> None:
        sim, scenario = self.sim, self.sim.scenario
        batch = scenario.batch(sim.clock)
        target = scenario.name() if self.random.random() < 0.3 else None
        wanted = scenario.queue_options(target or "late") if self.random.random() < 0.2 else None
        messages = Messages.of(batch)
        topics = (
            f"to {target}" if target else f"under {batch[0].name}{' …' if len({m.name for m in batch}) > 1 else ''}"
        )
        step = Step(f"publish {len(batch)} {topics}")
        self._make_room(messages, step)
        expected = self._expected_routes(batch, target)
        offset = sim.model.next_offset
        history = dict(sim.model.history)
        tallies = {name: Tally(queue) for name, queue in sim.model.queues.items()}
        receipt = sim.run(step, lambda: sim.engine.core.publish(messages, sim.clock, queue=target, options=wanted))
        self._check_receipt(batch, receipt, expected, tallies, history, offset, target, set(step.entered))

    def _make_room(self, messages: Messages, step: Step) -> None:
        try:
            self.sim.engine.make_room(messages)
        except DiskFull:
            self.sim.note(f"{step.text}: the disk is full")
            checks.check_numbers(self.sim.engine, self.sim.model)
            raise

    def _expected_routes(self, batch: list[Message], target: str | None) -> list[set[str]]:
        return [{target} if target else self._route(message) for message in batch]

    def _route(self, message: Message) -> set[str]:
        """T1, T2: the queue of each topic's root, and every channel with a fitting prefix."""
        topics = message.topics or (message.name,)
        queues, default = self.sim.model.queues, self.sim.scenario.broker.default_queue
        roots = {topic.split(".")[0] for topic in topics}
        found = {root if root in queues or default is None else default for root in roots}
        for name, queue in queues.items():
            prefixes = queue.options.topics
            if any(topic == prefix or topic.startswith(prefix + ".") for topic in topics for prefix in prefixes):
                found.add(name)
        return found

    def _check_receipt(
        self, batch: list[Message], receipt: Receipt, routes: list[set[str]], tallies: dict[str, Tally],
        history: dict[tuple[str, str], bytes], offset: int, target: str | None, forwarded: set[str],
    ) -> None:  # fmt: skip
        """Q6, Q7, Q12: refused is exactly what had to be; all else is in the log and in its queues as it was given."""
        sim = self.sim
        require(receipt.first == offset, f"the receipt begins at {receipt.first}, not {offset}")
        for row, message in enumerate(batch):
            message = self._with_id(message, receipt.ids[row])
            for name in routes[row] - set(tallies):
                fresh = self._fresh_tally(name)
                if fresh is not None:
                    tallies[name] = fresh
            objections = {
                error for name in routes[row] if name in tallies and (error := tallies[name].objection(message))
            }
            refusal = receipt.refusals.get(row)
            gone = routes[row] - set(tallies)
            require(
                bool(gone)
                or (refusal is None and not objections)
                or (refusal is not None and type(refusal).__name__ in objections),
                f"row {row}: {type(refusal).__name__} where {objections or 'nothing'} was expected",
            )
            if refusal is not None:
                continue
            for name in routes[row]:
                if name in tallies:
                    tallies[name].take(message)
            self._check_stored(offset, message, routes[row], history, target, forwarded)
            offset += 1
        require(offset == sim.model.next_offset, f"{sim.model.next_offset - offset} messages too many were stored")

    def _fresh_tally(self, name: str) -> Tally | None:
        """The room of a queue that came to be with this publish."""
        queue = self.sim.model.queues.get(name)
        return None if queue is None else Tally(QueueModel(name, queue.options, Status.RUNNING))

    def _check_stored(
        self, offset: int, message: Message, routes: set[str], history: dict[tuple[str, str], bytes],
        target: str | None, forwarded: set[str],
    ) -> None:  # fmt: skip
        sim = self.sim
        stored = sim.model.messages.get(offset)
        require(stored is not None, f"message {offset} was accepted and not stored")
        assert stored is not None
        for name in Message.__struct_fields__:
            if name != "created":
                found, wanted = getattr(stored, name), getattr(message, name)
                require(
                    found == wanted or (name == "headers" and dict(found) == dict(wanted)), f"{offset}: {name} changed"
                )
        # T3 looks at what is published under topics; what is sent straight to a queue is no part of the history.
        keyed = target is None and message.object is not None and message.key is not None
        place = (message.object or "", message.key or "") if keyed else None
        unchanged = place is not None and sim.scenario.broker.compact and history.get(place) == message.body
        if place is not None:
            history[place] = message.body
        reached = {name for name, queue in sim.model.queues.items() if offset in queue.entries or offset in queue.ended}
        wanted_routes = set() if unchanged else {name for name in routes if name in sim.model.queues}
        require(
            wanted_routes <= reached and reached - wanted_routes <= forwarded,
            f"T1: message {offset} is in {sorted(reached)}, not in {sorted(wanted_routes)}",
        )

    @staticmethod
    def _with_id(message: Message, identity: str) -> Message:
        require(not message.id or message.id == identity, f"M4: own id {message.id} became {identity}")
        return msgspec.structs.replace(message, id=identity)

    # Consumers

    def subscribe(self) -> None:
        sim = self.sim
        name = self.sim.scenario.name()
        queue = sim.model.queues.get(name)
        self._names += 1
        consumer = f"c{self._names}"
        batch = self.random.choice((1, 1, 2, 5))
        options = sim.scenario.queue_options(name) if self.random.random() < 0.3 else None
        step = Step(f"{consumer} subscribes to {name}, batch {batch}")

        def verb() -> bool:
            if queue is not None:
                queue.consumers.append(consumer)
            try:
                sim.engine.core.subscribe(name, consumer, sim.clock, batch=batch, options=options)
            except ConsumersFull:
                assert queue is not None
                queue.consumers.remove(consumer)
                return False
            return True

        joined = sim.run(step, verb)
        after = sim.model.queues.get(name)
        if after is None:
            return
        if joined and consumer not in after.consumers:
            after.consumers.append(consumer)
        limit, count = after.options.client_limit, len(after.consumers)
        require(joined or 0 < limit <= count, f"Q7: {count} of {limit} consumers were too many")
        require(not joined or not limit or count <= limit, f"Q7: {count} consumers where {limit} are allowed")

    def unsubscribe(self) -> None:
        sim = self.sim
        pairs = [(queue, name) for queue in sim.model.queues.values() for name in queue.consumers]
        if not pairs:
            return
        queue, consumer = self.random.choice(pairs)
        step = Step(f"{consumer} leaves {queue.name}", left={(queue.name, consumer)})

        def verb() -> None:
            queue.consumers.remove(consumer)
            for lease in queue.leases.values():
                if consumer in lease.consumers and consumer not in lease.confirmed:
                    lease.declined.add(consumer)
            sim.engine.core.unsubscribe(queue.name, consumer, sim.clock)

        sim.run(step, verb)

    def pull(self) -> None:
        sim = self.sim
        pulls = [queue.name for queue in sim.model.queues.values() if queue.options.type is QueueType.PULL]
        name = self.random.choice(pulls) if pulls and self.random.random() < 0.9 else sim.scenario.name()
        self._names += 1
        puller = f"p{self._names}"
        count = self.random.choice((1, 1, 3, 10))
        newest = self.random.random() < 0.2
        wait = self.random.choice((0, 0, 200 * MILLISECOND, 20 * SECOND))
        after = self.random.choice(("none",) * 12 + ("all", "priority", "regular"))
        if newest:
            sim.model.newest_pullers.add(puller)
        step = Step(f"{puller} pulls {count} from {name}{', newest first' if newest else ''}, then clears {after}")
        if after != "none":
            step.cleared.add(name)
            if wait:
                sim.model.clearing_pulls.add(name)
        try:
            sim.run(
                step,
                lambda: sim.engine.core.pull(
                    name, puller, sim.clock, count=count, newest=newest, wait=wait, clear_after=after,
                    request=self._names,
                ),
            )  # fmt: skip
        except Conflict:
            queue = sim.model.queues[name]
            require(queue.options.type is not QueueType.PULL, f"a pull from the pull queue {name!r} was refused")

    def answer(self) -> None:
        for _ in range(self.random.choice((1, 1, 3, 8))):
            if self.sim.hands:
                self._answer_one()

    def _answer_one(self) -> None:
        sim = self.sim
        held = self.random.choice(sim.hands)
        if self.random.random() < 0.05:
            self._renew(held)
            return
        if self.random.random() < 0.8:
            sim.hands.remove(held)
        if held.lease is None or not held.offsets:
            return
        answer = self.random.choice((Answer.ACKNOWLEDGE,) * 6 + tuple(Answer))
        delay = self.random.choice((None, None, 0, 100 * MILLISECOND, 10 * SECOND))
        to = self.random.choice((None, DEAD_LETTERS)) if answer is Answer.DEAD else None
        offsets = list(held.offsets)
        runs = None
        if self.random.random() < 0.3:
            offsets = sorted(self.random.sample(offsets, self.random.randint(1, len(offsets))))
            runs = _runs(offsets)
        consumer = held.consumer if self.random.random() < 0.97 else "stranger"
        verdict = Verdict(answer, None, delay, consumer)
        step = Step(f"{consumer} answers {answer.value} for {offsets} of {held.queue}, lease {held.lease}")
        if to:
            step.text += f", on to {to}"
        self._answer(held, consumer, offsets, verdict, runs, to, step)

    def _renew(self, held: Held) -> None:
        sim = self.sim
        queue = sim.model.queues.get(held.queue)
        number = -1 if held.lease is None else held.lease
        lease = queue.leases.get(number) if queue else None
        step = Step(f"{held.consumer} asks for more time in {held.queue}, lease {number}")
        renewed = sim.run(step, lambda: sim.engine.core.renew(held.queue, number, sim.clock))
        holds = queue is not None and any(
            queue.entries[at].lease == number for at in held.offsets if at in queue.entries
        )
        require(renewed == (holds and held.lease is not None), f"Q3: more time was {'' if renewed else 'not '}given")
        if renewed and queue is not None and lease is not None:
            lease.deadline = sim.model.now + queue.options.acknowledge_timeout

    def _answer(
        self, held: Held, consumer: str, offsets: list[int], verdict: Verdict, runs: list[tuple[int, int]] | None,
        to: str | None, step: Step,
    ) -> None:  # fmt: skip
        sim = self.sim
        lease_number = held.lease
        assert lease_number is not None
        queue = sim.model.queues.get(held.queue)
        lease = queue.leases.get(lease_number) if queue else None
        expected: list[int] = []
        if queue is not None and lease is not None and consumer in lease.consumers:
            spoke = consumer in lease.confirmed or consumer in lease.declined
            held_now = [at for at in offsets if at in queue.entries and queue.entries[at].lease == lease_number]
            expected = [] if spoke else [at for at in held_now if queue.entries[at].state in "FS"]
        step.answered = {(held.queue, offset) for offset in expected}
        sim.engine.log.reserve(4096, use_spare=True)

        def verb() -> int:
            if lease is not None and expected and lease.needed != 1:
                (lease.confirmed if verdict.answer is Answer.ACKNOWLEDGE else lease.declined).add(consumer)
            return sim.engine.core.settle(held.queue, lease_number, verdict, sim.clock, runs=runs, to=to)

        settled = sim.run(step, verb)
        require(settled == len(expected), f"Q3: the answer settled {settled}, {expected} were held")
        sim.tally.settled += settled
        if queue is None or lease is None or lease.needed != 1:
            return
        first = FIRST_STATES.get(verdict.answer) or ("E" if queue.options.put_back is PutBack.NO else "R")
        for offset in expected:
            told = step.told.get((held.queue, offset), "")
            require(told.startswith(first), f"M6: {offset} answered {verdict.answer.value} went {told or 'nowhere'}")
            if verdict.answer is Answer.ACKNOWLEDGE:
                require(told == "SX", f"M6: {offset} was acknowledged and went {told}")

    def lose(self, name: str, runs: list[tuple[int, int]]) -> None:
        """The host's reaction to messages that the log cannot give back."""
        sim = self.sim
        if name not in sim.model.queues:
            return
        gone = {(name, offset) for first, count in runs for offset in range(first, first + count)}
        step = Step(f"{name}: {runs} cannot be read", unreadable=gone)
        sim.run(step, lambda: sim.engine.core.lost(name, runs, sim.clock))

    # Operators

    def declare(self) -> None:
        sim = self.sim
        name = sim.scenario.name()
        if sim.scenario.features.channels and self.random.random() < 0.5:
            name = self.random.choice(("channel-a", "channel-b"))
            options = sim.scenario.channel_options(name)
        else:
            options = sim.scenario.queue_options(name)
        self._operate(
            Step(f"declare {name} {_shown(options)}"), lambda: sim.engine.core.declare(name, options, sim.clock)
        )

    def configure(self) -> None:
        sim, name = self.sim, self._existing()
        if name is None:
            return
        changes = sim.scenario.changes(sim.model.queues[name].options)
        step = Step(f"configure {name} {changes}")
        self._operate(step, lambda: sim.engine.core.configure(name, changes, sim.clock, "an operator"))

    def set_status(self) -> None:
        sim, name = self.sim, self._existing()
        if name is None:
            return
        choices = (Status.RUNNING, Status.RUNNING, Status.ONLY_PUBLISH, Status.ONLY_CONSUME, Status.PAUSED)
        status = self.random.choice(choices)
        if sim.model.queues[name].status is not Status.NOT_INITIALIZED:
            self._operate(
                Step(f"set {name} to {status.value}"), lambda: sim.engine.core.set_status(name, status, sim.clock)
            )
            require(
                name not in sim.model.queues or sim.model.queues[name].status is status, f"Q14: {name} kept its status"
            )

    def reprocess(self) -> None:
        sim, name = self.sim, self._existing()
        if name is None:
            return
        selection = self._selection(name)
        step = Step(f"reprocess {name} {selection.offsets or ''}", reprocessed={name})
        parked = self._unique(name, self._selected(name, selection))
        queue = sim.model.queues[name]
        limit = queue.options.message_limit
        room = max(limit - queue.size, 0) if limit else len(parked)
        count = self._operate(step, lambda: sim.engine.core.reprocess(name, selection, sim.clock, "an operator"))
        require(
            count == min(len(parked), room),
            f"B15: {count} were reprocessed, {sorted(parked)} were parked and there was room for {room}",
        )

    def forget(self) -> None:
        sim, name = self.sim, self._existing()
        if name is not None:
            selection = self._selection(name)
            step = Step(f"forget parked messages of {name}")
            self._operate(step, lambda: sim.engine.core.forget(name, selection, sim.clock, "an operator"))

    def clear(self) -> None:
        sim, name = self.sim, self._existing()
        if name is None:
            return
        lanes = self.random.choice(("all", "all", "priority", "regular"))
        step = Step(f"clear {lanes} of {name}", cleared={name})
        self._operate(step, lambda: sim.engine.core.clear(name, sim.clock, lanes=lanes, who="an operator"))

    def remove_queue(self) -> None:
        sim, name = self.sim, self._existing()
        if name is not None:
            step = Step(f"remove queue {name}", removed={name})
            self._operate(step, lambda: sim.engine.core.remove(name, sim.clock, "an operator"))

    def _operate(self, step: Step, verb: Any) -> Any:
        self.sim.engine.log.reserve(4096, use_spare=True)
        return self.sim.run(step, verb)

    def _existing(self) -> str | None:
        return self.random.choice(sorted(self.sim.model.queues)) if self.sim.model.queues else None

    def _selection(self, name: str) -> Selection:
        parked = self.sim.model.queues[name].parked()
        if parked and self.random.random() < 0.5:
            chosen = sorted(self.random.sample(parked, self.random.randint(1, len(parked))))
            return Selection(offsets=tuple(_runs(chosen)))
        return Selection(states=frozenset({State.DEAD})) if self.random.random() < 0.5 else Selection()

    def _selected(self, name: str, selection: Selection) -> list[int]:
        queue = self.sim.model.queues[name]
        wanted = None
        if selection.offsets is not None:
            wanted = {offset for first, count in selection.offsets for offset in range(first, first + count)}
        return [
            offset
            for offset in queue.parked()
            if queue.entries[offset].state in selection.states and (wanted is None or offset in wanted)
        ]

    def _unique(self, name: str, offsets: list[int]) -> list[int]:
        """Q12: of messages with the same id only one can come back, and none while another is live."""
        queue = self.sim.model.queues[name]
        taken = set(queue.ids.values())
        chosen = []
        for offset in sorted(offsets):
            identity = queue.names.get(offset)
            if identity not in taken:
                chosen.append(offset)
                if identity is not None:
                    taken.add(identity)
        return chosen

    # Time

    def pass_time(self) -> None:
        sim = self.sim
        pause = sim.scenario.pause()
        self._clocks.append(sim.clock)
        sim.clock += pause
        if self.random.random() < 0.1:
            sim.note(f"{pause} µs pass unnoticed")
            return
        step = Step(f"{pause} µs pass, it is {(sim.clock - START) / SECOND:.6f} s", ticks=True)

        def verb() -> None:
            for queue in sim.model.queues.values():
                queue.release_due(sim.model.now)
            sim.engine.core.tick(sim.clock)

        sim.run(step, verb)
        checks.check_time(sim.model)

    # Upkeep

    def checkpoint(self) -> None:
        for _ in range(self.random.choice((1, 1, 2))):
            self.sim.note("checkpoint")
            self.sim.commit()
            self._upkeep().checkpoint()
        if self.random.random() < 0.3:
            self.seal()

    def seal(self) -> None:
        self.sim.note("seal")
        self._upkeep().seal()

    def collect(self) -> None:
        sim = self.sim
        sim.note("collect")
        sim.collected = True
        self._upkeep().collect()
        sim.commit()
        recovery.check_readable(sim)

    def _upkeep(self) -> Upkeep:
        """The real upkeep, on a stage set of a host."""
        sim = self.sim

        def forget(name: str, selection: Selection, who: str) -> Any:
            step = Step(f"retention forgets parked messages of {name}")
            result = self._operate(step, lambda: sim.engine.core.forget(name, selection, sim.clock, who))
            return SimpleNamespace(result=result)

        core = sim.engine.core
        stage = SimpleNamespace(
            lock=threading.Lock(),
            engine=sim.engine,
            options=sim.scenario.broker,
            clock=lambda: sim.clock,
            forget=forget,
            queues=lambda: [core.info(name) for name in list(core.queues)],
            sync=lambda: sim.engine.commit(sync=True),
        )
        return Upkeep(cast(Host, stage), volatile=False)

    # The end of a process

    def crash(self) -> None:
        if self.sim.scenario.features.clock_jumps_back and self.random.random() < 0.5:
            # As when a machine is restored: the very same moments come again.
            self.sim.clock = self.random.choice(self._clocks)
        kind = self.random.choice(list(CrashKind))
        self.sim.disk.end_process()
        self.sim.recover(kind)

    def arm_crash(self) -> None:
        if not self.sim.disk.armed:
            self.sim.disk.crash_in(self.random.randint(1, 25), self.random.choice(list(CrashKind)))

    def reopen(self) -> None:
        """A clean end and a new start: nothing but flights may change."""
        sim = self.sim
        sim.note("close and open")
        sim.disk.disarm()
        sim.disk.full_chance = 0.0
        sim.commit()
        if self.random.random() < 0.5:
            sim.engine.checkpoint()
        sim.engine.close()
        sim.journal.written = sim.journal.synced = len(sim.journal.records)
        sim.drop_everything()
        sim.disk.restart(self.random.choice(list(CrashKind)))
        recovery.open_engine(sim)
        report = sim.engine.report
        require(not report.torn, f"L3: a clean end left a torn one: {report.describe()}")


def _runs(offsets: list[int]) -> list[tuple[int, int]]:
    runs = []
    for _, block in groupby(enumerate(offsets), key=lambda item: item[1] - item[0]):
        members = [offset for _, offset in block]
        runs.append((members[0], len(members)))
    return runs


def _shown(options: Any) -> str:
    defaults = type(options)()
    changed = {
        name: getattr(options, name)
        for name in options.__struct_fields__
        if getattr(options, name) != getattr(defaults, name)
    }
    return ", ".join(f"{name}={getattr(value, 'value', value)}" for name, value in changed.items())
