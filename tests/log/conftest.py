"""The part in C, built for the tests that compare it with the one in Python, whatever is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from remuda import native

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The part in C."""
    compiler = (sysconfig.get_config_var("LDSHARED") or "cc").split()[0]
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which(compiler) is None or not headers.exists():
        pytest.skip(f"there is no {compiler}, or no {headers}")
    folder = tmp_path_factory.mktemp("native")
    # Of the sources that are tested, which may be a copy with a bug in it.
    sources = Path(native.__file__).parent
    script = "import sys, pathlib, hatch_build; print(len(hatch_build.build(*map(pathlib.Path, sys.argv[1:]))))"
    environment = {name: value for name, value in os.environ.items() if name != "REMUDA_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", script, sources, folder],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert int(done.stdout) == len(list(sources.glob("*.c"))), done.stderr
    return str(folder)
