"""Core and log on a simulated disk: publishers, consumers, operators, crashes and clock jumps from one seed (L1-L5, M6,
Q1-Q17). `make simulate` plays more of the same."""

from __future__ import annotations

import pytest

from tests.simulation.runner import Simulation, play

SEEDS = 320
CHUNK = 20

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_the_contract(first: int) -> None:
    for seed in range(first, first + CHUNK):
        play(seed)


def test_a_seed_plays_the_same_each_time() -> None:
    one, two = Simulation(11), Simulation(11)
    assert one.play() == two.play()
    assert list(one.trace) == list(two.trace)
