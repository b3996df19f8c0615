"""M5, M6, M7: the table of states, and the page that is drawn from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from remuda.model.life import LIVE, MOVES, PARKED, PHASES, SUCCEEDED, Life, diagram, table
from remuda.model.records import Event
from remuda.model.state import State

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("drawn", [diagram(), table()])
def test_m6_the_page_shows_the_table(drawn: str) -> None:
    assert drawn in (DOCS / "messages.md").read_text("utf-8")


def test_m5_every_state_is_in_the_table_and_ends_in_one_way() -> None:
    assert set(PHASES) == set(State)
    assert all(len({state in LIVE, state in PARKED, state in SUCCEEDED} - {False}) <= 1 for state in State)
    assert {target for _, target in MOVES} == set(State) - {State.LOGGED}


def test_m7_a_message_that_failed_and_then_succeeded_has_no_reason() -> None:
    """The same on every face, since all of them fold by this."""
    life = Life.begun(1, "q")
    for time, event in enumerate(
        [
            Event("q", State.FETCHED, 0, consumer="a", attempt=1),
            Event("q", State.RETRY, 0, consumer="a", attempt=1, reason="no stock", detail="a traceback"),
            Event("q", State.QUEUED, 0),
            Event("q", State.FETCHED, 0, consumer="a", attempt=2),
            Event("q", State.SUCCESS, 0, consumer="a"),
            Event("q", State.COMPLETED, 0),
        ],
        2,
    ):
        life.apply(event, time)
    assert (life.state, life.reason, life.detail, life.failed, life.success) == (
        State.COMPLETED,
        None,
        None,
        None,
        True,
    )
    assert (life.attempts, life.consumed, life.processed, life.completed) == (2, 2, 3, 7)


def test_b7_what_moved_is_known_by_its_field_and_never_by_its_reason() -> None:
    life = Life.begun(1, "q")
    life.apply(Event("q", State.DEAD, 0, reason="moved to paradise"), 2)
    assert (life.is_parked, life.moved_to) == (True, None)
    life.apply(Event("q", State.DEAD, 0, reason="expired", to="late"), 3)
    assert (life.is_parked, life.moved_to, life.reason) == (False, "late", "expired")
