"""Plants a bug in a copy of the sources, and runs the test that must find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.planted import Mutant

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
LIMIT = 900.0


class Misplanted(Exception):
    """The bug could not be planted, or its test could not be run: this proves nothing."""


def plant(mutant: Mutant, sources: Path) -> None:
    """Change the one place in `sources`."""
    path = sources / "remuda" / mutant.file
    text = path.read_text("utf-8")
    if text.count(mutant.old) != 1:
        raise Misplanted(f"{mutant.name}: its text stands {text.count(mutant.old)} times in {mutant.file}, not once")
    path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    if path.suffix in (".c", ".h"):
        _compile(mutant, path.parent)


def _compile(mutant: Mutant, folder: Path) -> None:
    script = "import sys, pathlib, hatch_build; print(len(hatch_build.build(*2 * [pathlib.Path(sys.argv[1])])))"
    built = subprocess.run(
        [sys.executable, "-c", script, folder], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if built.stdout.strip() != str(len(list(folder.glob("*.c")))):
        raise Misplanted(f"{mutant.name}: it cannot be compiled: {built.stderr[-2000:]}")


def is_found(mutant: Mutant) -> bool:
    """Whether the mutant's test fails with it."""
    with tempfile.TemporaryDirectory() as place:
        sources = Path(place) / "src"
        shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
        plant(mutant, sources)
        environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("PYTEST_ADDOPTS", None)
        if mutant.pure:
            environment["REMUDA_PURE"] = "1"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", mutant.test]
        try:
            run = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return True  # it hangs, which is noticed too
    if run.returncode not in (0, 1):
        raise Misplanted(f"{mutant.name}: {mutant.test} could not be run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return run.returncode == 1
