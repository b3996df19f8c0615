"""The Spark rows by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.effort import Effort
from benchmarks.results import Result
from benchmarks.spark import pipelines, scans
from benchmarks.spark.stage import NotHere, Stage

READ: Final = ("spark/read", "spark/read/body")
SOURCE: Final = ("spark/source", "spark/source/body")
STREAM: Final = "spark/stream"
LIFECYCLE: Final = "spark/lifecycle"
PIPELINES: Final = (LIFECYCLE, "spark/ingest", "spark/archive", "spark/history", "spark/metrics")
PLAINLY: Final = (LIFECYCLE, "spark/archive", "spark/history", "spark/metrics")
"""Pipelines that are measured beside the plainest job of Spark's."""
COLD: Final = pipelines.COLD
PLANNING: Final = scans.PLANNING
FULL: Final = Effort().messages
STAGE: Final = Stage()
"""For all rows of a run; whoever runs them closes it."""
_NOT_MEASURED: Final = "not measured: "

Measuring = Callable[[Stage, Effort], Result]


def is_spark(result: Result) -> bool:
    return result.name.startswith("spark/")


def is_measured(result: Result) -> bool:
    return not str(result.settings.get("remuda", "")).startswith(_NOT_MEASURED)


def is_judged(result: Result) -> bool:
    """Whether demands apply: they are of the full size, where what Spark needs for any query counts for little."""
    size = result.settings.get("messages") or result.settings.get("large", {}).get("count", FULL)
    return is_measured(result) and size >= FULL


def attempted(name: str, unit: str, measuring: Measuring, stage: Stage, effort: Effort) -> Result:
    """The row, or one that says why there are no figures."""
    try:
        stage.start()
        return measuring(stage, effort)
    except NotHere as reason:
        return Result(name=name, unit=unit, remuda=0.0, settings={"remuda": f"{_NOT_MEASURED}{reason}"})


MEASURED: Final[dict[str, tuple[str, Measuring]]] = {
    "spark/read/body": (scans.UNIT, scans.read_body),
    "spark/read": (scans.UNIT, scans.read_all),
    "spark/source/body": (scans.UNIT, scans.source_body),
    "spark/source": (scans.UNIT, scans.source_all),
    STREAM: (scans.UNIT, scans.stream),
    PLANNING: ("s", scans.planning),
    LIFECYCLE: (pipelines.UNIT, pipelines.lifecycle),
    "spark/ingest": (pipelines.UNIT, pipelines.ingest),
    "spark/archive": (pipelines.UNIT, pipelines.archive),
    "spark/history": (pipelines.UNIT, pipelines.history),
    "spark/metrics": (pipelines.UNIT, pipelines.metrics),
    COLD: ("s", pipelines.cold),
}

SPARK_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    name: partial(attempted, name, unit, measuring, STAGE) for name, (unit, measuring) in MEASURED.items()
}
