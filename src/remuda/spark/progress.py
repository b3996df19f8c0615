"""How far the pipelines that follow a log have come, read from their checkpoints alone: no Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from remuda.model.errors import StorageError
from remuda.spark.checkpoints import last_batch, offsets
from remuda.spark.port import SparkLog, directory, open_log


def progress(url: str, lake: str) -> list[dict[str, Any]]:
    """For each: its batches, the numbers it has read to, where the log ends, and how many numbers lie between."""
    log = open_log(url)
    end = {"offset": log.end("messages"), "position": log.end("events")}
    rows = []
    for checkpoint in sorted((Path(directory(lake)) / "_checkpoints").glob("*")):
        done = last_batch(checkpoint)
        at = {} if done is None else _offsets(checkpoint, done)
        rows.append(
            {
                "pipeline": checkpoint.name,
                "batches": 0 if done is None else done + 1,
                "at": at,
                "end": {name: end[name] for name in at} or end,
                "behind": _behind(log, at, end),
            }
        )
    return rows


def _behind(log: SparkLog, at: dict[str, int], end: dict[str, int]) -> int:
    """How many rows lie before the end; of a pipeline that has read nothing, those of the longer table."""
    tables = {"offset": "messages", "position": "events"}
    if not at:
        return max(log.rows(tables[name], 0, number) for name, number in end.items())
    return sum(log.rows(tables[name], number, end[name]) for name, number in at.items())


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
    done = last_batch(checkpoint)
    return 0 if done is None else _offsets(checkpoint, done)[number]


def _offsets(checkpoint: Path, batch: int) -> dict[str, int]:
    return {name: number for name, number in offsets(checkpoint, batch).items() if name in ("offset", "position")}
