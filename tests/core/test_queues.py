"""How queues come, change and go (Q10, Q13, Q14, Q17)."""

from __future__ import annotations

import pytest

from remuda.core.extensions import MessageFacts
from remuda.model.errors import Conflict, Duplicate, InvalidOption, NotFound
from remuda.model.operations.commands import Pull
from remuda.model.queues.options import Status, read_options
from remuda.model.records import Event
from remuda.model.settlement import Outcome
from remuda.model.state import State
from tests.core.kit import NOW, PULL, Bench, offsets


@pytest.mark.parametrize(
    ("begun", "attempts"),
    [
        (None, [2, 2, 2, 2, 2]),
        ([], [1, 1, 1, 1, 1]),
        ([(0, 5)], [2, 2, 2, 2, 2]),
        ([(0, 2)], [2, 2, 1, 1, 1]),
        ([(1, 1), (3, 1)], [1, 2, 1, 2, 1]),
    ],
)
def test_after_a_crash_only_what_was_begun_counts_as_attempted(
    begun: list[tuple[int, int]] | None, attempts: list[int]
) -> None:
    """B4"""
    bench = Bench(PULL)
    bench.publish(*"abcde")
    bench.pull(5)
    core = bench.restarted(begun)
    dispatch = core.apply(Pull("q", "puller", 1, 5), bench.now)
    told = {
        offset: attempt
        for attempt, (first, count) in zip(dispatch.attempts, dispatch.runs, strict=True)
        for offset in range(first, first + count)
    }
    assert [told[offset] for offset in range(5)] == attempts


def test_q13_the_creators_options_stand_and_the_next_is_told() -> None:
    bench = Bench({**PULL, "message_limit": 5})
    declared = bench.declare("q", {**PULL, "message_limit": 7})
    assert (declared.created, declared.differs) == (False, {"message_limit": (7, 5)})
    assert bench.core.info("q").options.message_limit == 5


def test_q13_a_subscriber_without_a_type_leaves_the_queue_to_the_first_publish() -> None:
    bench = Bench()
    bench.subscribe("c")
    assert bench.core.info("q").status is Status.NOT_INITIALIZED
    bench.publish("a")
    assert bench.core.info("q").status is Status.RUNNING
    assert [dispatch.consumer for dispatch in bench.sent] == ["c"]


def test_q13_a_subscriber_that_names_options_initializes_the_queue() -> None:
    bench = Bench()
    bench.subscribe("c1")
    bench.subscribe("c2", options={"type": "push"})
    assert (bench.core.info("q").status, bench.core.info("q").options.type) == ("running", "push")


def test_q13_what_the_first_subscriber_named_stands_after_a_restart_too() -> None:
    bench = Bench()
    bench.subscribe("c", options={"message_limit": 5})
    bench.core = bench.restarted()
    bench.publish_to({"options": read_options({"message_limit": 7, "put_back": "no"})}, "a")
    options = bench.core.info("q").options
    assert (options.message_limit, options.put_back) == (5, "no")


def test_q1_the_type_is_fixed_once_initialized_and_other_options_are_not() -> None:
    bench = Bench(PULL)
    with pytest.raises(InvalidOption, match="stays one"):
        bench.configure(type="push")
    assert bench.configure(message_limit=9).message_limit == 9


def test_q14_status_survives_a_restart() -> None:
    bench = Bench(PULL)
    bench.set_status(Status.PAUSED)
    bench.drain()
    assert bench.restarted().info("q").status is Status.PAUSED


def test_q14_not_initialized_cannot_be_set() -> None:
    with pytest.raises(Conflict, match="not-initialized"):
        Bench(PULL).set_status(Status.NOT_INITIALIZED)


def test_q17_a_memory_queue_loses_its_messages_at_restart_and_nothing_else() -> None:
    bench = Bench({**PULL, "persistence": "memory"})
    bench.publish("a", "b")
    bench.pull()
    again = bench.restarted().info("q")
    assert (again.size, again.dead, again.options.persistence) == (0, 2, "memory")


def test_l2_what_was_in_flight_goes_back_after_a_restart_and_the_attempt_counts() -> None:
    bench = Bench(PULL)
    bench.publish("a", "b")
    bench.pull()
    core = bench.restarted()
    dispatch = core.apply(Pull("q", "p", 1, 2), bench.now)
    assert (dispatch.runs, dispatch.attempts) == ([(1, 1), (0, 1)], [1, 2])


@pytest.mark.parametrize(
    ("rule", "gone_after"),
    [("no-messages", "ack"), ("no-consumers", "leave"), ("empty", "both"), ("disabled", "never")],
)
def test_q10_auto_destroy(rule: str, gone_after: str) -> None:
    bench = Bench({"auto_destroy": rule})
    bench.subscribe("c")
    bench.publish("a")
    assert "q" in bench.core.queues, "a queue with anything in flight is not empty"
    bench.answer(bench.sent[0], Outcome.ACK)
    assert ("q" not in bench.core.queues) is (gone_after == "ack")
    bench.unsubscribe("c")
    assert ("q" not in bench.core.queues) is (gone_after != "never")


def test_q10_delayed_messages_keep_a_queue_alive() -> None:
    bench = Bench({**PULL, "auto_destroy": "no-messages", "put_back_delay": 5})
    bench.publish("a")
    dispatch = bench.pull()
    assert dispatch is not None
    bench.answer(dispatch, Outcome.NACK)
    assert "q" in bench.core.queues


def test_a_removed_queue_ends_its_messages_and_is_not_found() -> None:
    bench = Bench(PULL)
    bench.publish("a", "b")
    bench.pull()
    bench.remove(who="ann")
    assert {event.state for event in bench.events[1:]} == {State.DEAD}
    with pytest.raises(NotFound):
        bench.clear()
    assert not bench.restarted().queues


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256])
def test_a_queue_needs_a_name_that_can_be_shown(name: str) -> None:
    with pytest.raises(InvalidOption, match="name"):
        Bench().declare(name)


def test_q13_whoever_subscribed_is_served_when_a_refused_publish_initializes_the_queue() -> None:
    bench = Bench()
    bench.subscribe("one")
    assert bench.core.info("q").status is Status.NOT_INITIALIZED
    bench.declare("other", PULL)
    bench.publish("a", name="other")
    bench.core.queues["q"].evolve(Event("q", State.QUEUED, 0, 1), NOW, 0)  # as after damage, while somebody is there
    assert bench.publish_to({"options": {"message_size_limit": 1}}, "long").refusals
    assert [offsets(dispatch) for dispatch in bench.sent] == [[0]]


def test_q12_a_queue_knows_the_ids_of_what_it_holds_when_it_is_initialized() -> None:
    facts = {0: MessageFacts("x", 1), 1: MessageFacts("y", 1)}
    bench = Bench(facts_of=facts.get)
    bench.subscribe("one")
    bench.unsubscribe("one")
    bench.declare("other", PULL)
    bench.publish("a", "b", name="other", ids=["x", "y"])
    bench.core.queues["q"].evolve(Event("q", State.QUEUED, 0, 2), NOW, 0)  # as after damage
    bench.declare("q", {**PULL, "unique_ids": True})
    assert isinstance(bench.publish("again", ids=["x"]).refusals[0], Duplicate)
    assert bench.core.queues["q"].offset_of == {"x": 0, "y": 1}


def test_q6_a_queue_keeps_its_limit_when_it_is_initialized() -> None:
    bench = Bench()
    bench.subscribe("one")
    bench.unsubscribe("one")
    bench.core.queues["q"].evolve(Event("q", State.QUEUED, 0, 3), NOW, 0)  # as after damage
    bench.declare("q", {**PULL, "message_limit": 1, "limit_exceeded": "delete-oldest"})
    assert bench.line() == [2]
