"""How many messages a worker takes at once, and when it lets some gather first."""

from __future__ import annotations

import pytest

from remuda.broker.delivery import Delivery
from remuda.bus.execution import prefetch as pace
from remuda.bus.execution.prefetch import AdaptivePrefetch, ArrivalRate
from remuda.core.effects import Dispatch
from remuda.model.messages import Messages


class Watch:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now - 99.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch()
    monkeypatch.setattr(pace, "time", made)
    return made


def delivery(*created: int, remaining: int = 0) -> Delivery:
    messages = Messages(bodies=[b""] * len(created), name="x", created=list(created))
    sending = Dispatch("q", "worker", 1, 1, [(0, len(created))], [1], 0, (0, remaining))
    return Delivery(sending, messages, lambda *_: 0)


def worked(worker: AdaptivePrefetch, given: Delivery, watch: Watch, seconds: float, *, lost: bool = False) -> float:
    worker.begin()
    watch.now += seconds
    return worker.end(given, lost=lost)


def test_more_at_once_while_they_are_quick_and_fewer_when_they_are_not(watch: Watch) -> None:
    worker = AdaptivePrefetch(None, 256, ArrivalRate())
    counts = []
    for seconds, lost in [(0.001, False)] * 3 + [(0.02, False), (0.1, False), (0.001, False), (0.001, True)]:
        worked(worker, delivery(0, remaining=1), watch, seconds, lost=lost)
        counts.append(worker.count)
    assert counts == [2, 4, 8, 8, 2, 4, 1]


def test_no_more_at_once_than_was_said(watch: Watch) -> None:
    worker = AdaptivePrefetch(None, 3, ArrivalRate())
    for _ in range(5):
        worked(worker, delivery(0, remaining=1), watch, 0.001)
    assert worker.count == 3


def test_a_fixed_number_stays(watch: Watch) -> None:
    worker = AdaptivePrefetch(1, 256, ArrivalRate())
    assert worked(worker, delivery(0, 0, 0), watch, 0.0001) == 0, "one at a time gathers nothing"
    assert worker.count == 1


def test_messages_gather_where_they_come_thick_and_fast(watch: Watch) -> None:
    worker = AdaptivePrefetch(None, 256, ArrivalRate())
    worked(worker, delivery(1_000_000), watch, 0.0001)
    assert worked(worker, delivery(1_000_050, 1_000_100), watch, 0.0001) > 0
    assert worked(worker, delivery(1_000_150, remaining=1), watch, 0.0001) == 0, "not while some wait"
    assert worked(worker, delivery(1_001_150), watch, 0.0001) == 0, "a message each ms is worth a turn each"


def test_nobody_waits_who_is_behind(watch: Watch) -> None:
    """What was made a while ago is not alone: a broker that does not tell has more of it."""
    worker = AdaptivePrefetch(None, 256, ArrivalRate())
    worked(worker, delivery(1_000_000), watch, 0.0001)
    watch.now += 0.2
    assert worked(worker, delivery(1_000_050, 1_000_100), watch, 0.0001) == 0
    assert worked(worker, delivery(1_200_000, 1_200_001), watch, 0.0001) == 0, "there was a gap"
    assert worked(worker, delivery(1_200_050, 1_200_100), watch, 0.0001) > 0, "as soon as it has caught up"


def test_workers_that_let_messages_gather_take_turns(watch: Watch) -> None:
    """However many they are, one asks every 2 ms, and nobody stays away for long."""
    arrivals = ArrivalRate()
    pauses = [arrivals.turn(watch.now) for _ in range(20)]
    assert pauses[:3] == pytest.approx([0.002, 0.004, 0.006])
    assert max(pauses) == pytest.approx(0.02)
    assert arrivals.turn(watch.now + 1) == pytest.approx(0.002)


def test_workers_of_a_queue_know_together_how_fast_messages_come(watch: Watch) -> None:
    arrivals = ArrivalRate()
    first, second = AdaptivePrefetch(None, 256, arrivals), AdaptivePrefetch(None, 256, arrivals)
    worked(first, delivery(1_000_000), watch, 0.0001)
    worked(second, delivery(1_000_100), watch, 0.0001)
    assert worked(first, delivery(1_000_200), watch, 0.0001) > 0, "to the first alone they would seem far apart"
