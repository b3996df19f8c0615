"""P3, P7: drivers killed at their commits lose and double nothing (`tests/spark/kills.py` does as many as you like)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kills import play


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("names", "collecting"),
    [
        pytest.param("archive,lifecycle", True, marks=pytest.mark.thorough("test_bucket.py, in a bucket")),
        ("archive,lifecycle,metrics,index", False),
    ],
)
def test_p7_killed_drivers_lose_and_double_nothing(
    tmp_path: Path, names: str, collecting: bool, request: pytest.FixtureRequest
) -> None:
    play(tmp_path, 2 if request.config.getoption("all") else 1, 11, names, collecting=collecting)
