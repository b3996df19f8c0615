"""How far the pipelines that follow a log have come, told from their checkpoints alone: no Spark is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from remuda.spark.port import SparkLog, directory, open_log


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


def _last(commits: Path) -> int | None:
    return max((int(path.name) for path in commits.glob("*") if path.name.isdigit()), default=None)


def _offsets(path: Path) -> dict[str, int]:
    """The last line of Spark's file is the source's own."""
    told = json.loads(path.read_text().splitlines()[-1])
    return {name: number for name, number in told.items() if name in ("offset", "position")}
