"""What is repeated after a host was lost: batches that may be stored already, and deliveries in hand (S5)."""

from __future__ import annotations

from typing import Any

from remuda.core.effects import Effects
from remuda.model.operations.commands import Reclaim
from remuda.model.settlement import Outcome
from tests.core.kit import PULL, Bench

AWAITED = {**PULL, "commit_when": "acknowledged"}


def sent_by(producer: str, sequence: int) -> dict[str, Any]:
    return {"producer": producer, "sequence": sequence}


def test_s5_q4_a_batch_that_ended_in_one_queue_and_waits_in_another_can_be_asked_about_again() -> None:
    bench = Bench()
    bench.declare("a", AWAITED)
    bench.declare("b", AWAITED)
    bench.publish_to(sent_by("guest", 1), "body", topics=("a", "b"))
    bench.answer(bench.pull(queue="a"), Outcome.DEAD, reason="broken")
    again = bench.publish_to(sent_by("guest", 1), "body", topics=("a", "b"))
    assert again.repeated == 1
    assert [one.reason for one in bench.effects[-1].confirmations] == ["broken"]
    bench.answer(bench.pull(queue="b"), Outcome.ACK)
    assert bench.sizes() == {"a": 0, "b": 0}
    assert bench.core.drain() == Effects([], [], [], [], [])


def test_q3_a_delivery_that_was_lost_with_the_power_does_not_become_anothers_of_the_same_number() -> None:
    """A fetch is not synced: a client on another machine may hold a number that is given again after a power loss."""
    bench = Bench(PULL)
    bench.publish("a", "b")
    held = bench.pull(consumer="new")
    assert held is not None
    assert held.lease is not None
    assert bench.do(Reclaim("q", held.lease, "old", [(1, 1)], True)) == -1
    assert bench.answer(held, Outcome.ACK, consumer="old") == 0
    assert bench.answer(held, Outcome.ACK) == 1


def test_s5_a_holder_that_comes_back_has_what_is_left_of_its_delivery() -> None:
    bench = Bench(PULL)
    bench.publish("a", "b")
    held = bench.pull(2)
    assert held is not None
    assert held.lease is not None
    bench.answer(held, Outcome.ACK, [(0, 1)])
    assert bench.do(Reclaim("q", held.lease, held.consumer, held.runs, True)) == 1
    assert bench.answer(held, Outcome.ACK) == 1
