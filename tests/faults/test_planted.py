"""L10: an error anywhere in the broker under load costs one caller its command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.planted import KINDS, Run, play

pytestmark = [pytest.mark.faults, pytest.mark.source]


@pytest.mark.parametrize("kind", KINDS)
def test_l10_q20_errors_planted_at_random_cost_one_caller_one_command(tmp_path: Path, kind: str) -> None:
    runs: list[Run] = []
    while not any(run.went_off for run in runs):
        assert len(runs) < 20, "no error goes off"
        (round := tmp_path / str(len(runs))).mkdir()
        runs += play(round, 4, seed=100 + len(runs), kinds=[kind], seconds=0.3)
    # How long a call takes depends on what else this machine does: the command that plays many runs looks at that.
    assert [fault for run in runs for fault in run.faults if "a call took" not in fault] == []
