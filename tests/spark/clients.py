"""Programs that use a Spark elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[2]


def run_program(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python program in its own process, started in `folder`; all that it says."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


def run_survey(folder: Path, url: str) -> dict[str, Any]:
    """The survey of the log in `data` on the Spark at a URL, with copies in `there`."""
    ran = run_program(folder, "tests.spark.survey", url, "data", "there")
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def run_pipeline(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """`remuda pipeline run` over the log in `data` and the lake in `lake`; what it told."""
    told: list[dict[str, Any]] = []
    for _ in range(3):
        ran = run_program(folder, "remuda.cli", "pipeline", "run", *arguments, "--lake", "lake", "--json")
        told += map(json.loads, ran.stdout.splitlines())
        # Spark gives a Python of a query ten seconds to start, which a busy machine exceeds.
        if "run it again" not in ran.stderr:
            break
    assert ran.returncode == 0, ran.stderr
    return told
