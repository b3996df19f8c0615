"""Publishers, consumers, operators, time and upkeep: each knows what should come of what it does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from remuda.broker.embedded.runtime import Runtime
from remuda.broker.embedded.upkeep.background import Upkeep
from remuda.core.effects import Dispatch
from remuda.model.errors import ConsumersFull, DiskFull, TooManyFiles
from remuda.model.life import PARKED, WAITING
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.operations.commands import (
    Bind,
    Clear,
    Command,
    ConfigureQueue,
    DeclareExchange,
    DeclareQueue,
    EndUnreadable,
    Forget,
    HandOver,
    Move,
    PauseKey,
    Publish,
    Pull,
    RemoveQueue,
    Renew,
    Reprocess,
    SetCredit,
    SetStatus,
    Settle,
    Subscribe,
    Unbind,
    Unsubscribe,
)
from remuda.model.operations.filters import MessageFilter
from remuda.model.operations.results import Receipt
from remuda.model.queues.options import LimitExceeded, PutBack, Status, read_options
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State
from remuda.model.values.durations import HOUR, MILLISECOND, SECOND
from tests.simulation import checks, flow, recovery
from tests.simulation.disk import CrashKind
from tests.simulation.model import Credit, Lease, QueueModel, Step, Tally, require
from tests.simulation.scenario import DEAD_LETTERS, ROOTS, START, WORDS

if TYPE_CHECKING:
    from tests.simulation.runner import Simulation

EXCHANGES = ("x-direct", "x-fanout", "x-topic", "x-headers")

FIRST_STATES = {
    Outcome.ACK: "S",
    Outcome.NACK: "R",
    Outcome.RETRY: "R",
    Outcome.RELEASE: "Q",
    Outcome.INVALID: "I",
    Outcome.NOT_INTERESTED: "N",
    Outcome.DEAD: "E",
}


@dataclass(frozen=True)
class Held:
    """A delivery in a consumer's hands."""

    queue: str
    consumer: str
    lease: int | None
    offsets: tuple[int, ...]


@dataclass
class Wanted:
    """Where a row of a batch has to be after it was published."""

    row: int
    queues: set[str]
    unsure: set[str] = field(default_factory=set)
    """Queues of which a power loss took what decides."""
    told: bool = False
    """Whether the receipt says what became of it."""
    keys: dict[str, str | None] = field(default_factory=dict)


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
        wanted = read_options(scenario.queue_options(target or "late")) if self.random.random() < 0.2 else None
        messages = Messages.of(batch)
        topics = (
            f"to {target}" if target else f"under {batch[0].name}{' …' if len({m.name for m in batch}) > 1 else ''}"
        )
        step = Step(f"publish {len(batch)} {topics}")
        self._publish(batch, Publish(messages, queue=target, options=wanted), self._routes(batch, target), step)

    def publish_through(self) -> None:
        """Q18: through an exchange, to the queues behind it; what finds none is in the log and told."""
        sim = self.sim
        exchanges = [name for name in sorted(sim.model.exchanges) if name in EXCHANGES]
        if not exchanges:
            return
        exchange = self.random.choice(exchanges)
        batch = sim.scenario.batch(sim.clock)
        routes = [
            sim.model.behind(exchange, message.topics or (message.name,), dict(message.headers)) for message in batch
        ]
        step = Step(f"publish {len(batch)} through {exchange}")
        receipt = self._publish(batch, Publish(Messages.of(batch), exchange=exchange), routes, step)
        nowhere = tuple(row for row, route in enumerate(routes) if not route and row not in receipt.refusals)
        require(receipt.unroutable == nowhere, f"Q18: {receipt.unroutable} were unroutable, not {nowhere}")

    def _publish(self, batch: list[Message], command: Publish, expected: list[set[str]], step: Step) -> Receipt:
        sim = self.sim
        self._make_room(command.messages, step)
        offset = sim.model.next_offset
        history = dict(sim.model.history)
        tallies = {name: Tally(sim.model, queue) for name, queue in sim.model.queues.items()}
        receipt: Receipt = sim.apply(step, command)
        self._check_receipt(batch, receipt, expected, tallies, history, offset, command.queue, set(step.entered))
        return receipt

    def _make_room(self, messages: Messages, step: Step) -> None:
        try:
            self.sim.engine.make_room(messages)
        except (DiskFull, TooManyFiles):
            self.sim.note(f"{step.text}: the disk is full")
            self.sim.meetings.full_at = self.sim.step_number
            checks.check_numbers(self.sim.engine, self.sim.model)
            raise

    def _routes(self, batch: list[Message], target: str | None) -> list[set[str]]:
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
        stored: list[tuple[Message, bool, Wanted]] = []
        for row, message in enumerate(batch):
            message = self._with_id(message, receipt.ids[row])
            for name in routes[row] - set(tallies):
                fresh = self._fresh_tally(name)
                if fresh is not None:
                    tallies[name] = fresh
            repeats = self._repeats(message, history, target)
            objections = {
                error
                for name in routes[row]
                if not repeats and name in tallies and (error := tallies[name].objection(message, sim.model.now))
            }
            refusal = receipt.refusals.get(row)
            gone = routes[row] - set(tallies)
            unsure = any(
                tallies[name].unsure or tallies[name].merging.word(message, sim.model.now) is None
                for name in routes[row] - gone
            )
            require(
                bool(gone)
                or unsure
                or (refusal is None and not objections)
                or (refusal is not None and type(refusal).__name__ in objections),
                f"row {row}: {type(refusal).__name__} where {objections or 'nothing'} was expected",
            )
            if refusal is not None:
                continue
            wanted = Wanted(row, set() if repeats else routes[row] & set(sim.model.queues))
            # Also for a queue that is gone by now: without consumers, it was destroyed at the end of the publish.
            for name in sorted(set() if repeats else routes[row] & set(tallies)):
                word = tallies[name].take(message, sim.model.now)
                key = flow.key_in(tallies[name].queue.options, message)
                if word is None:
                    wanted.unsure.add(name)
                elif word:
                    wanted.told = True
                if word == "skipped":
                    wanted.queues.discard(name)
                for _, _, earlier in stored if word == "replaced" else ():
                    if name in earlier.keys and earlier.keys[name] == key:
                        earlier.queues.discard(name)
                        earlier.told = True
                wanted.keys[name] = key
            stored.append((message, repeats, wanted))
            if target is None and message.object is not None and message.key is not None:
                history[message.object, message.key] = message.body
        for message, _, wanted in stored:
            self._check_stored(offset, message, wanted, forwarded)
            told = wanted.row in receipt.by_key
            require(told is wanted.told or bool(wanted.unsure), f"F4: row {wanted.row}: {receipt.by_key}")
            offset += 1
        require(offset == sim.model.next_offset, f"{sim.model.next_offset - offset} messages too many were stored")

    def _repeats(self, message: Message, history: dict[tuple[str, str], bytes], target: str | None) -> bool:
        """T3: what repeats its object's last body comes into no queue, and none refuses it."""
        if target is not None or message.object is None or message.key is None:
            return False
        return self.sim.scenario.broker.compact and history.get((message.object, message.key)) == message.body

    def _fresh_tally(self, name: str) -> Tally | None:
        """The room of a queue that came to be with this publish."""
        queue = self.sim.model.queues.get(name)
        return None if queue is None else Tally(self.sim.model, QueueModel(name, queue.options, Status.RUNNING))

    def _check_stored(self, offset: int, message: Message, wanted: Wanted, forwarded: set[str]) -> None:
        sim = self.sim
        stored = sim.model.messages.get(offset)
        require(stored is not None, f"message {offset} was accepted and not stored")
        assert stored is not None
        for name in Message.__struct_fields__:
            if name != "created":
                found, given = getattr(stored, name), getattr(message, name)
                require(
                    found == given or (name == "headers" and dict(found) == dict(given)), f"{offset}: {name} changed"
                )
        reached = {name for name, queue in sim.model.queues.items() if offset in queue.entries or offset in queue.ended}
        require(
            wanted.queues - wanted.unsure <= reached and reached - wanted.queues <= forwarded,
            f"T1, F4: message {offset} is in {sorted(reached)}, not in {sorted(wanted.queues)}",
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
        group = self.random.choice((None, None, None, "g", "h"))
        limit = max(batch, self.random.choice((1, 3, 10))) if self.random.random() < 0.8 else 1
        credit = (self._shared(group) if group else None) or Credit(limit, group)
        options = read_options(sim.scenario.queue_options(name)) if self.random.random() < 0.3 else None
        step = Step(f"{consumer} subscribes to {name}, batch {batch}, credit {limit} {group or ''}")
        command = Subscribe(name, consumer, self._names, batch, limit, group, options)

        def verb() -> bool:
            if queue is not None:
                queue.consumers.append(consumer)
                queue.credits[consumer] = credit
            try:
                sim.engine.core.apply(command, sim.clock)
            except ConsumersFull:
                assert queue is not None
                queue.consumers.remove(consumer)
                del queue.credits[consumer]
                return False
            return True

        joined = sim.apply(step, command, verb)
        after = sim.model.queues.get(name)
        if after is None:
            return
        if joined and consumer not in after.consumers:
            after.consumers.append(consumer)
            after.credits[consumer] = credit
        limit, count = after.options.client_limit, len(after.consumers)
        require(joined or 0 < limit <= count, f"Q7: {count} of {limit} consumers were too many")
        require(not joined or not limit or count <= limit, f"Q7: {count} consumers where {limit} are allowed")

    def _shared(self, group: str) -> Credit | None:
        """The credit of a group that has members."""
        queues = self.sim.model.queues.values()
        return next((one for queue in queues for one in queue.credits.values() if one.group == group), None)

    def set_credit(self) -> None:
        sim = self.sim
        pairs = self._consumers()
        if not pairs:
            return
        queue, consumer = self.random.choice(pairs)
        limit = self.random.choice((1, 2, 5, 20))
        queue.credits[consumer].limit = limit
        sim.apply(Step(f"{consumer} of {queue.name} has credit for {limit}"), SetCredit(queue.name, consumer, limit))

    def _consumers(self) -> list[tuple[QueueModel, str]]:
        return [(queue, name) for queue in self.sim.model.queues.values() for name in queue.consumers]

    def unsubscribe(self) -> None:
        sim = self.sim
        pairs = self._consumers()
        if not pairs:
            return
        queue, consumer = self.random.choice(pairs)
        step = Step(f"{consumer} leaves {queue.name}", left={(queue.name, consumer)})
        queue.consumers.remove(consumer)
        del queue.credits[consumer]
        for lease in queue.leases.values():
            if consumer in lease.consumers and consumer not in lease.confirmed:
                lease.declined.add(consumer)
        sim.apply(step, Unsubscribe(queue.name, consumer))
        for lease in queue.leases.values():
            lease.awaited.discard(consumer)

    def pull(self) -> None:
        """Q16: from a queue of any type."""
        sim = self.sim
        known = sorted(sim.model.queues)
        name = self.random.choice(known) if known and self.random.random() < 0.9 else sim.scenario.name()
        self._names += 1
        puller = f"p{self._names}"
        count = self.random.choice((1, 1, 3, 10))
        newest = self.random.random() < (0.05 if sim.scenario.plain else 0.2)
        wait = self.random.choice((0, 0, 200 * MILLISECOND, HOUR if sim.scenario.plain else 20 * SECOND))
        after = self.random.choice(("none",) * 12 + ("all", "priority", "regular"))
        known_queue = sim.model.queues.get(name)
        options = sim.scenario.broker.queue_defaults if known_queue is None else known_queue.options
        if options.takes_turns:
            newest = False  # which is refused
        if newest:
            sim.model.newest_pullers.add(puller)
        step = Step(f"{puller} pulls {count} from {name}{', newest first' if newest else ''}, then clears {after}")
        if after != "none":
            step.cleared.add(name)
            if wait:
                sim.model.clearing_pulls.add(name)
        sim.apply(step, Pull(name, puller, self._names, count, newest, wait, after))

    def take(self) -> None:
        """Q2: what was sent ahead reaches its consumer, as far as it is still the queue's to give."""
        for _ in range(self.random.choice((1, 3, 8))):
            if self.sim.inbox:
                self._take_one(self.sim.inbox.pop(self.random.randrange(len(self.sim.inbox))))

    def _take_one(self, dispatch: Dispatch) -> None:
        sim = self.sim
        assert dispatch.lease is not None
        queue = sim.model.queues.get(dispatch.queue)
        lease = queue.leases.get(dispatch.lease) if queue is not None else None
        sim.model.now = max(sim.model.now, sim.clock)
        expected: list[int] = []
        if queue is not None and lease is not None:
            expected = self._to_give(queue, lease, dispatch.lease, dispatch.consumer)
        step = Step(f"{dispatch.consumer} takes {dispatch.runs} of {dispatch.queue}, lease {dispatch.lease}")
        step.handed.add((dispatch.queue, dispatch.lease))
        sim.engine.log.reserve(4096, use_spare=True)
        was_taken = lease is not None and bool(lease.taken)
        if lease is not None:
            lease.awaited -= {dispatch.consumer} if expected else set()
            lease.taken |= {dispatch.consumer} if expected else set()
            if expected:
                lease.offsets = expected
        runs = sim.apply(step, HandOver(dispatch.queue, dispatch.lease, dispatch.consumer))
        given = [offset for first, count in runs for offset in range(first, first + count)]
        require(sorted(given) == sorted(expected), f"Q2: {given} were handed over, not {expected}")
        if given and queue is not None and lease is not None and not was_taken:
            lease.deadline = sim.model.now + queue.options.acknowledge_timeout
        if given:
            sim.hands.append(Held(dispatch.queue, dispatch.consumer, dispatch.lease, tuple(given)))
            sim.begin(dispatch, given)

    def _to_give(self, queue: QueueModel, lease: Lease, number: int, consumer: str) -> list[int]:
        if consumer not in lease.silent or lease.deadline <= self.sim.model.now:
            return []
        held = queue.held(number)
        if lease.taken:
            return lease.offsets if held or consumer in lease.awaited else []
        return [at for at in held if queue.entries[at].deadline > self.sim.model.now]

    def answer(self) -> None:
        for _ in range(self.random.choice((1, 1, 3, 8))):
            if self.sim.hands:
                self._answer_one()

    def _answer_one(self) -> None:
        sim, random = self.sim, self.random
        held = random.choice(sim.hands)
        if random.random() < (0.05 if sim.scenario.aim is None else 0.15):
            self._renew(held)
            return
        if random.random() < 0.8:
            sim.hands.remove(held)
        if held.lease is None or not held.offsets:
            return
        usual = () if sim.scenario.aim is not None else (Outcome.ACK,) * 6 + (Outcome.RETRY,) * 2
        outcome = random.choice(usual + tuple(Outcome))
        offsets = list(held.offsets)
        runs = None
        if random.random() < 0.3:
            offsets = sorted(random.sample(offsets, random.randint(1, len(offsets))))
            runs = _runs(offsets)
        settlement = Settlement(
            outcome,
            delay=random.choice((None, None, 0, 100 * MILLISECOND, 10 * SECOND)),
            consumer=held.consumer if random.random() < 0.97 else "stranger",
            to=random.choice((None, DEAD_LETTERS)) if outcome is Outcome.DEAD else None,
            front=random.choice((None, None, True, False)),
            counted=random.choice((None, None, True, False)),
        )
        step = Step(f"{settlement} for {offsets} of {held.queue}, lease {held.lease}", counted=settlement.counted)
        self._answer(held, offsets, settlement, runs, step)

    def _renew(self, held: Held) -> None:
        sim = self.sim
        queue = sim.model.queues.get(held.queue)
        number = -1 if held.lease is None else held.lease
        lease = queue.leases.get(number) if queue else None
        step = Step(f"{held.consumer} asks for more time in {held.queue}, lease {number}")
        renewed = sim.apply(step, Renew(held.queue, number))
        holds = queue is not None and lease is not None and bool(queue.held(number))
        require(renewed == (holds and held.lease is not None), f"Q3: more time was {'' if renewed else 'not '}given")
        if renewed and queue is not None and lease is not None:
            lease.deadline = sim.model.now + queue.options.acknowledge_timeout

    def _answer(
        self, held: Held, offsets: list[int], settlement: Settlement, runs: list[tuple[int, int]] | None, step: Step
    ) -> None:
        sim = self.sim
        number = held.lease
        assert number is not None
        consumer = settlement.consumer or ""
        queue = sim.model.queues.get(held.queue)
        lease = queue.leases.get(number) if queue else None
        expected: list[int] = []
        if queue is not None and lease is not None and consumer in lease.silent:
            expected = [at for at in queue.held(number) if at in offsets]
        step.answered = {(held.queue, offset) for offset in expected}
        wanted = {} if queue is None else {at: self._fate(queue, at, settlement) for at in expected}
        sim.engine.log.reserve(4096, use_spare=True)
        if lease is not None and expected and lease.needed != 1:
            (lease.confirmed if settlement.outcome is Outcome.ACK else lease.declined).add(consumer)
        settled = sim.apply(step, Settle(held.queue, number, settlement, runs))
        require(settled == len(expected), f"Q3: the answer settled {settled}, {expected} were held")
        sim.tally.settled += settled
        if queue is None or lease is None or lease.needed != 1:
            return
        for offset in expected:
            told = step.told.get((held.queue, offset), "")
            state, front = wanted[offset]
            require(told.startswith(state), f"M6: {offset} answered {settlement.outcome} went {told or 'nowhere'}")
            if settlement.outcome is Outcome.ACK:
                require(told == "SX", f"M6: {offset} was acknowledged and went {told}")
            if state in "RQ":
                where = step.fronts[held.queue, offset]
                require(where == front, f"Q9: {offset} was put back {'before' if where else 'behind'} the others")

    def _fate(self, queue: QueueModel, offset: int, settlement: Settlement) -> tuple[str, bool]:
        """Q9, B12: where an answer sends a message first, and whether to the front."""
        outcome, options, attempt = settlement.outcome, queue.options, queue.entries[offset].attempt
        front = bool(settlement.front)
        if outcome is Outcome.NACK and settlement.front is None:
            front = options.put_back is PutBack.PRIORITY
            if options.put_back is PutBack.NO:
                return "E", False
        last = options.delivery_limit and attempt > options.delivery_limit and settlement.counted is not False
        if outcome in (Outcome.NACK, Outcome.RETRY) and last:
            return "E", False
        return FIRST_STATES[outcome], front

    def lose(self, name: str, runs: list[tuple[int, int]]) -> None:
        """The host's reaction to messages that the log cannot give back."""
        sim = self.sim
        if name not in sim.model.queues:
            return
        gone = {(name, offset) for first, count in runs for offset in range(first, first + count)}
        step = Step(f"{name}: {runs} cannot be read", unreadable=gone)
        sim.apply(step, EndUnreadable(name, tuple(runs)))

    # Operators

    def declare(self) -> None:
        sim = self.sim
        name = sim.scenario.name()
        if sim.scenario.features.channels and self.random.random() < 0.5:
            name = self.random.choice(("channel-a", "channel-b"))
            options = sim.scenario.channel_options(name)
        else:
            options = sim.scenario.queue_options(name)
        self._operate(Step(f"declare {name} {_shown(options)}"), DeclareQueue(name, read_options(options)))

    def configure(self) -> None:
        sim, name = self.sim, self._existing()
        if name is None:
            return
        changes = sim.scenario.changes(sim.model.queues[name].options)
        step = Step(f"configure {name} {changes}")
        self._operate(step, ConfigureQueue(name, read_options(changes) or {}, "an operator"))

    def pause_key(self) -> None:
        """F3: one key is held back, or goes on."""
        sim, rules = self.sim, self.sim.scenario.rules
        assert rules is not None
        ruled = sorted(name for name, queue in sim.model.queues.items() if queue.options.takes_turns)
        if ruled:
            name, key, span = rules.choice(ruled), rules.choice("abc"), rules.choice(("0s", "2s", "1m"))
            self._operate(Step(f"pause {key} of {name} for {span}"), PauseKey(name, key, span, "an operator"))

    def set_status(self) -> None:
        sim, name = self.sim, self._existing()
        if name is None:
            return
        choices = (Status.RUNNING, Status.RUNNING, Status.ONLY_PUBLISH, Status.ONLY_CONSUME, Status.PAUSED)
        status = self.random.choice(choices)
        if sim.model.queues[name].status is not Status.NOT_INITIALIZED:
            self._operate(Step(f"set {name} to {status.value}"), SetStatus(name, status))
            require(
                name not in sim.model.queues or sim.model.queues[name].status is status, f"Q14: {name} kept its status"
            )

    def reprocess(self) -> None:
        sim, name = self.sim, self._existing()
        if name is None:
            return
        selection = self._selection(name)
        step = Step(f"reprocess {name} {selection.offsets or ''}", reprocessed={name})
        chosen = self._selected(name, selection)
        retries = [offset for offset in chosen if sim.model.queues[name].entries[offset].state == "R"]
        parked = self._unique(name, [offset for offset in chosen if offset not in retries])
        queue = sim.model.queues[name]
        limit = queue.options.message_limit
        room = max(limit - queue.size, 0) if limit else len(parked)
        count = self._operate(step, Reprocess(name, selection, "an operator"))
        require(
            count == min(len(parked), room) + len(retries),
            f"B15: {count} were reprocessed, {sorted(parked)} were parked and there was room for {room}",
        )

    def forget(self) -> None:
        name = self._existing()
        if name is not None:
            selection = self._selection(name)
            step = Step(f"forget parked messages of {name}")
            self._operate(step, Forget(name, selection, "an operator"))

    def clear(self) -> None:
        sim, name = self.sim, self._existing()
        if name is None:
            return
        lanes = self.random.choice(("all", "all", "priority", "regular"))
        only = self._some(sim.model.queues[name].waiting)
        step = Step(
            f"clear {lanes} of {name}, {only or 'all'}", cleared={name}, only=None if only is None else set(only)
        )
        runs = None if only is None else tuple(_runs(only))
        cleared = self._operate(step, Clear(name, lanes, runs, "an operator"))
        require(only is None or cleared <= len(only), f"B15: {cleared} of {only} were cleared")

    def move(self) -> None:
        """Messages go on elsewhere, as far as there is room; what finds none stays as it is."""
        sim, name = self.sim, self._existing()
        if name is None:
            return
        to = self.random.choice((DEAD_LETTERS, "late", *ROOTS))
        queue = sim.model.queues[name]
        sim.model.now = max(sim.model.now, sim.clock)
        if to != name:
            queue.release_due(sim.model.now)
        parks = self.random.random() < 0.5
        there = queue.parked() if parks else [*queue.waiting, *queue.delayed()]
        only = self._some(there)
        chosen = MessageFilter(
            states=PARKED if parks else WAITING, offsets=None if only is None else tuple(_runs(only))
        )
        room = self._room(to)
        suiting = self._suiting(to, there if only is None else only)
        step = Step(f"move {only or 'all'} {'parked' if parks else 'waiting'} from {name} to {to}", moving={name})
        step.only = None if only is None else set(only)
        moved = self._operate(step, Move(name, to, chosen, "an operator"))
        wanted = 0 if to == name else len(there if only is None else only)
        least = 0 if to == name else min(suiting, room)
        require(
            least <= moved <= wanted, f"{moved} of {wanted} were moved, {suiting} suit and there is room for {room}"
        )

    def _room(self, name: str) -> int:
        """How many messages a queue takes from another."""
        sim = self.sim
        queue = sim.model.queues.get(name)
        options = sim.scenario.broker.queue_defaults if queue is None else queue.options
        if queue is not None and queue.status in (Status.ONLY_CONSUME, Status.PAUSED):
            return 0
        size, flying = (0, 0) if queue is None else (queue.size, len(queue.flying()))
        limit = options.message_limit
        if limit and options.limit_exceeded is LimitExceeded.DELETE_OLDEST:
            return 0 if flying >= limit else 1 << 60
        return max(limit - size, 0) if limit else 1 << 60

    def _some(self, offsets: list[int]) -> list[int] | None:
        """Some of these; None for all."""
        if not offsets or self.random.random() < 0.5:
            return None
        return sorted(self.random.sample(offsets, self.random.randint(1, len(offsets))))

    # Exchanges

    def declare_exchange(self) -> None:
        name = self.random.choice(EXCHANGES)
        kind = ExchangeKind(name.removeprefix("x-"))
        bindings = tuple(self._binding() for _ in range(self.random.randrange(4)))
        distinct = tuple(one for at, one in enumerate(bindings) if one not in bindings[:at])
        self._operate(Step(f"declare {name} with {distinct}"), DeclareExchange(name, kind, distinct))

    def bind(self) -> None:
        exchanges = {name: known for name, known in self.sim.model.exchanges.items() if name in EXCHANGES}
        if not exchanges:
            return
        name = self.random.choice(sorted(exchanges))
        bound = exchanges[name][1]
        if bound and self.random.random() < 0.3:
            binding = self.random.choice(bound)
            self._operate(Step(f"unbind {binding} from {name}"), Unbind(name, binding))
        else:
            binding = self._binding()
            self._operate(Step(f"bind {binding} to {name}"), Bind(name, binding))

    def _binding(self) -> Binding:
        random = self.random
        key = random.choice((*ROOTS, "#", f"*.{random.choice(WORDS)}", f"{random.choice(ROOTS)}.#"))
        arguments = random.choice(({}, {"trace": "1"}, {"trace": "2"}))
        if random.random() < 0.2:
            return Binding(exchange=random.choice(EXCHANGES), key=key, arguments=arguments)
        return Binding(queue=self.sim.scenario.name(), key=key, arguments=arguments)

    def remove_queue(self) -> None:
        name = self._existing()
        if name is not None:
            step = Step(f"remove queue {name}", removed={name})
            self._operate(step, RemoveQueue(name, "an operator"))

    def route(self) -> None:
        if self.sim.routing is not None:
            self.sim.routing.route()

    def _operate(self, step: Step, command: Command) -> Any:
        self.sim.engine.log.reserve(4096, use_spare=True)
        return self.sim.apply(step, command)

    def _existing(self) -> str | None:
        return self.random.choice(sorted(self.sim.model.queues)) if self.sim.model.queues else None

    def _selection(self, name: str) -> MessageFilter:
        parked = self.sim.model.queues[name].parked()
        if parked and self.random.random() < 0.5:
            chosen = sorted(self.random.sample(parked, self.random.randint(1, len(parked))))
            return MessageFilter(offsets=tuple(_runs(chosen)))
        states = self.random.choice((PARKED, frozenset({State.DEAD}), frozenset({State.DEAD, State.RETRY})))
        return MessageFilter(states=states)

    def _selected(self, name: str, selection: MessageFilter) -> list[int]:
        queue = self.sim.model.queues[name]
        wanted = None
        if selection.offsets is not None:
            wanted = {offset for first, count in selection.offsets for offset in range(first, first + count)}
        return [
            offset
            for offset in [*queue.parked(), *queue.delayed()]
            if queue.entries[offset].state in selection.taken and (wanted is None or offset in wanted)
        ]

    def _suiting(self, name: str, offsets: Sequence[int]) -> int:
        """How many of these messages another queue takes, as far as their size and their ids go."""
        queue = self.sim.model.queues.get(name)
        options = self.sim.scenario.broker.queue_defaults if queue is None else queue.options
        limit, unique = options.message_size_limit, options.unique_ids
        ids = {} if queue is None else {own: offset for offset, own in queue.ids.items()}
        count = 0
        for offset in offsets:
            message = self.sim.model.messages.get(offset)
            if message is None:
                count += 1
                continue
            if limit and len(message.body) > limit:
                continue
            if not unique or ids.setdefault(message.id, offset) == offset:
                count += 1
        return count

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
        if self.random.random() < sim.scenario.unnoticed:
            sim.note(f"{pause} µs pass unnoticed")
            return
        step = Step(f"{pause} µs pass, it is {(sim.clock - START) / SECOND:.6f} s", ticks=True)

        def verb() -> None:
            for queue in sim.model.queues.values():
                queue.release_due(sim.model.now)
            core = sim.engine.core
            core.tick(sim.clock)
            while core.next_wake() <= core.recorder.now:
                core.tick(sim.clock)

        sim.run(step, verb)
        checks.check_time(sim.model)

    # Upkeep

    def checkpoint(self) -> None:
        for _ in range(self.random.choice((1, 1, 2))):
            self.sim.note("checkpoint")
            self.sim.commit()
            self._upkeep(meanwhile=0.6).checkpoint()
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

    def _upkeep(self, meanwhile: float = 0.0) -> Upkeep:
        """The real upkeep, on a stage set of a host. Others may do something `meanwhile`."""
        sim = self.sim

        def submit(command: Forget) -> Any:
            step = Step(f"retention forgets parked messages of {command.queue}")
            return SimpleNamespace(result=self._operate(step, command))

        def sync() -> None:
            # Others go on while a checkpoint is made: it tells the state that was frozen.
            while self.random.random() < meanwhile:
                getattr(self, self.random.choice(("publish", "pull", "answer", "answer", "pass_time")))()
            sim.engine.commit(sync=True)

        core = sim.engine.core
        stage = SimpleNamespace(
            whole=threading.Lock,
            lock=threading.Lock(),
            restoration=SimpleNamespace(error=None),
            engine=sim.engine,
            options=sim.scenario.broker,
            clock=lambda: sim.clock,
            submit=submit,
            queues=lambda: [core.info(name) for name in list(core.queues)],
            sync=sync,
            closed=False,
        )
        return Upkeep(cast(Runtime, stage), volatile=False)

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
        sim.disk.calm()
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
