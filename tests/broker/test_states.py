"""The states of a message and the only moves between them (M5, M6)."""

from __future__ import annotations

from itertools import product

import pytest

from remuda.model.errors import IllegalMove
from remuda.model.life import check_move
from remuda.model.state import State

MOVES = "LQ LU QF QE FS FK FR FE FI FN FQ RQ RE SX KX EQ IQ NQ".split()


def test_m5_every_state_has_its_letter() -> None:
    letters = {state.name: state.value for state in State}
    assert letters == {
        "LOGGED": "L",
        "UNCHANGED": "U",
        "QUEUED": "Q",
        "FETCHED": "F",
        "SUCCESS": "S",
        "KICKED": "K",
        "RETRY": "R",
        "DEAD": "E",
        "INVALID": "I",
        "NOT_INTERESTED": "N",
        "COMPLETED": "X",
    }


@pytest.mark.parametrize("move", MOVES)
def test_m6_allowed(move: str) -> None:
    check_move(State(move[0]), State(move[1]))


@pytest.mark.parametrize(("source", "target"), [pair for pair in product(State, State) if "".join(pair) not in MOVES])
def test_m6_refused_with_both_names(source: State, target: State) -> None:
    with pytest.raises(IllegalMove) as caught:
        check_move(source, target)
    assert f"from {source.name} ({source.value}) to {target.name} ({target.value})" in str(caught.value)
