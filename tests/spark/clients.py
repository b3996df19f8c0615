"""Programs that use a Spark elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[2]


def run_program(folder: Path, python: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python program in its own process, started in `folder`, with a Python for Spark; all that it says."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", module, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYSPARK_PYTHON": str(python),
            "PYTHONPATH": os.pathsep.join([str(_REPOSITORY / "src"), str(_REPOSITORY)]),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def run_survey(folder: Path, python: Path, url: str) -> dict[str, Any]:
    """The survey of the log in `data` on the Spark at a URL, with copies in `there`."""
    ran = run_program(folder, python, "tests.spark.survey", url, "data", "there")
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found
