"""Checkpoints of queries, looked at before a query starts: what is wrong is said then, not at its first batch."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any, Final

from remuda.model.errors import Conflict, StorageError

_PARTS: Final = frozenset({"metadata", "offsets", "commits", "sources", "state"})
"""What Spark puts into a checkpoint."""


def check_checkpoint(place: Path) -> None:
    """Raise where Spark could not keep a checkpoint, or where something else lies that is none."""
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
            f"{str(place)!r} holds files that are no checkpoint of Spark's ({', '.join(sorted(names)[:3])}); nothing "
            "was read. Remove them, or choose another lake"
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


def offsets(place: Path, batch: int) -> dict[str, Any]:
    """What the source said of the end of a batch: the last line of Spark's file is the source's own."""
    told: dict[str, Any] = json.loads((place / "offsets" / str(batch)).read_text().splitlines()[-1])
    return told
