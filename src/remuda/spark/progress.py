"""How far the pipelines that follow a log have come, told from their checkpoints alone: no Spark is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from remuda.model.errors import StorageError
from remuda.spark.port import directory, open_log


def progress(url: str, lake: str) -> list[dict[str, Any]]:
    """For each: its batches, the numbers it has read to, where the log ends, and how many numbers lie between."""
    log = open_log(url)
    end = {"offset": log.end("messages"), "position": log.end("events")}
    rows = []
    for checkpoint in sorted((Path(directory(lake)) / "_checkpoints").glob("*")):
        done = _last(checkpoint / "commits")
        at = {} if done is None else _offsets(checkpoint / "offsets" / str(done))
        rows.append(
            {
                "pipeline": checkpoint.name,
                "batches": 0 if done is None else done + 1,
                "at": at,
                "end": {name: end[name] for name in at} or end,
                "behind": sum(max(end[name] - number, 0) for name, number in at.items()) if at else max(end.values()),
            }
        )
    return rows


class Archived(NamedTuple):
    """The offset and the position before which everything is in an archive."""

    offset: int
    position: int


def archived(lake: str) -> Archived:
    """How far the pipeline `archive` has come in a lake; not at all where it never ran."""
    place = Path(directory(lake)) / "_checkpoints"
    try:
        return Archived(_reached(place / "archive-messages", "offset"), _reached(place / "archive-events", "position"))
    except (OSError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise StorageError(
            f"how far the archive in {lake!r} has come cannot be read ({error}); nothing was collected. Check the "
            "folder, or open the broker without collect_after_archive"
        ) from error


def _reached(checkpoint: Path, number: str) -> int:
    done = _last(checkpoint / "commits")
    return 0 if done is None else _offsets(checkpoint / "offsets" / str(done))[number]


def _last(commits: Path) -> int | None:
    return max((int(path.name) for path in commits.glob("*") if path.name.isdigit()), default=None)


def _offsets(path: Path) -> dict[str, int]:
    """The last line of Spark's file is the source's own."""
    told = json.loads(path.read_text().splitlines()[-1])
    return {name: number for name, number in told.items() if name in ("offset", "position")}
