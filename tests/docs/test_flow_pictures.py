"""F7: the pictures of docs/flow.md are what the runs they show come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs.flow import IMAGES, RUNS, Run, drawn, play

PAGE = Path(__file__).resolve().parents[2] / "docs" / "flow.md"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_f7_a_picture_shows_what_its_run_comes_to(run: Run) -> None:
    name = f"flow-{run.name}.svg"
    assert drawn(run, play(run)) == (IMAGES / name).read_text(), "make docs draws it anew"
    assert f"images/{name}" in PAGE.read_text(), "it is on the page"


def test_f5_a_noisy_key_delays_another_by_one_turn() -> None:
    """What the picture of turns is for."""
    lines = play(next(run for run in RUNS if run.name == "fair"))
    began = sorted((line.held[0][0], line.publish.key) for line in lines if line.held)
    assert "".join(key for _, key in began).startswith("aabcab"), began
