"""Reading rows: `read`, the data source and its stream, each beside what it is to be compared with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from benchmarks.effort import Effort
from benchmarks.results import Result
from benchmarks.spark.logs import BODY_BYTES
from benchmarks.spark.meter import Cost, measured, memory_mb, watched
from benchmarks.spark.stage import MASTER, Stage
from remuda.spark import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNIT: Final = "messages/CPU-s"
NATIVE: Final = "spark parquet"
BATCH_SOURCE: Final = "batch source"
PLANNING: Final = "spark/plan"
TRIGGERS: Final = 10
_PER_FILE: Final = 1000
"""For so many messages of a full run, one file."""
_BODY: Final = "body binary"
_BY_SPARK: Final = "Spark's Parquet reader; the first read, which only warms up, checks every row group too"

Side = Callable[[], object]


class WrongRows(Exception):
    """What was read is not what was written."""


def read_body(stage: Stage, effort: Effort) -> Result:
    def bodies(log: Path) -> DataFrame:
        return read(stage.spark, log).select("body")

    name, what = "spark/read/body", "remuda.spark.read of the sealed log"
    return _beside_native(stage, _steadier(effort), name, what, bodies, _BY_SPARK, body=True)


def read_all(stage: Stage, effort: Effort) -> Result:
    def rows(log: Path) -> DataFrame:
        return read(stage.spark, log)

    name, what = "spark/read", "remuda.spark.read of the sealed log"
    return _beside_native(stage, _steadier(effort), name, what, rows, _BY_SPARK)


def source_body(stage: Stage, effort: Effort) -> Result:
    def bodies(log: Path) -> DataFrame:
        return _source(stage, log, _BODY)

    name, what = "spark/source/body", "format('remuda') with the schema 'body binary'"
    bound_by = "the way from Python to the JVM, by which Spark takes the rows of a Python source"
    return _beside_native(stage, effort, name, what, bodies, bound_by, body=True)


def source_all(stage: Stage, effort: Effort) -> Result:
    def rows(log: Path) -> DataFrame:
        return _source(stage, log)

    bound_by = "the way from Python to the JVM, and there from Arrow's columns to rows"
    return _beside_native(stage, effort, "spark/source", "format('remuda')", rows, bound_by)


def stream(stage: Stage, effort: Effort) -> Result:
    count = effort.messages
    log = stage.waiting(count)
    return _compared(
        stage,
        effort,
        "spark/stream",
        f"readStream of format('remuda') with availableNow, {TRIGGERS} micro-batches; all columns into noop",
        lambda: _streamed(stage, log, count),
        (BATCH_SOURCE, "spark.read.format('remuda'); all columns into noop"),
        lambda: _emptied(_source(stage, log)),
        "as the batch source, and the planning of each micro-batch",
    )


def planning(stage: Stage, effort: Effort) -> Result:
    """From the call of `read` to the physical plan, which lists the files; with nothing known of them."""
    files = effort.messages // _PER_FILE
    log = stage.in_files(files)
    read(stage.spark, stage.waiting(_PER_FILE)).select("offset")._jdf.queryExecution().executedPlan()

    def plan() -> None:
        read(stage.spark, log).select("offset")._jdf.queryExecution().executedPlan()

    before = sum(memory_mb())
    with stage.folder() as out:
        cost, beside = watched(stage.spark, out, plan)
    return Result(
        name=PLANNING,
        unit="s",
        remuda=cost.wall,
        settings={
            "remuda": f"remuda.spark.read of a log in {files:,} sealed files, planned and not run",
            "bound_by": "reading footers, and Spark's listing of the files",
            "messages": effort.messages,
            "files": files,
            "cpu_s": cost.cpu,
            "driver_mb": max(beside.driver_peak_mb - before, 0),
        },
    )


def compared(
    name: str, count: int, sides: Mapping[str, list[Cost]], descriptions: Mapping[str, str], bound_by: str
) -> Result:
    """A row from the costs of each side's rounds, Remuda's first."""
    rates = {side: count / statistics.median(cost.cpu for cost in costs) for side, costs in sides.items()}
    walls = {side: statistics.median(cost.wall for cost in costs) for side, costs in sides.items()}
    remuda, other = rates
    return Result(
        name=name,
        unit=UNIT,
        remuda=round(rates[remuda]),
        peers={other: round(rates[other])},
        ratio_to_best_peer=round(rates[remuda] / rates[other], 3),
        settings={
            **descriptions,
            "bound_by": bound_by,
            "messages": count,
            "body_bytes": BODY_BYTES,
            "master": MASTER,
            "ratio_by_wall": round(walls[other] / walls[remuda], 3),
            "cpu_s": {side: [cost.cpu for cost in costs] for side, costs in sides.items()},
            "wall_s": {side: [cost.wall for cost in costs] for side, costs in sides.items()},
        },
    )


def _beside_native(
    stage: Stage,
    effort: Effort,
    name: str,
    description: str,
    ours: Callable[[Path], DataFrame],
    bound_by: str,
    *,
    body: bool = False,
) -> Result:
    """Beside Spark's own scan of the same rows: the bodies alone, summed up, or all columns into nowhere."""
    count = effort.messages
    log, copy = stage.waiting(count), stage.copied(count)

    def native() -> DataFrame:
        rows = stage.spark.read.parquet(str(copy))
        return rows.select("body") if body else rows

    def used(rows: DataFrame) -> None:
        if body:
            _summed(rows, count)
        else:
            _emptied(rows)

    use = "sum of the lengths of all bodies" if body else "all columns into noop"
    return _compared(
        stage,
        effort,
        name,
        f"{description}; {use}",
        lambda: used(ours(log)),
        (NATIVE, f"spark.read.parquet of the same rows, written by Spark with zstd; {use}"),
        lambda: used(native()),
        bound_by,
    )


def _compared(
    stage: Stage,
    effort: Effort,
    name: str,
    description: str,
    ours: Side,
    other: tuple[str, str],
    theirs: Side,
    bound_by: str,
) -> Result:
    """Take turns, each side as often first as last, after rounds that only warm up the JVM."""
    sides: dict[str, Side] = {"remuda": ours, other[0]: theirs}
    costs: dict[str, list[Cost]] = {side: [] for side in sides}
    warm_up = stage.rounds_to_warm_up()
    for number in range(warm_up + effort.rounds):
        for side in sides if number % 2 else reversed(sides):
            cost = measured(sides[side])
            if number >= warm_up:
                costs[side].append(cost)
    return compared(name, effort.messages, costs, {"remuda": description, other[0]: other[1]}, bound_by)


def _steadier(effort: Effort) -> Effort:
    """More rounds, for short ones whose sides are near to each other."""
    return msgspec.structs.replace(effort, rounds=2 * effort.rounds - 1)


def _source(stage: Stage, log: Path, schema: str | None = None) -> DataFrame:
    reader = stage.spark.read.format("remuda")
    return (reader if schema is None else reader.schema(schema)).load(str(log))


def _summed(rows: DataFrame, count: int) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    found = rows.agg(F.count("*"), F.sum(F.length("body"))).first()
    check(None if found is None else tuple(found), (count, BODY_BYTES * count))


def _emptied(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _streamed(stage: Stage, log: Path, count: int) -> None:
    stream = stage.spark.readStream.format("remuda").option("maxRowsPerTrigger", -(-count // TRIGGERS))
    writer = stream.load(str(log)).writeStream.format("noop").trigger(availableNow=True)
    with stage.folder() as checkpoint:
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()
    check(sum(progress["numInputRows"] for progress in query.recentProgress), count)


def check(found: object, wanted: object) -> None:
    if found != wanted:
        raise WrongRows(f"{found} came out where {wanted} went in")
