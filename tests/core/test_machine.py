"""The core against a naive model, command by command (proof by Hypothesis).

After every command: the moves were legal (M6), the order is first in, first out (Q15), limits (Q6) and unique ids (Q12)
are exact, sizes add up (Q9), leases guard answers (Q3), and the records alone rebuild the same core (L1).
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from remuda.core import snapshot
from remuda.core.core import Core
from remuda.core.effects import Answer, Sending
from remuda.core.operators import Selection
from remuda.core.settling import Verdict
from remuda.model.durations import MILLISECOND, SECOND
from remuda.model.errors import Duplicate, QueueFull, Refused
from remuda.model.ids import Snowflakes
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages
from remuda.model.options import LimitExceeded, QueueOptions, Status
from remuda.model.state import PARKED, State
from tests.core.naive import Naive, lanes_of, naive_lanes, state_of, states_in

START = 1_800_000_000 * SECOND
QUEUES = ("a", "b")
CONSUMERS = ("c1", "c2", "c3")
MAYBE = st.booleans()


@st.composite
def queue_options(draw: st.DrawFn) -> QueueOptions:
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
    )


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.core = Core(Snowflakes(1))
        self.replica = Core(Snowflakes(1))
        self.naive = Naive()
        self.sent: list[Sending] = []
        self.given: set[str] = set()

    @initialize(options=st.tuples(queue_options(), queue_options()))
    def create(self, options: tuple[QueueOptions, QueueOptions]) -> None:
        for name, chosen in zip(QUEUES, options, strict=True):
            self.core.declare(name, chosen, self.now)
        self.absorb()

    # Producers

    @rule(
        topics=st.sampled_from([("a",), ("b",), ("a.x", "b"), ("a.x", "a.y")]),
        rows=st.lists(
            st.tuples(MAYBE, st.sampled_from([None, None, 2, 5]), st.sampled_from([None, None, 4])), max_size=4
        ),
        ids=st.sampled_from([None, "x", "y", "z"]),
    )
    def publish(
        self, topics: tuple[str, ...], rows: list[tuple[bool, int | None, int | None]], ids: str | None
    ) -> None:
        """Q6, Q12: the limit and the ids let in exactly what they should, and say why not."""
        messages = Messages.of(
            Message(
                topics[0], b"", id=f"{ids}{row % 3}" if ids else "", topics=topics,
                priority=Priority.HIGH if high else Priority.NORMAL,
                due=None if due is None else self.now + due * SECOND,
                expires=None if expires is None else self.now + expires * SECOND,
            )
            for row, (high, due, expires) in enumerate(rows)
        )  # fmt: skip
        names = list(dict.fromkeys(topic[0] for topic in topics))
        expected = self._expected_refusals(messages, names)
        receipt = self.core.publish(messages, self.now)
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

    @rule(name=st.sampled_from(QUEUES), consumer=st.sampled_from(CONSUMERS), batch=st.integers(1, 3))
    def subscribe(self, name: str, consumer: str, batch: int) -> None:
        if consumer not in self.core.queues[name].consumers:
            self.core.subscribe(name, consumer, self.now, batch=batch)
            self.absorb()

    @rule(name=st.sampled_from(QUEUES), consumer=st.sampled_from(CONSUMERS))
    def unsubscribe(self, name: str, consumer: str) -> None:
        self.core.unsubscribe(name, consumer, self.now)
        self.absorb()

    @rule(name=st.sampled_from(QUEUES), count=st.integers(1, 4), newest=MAYBE)
    def pull(self, name: str, count: int, newest: bool) -> None:
        if self.core.queues[name].options.type.value != "pull":
            return
        self.core.pull(name, "puller", self.now, count=count, newest=newest)
        self.naive.queues[name].newest_first = newest
        self.absorb()
        self.naive.queues[name].newest_first = False

    @precondition(lambda self: self.sent)
    @rule(
        pick=st.integers(0, 1000), answer=st.sampled_from(list(Answer)), some=MAYBE,
        delay=st.sampled_from([None, 0, 2 * SECOND]), to=st.sampled_from([None, None, "b"]),
    )  # fmt: skip
    def settle(self, pick: int, answer: Answer, some: bool, delay: int | None, to: str | None) -> None:
        """Q3: only the holder of the lease settles, only once; any other answer changes nothing."""
        sending = self.sent[pick % len(self.sent)]
        if sending.lease is None:
            return
        queue = self.core.queues[sending.queue]
        runs = [(sending.runs[0][0], 1)] if some else sending.runs
        lease = queue.leases.get(sending.lease)
        held = [
            offset
            for first, count in runs
            for offset in range(first, first + count)
            if (piece := queue.flights.holding(offset)) is not None and piece.lease == sending.lease
        ]
        if to is not None and (answer is not Answer.DEAD or sending.queue == to or self._lives_in(to, held)):
            to = None
        verdict = Verdict(answer, delay=delay, consumer=sending.consumer)
        settled = self.core.settle(sending.queue, sending.lease, verdict, self.now, runs=runs, to=to)
        if lease is None:
            assert settled == 0
        elif queue.options.confirmations == 1:
            assert settled == len(held)
        changed = self.absorb()
        assert changed or not settled or queue.options.confirmations != 1

    def _lives_in(self, name: str, offsets: list[int]) -> bool:
        return any(offset in self.naive.queues[name].copies for offset in offsets)

    # Operators and time

    @rule(name=st.sampled_from(QUEUES), lanes=st.sampled_from(["all", "priority", "regular"]))
    def clear(self, name: str, lanes: str) -> None:
        self.core.clear(name, self.now, lanes=lanes)
        self.absorb()
        queue = self.naive.queues[name]
        assert not (queue.high if lanes != "regular" else queue.normal)

    @rule(name=st.sampled_from(QUEUES), states=st.sampled_from([PARKED, frozenset({State.DEAD})]))
    def reprocess(self, name: str, states: frozenset[State]) -> None:
        self.core.reprocess(name, Selection(states=states), self.now)
        self.absorb()

    @rule(name=st.sampled_from(QUEUES))
    def forget(self, name: str) -> None:
        assert self.core.forget(name, Selection(until=self.now - 10 * SECOND), self.now) >= 0
        self.absorb()

    @rule(name=st.sampled_from(QUEUES), changes=st.sampled_from([{"message_limit": 3}, {"message_limit": 0}]))
    def configure(self, name: str, changes: dict[str, Any]) -> None:
        self.core.configure(name, changes, self.now)
        self.absorb()

    @rule(name=st.sampled_from(QUEUES), status=st.sampled_from([Status.RUNNING, Status.RUNNING, Status.ONLY_PUBLISH]))
    def set_status(self, name: str, status: Status) -> None:
        self.core.set_status(name, status, self.now)
        self.absorb()

    @rule(step=st.sampled_from([1, 300 * MILLISECOND, SECOND, 4 * SECOND, 16 * SECOND, 30 * SECOND]), ticks=MAYBE)
    def pass_time(self, step: int, ticks: bool) -> None:
        self.now += step
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

    def absorb(self) -> bool:
        effects = self.core.drain()
        for record in effects.records:
            self.naive.play(record)
            self.replica.replay(record)
        self.sent += effects.sendings
        return bool(effects.records)

    @invariant()
    def columns_equal_the_naive_lists(self) -> None:
        """Q9, Q15: order, deadlines and sizes."""
        for name, queue in self.core.queues.items():
            naive = self.naive.queues[name]
            queue.release_due(self.now)
            naive.let_time_pass(self.now)
            assert lanes_of(queue) == naive_lanes(naive)
            assert queue.size == naive.size + sum(1 for piece in queue.flights if piece.state is State.SUCCESS)
            assert states_in(queue.delayed) == {copy.offset: copy.state for copy in naive.delayed}
            assert states_in(queue.parked) == {copy.offset: copy.state for copy in naive.in_state(*PARKED)}
            fetched = {offset: state for offset, state in states_in(queue.flights).items() if state is State.FETCHED}
            assert fetched == {copy.offset: State.FETCHED for copy in naive.in_state(State.FETCHED)}

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
    max_examples=350,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
