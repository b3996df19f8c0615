"""The lakehouse rows still run. No figure is checked: machines are busy."""

from __future__ import annotations

import pytest

from benchmarks import musts, page
from benchmarks.effort import Effort
from benchmarks.lake import rows
from benchmarks.lake.rows import COMMIT, ENGINES, LAKE_ROWS


def test_a_version_is_measured_in_both_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_SEGMENTS", 4)
    monkeypatch.setattr(rows, "_SEGMENT_BYTES", 1 << 16)
    found = LAKE_ROWS[COMMIT](Effort())
    assert found.remuda > 0
    assert all(0 < size <= 10_000 for size in found.settings["bytes"].values())
    assert {one.row for one in musts.findings({found.name: found})} == {COMMIT}
    assert COMMIT in page.everything([found])


@pytest.mark.parametrize("name", ENGINES)
def test_engines_count_what_is_sealed(name: str) -> None:
    found = LAKE_ROWS[name](Effort(rounds=1, messages=3000))
    assert found.remuda > 0
    assert found.settings["times"] > 0
    assert list(musts.findings({found.name: found})) == []  # too few to be judged
