"""P5: on a busy machine Spark's Pythons are there within the ten seconds that it allows them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remuda.spark.session.forking import forking_python

PROBE = """
import os, sys
print("pyspark.worker" in sys.modules, sys.argv[1:], os.environ["SAID"], os.getcwd(), sys.stdin.read())
sys.exit(3)
"""
OWNER = """
import sys, time
from pathlib import Path
from remuda.spark.session.forking import forking_python
held = forking_python(Path(sys.argv[1]))
print(held.__enter__(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "probe.py").write_text(PROBE)
    return tmp_path


def _ask(python: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "probe", "one", "two"],
        cwd=folder, env={**os.environ, "SAID": "yes"}, input="heard", capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_p5_a_python_for_spark_is_a_fork_of_one_that_has_all_loaded(folder: Path) -> None:
    with forking_python(folder / "python") as python:
        ran = _ask(python, folder)
        assert ran.stdout.split("\n")[0] == f"True ['one', 'two'] yes {folder} heard", ran.stderr
        assert ran.returncode == 3
    assert not (folder / "python").exists()


def test_p5_it_ends_with_its_owner_and_what_comes_then_is_an_ordinary_python(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, folder / "python"], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        python = Path(owner.stdout.readline().strip())
        client = python.read_text()
        owner.send_signal(signal.SIGKILL)
    end = time.monotonic() + 60
    while python.parent.exists():
        assert time.monotonic() < end, "the folder stays"
        time.sleep(0.05)
    orphan = folder / "orphan"
    orphan.write_text(client)
    orphan.chmod(0o755)
    ran = _ask(orphan, folder)
    assert ran.stdout.split("\n")[0] == f"False ['one', 'two'] yes {folder} heard", ran.stderr
    assert ran.returncode == 3
