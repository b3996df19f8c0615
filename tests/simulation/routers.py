"""Publishing through routers (Q18): to all of their queues, to the next that takes a message, or to the first."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.model.message import CORRELATION, Message
from remuda.model.messages import Messages
from remuda.model.operations.commands import DeclareExchange, Publish
from remuda.model.operations.results import Receipt
from remuda.model.queues.options import Status
from remuda.model.queues.routing import Binding, ExchangeKind
from tests.simulation.model import QueueModel, Step, Tally, require

if TYPE_CHECKING:
    from tests.simulation.runner import Simulation

ROUTERS: Final = {f"r-{kind}": kind for kind in (ExchangeKind.DISTRIBUTE, ExchangeKind.ROUND_ROBIN, ExchangeKind.FIRST)}


class Routing:
    """What some seeds do beside all else."""

    def __init__(self, sim: Simulation, random: Random) -> None:
        self._sim = sim
        self._random = random

    def route(self) -> None:
        sim, random = self._sim, self._random
        name = random.choice(sorted(ROUTERS))
        if name not in sim.model.exchanges or random.random() < 0.1:
            queues = dict.fromkeys(sim.scenario.name() for _ in range(random.choice((1, 2, 2, 3, 4))))
            bindings = tuple(Binding(queue=queue, priority=len(queue) % 3) for queue in queues)
            sim.engine.log.reserve(4096, use_spare=True)
            sim.apply(Step(f"declare {name} with {bindings}"), DeclareExchange(name, ROUTERS[name], bindings))
            return
        batch = sim.scenario.batch(sim.clock)
        bound = [one.queue or "" for one in sim.model.exchanges[name][1]]
        turn = sim.model.turns.get(name, 0) if ROUTERS[name] is ExchangeKind.ROUND_ROBIN else 0
        before = {one: Tally(sim.model, queue) for one in bound if (queue := sim.model.queues.get(one)) is not None}
        offset = sim.model.next_offset
        messages = Messages.of(batch)
        sim.engine.make_room(messages)
        step = Step(f"route {len(batch)} through {name}")
        receipt: Receipt = sim.apply(step, Publish(messages, exchange=name))
        for one in bound:
            queue = sim.model.queues.get(one)
            if one not in before and queue is not None:
                before[one] = Tally(sim.model, QueueModel(one, queue.options, Status.RUNNING))
        if len(before) < len(set(bound)):
            return  # one came to be and was destroyed meanwhile: nobody knows what it would have taken
        for row, message in enumerate(batch):
            sent = msgspec.structs.replace(
                message, id=receipt.ids[row], headers={**message.headers, CORRELATION: receipt.ids[row]}
            )
            if ROUTERS[name] is ExchangeKind.DISTRIBUTE:
                taken = self._to_all(before, bound, sent, receipt, row)
            else:
                order = [bound[(turn + at) % len(bound)] for at in range(len(bound))]
                taken = self._to_one(before, order, sent, receipt, row, offset)
                turn = (bound.index(taken[0]) + 1) % len(bound) if taken else turn
            if taken:
                self._check_stored(offset, sent, set(taken), step)
                offset += 1
            if ROUTERS[name] is ExchangeKind.FIRST:
                turn = 0
        require(offset == sim.model.next_offset, f"Q18: {sim.model.next_offset - offset} messages too many were stored")
        if ROUTERS[name] is ExchangeKind.ROUND_ROBIN:
            kept = sim.model.turns.get(name, 0) % len(bound)
            require(kept == turn % len(bound), f"Q18: the turn of {name} is {kept}, not {turn}")

    def _to_all(
        self, tallies: dict[str, Tally], bound: list[str], message: Message, receipt: Receipt, row: int
    ) -> list[str]:
        now = self._sim.model.now
        objections = {queue: tallies[queue].objection(message, now) for queue in bound}
        taken = [queue for queue, objection in objections.items() if objection is None]
        for queue in taken:
            tallies[queue].take(message, now)
        told = type(receipt.refusals.get(row) or receipt.partly_refused.get(row)).__name__
        expected = {objection for objection in objections.values() if objection} or {"NoneType"}
        require(told in expected, f"Q18: row {row}: {told} where {expected} was expected")
        require((row in receipt.refusals) is not bool(taken), f"Q18: row {row} is in {taken}: {receipt.refusals}")
        return taken

    def _to_one(
        self, tallies: dict[str, Tally], order: list[str], message: Message, receipt: Receipt, row: int, offset: int
    ) -> list[str]:
        """Consumers may have taken earlier rows meanwhile, so that an earlier queue had room."""
        now = self._sim.model.now
        free = [at for at, queue in enumerate(order) if tallies[queue].objection(message, now) is None]
        if row in receipt.refusals:
            require(not free, f"Q18: row {row} was refused, and {order[free[0]] if free else ''} has room")
            return []
        found = [queue for queue in order if self._came_to(queue, offset)]
        require(len(found) == 1, f"Q18: row {row} came to {found}, not to one of {order}")
        at = order.index(found[0])
        require(
            not free or at <= free[0], f"Q18: row {row} came to {found}, and {order[free[0] if free else 0]} had room"
        )
        tallies[found[0]].take(message, now)
        return found

    def _came_to(self, name: str, offset: int) -> bool:
        queue = self._sim.model.queues.get(name)
        return queue is not None and (offset in queue.entries or offset in queue.ended)

    def _check_stored(self, offset: int, message: Message, queues: set[str], step: Step) -> None:
        model = self._sim.model
        stored = model.messages.get(offset)
        require(stored is not None, f"Q18: message {offset} was accepted and not stored")
        for field in ("id", "name", "topics", "body", "object", "key", "priority", "expires", "due", "mime_type"):
            require(getattr(stored, field) == getattr(message, field), f"Q18: {offset}: {field} changed")
        require(dict(stored.headers) == dict(message.headers), f"Q18: {offset}: headers changed")  # type: ignore[union-attr]
        reached = {name for name in model.queues if self._came_to(name, offset)}
        missing = queues & set(model.queues) - reached
        require(not missing and reached - queues <= set(step.entered), f"Q18: {offset} is in {reached}, not {queues}")
