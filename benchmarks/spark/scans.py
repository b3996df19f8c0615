"""Reading rows: `read`, the data source and its stream, each beside what it is to be compared with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from benchmarks.effort import Effort
from benchmarks.results import Result
from benchmarks.spark.logs import BODY_BYTES
from benchmarks.spark.meter import Cost, measured
from benchmarks.spark.stage import MASTER, Stage
from remuda.spark import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNIT: Final = "messages/CPU-s"
NATIVE: Final = "spark parquet"
BATCH_SOURCE: Final = "batch source"
TRIGGERS: Final = 10
_BODY: Final = "body binary"

Side = Callable[[], object]


class WrongRows(Exception):
    """What was read is not what was written."""


def read_body(stage: Stage, effort: Effort) -> Result:
    count = effort.messages
    log, copy = stage.waiting(count), stage.copied(count)
    return _compared(
        stage,
        _steadier(effort),
        "spark/read/body",
        "remuda.spark.read of the sealed log; sum of the lengths of all bodies",
        lambda: _summed(read(stage.spark, log).select("body"), count),
        (NATIVE, "spark.read.parquet of the same rows, written by Spark with zstd; the same sum"),
        lambda: _summed(stage.spark.read.parquet(str(copy)).select("body"), count),
        "Spark's Parquet reader; every row group is checked against its checksum before",
    )


def read_all(stage: Stage, effort: Effort) -> Result:
    log, copy = stage.waiting(effort.messages), stage.copied(effort.messages)
    return _compared(
        stage,
        _steadier(effort),
        "spark/read",
        "remuda.spark.read of the sealed log; all columns into noop",
        lambda: _emptied(read(stage.spark, log)),
        (NATIVE, "spark.read.parquet of the same rows, written by Spark with zstd; all columns into noop"),
        lambda: _emptied(stage.spark.read.parquet(str(copy))),
        "Spark's Parquet reader; every row group is checked against its checksum before",
    )


def source_body(stage: Stage, effort: Effort) -> Result:
    count = effort.messages
    log, copy = stage.waiting(count), stage.copied(count)
    return _compared(
        stage,
        effort,
        "spark/source/body",
        "format('remuda') with the schema 'body binary'; sum of the lengths of all bodies",
        lambda: _summed(_source(stage, log, _BODY), count),
        (NATIVE, "spark.read.parquet of the same rows, written by Spark with zstd; the same sum"),
        lambda: _summed(stage.spark.read.parquet(str(copy)).select("body"), count),
        "the way from Python to the JVM, by which Spark takes the rows of a Python source",
    )


def source_all(stage: Stage, effort: Effort) -> Result:
    log, copy = stage.waiting(effort.messages), stage.copied(effort.messages)
    return _compared(
        stage,
        effort,
        "spark/source",
        "format('remuda'); all columns into noop",
        lambda: _emptied(_source(stage, log)),
        (NATIVE, "spark.read.parquet of the same rows, written by Spark with zstd; all columns into noop"),
        lambda: _emptied(stage.spark.read.parquet(str(copy))),
        "the way from Python to the JVM, and there from Arrow's columns to rows",
    )


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
    _check(None if found is None else tuple(found), (count, BODY_BYTES * count))


def _emptied(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _streamed(stage: Stage, log: Path, count: int) -> None:
    stream = stage.spark.readStream.format("remuda").option("maxRowsPerTrigger", -(-count // TRIGGERS))
    writer = stream.load(str(log)).writeStream.format("noop").trigger(availableNow=True)
    with stage.folder() as checkpoint:
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()
    _check(sum(progress["numInputRows"] for progress in query.recentProgress), count)


def _check(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise WrongRows(f"{found} came out where {wanted} went in")
