"""Pipelines as they are run: what a million messages or events cost, and whether ten times as many cost ten times."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from benchmarks.effort import Effort
from benchmarks.results import Result
from benchmarks.spark import plain
from benchmarks.spark.logs import BODY_BYTES, MIX, QUEUE, fill
from benchmarks.spark.meter import Beside, Cost, measured, watched
from benchmarks.spark.scans import NATIVE, check
from benchmarks.spark.stage import MASTER, Stage
from remuda import open_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNIT: Final = "CPU-s/million"
COLD: Final = "spark/cold"
SHARE: Final = 10
"""The small run is of so many times fewer."""
_REPEATING: Final = 10
_PATIENCE: Final = 300.0
_MILLION: Final = 1_000_000


class Run(msgspec.Struct, frozen=True):
    """One run of a pipeline over so many messages or events."""

    count: int
    cost: Cost
    more: dict[str, Any] = {}
    beside: Beside | None = None
    plain: tuple[Cost, Beside] | None = None
    """The plainest job over the same rows."""

    @property
    def per_million(self) -> float:
        return self.cost.cpu * _MILLION / self.count

    def told(self) -> dict[str, Any]:
        own = {} if self.beside is None else msgspec.to_builtins(self.beside)
        plain = {}
        if self.plain is not None:
            cost, beside = self.plain
            plain = {"plain": {"cpu_s": cost.cpu, "wall_s": cost.wall, **msgspec.to_builtins(beside)}}
        return {"count": self.count, "cpu_s": self.cost.cpu, "wall_s": self.cost.wall, **own, **self.more, **plain}


def lifecycle(stage: Stage, effort: Effort) -> Result:
    def run(events: int) -> Run:
        log, lived = stage.lived(events)
        with stage.folder() as lake:
            cost, beside = watched(stage.spark, lake, lambda: _job(stage, "lifecycle", log, lake))
            check(_rows_in(stage, "lifecycle", lake), lived.messages)
        return Run(lived.events, cost, {"messages": lived.messages}, beside, _plainly(stage, "lifecycle", log))

    return _grown(
        "spark/lifecycle",
        effort,
        run,
        f"remuda pipeline run lifecycle: the log → one row for each message and queue in the lake; {MIX}",
        "putting the events of each message together, and writing the rows",
    )


def ingest(stage: Stage, effort: Effort) -> Result:
    def run(count: int) -> Run:
        with stage.folder() as folder:
            rows, data = folder / "rows", folder / "data"
            told(stage, count).write.parquet(str(rows))
            with open_broker(data, sync="os") as broker:
                broker.create_queue(QUEUE, type="pull")
            options = {"source": str(rows), "order": "seq", "repeats": "drop"}
            cost = measured(lambda: _job(stage, "ingest", data, folder / "lake", options))
            intake = measured(lambda: _taken_in(data, count - count // _REPEATING))
        return Run(count, cost, {"taken_in_cpu_s": intake.cpu, "taken_in_wall_s": intake.wall})

    return _grown(
        "spark/ingest",
        effort,
        run,
        "remuda pipeline run ingest, repeats=drop: a Parquet file → compacter → distributor → spool; one row in ten "
        "repeats the one before it. What the broker then needs to take them in is told apart",
        "sorting by object and key, and then by the order to be kept",
    )


def archive(stage: Stage, effort: Effort) -> Result:
    def run(count: int) -> Run:
        log = stage.waiting(count)
        with stage.folder() as lake:
            cost, beside = watched(stage.spark, lake, lambda: _job(stage, "archive", log, lake))
            check(_rows_in(stage, "messages", lake), count)
        return Run(count, cost, {}, beside, _plainly(stage, "archive", log))

    return _grown(
        "spark/archive",
        effort,
        run,
        "remuda pipeline run archive: the log → messages and events in the lake, parted by date and queue",
        "shuffling the rows to their partitions, and writing Parquet",
    )


def history(stage: Stage, effort: Effort) -> Result:
    def run(count: int) -> Run:
        log = stage.told(count)
        with stage.folder() as lake:
            cost, beside = watched(stage.spark, lake, lambda: _job(stage, "history", log, lake))
            check(_rows_in(stage, "history", lake), -(-count // 2))
        return Run(count, cost, {}, beside, _plainly(stage, "history", log))

    return _grown(
        "spark/history",
        effort,
        run,
        "remuda pipeline run history: the log → the last hash and version of each object; each is told of twice",
        "shuffling by object and key, and writing the rows",
    )


def metrics(stage: Stage, effort: Effort) -> Result:
    def run(events: int) -> Run:
        log, lived = stage.lived(events)
        with stage.folder() as lake:
            cost, beside = watched(stage.spark, lake, lambda: _job(stage, "metrics", log, lake))
            told = _table(stage, "metrics", lake).agg({"published": "sum"}).first()
            check(None if told is None else told[0], lived.messages)
        return Run(lived.events, cost, {"messages": lived.messages}, beside, _plainly(stage, "metrics", log))

    return _grown(
        "spark/metrics",
        effort,
        run,
        f"remuda pipeline run metrics: the log → rates, times and retries per queue and minute; {MIX}",
        "putting the events of each message together, twice: once to know what changed, once to tell it",
    )


def cold(stage: Stage, effort: Effort) -> Result:
    """A pipeline over a small log from the command line, the start of Python and of the JVM included."""
    costs: list[Cost] = []
    with stage.folder() as folder:
        fill(folder / "data", 1000)

        def run() -> None:
            command = [sys.executable, "-m", "remuda", "pipeline", "run", "archive", str(folder / "data")]
            lake = str(folder / f"lake{len(costs)}")
            subprocess.run([*command, "--lake", lake], check=True, capture_output=True, timeout=_PATIENCE)

        for _ in range(effort.rounds):
            costs.append(measured(run))
    return Result(
        name=COLD,
        unit="s",
        remuda=round(statistics.median(cost.wall for cost in costs), 2),
        settings={
            "remuda": "remuda pipeline run archive over 1,000 messages, from the command line to its end",
            "bound_by": "the start of the JVM and its first queries, which it runs uncompiled",
            "cpu_s": [cost.cpu for cost in costs],
            "wall_s": [cost.wall for cost in costs],
        },
    )


def grown(name: str, small: Run, large: Run, description: str, bound_by: str) -> Result:
    """A row from the run that counts, and from one over a tenth; beside the plainest job, where there is one."""
    peer = None if large.plain is None else large.plain[0].cpu * _MILLION / large.count
    return Result(
        name=name,
        unit=UNIT,
        remuda=round(large.per_million, 3),
        peers={} if peer is None else {NATIVE: round(peer, 3)},
        ratio_to_best_peer=None if peer is None else round(peer / large.per_million, 3),
        settings={
            "remuda": description,
            "bound_by": bound_by,
            "body_bytes": BODY_BYTES,
            "master": MASTER,
            "small": {**small.told(), "cpu_s_per_million": round(small.per_million, 3)},
            "large": {**large.told(), "cpu_s_per_million": round(large.per_million, 3)},
            "growth": round(large.per_million / small.per_million, 3),
        },
    )


def _grown(name: str, effort: Effort, run: Callable[[int], Run], description: str, bound_by: str) -> Result:
    """Run it small twice, the first time to warm up, then large."""
    few = effort.messages // SHARE
    run(few)
    return grown(name, run(few), run(effort.messages), description, bound_by)


def _plainly(stage: Stage, name: str, log: Path) -> tuple[Cost, Beside]:
    """What the plainest job costs that does the least of a pipeline, over the same rows as Spark writes them."""
    messages, events = (stage.spark.read.parquet(str(stage.copy(log, table))) for table in ("messages", "events"))
    with stage.folder() as out:
        return watched(stage.spark, out, lambda: plain.JOBS[name](messages, events, out / "plain"))


def told(stage: Stage, count: int) -> DataFrame:
    """Rows to be ingested, of which every tenth says again what the one before it said of its key."""
    from pyspark.sql import functions as F  # noqa: N812

    number = F.when(F.col("id") % _REPEATING == _REPEATING - 1, F.col("id") - 1).otherwise(F.col("id"))
    text = F.format_string('{"order": "%010d", "customer": "%s", "note": "', number, F.sha2(number.cast("string"), 256))
    return stage.spark.range(count).select(
        F.col("id").alias("seq"),
        F.lit(QUEUE).alias("name"),
        F.lit("order").alias("object"),
        number.cast("string").alias("key"),
        F.rpad(text, BODY_BYTES, "words of no importance ").cast("binary").alias("body"),
    )


def _job(stage: Stage, name: str, log: Path, lake: Path, options: dict[str, str] | None = None) -> None:
    from remuda.spark.pipelines.jobs import JOBS
    from remuda.spark.pipelines.streaming_queries import Place

    JOBS[name](stage.spark, Place(url=str(log), lake=str(lake), options=options or {}))


def _rows_in(stage: Stage, table: str, lake: Path) -> int:
    return _table(stage, table, lake).count()


def _table(stage: Stage, table: str, lake: Path) -> DataFrame:
    from remuda.lake import read

    return read(stage.spark, lake, table)


def _taken_in(directory: Path, count: int) -> None:
    """Let a broker take in what lies in the spool."""
    end = time.monotonic() + _PATIENCE
    with open_broker(directory, sync="os") as broker:
        while (waiting := broker.queue(QUEUE).waiting) < count and time.monotonic() < end:
            time.sleep(0.05)
    check(waiting, count)
