"""How far the pipelines that follow a log have come, read from their checkpoints alone: no Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.spark.checkpoints import MISSING, last_batch, offsets
from remuda.spark.lake.coverage import Lack, lacks
from remuda.spark.lake.store import local_side, of_log
from remuda.spark.source.spark_log import SparkLog, open_log

TROUBLES: Final = "_troubles"


class Trouble(msgspec.Struct, frozen=True):
    """What `status` tells of a pipeline that has failed and not stored a batch since."""

    failures: int
    reason: str
    time: float
    ended: bool = False
    """Whether it is not tried again."""


def progress(url: str, lake: str, name: str | None = None) -> list[dict[str, Any]]:
    """For each: its batches, the numbers it has read to, where the log ends, how many numbers lie between, and how many
    it went on without; of the archive also which. Of several logs in a lake, the one has a `name`."""
    log = open_log(url)
    end = {"offset": log.end("messages"), "position": log.end("events")}
    known: dict[str, list[Lack]] = {}
    for lack in lacks(lake, log.identity):
        known.setdefault(lack.table, []).append(lack)
    rows = []
    for checkpoint in sorted((local_side(lake) / "_checkpoints").glob(of_log("*", name))):
        if name is None and "@" in checkpoint.name:
            continue
        done = last_batch(checkpoint)
        job, _, table = checkpoint.name.partition("@")[0].partition("-")
        lacking = {} if job != "archive" else known
        noted = {} if done is None else offsets(checkpoint, done)
        at: dict[str, int] = {name: noted[name] for name in ("offset", "position") if name in noted}
        rows.append(
            {
                "pipeline": checkpoint.name,
                "batches": 0 if done is None else done + 1,
                "at": at,
                "end": {name: end[name] for name in at} or end,
                "behind": _behind(log, at, end),
                "missing": max(noted.get(MISSING, 0), sum(one.stop - one.start for one in lacking.get(table, ()))),
                "trouble": _told(trouble_of(lake, job, name)),
                "gaps": [[one.start, one.stop - 1, one.cause] for one in lacking.get(table, ())],
            }
        )
    return rows


def log_names(lake: str) -> list[str]:
    """The logs of a lake that have names."""
    return sorted({path.name.partition("@")[2] for path in (local_side(lake) / "_checkpoints").glob("*@*")})


def trouble_of(lake: str, job: str, log: str | None = None) -> Trouble | None:
    """What keeps a pipeline from going on, as it noted itself."""
    try:
        return msgspec.json.decode(note_of(lake, job, log).read_bytes(), type=Trouble)
    except (OSError, msgspec.DecodeError):
        return None


def note_of(lake: str, job: str, log: str | None = None) -> Path:
    return local_side(lake) / TROUBLES / f"{of_log(job, log)}.json"


def _told(trouble: Trouble | None) -> str | None:
    if trouble is None:
        return None
    then = "it was given up" if trouble.ended else "it is tried again"
    return f"failed {trouble.failures} times since its last batch, and {then}: {trouble.reason}"


def _behind(log: SparkLog, at: dict[str, int], end: dict[str, int]) -> int:
    """How many rows lie before the end; of a pipeline that has read nothing, those of the longer table."""
    tables = {"offset": "messages", "position": "events"}
    if not at:
        return max(log.rows(tables[name], 0, number) for name, number in end.items())
    return sum(log.rows(tables[name], number, end[name]) for name, number in at.items())
