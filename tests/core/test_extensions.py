"""Q20: a part from outside that raises or answers nonsense costs its message an honest refusal, never the broker."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.core.extensions import Assignment, QueueView
from remuda.model.errors import Refused
from remuda.model.settlement import Outcome
from tests.core.kit import PULL, Bench


class Handler:
    """Lets everything pass, but for the point that misbehaves."""

    def __init__(self, point: str, answer: Any) -> None:
        self._point, self._answer = point, answer

    def __getattr__(self, point: str) -> Any:
        def ask(*args: Any) -> Any:
            if point == self._point:
                if isinstance(self._answer, Exception):
                    raise self._answer
                return self._answer
            return args[-1] if point == "answered" else Outcome.NACK if point == "timed_out" else None

        return ask


def bench_with(handler: Any, **options: Any) -> Bench:
    return Bench({**PULL, **options}, handler_for=lambda queue, options: handler)


@pytest.mark.parametrize("answer", [RuntimeError("broken"), 42, "no"])
def test_a_refusal_says_why(answer: Any) -> None:
    bench = bench_with(Handler("received", answer))
    error = bench.publish("a").refusals[0]
    assert isinstance(error, Refused)
    assert ("no" if answer == "no" else "received") in str(error)


@pytest.mark.parametrize("answer", [RuntimeError("broken"), 42, "not today"])
def test_a_message_that_may_not_be_sent_ends_with_the_reason_and_its_puller_waits_on(answer: Any) -> None:
    bench = bench_with(Handler("sending", answer))
    assert bench.pull(wait=10_000_000) is None
    bench.publish("a")
    assert (bench.core.info("q").dead, bench.core.info("q").pulls, bench.sent) == (1, 1, [])
    (piece,) = bench.core.queues["q"].parked
    assert (piece.reason or "").startswith("not today" if answer == "not today" else "the delivery handler's sending")


@pytest.mark.parametrize("answer", [RuntimeError("broken"), 42, None])
def test_an_answer_stands_whatever_the_handler_makes_of_it(answer: Any) -> None:
    bench = bench_with(Handler("answered", answer))
    bench.publish("a")
    assert bench.answer(bench.pull(), Outcome.ACK) == 1
    assert bench.core.info("q").size == 0


@pytest.mark.parametrize(
    ("answer", "waiting", "dead"), [(RuntimeError("broken"), 1, 0), ("x", 1, 0), (Outcome.DEAD, 0, 1)]
)
def test_a_missing_answer(answer: Any, waiting: int, dead: int) -> None:
    bench = bench_with(Handler("timed_out", answer), acknowledge_timeout=5)
    bench.publish("a")
    bench.pull()
    bench.wait(5)
    assert (bench.core.info("q").waiting, bench.core.info("q").dead) == (waiting, dead)


def test_a_handler_that_fails_when_told_of_a_delivery_is_not_heard() -> None:
    bench = bench_with(Handler("sent", RuntimeError("broken")))
    bench.publish("a")
    assert bench.pull() is not None


class Strategy:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def next(self, queue: QueueView) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    "answer",
    [RuntimeError("broken"), 42, Assignment(("nobody",)), Assignment((), 1), Assignment(("c",), 0), Assignment("c", 1)],  # type: ignore[arg-type]
)
def test_a_strategy_that_fails_gives_way_to_the_usual_one(answer: Any) -> None:
    bench = Bench({}, strategy_for=lambda queue, options: Strategy(answer))
    bench.subscribe("c")
    bench.publish("a")
    assert [one.consumer for one in bench.sent] == ["c"]
