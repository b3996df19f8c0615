"""Directories on the repository's own disk, gone when they are left."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parent / "scratch"


@contextmanager
def scratch() -> Iterator[Path]:
    _ROOT.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=_ROOT))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
