"""A hundred seeds for `make quick`; the whole run plays others."""

from __future__ import annotations

import pytest

from tests.simulation.runner import play
from tests.simulation.test_simulation import SEEDS

QUICK = 100
CHUNK = 25


@pytest.mark.parametrize("first", range(2 * SEEDS, 2 * SEEDS + QUICK, CHUNK))
def test_a_hundred_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        play(seed)
