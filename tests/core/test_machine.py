"""The core against a naive model, command by command (proof by Hypothesis).

After every command: the moves were legal (M6), the order is first in, first out (Q15), limits (Q6) and unique ids (Q12)
are exact, sizes add up (Q9), leases guard answers (Q3), and the records alone rebuild the same core (L1).
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from remuda.core.core import Core
from remuda.core.effects import Dispatch
from remuda.core.queues.credit import WINDOW
from remuda.core.recovery import snapshot
from remuda.model.errors import Duplicate, QueueFull, Refused
from remuda.model.ids import Snowflakes
from remuda.model.life import PARKED
from remuda.model.message import Message
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
    Reprocess,
    SetCredit,
    SetStatus,
    Settle,
    Subscribe,
    Unsubscribe,
)
from remuda.model.operations.filters import MessageFilter
from remuda.model.queues.options import LimitExceeded, QueueOptions, Status, read_options
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State
from remuda.model.values.durations import MILLISECOND, SECOND
from tests.core.naive import Naive, levels_of, naive_levels, state_of, states_in

START = 1_800_000_000 * SECOND
QUEUES = ("a", "b")
CONSUMERS = ("c1", "c2", "c3")
MAYBE = st.booleans()
CHANGES = [{"message_limit": 3}, {"message_limit": 0}, {"acknowledge": "wait"}, {"acknowledge": "none"}]


@st.composite
def queue_options(draw: st.DrawFn, other: str) -> QueueOptions:
    kind = draw(st.sampled_from(["push", "round-robin", "pull"]))
    return QueueOptions.parse(
        type=kind,
        acknowledge=draw(st.sampled_from(["wait", "wait", "just-request", "none"])),
        put_back=draw(st.sampled_from(["regular", "priority", "no"])),
        put_back_delay=draw(st.sampled_from([0, 3])),
        message_limit=draw(st.sampled_from([0, 0, 4, 7])),
        limit_exceeded=draw(st.sampled_from(["reject-new", "delete-oldest"])),
        unique_ids=draw(MAYBE),
        message_timeout=draw(st.sampled_from([0, 0, 20])),
        delay_between_messages=draw(st.sampled_from([0, 0, 1])) if kind != "pull" else 0,
        confirmations=draw(st.sampled_from([1, 1, 2])) if kind == "push" else 1,
        delivery_limit=draw(st.sampled_from([0, 0, 1])),
        dead_letter_queue=draw(st.sampled_from([None, None, other])),
        expired_queue=draw(st.sampled_from([None, None, other])),
    )


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.core = Core(Snowflakes(1))
        self.replica = Core(Snowflakes(1))
        self.naive = Naive()
        self.sent: list[Dispatch] = []
        self.tags = 0
        self.untold = False
        """Whether time passed that the core has not been told of."""
        self.given: set[str] = set()

    @initialize(options=st.tuples(queue_options("b"), queue_options("a")))
    def create(self, options: tuple[QueueOptions, QueueOptions]) -> None:
        for name, chosen in zip(QUEUES, options, strict=True):
            self.apply(DeclareQueue(name, read_options(chosen)))

    # Producers

    @rule(
        topics=st.sampled_from([("a",), ("b",), ("a.x", "b"), ("a.x", "a.y")]),
        rows=st.lists(
            st.tuples(
                st.sampled_from([0, 0, 1, 31]), st.sampled_from([None, None, 2, 5]), st.sampled_from([None, None, 4])
            ),
            max_size=4,
        ),
        ids=st.sampled_from([None, "x", "y", "z"]),
    )
    def publish(self, topics: tuple[str, ...], rows: list[tuple[int, int | None, int | None]], ids: str | None) -> None:
        """Q6, Q12: the limit and the ids let in exactly what they should, and say why not."""
        messages = Messages.of(
            Message(
                topics[0], b"", id=f"{ids}{row % 3}" if ids else "", topics=topics,
                priority=priority,
                due=None if due is None else self.now + due * SECOND,
                expires=None if expires is None else self.now + expires * SECOND,
            )
            for row, (priority, due, expires) in enumerate(rows)
        )  # fmt: skip
        names = list(dict.fromkeys(topic[0] for topic in topics))
        expected = self._expected_refusals(messages, names)
        receipt = self.core.apply(Publish(messages), self.now)
        assert {row: type(error) for row, error in receipt.refusals.items()} == expected
        if ids is None:
            given = {one for row, one in enumerate(receipt.ids) if row not in receipt.refusals}
            assert not self.given & given, "M4: an id was given twice"
            self.given |= given
        self.absorb()
        for name in names:
            options = self.naive.queues[name].options
            if receipt.accepted and options.message_limit and options.limit_exceeded is LimitExceeded.DELETE_OLDEST:
                in_flight = self.core.queues[name].flights.size
                assert self.core.queues[name].size <= max(options.message_limit, in_flight)

    def _expected_refusals(self, messages: Messages, names: list[str]) -> dict[int, type[Refused]]:
        refused: dict[int, type[Refused]] = {}
        sizes = {name: self.naive.queues[name].size for name in names}
        fixed = {name: len(self.naive.queues[name].in_state(State.FETCHED)) for name in names}
        taken = {name: {copy.id for copy in self.naive.queues[name].live} for name in names}
        for row in range(len(messages)):
            identity = messages.id(row)
            for name in names:
                options = self.naive.queues[name].options
                if options.unique_ids and identity and identity in taken[name]:
                    refused[row] = Duplicate
                    break
                stuck = options.limit_exceeded is LimitExceeded.REJECT_NEW or fixed[name] >= options.message_limit
                if options.message_limit and sizes[name] >= options.message_limit and stuck:
                    refused[row] = QueueFull
                    break
            else:
                for name in names:
                    sizes[name] += 1
                    taken[name].add(identity)
        return refused

    # Consumers

    @rule(
        name=st.sampled_from(QUEUES), consumer=st.sampled_from(CONSUMERS), batch=st.integers(1, 3),
        credit=st.integers(1, 4), group=st.sampled_from([None, "g"]),
    )  # fmt: skip
    def subscribe(self, name: str, consumer: str, batch: int, credit: int, group: str | None) -> None:
        if consumer not in self.core.queues[name].consumers:
            self.tags += 1
            self.apply(Subscribe(name, consumer, self.tags, batch, credit, group))

    @rule(name=st.sampled_from(QUEUES), consumer=st.sampled_from(CONSUMERS), credit=st.integers(1, 4))
    def set_credit(self, name: str, consumer: str, credit: int) -> None:
        if consumer in self.core.queues[name].consumers:
            self.apply(SetCredit(name, consumer, credit))

    @rule(name=st.sampled_from(QUEUES), consumer=st.sampled_from(CONSUMERS))
    def unsubscribe(self, name: str, consumer: str) -> None:
        self.apply(Unsubscribe(name, consumer))

    @rule(name=st.sampled_from(QUEUES), count=st.integers(1, 4), newest=MAYBE, puller=st.sampled_from(["puller", "c1"]))
    def pull(self, name: str, count: int, newest: bool, puller: str) -> None:
        queue = self.core.queues[name]
        self.tags += 1
        if newest and (queue.consumers or queue.waiters):
            newest = False
        self.naive.queues[name].newest_first = newest
        self.apply(Pull(name, puller, self.tags, count, newest))
        self.naive.queues[name].newest_first = False

    @precondition(lambda self: self.sent)
    @rule(pick=st.integers(0, 1000))
    def hand_over(self, pick: int) -> None:
        """Q2: what is sent ahead is the queue's until its consumer takes it."""
        dispatch = self.sent[pick % len(self.sent)]
        if dispatch.lease is not None and dispatch.hand_over:
            runs = self.apply(HandOver(dispatch.queue, dispatch.lease, dispatch.consumer))
            given = {offset for first, count in runs for offset in range(first, first + count)}
            sent = {offset for first, count in dispatch.runs for offset in range(first, first + count)}
            assert given <= sent

    @precondition(lambda self: self.sent)
    @rule(
        pick=st.integers(0, 1000), outcome=st.sampled_from(list(Outcome)), some=MAYBE,
        delay=st.sampled_from([None, 0, 2 * SECOND]), to=st.sampled_from([None, None, "b"]),
        front=st.sampled_from([None, None, True, False]), counted=st.sampled_from([None, None, True, False]),
    )  # fmt: skip
    def settle(
        self, pick: int, outcome: Outcome, some: bool, delay: int | None, to: str | None, front: bool | None,
        counted: bool | None,
    ) -> None:  # fmt: skip
        """Q3: only the holder of the lease settles, only once; any other answer changes nothing."""
        dispatch = self.sent[pick % len(self.sent)]
        if dispatch.lease is None:
            return
        queue = self.core.queues[dispatch.queue]
        runs = [(dispatch.runs[0][0], 1)] if some else dispatch.runs
        lease = queue.leases.get(dispatch.lease)
        held = [
            offset
            for first, count in runs
            for offset in range(first, first + count)
            if (piece := queue.flights.holding(offset)) is not None and piece.lease == dispatch.lease
        ]
        answers = lease is not None and dispatch.consumer in lease.silent
        settlement = Settlement(
            outcome, delay=delay, consumer=dispatch.consumer, to=to if outcome is Outcome.DEAD else None, front=front,
            counted=counted,
        )  # fmt: skip
        settled = self.core.apply(
            Settle(dispatch.queue, dispatch.lease, settlement, None if not some else runs), self.now
        )
        if lease is None or not answers:
            assert settled == 0
        elif lease.needed == 1:
            assert settled == len(held)
        changed = self.absorb()
        assert changed or not settled or lease is None or lease.needed != 1

    # Operators and time

    @rule(name=st.sampled_from(QUEUES), lanes=st.sampled_from(["all", "priority", "regular"]))
    def clear(self, name: str, lanes: str) -> None:
        self.apply(Clear(name, lanes))
        levels = [priority for (priority, _), _ in self.naive.queues[name].in_order()]
        assert not [one for one in levels if lanes == "all" or (lanes == "priority") == (one > 0)]

    @rule(name=st.sampled_from(QUEUES), states=st.sampled_from([PARKED, frozenset({State.QUEUED})]))
    def move(self, name: str, states: frozenset[State]) -> None:
        """What finds no room in the other queue stays as it is."""
        to = "b" if name == "a" else "a"
        before = self.naive.queues[name].in_state(State.QUEUED, State.RETRY, *PARKED)
        moved = self.apply(Move(name, to, MessageFilter(states=states)))
        after = self.naive.queues[name].in_state(State.QUEUED, State.RETRY, *PARKED)
        limited = any(queue.options.message_limit for queue in self.naive.queues.values())
        assert limited or len(after) <= len(before) - moved

    @rule(name=st.sampled_from(QUEUES), states=st.sampled_from([PARKED, frozenset({State.DEAD, State.RETRY})]))
    def reprocess(self, name: str, states: frozenset[State]) -> None:
        self.apply(Reprocess(name, MessageFilter(states=states)))

    @rule(name=st.sampled_from(QUEUES))
    def forget(self, name: str) -> None:
        assert self.apply(Forget(name, MessageFilter(until=self.now - 10 * SECOND))) >= 0

    @rule(
        name=st.sampled_from(QUEUES),
        changes=st.sampled_from(
            [{"message_limit": 3}, {"message_limit": 0}, {"acknowledge": "wait"}, {"acknowledge": "none"}]
        ),
    )
    def configure(self, name: str, changes: dict[str, Any]) -> None:
        self.apply(ConfigureQueue(name, read_options(changes) or {}))

    @rule(name=st.sampled_from(QUEUES), status=st.sampled_from([Status.RUNNING, Status.RUNNING, Status.ONLY_PUBLISH]))
    def set_status(self, name: str, status: Status) -> None:
        self.apply(SetStatus(name, status))

    @rule(step=st.sampled_from([1, 300 * MILLISECOND, SECOND, 4 * SECOND, 16 * SECOND, 30 * SECOND]), ticks=MAYBE)
    def pass_time(self, step: int, ticks: bool) -> None:
        self.now += step
        self.untold = not ticks
        if ticks:
            self.core.tick(self.now)
            assert self.core.next_wake() > self.now, "what is due was done"
        self.absorb()

    @rule()
    def checkpoint(self) -> None:
        """L4: a snapshot and the records after it are worth all records."""
        fresh = Core(Snowflakes(1))
        snapshot.load(fresh, snapshot.save(self.core))
        self.replica = fresh

    @rule(back=st.sampled_from([0, 0, 3600 * SECOND]))
    def restart(self, back: int) -> None:
        """L2, Q3: a new process goes on with what the records say, even when the clock was set back meanwhile."""
        self.now -= back
        self.core = self.replica
        self.core.resume(self.now)
        self.core.tick(self.now)
        self.naive.restart()
        self.sent.clear()
        self.replica = Core(Snowflakes(1))
        snapshot.load(self.replica, snapshot.save(self.core))
        effects = self.core.drain()
        for record in effects.records:
            self.naive.play(record)
        self.naive.let_time_pass(self.now)

    # What must always hold

    def apply(self, command: Command) -> Any:
        result = self.core.apply(command, self.now)
        if isinstance(result, Dispatch):
            self.sent.append(result)
        self.absorb()
        return result

    def absorb(self) -> bool:
        effects = self.core.drain()
        for record in effects.records:
            self.naive.play(record)
            self.replica.replay(record)
        self.sent += effects.dispatches
        return bool(effects.records)

    @invariant()
    def columns_equal_the_naive_lists(self) -> None:
        """Q9, Q15: order, deadlines and sizes."""
        for name, queue in self.core.queues.items():
            naive = self.naive.queues[name]
            queue.release_due(self.now)
            naive.let_time_pass(self.now)
            assert levels_of(queue) == naive_levels(naive)
            assert queue.size == naive.size + sum(1 for piece in queue.flights if piece.state is State.SUCCESS)
            assert states_in(queue.delayed) == {copy.offset: copy.state for copy in naive.delayed}
            assert states_in(queue.parked) == {copy.offset: copy.state for copy in naive.in_state(*PARKED)}
            fetched = {offset: state for offset, state in states_in(queue.flights).items() if state is State.FETCHED}
            assert fetched == {copy.offset: State.FETCHED for copy in naive.in_state(State.FETCHED)}

    @invariant()
    def credit_is_what_consumers_hold(self) -> None:
        """Q2: counted in messages, over all queues that share it."""
        used: dict[int, int] = {}
        for queue in self.core.queues.values():
            leases = [*queue.leases.values(), *queue.settled_ahead.values()]
            assert queue.unanswered == sum(not lease.answered for lease in queue.leases.values() if not lease.pulled)
            for name, consumer in queue.consumers.items():
                mine = [lease for lease in leases if name in lease.silent and not lease.pulled and not lease.ahead]
                assert consumer.unanswered == sum(lease.open for lease in mine)
                assert consumer.under_way == sum(lease.sent for lease in leases if name in lease.awaited)
                assert consumer.under_way <= WINDOW
                used[id(consumer.credit)] = used.get(id(consumer.credit), 0) + consumer.unanswered
            for lease in queue.leases.values():
                held = sum(
                    1
                    for first, count in lease.runs
                    for piece in queue.flights.find(first, count)
                    if piece.lease == lease.token
                    for _ in range(piece.count)
                )
                assert lease.open == held
        for queue in self.core.queues.values():
            for consumer in queue.consumers.values():
                assert consumer.credit.used == used[id(consumer.credit)]

    @invariant()
    def nobody_waits_while_there_is_work(self) -> None:
        """Q1, Q2: who has credit is sent what waits."""
        for queue in self.core.queues.values():
            options = queue.options
            if queue.status is Status.RUNNING and options.type.value != "push" and not options.delay_between_messages:
                free = [
                    name
                    for name, one in queue.consumers.items()
                    if (one.credit.left if queue.waits else WINDOW - one.under_way) > 0
                ]
                waiting = [deadline for _, level in levels_of(queue) for _, deadline in level if deadline > self.now]
                due = any(piece.due <= self.now for piece in queue.delayed)
                assert not (free and waiting) or due or self.untold

    @invariant()
    def ids_are_unique_where_they_must_be(self) -> None:
        """Q12."""
        for name, queue in self.naive.queues.items():
            ids = [copy.id for copy in queue.live if copy.id]
            if queue.options.unique_ids:
                assert len(ids) == len(set(ids)), f"queue {name} holds an id twice"

    @invariant()
    def records_rebuild_the_core(self) -> None:
        """L1: the records are the one source of truth."""
        for queue in self.replica.queues.values():
            queue.release_due(self.now)
        assert state_of(self.replica) == state_of(self.core)


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
