"""L2: `kill -9` of a real process under load. Accepted messages lost: none. Settled messages delivered again: none."""

from __future__ import annotations

import multiprocessing
import os
import random
import select
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests.faults.victim import Job, run
from tests.faults.witness import Witness

DIRECTORIES = 8
KILLS_EACH = 5

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Processes that start in a moment, since their modules are loaded already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "tests.faults.victim"])
    return context


def kill_in_a_while(processes: ForkServerContext, job: Job, witness: Witness, rest: Callable[[], float]) -> None:
    """Start the victim, hear it until it says `!` for the last time and `rest()` seconds longer, and kill it."""
    ears, mouth = processes.Pipe(duplex=False)
    process = processes.Process(target=run, args=(job, mouth), daemon=True)
    process.start()
    mouth.close()
    marks = 1 if job.then == "go on" else 2
    heard = b""
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        wait = 30.0 if deadline is None else max(deadline - time.monotonic(), 0)
        if not select.select([ears], [], [], wait)[0]:
            assert deadline is not None, "the victim said nothing for 30 seconds"
            break
        said = os.read(ears.fileno(), 1 << 16)
        assert said, f"the victim ended by itself: {heard[-300:]!r}"
        heard += said
        if deadline is None and heard.count(b"!\n") >= marks:
            deadline = time.monotonic() + rest()
    process.kill()
    while said := os.read(ears.fileno(), 1 << 16):
        heard += said
    process.join()
    ears.close()
    witness.hear(heard)


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
