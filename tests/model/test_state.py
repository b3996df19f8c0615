"""M5, M6: the states of a message and the only moves between them."""

from __future__ import annotations

from itertools import product

import pytest

from remuda.model.errors import IllegalMove
from remuda.model.life import LIVE, MOVES, PARKED, check_move
from remuda.model.state import State

LETTERS = {
    "L": "LOGGED", "U": "UNCHANGED", "Q": "QUEUED", "F": "FETCHED", "S": "SUCCESS", "K": "KICKED",
    "R": "RETRY", "E": "DEAD", "I": "INVALID", "N": "NOT_INTERESTED", "X": "COMPLETED",
}  # fmt: skip
ALLOWED = {
    "L": "QU", "Q": "FE", "F": "SKREINQ", "R": "QE", "S": "X", "K": "X", "E": "Q", "I": "Q", "N": "Q", "U": "", "X": "",
}  # fmt: skip


def test_m5_one_letter_for_each_state() -> None:
    assert {state.value: state.name for state in State} == LETTERS


@pytest.mark.parametrize(("source", "target"), list(product(State, State)))
def test_m6_exactly_these_moves_exist(source: State, target: State) -> None:
    if target.value in ALLOWED[source.value]:
        check_move(source, target)
    else:
        with pytest.raises(IllegalMove) as refused:
            check_move(source, target)
        assert source.name in str(refused.value)
        assert target.name in str(refused.value)


def test_m6_there_are_eighteen_moves() -> None:
    assert len(MOVES) == sum(map(len, ALLOWED.values())) == 18


def test_m6_the_error_says_what_can_be_done_instead() -> None:
    with pytest.raises(IllegalMove, match="from S it can go to X"):
        check_move(State.SUCCESS, State.QUEUED)
    with pytest.raises(IllegalMove, match="no other state"):
        check_move(State.COMPLETED, State.QUEUED)


def test_m6_operators_may_bring_back_all_that_is_parked_and_nothing_else() -> None:
    back_by_operator = {source for source, target in MOVES if target is State.QUEUED} - LIVE - {State.LOGGED}
    assert back_by_operator == PARKED
