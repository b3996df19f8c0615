"""Q2: credit is counted in messages, given back answer by answer, and shared by a group; what is not waited for is sent
ahead up to a window and stays the queue's until it is taken."""

from __future__ import annotations

import pytest

from remuda.core.queues import leases as leases_module
from remuda.core.queues.credit import WINDOW, Consumer, room
from remuda.model.operations.commands import EndUnreadable, HandOver, Renew, SetCredit
from remuda.model.queues.options import Status
from remuda.model.settlement import Outcome
from tests.core.kit import PULL, Bench, offsets


def test_credit_is_counted_in_messages_and_given_back_answer_by_answer() -> None:
    bench = Bench({})
    bench.subscribe("c", batch=4, credit=3)
    bench.publish(*"abcdef")
    assert [offsets(one) for one in bench.sent] == [[0, 1, 2]]
    bench.answer(bench.sent[0], Outcome.ACK, runs=[(1, 1)])
    assert offsets(bench.sent[-1]) == [3]
    bench.answer(bench.sent[0], Outcome.ACK)
    assert offsets(bench.sent[-1]) == [4, 5]


@pytest.mark.parametrize("how", ["ack", "leave", "remove", "time out", "unreadable"])
def test_a_group_shares_its_credit_over_several_queues(how: str) -> None:
    bench = Bench({"acknowledge_timeout": 5})
    bench.declare("other")
    bench.subscribe("c", credit=1, group="g")
    bench.subscribe("d", queue="other", credit=1, group="g")
    bench.publish("a")
    bench.publish("b", name="other")
    assert [one.queue for one in bench.sent] == ["q"]
    if how == "ack":
        bench.answer(bench.sent[0], Outcome.ACK)
    elif how == "leave":
        bench.unsubscribe("c")
    elif how == "remove":
        bench.remove()
    elif how == "time out":
        bench.take(bench.sent[0])
        bench.configure(put_back="no")
        bench.wait(5)
    else:
        bench.do(EndUnreadable("q", ((0, 1),)))
    assert [one.queue for one in bench.sent] == ["q", "other"]


def test_more_credit_is_used_at_once_and_less_holds_back() -> None:
    bench = Bench({})
    bench.subscribe("c", credit=1)
    bench.publish(*"abcd")
    bench.do(SetCredit("q", "c", 3))
    assert len(bench.sent) == 3
    bench.do(SetCredit("q", "c", 1))
    bench.answer(bench.sent[0], Outcome.ACK)
    bench.answer(bench.sent[1], Outcome.ACK)
    assert len(bench.sent) == 3
    bench.answer(bench.sent[2], Outcome.ACK)
    assert len(bench.sent) == 4


def test_what_is_pulled_takes_up_no_credit() -> None:
    bench = Bench({})
    bench.publish("a", "b")
    pulled = bench.pull(consumer="c")
    bench.subscribe("c", credit=1)
    assert len(bench.sent) == 2
    bench.answer(pulled, Outcome.ACK)
    consumer = bench.core.queues["q"].consumers["c"]
    assert (consumer.unanswered, consumer.credit.used) == (1, 1)


def test_a_consumer_that_comes_back_under_its_name_begins_anew() -> None:
    bench = Bench({"type": "push"})
    bench.subscribe("c1", "c2")
    bench.publish("a")
    bench.unsubscribe("c1")
    bench.subscribe("c1")
    bench.answer(bench.sent[1], Outcome.ACK)
    assert bench.core.queues["q"].consumers["c1"].credit.used == 0


def test_the_next_consumer_is_found_without_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 consumers: a delivery asks for the room of a few."""
    bench = Bench({})
    bench.subscribe(*(f"c{number}" for number in range(1000)))
    asked = 0

    def counted(consumer: Consumer, waits: bool) -> int:
        nonlocal asked
        asked += 1
        return room(consumer, waits)

    monkeypatch.setattr(leases_module, "room", counted)
    for number in range(500):
        bench.publish("a")
        bench.answer(bench.sent[number], Outcome.ACK)
    assert len({one.consumer for one in bench.sent}) == 500
    assert asked < 500 * 10


def test_q2_push_stays_paused_when_one_of_two_leaves_without_an_answer() -> None:
    bench = Bench({"type": "push"})
    bench.subscribe("c1", "c2")
    bench.publish("a", "b")
    bench.unsubscribe("c1")
    assert len(bench.sent) == 2
    bench.answer(bench.sent[1], Outcome.ACK)
    assert [one.consumer for one in bench.sent[2:]] == ["c2"]


def test_q16_a_pull_from_a_round_robin_queue_and_a_subscriber_of_a_pull_queue() -> None:
    bench = Bench({})
    bench.publish("a")
    assert offsets(bench.pull()) == [0]
    bench = Bench(PULL)
    bench.publish("a")
    bench.subscribe("c")
    assert [(one.consumer, offsets(one)) for one in bench.sent] == [("c", [0])]


def test_a_pull_from_a_queue_with_confirmations_is_settled_by_who_pulled() -> None:
    bench = Bench({"type": "push", "confirmations": 2})
    bench.publish("a", "b")
    assert bench.answer(bench.pull(2), Outcome.ACK) == 2
    assert bench.core.info("q").size == 0


# Sent ahead


@pytest.mark.parametrize("acknowledge", ["none", "just-request"])
def test_at_most_a_window_is_sent_ahead(acknowledge: str) -> None:
    bench = Bench({"acknowledge": acknowledge})
    bench.subscribe("c", batch=300)
    bench.publish(*["x"] * (3 * WINDOW))
    assert sum(one.count for one in bench.sent) == WINDOW
    assert bench.take(bench.sent[0]) == [(0, 300)]
    assert sum(one.count for one in bench.sent) == WINDOW + 300


@pytest.mark.parametrize("acknowledge", ["none", "just-request"])
@pytest.mark.parametrize("how", ["leaves", "is late"])
def test_what_was_not_handed_over_goes_back_as_new(acknowledge: str, how: str) -> None:
    bench = Bench({"acknowledge": acknowledge, "acknowledge_timeout": 5, "put_back": "no"})
    bench.subscribe("c")
    bench.publish("a", "b")
    assert bench.take(bench.sent[0]) == [(0, 1)]
    if how == "is late":
        bench.now += 5_000_000
        bench.core.queues["q"].status = Status.ONLY_PUBLISH  # so that nobody gets it before it is looked at
        bench.wait(0)
        bench.core.queues["q"].status = Status.RUNNING
    bench.unsubscribe("c")
    again = bench.pull()
    assert again is not None
    assert (offsets(again), again.attempts, again.redelivered) == ([1], [1], ())


@pytest.mark.parametrize("acknowledge", ["none", "just-request"])
def test_every_consumer_of_a_push_queue_gets_what_was_sent_ahead(acknowledge: str) -> None:
    """Also when another took it, and answered, before."""
    bench = Bench({"type": "push", "acknowledge": acknowledge})
    bench.subscribe("c1", "c2", "c3")
    bench.publish("a")
    one, two, three = bench.sent
    assert bench.take(one) == [(0, 1)]
    if acknowledge == "just-request":
        bench.answer(one, Outcome.ACK)
    assert bench.core.info("q").size == 0
    assert bench.take(two) == [(0, 1)]
    assert bench.take(two) == []
    bench.unsubscribe("c3")
    assert bench.take(three) == []
    queue = bench.core.queues["q"]
    assert not queue.settled_ahead
    assert {consumer.under_way for consumer in queue.consumers.values()} == {0}


def test_q5_what_expires_before_it_is_taken_is_not_handed_over() -> None:
    bench = Bench({"acknowledge": "none", "message_timeout": 3, "expired_queue": "late"})
    bench.subscribe("c", batch=2)
    bench.publish("a", "b", expires=[bench.now + 1_000_000, None])
    bench.now += 2_000_000
    assert bench.take(bench.sent[0]) == [(1, 1)]
    assert (bench.core.info("late").waiting, bench.core.info("q").dead) == (1, 0)


def test_a_lease_that_is_over_cannot_be_taken_or_renewed() -> None:
    bench = Bench({"acknowledge": "just-request", "acknowledge_timeout": 5})
    bench.subscribe("c")
    bench.publish("a")
    lease = bench.sent[0].lease
    assert lease is not None
    assert bench.do(HandOver("q", lease, "stranger")) == []
    bench.now += 5_000_000
    assert bench.take(bench.sent[0]) == []
    bench.unsubscribe("c")
    assert not bench.do(Renew("q", lease))


def test_q2_who_shares_credit_with_one_that_leaves_is_served_at_once() -> None:
    """Also in the same queue, where nothing else happens afterwards."""
    bench = Bench({})
    bench.subscribe("c1", "c2", credit=1, group="g")
    bench.publish("a", "b")
    assert [dispatch.consumer for dispatch in bench.sent] == ["c1"]
    bench.unsubscribe("c1")
    assert [dispatch.consumer for dispatch in bench.sent] == ["c1", "c2"]
