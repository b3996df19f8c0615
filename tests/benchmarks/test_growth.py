"""What must not grow does not: steps are counted, since time depends on the machine."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from benchmarks.grow import FEWER, GROWING, Operation, Stage
from remuda.core.recovery.snapshot import FrozenCore

pytestmark = pytest.mark.alone

MOST = 1.5
"""How many times as many steps an operation may take with eight or twenty times as many there."""


def steps(work: Operation) -> float:
    """How many calls, of Python and of C, an operation is."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        done = work()
    finally:
        sys.setprofile(None)
    return calls / done


def usual_steps(stage: Stage, operate: Operation) -> float:
    turns = 1 if stage.once else 15
    counted = sorted(steps(operate) for _ in range(turns))
    return counted[turns // 2]


@pytest.mark.parametrize("what", GROWING)
def test_an_operation_takes_no_more_steps_where_there_is_more(what: str) -> None:
    growing, sizes = GROWING[what]
    few, many = (20, 400) if sizes is FEWER else (1000, 8000)
    assert usual_steps(*growing(many)) <= MOST * usual_steps(*growing(few))


@pytest.mark.parametrize("what", ["delayed", "priorities", "unique-ids", "parked", "compacter"])
def test_l4_l5_a_checkpoint_keeps_others_out_for_no_longer_where_more_is_live(what: str) -> None:
    """It lists blocks of hundreds of messages, and looks into none."""
    growing, _ = GROWING[what]

    def freezing(size: int) -> float:
        core = growing(size)[0].core

        def freeze() -> int:
            FrozenCore(core)
            return 1

        return steps(freeze)

    assert freezing(8000) <= freezing(1000) + 10
