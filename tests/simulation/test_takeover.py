"""Hosts that die at any operation lose, double and repeat nothing (S5); and bugs planted there are found."""

from __future__ import annotations

import re
from typing import Any

import pytest

from remuda.core import delivering
from remuda.core.core import Core
from remuda.core.publishing import Publishing
from tests.simulation.takeover import play

SEEDS = 20

pytestmark = pytest.mark.simulation


def test_s5_takeovers_from_many_seeds() -> None:
    assert sum(play(seed) for seed in range(SEEDS)) > SEEDS


def found() -> str:
    """What the first seed that fails says."""
    for seed in range(SEEDS):
        try:
            play(seed)
        except (AssertionError, KeyError) as failure:
            return str(failure)
    pytest.fail(f"{SEEDS} seeds found nothing")


def test_s5_a_log_that_forgets_who_published_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Publishing, "note_producer", lambda self, record: None)
    assert re.search("stored twice|delivered again", found())


@pytest.mark.source
def test_s5_a_takeover_that_takes_deliveries_from_the_living_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    resume = Core.resume
    monkeypatch.setattr(Core, "resume", lambda self, now, begun, *, keep=False: resume(self, now, begun))
    assert "S5" in found()


def test_s5_a_takeover_that_leaves_what_the_dead_held_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "release_unclaimed", lambda self, now, begun: None)
    assert "nobody has them" in found()


@pytest.mark.source
def test_s5_a_reclaim_under_any_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def grabbing(registry: Any, queue: Any, token: int, consumer: str, runs: Any, pulled: bool) -> int:
        return sum(count for _, count in runs)

    monkeypatch.setattr(delivering, "reclaim", grabbing)
    assert "S5" in found()
