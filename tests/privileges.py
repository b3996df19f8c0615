"""Root may write everywhere, so a test of permissions gives root's rights up for a while."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_NOBODY: Final = 65534


@contextmanager
def unwritable_directory() -> Iterator[Path]:
    """A directory that this process may read but not write, whoever runs it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(_NOBODY)
        try:
            yield path
        finally:
            if root:
                os.seteuid(0)
            path.chmod(0o755)
