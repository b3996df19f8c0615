"""Checks of a query's checkpoint before it starts: what is wrong is reported then, not at its first batch."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from remuda.model.errors import Conflict, StorageError

BEGAN: Final = "began"
"""Where the first batch of a query began, in the offsets that it ends at."""
MISSING: Final = "missing"
"""How many numbers were missing so far that the query should have read, in the same place."""
_PARTS: Final = frozenset({"metadata", "offsets", "commits", "sources", "state"})
"""What Spark puts into a checkpoint."""


_guard: Final = threading.Lock()
_used: dict[Path, tuple[int, int]] = {}
"""The checkpoints that this process uses: each locked folder, and how often."""


@contextlib.contextmanager
def sole_use(place: Path) -> Iterator[None]:
    """Use a checkpoint in this process alone. Two runs could give different rows the same batch number, and the second
    batch would be taken for a repetition.

    Raises `Conflict` if another process uses it.
    """
    with _guard:
        folder, times = _used.get(place) or (_locked(place), 0)
        _used[place] = folder, times + 1
    try:
        yield
    finally:
        with _guard:
            folder, times = _used.pop(place)
            if times > 1:
                _used[place] = folder, times - 1
            else:
                os.close(folder)


def _locked(place: Path) -> int:
    """The operating system drops the lock with its process, however that ends."""
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise Conflict(
            f"another run uses the checkpoint {str(place)!r}; nothing was done. Wait until it has ended, or stop it"
        ) from None
    except OSError:
        pass  # a file system without locks: Spark notices most of it
    return folder


def check_checkpoint(place: Path) -> None:
    """Raise where Spark could not write a checkpoint, or where something else is stored."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        names = {name for name in os.listdir(place) if not name.startswith(".")}
        probe = place / f".{uuid.uuid4().hex}.tmp"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StorageError(
            f"the checkpoint {str(place)!r} cannot be written: {error.strerror}; nothing was read. Check its owner and "
            "permissions, or choose another lake"
        ) from error
    if names and not names & _PARTS:
        raise Conflict(
            f"{str(place)!r} holds files that are not a checkpoint of Spark's ({', '.join(sorted(names)[:3])}); "
            "nothing was read. Remove them, or choose another lake"
        )
    if "metadata" in names:
        try:
            json.loads((place / "metadata").read_text())["id"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"the checkpoint {str(place)!r} is damaged: its metadata cannot be read; nothing was read. Restore it "
                "from a copy"
            ) from error


def is_begun(place: Path) -> bool:
    """Whether a query has been started with this checkpoint."""
    return (place / "metadata").exists()


def last_batch(place: Path) -> int | None:
    """The last batch that was done."""
    return max((int(path.name) for path in (place / "commits").glob("*") if path.name.isdigit()), default=None)


def span(place: Path, batch: int, name: str) -> range:
    """The numbers that a batch covers."""
    end = offsets(place, batch)
    began = end.get(BEGAN) or (offsets(place, batch - 1) if batch else {})
    return range(began.get(name, 0), end[name])


def offsets(place: Path, batch: int) -> dict[str, Any]:
    """Where a batch ends, as the source reported it: the last line of Spark's file is the source's own."""
    end: dict[str, Any] = json.loads((place / "offsets" / str(batch)).read_text().splitlines()[-1])
    return end
