"""A slice of the matrix of pairs in every test run; all of it by `make pairs`."""

from __future__ import annotations

import pytest

from remuda.core.queues.queue import Queue
from tests.pairs.scenes import PAIRS, Broken, choice, play


def test_every_pair_has_a_scene() -> None:
    """B22, Q20"""
    met = {
        (one, other, values[one], values[other])
        for values in map(choice, range(len(PAIRS)))
        for one, other, *_ in PAIRS
    }
    assert met >= set(PAIRS)


@pytest.mark.parametrize("slice_", range(4))
def test_b22_scenes(slice_: int) -> None:
    """B22, L11, Q5, Q6, Q8: what two features do to each other."""
    play(range(slice_ * len(PAIRS) // 4, slice_ * len(PAIRS) // 4 + 15))


@pytest.mark.source
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q8"""
    monkeypatch.setattr(Queue, "pauses", lambda queue, now: False)
    with pytest.raises(Broken, match="cut short"):
        play(range(len(PAIRS)))
