"""Some errors planted at random, under load (L10); `python -m tests.faults.mishaps` plays hundreds."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.mishaps import play

pytestmark = [pytest.mark.faults, pytest.mark.source]


def test_l10_an_error_costs_the_caller_that_meets_it() -> None:
    """L10, S5, Q20: in one process, and in a host with guests."""
    tally = Counter[str]()
    for seed in range(8):
        play(seed, tally)
    assert tally["went off"] >= 3
