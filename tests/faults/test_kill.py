"""L2: `kill -9` of a real process under load. Accepted messages lost: none. Settled messages delivered again: none."""

from __future__ import annotations

import random
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests.faults.killing import fork_server, kill_in_a_while
from tests.faults.victim import Job
from tests.faults.witness import Witness

DIRECTORIES = 6
KILLS_EACH = 5

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    return fork_server()


@pytest.mark.parametrize("number", range(DIRECTORIES))
def test_killed_under_load_nothing_accepted_is_lost_and_nothing_settled_comes_again(
    number: int, tmp_path: Path, processes: ForkServerContext
) -> None:
    """L2, L3, L4, Q12, Q15: five kills in a row on one directory, so that recovery from recovery is met too."""
    rng = random.Random(number)
    witness = Witness()
    sync = ("os", "always")[number % 2]
    for turn in range(KILLS_EACH):
        job = Job(tmp_path / "log", number * 1000 + turn, turn, sync)
        kill_in_a_while(processes, job, witness, lambda: rng.uniform(0.0, 0.5))
        witness.check(tmp_path / "log", tmp_path / "copy")
    assert len(witness.names["P"]) > 100, "there was hardly any load"
    assert len(witness.names["S"]) > 20, "there was hardly any load"


@pytest.mark.parametrize("then", ["close", "tidy"])
def test_killed_while_closing_or_tidying_up(then: str, tmp_path: Path, processes: ForkServerContext) -> None:
    """L2, L5: in the middle of close(), and of checkpoint, sealing and collecting."""
    rng = random.Random(then)
    witness = Witness()
    for turn in range(KILLS_EACH):
        job = Job(tmp_path / "log", turn, turn, ("always", "os")[turn % 2], then)
        kill_in_a_while(processes, job, witness, lambda: rng.uniform(0.0, 0.03))
        witness.check(tmp_path / "log", tmp_path / "copy")
