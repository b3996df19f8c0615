"""Files with passwords: replaced whole, and readable only by their owner unless they were opened to others."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remuda.model.errors import InvalidOption


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes from changing the file until the change is made."""
    try:
        folder = os.open(Path(path).resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InvalidOption(f"{os.fspath(path)!r} cannot be written: {error.strerror}; nothing was changed") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write_secret_file(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file in one step, or create it with mode 0600. A file that exists keeps its mode."""
    file = Path(path)
    beside = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            if file.exists():  # the server's user may still read it
                os.fchmod(descriptor, stat.S_IMODE(file.stat().st_mode))
            out.write(text)
            out.flush()
            os.fsync(descriptor)
        os.replace(beside, file)
    except OSError as error:
        raise InvalidOption(f"{os.fspath(path)!r} cannot be written: {error.strerror}; nothing was changed") from None
    finally:
        beside.unlink(missing_ok=True)
