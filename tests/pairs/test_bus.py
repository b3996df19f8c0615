"""A slice of the matrix of pairs at the bus in every test run; all of it by `make pairs`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from remuda.bus.execution.failure_policy import FailurePolicy
from remuda.bus.publishing import tracking
from tests.pairs.account import Broken
from tests.pairs.bus import PAIRS, choice, play
from tests.pairs.places import InDirectory, InMemory, OnRabbitMQ, Place, Shared, UnderTest
from tests.servers.rabbitmq import Janitor, RabbitNode


def test_every_pair_has_a_scene() -> None:
    """B22"""
    met = {
        (one, other, values[one], values[other])
        for values in map(choice, range(len(PAIRS)))
        for one, other, *_ in PAIRS
    }
    assert met >= set(PAIRS)


@pytest.mark.parametrize("slice_", range(3))
def test_b22_scenes_under_test(slice_: int) -> None:
    """B22, B18: with a clock that is moved."""
    assert play(range(slice_ * len(PAIRS) // 3, slice_ * len(PAIRS) // 3 + 15), UnderTest) > 5


@pytest.mark.parametrize(("place", "first"), [(InMemory, 200), (InDirectory, 500), (Shared, 800)])
def test_b22_scenes_of_a_running_bus(place: Callable[[], Place], first: int) -> None:
    """B22, S5, L11: by the machine's clock, and over a takeover."""
    assert play(range(first, first + 10), place) > 2


def test_b22_scenes_on_rabbitmq(rabbit: RabbitNode, janitor: Janitor) -> None:
    """B22: what it does not offer is refused by name."""

    def place() -> Place:
        janitor.wipe(used=False)
        return OnRabbitMQ(rabbit.url)

    assert play(range(1090, 1096), place) > 0
    janitor.wipe()


def test_b9_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """B9: failures that nobody reports."""
    monkeypatch.setattr(FailurePolicy, "failure_reply", lambda *_: None)
    with pytest.raises(Broken, match="told Counter"):
        play(range(len(PAIRS)), UnderTest)


def test_b20_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """B20: a result that is another's."""
    monkeypatch.setattr(tracking, "result_of", lambda *_: 99)
    with pytest.raises(AssertionError):
        play(range(len(PAIRS)), UnderTest)
