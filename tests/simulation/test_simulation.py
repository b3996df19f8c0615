"""Core and log on a simulated disk: publishers, consumers, operators, crashes and clock jumps from one seed (L1-L5, M6,
Q1-Q17). `make simulate` plays more of the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from remuda.core.consuming import Consuming
from remuda.core.publishing import Publishing
from tests.simulation.runner import Simulation, play

SEEDS = 240
CHUNK = 20

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_the_contract(first: int) -> None:
    for seed in range(first, first + CHUNK):
        play(seed)


def test_the_short_cuts_are_taken_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each does in the usual case what the long way does, so the simulation has to see much of it."""
    taken: Counter[str] = Counter()

    def watch(part: type, name: str) -> None:
        way = getattr(part, name)

        def counted(*args: Any) -> Any:
            done = way(*args)
            taken[name] += done is not None
            return done

        monkeypatch.setattr(part, name, counted)

    watch(Publishing, "publish_plainly")
    for name in ("pull_plainly", "send_plainly", "complete_plainly", "retry_plainly"):
        watch(Consuming, name)
    for seed in range(2 * CHUNK):
        play(seed)
    served, retried = taken.pop("send_plainly") - taken["pull_plainly"], taken.pop("retry_plainly")
    assert min(taken.values()) >= 40, taken
    assert retried >= 5, "answers that ask for another attempt after a while"
    assert served >= 5, "pulls that waited, served by a publish that took the short cut"


def test_a_seed_plays_the_same_each_time() -> None:
    one, two = Simulation(11), Simulation(11)
    assert one.play() == two.play()
    assert list(one.trace) == list(two.trace)
