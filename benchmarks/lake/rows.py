"""The lakehouse rows: what a version costs, and how engines read the log's own files beside files of their own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.effort import Effort
from benchmarks.results import Result
from benchmarks.scratch import scratch
from benchmarks.spark import logs
from remuda import Messages, lake, open_broker
from remuda.lake.files import folder_of
from remuda.lake.publishing import DELTA, ICEBERG, TablePublisher

COMMIT: Final = "lake/commit"
ENGINES: Final = ("lake/duckdb", "lake/polars")
UNIT: Final = "CPU-s"
_NOT_MEASURED: Final = "not measured: "
_SEGMENTS: Final = 60
_SEGMENT_BYTES: Final = 1 << 20
_QUERY: Final = "count and bytes of bodies by name"


def is_lake(result: Result) -> bool:
    return result.name.startswith("lake/")


def commit(effort: Effort) -> Result:
    """One sealed segment after the other, each published in both formats."""
    formats = (DELTA, ICEBERG)
    cpu: dict[str, list[float]] = {kind: [] for kind in formats}
    wall: dict[str, list[float]] = {kind: [] for kind in formats}
    size: dict[str, list[int]] = {kind: [] for kind in formats}
    with scratch() as root, open_broker(root / "log", sync="os", segment_bytes=_SEGMENT_BYTES) as broker:
        publishers = {kind: TablePublisher(root / "log", [kind]) for kind in formats}
        bodies = logs.bodies(_SEGMENT_BYTES // logs.BODY_BYTES)
        for _ in range(_SEGMENTS):
            broker.publish(Messages(name=logs.QUEUE, bodies=bodies))
            broker.checkpoint()
            broker.checkpoint()
            broker.runtime.upkeep.seal()
            for kind, publisher in publishers.items():
                before = _metadata(root / "log")
                begun, used = time.perf_counter(), time.thread_time()
                added = sum(one.added for one in publisher.publish())
                spent = time.thread_time() - used, time.perf_counter() - begun
                if added:
                    cpu[kind].append(1000 * spent[0] / added)
                    wall[kind].append(1000 * spent[1] / added)
                    size[kind].append(sum(v for k, v in _metadata(root / "log").items() if k not in before) // added)
    slowest = max(statistics.median(times) for times in cpu.values())
    return Result(
        name=COMMIT,
        unit="ms",
        remuda=round(slowest, 2),
        settings={
            "remuda": f"a version of a table for each of {_SEGMENTS} sealed segments, linked and checked; CPU time, "
            "of the dearer format",
            "bound_by": "syncing the files of metadata, and the checksums of the new file",
            "cpu_ms": {kind: round(statistics.median(times), 2) for kind, times in cpu.items()},
            "wall_ms": {kind: round(statistics.median(times), 2) for kind, times in wall.items()},
            "bytes": {kind: max(sizes[1:]) for kind, sizes in size.items()},
        },
    )


def _metadata(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in (root / "tables").rglob("*") if path.suffix != ".parquet"}


def by_duckdb(effort: Effort) -> Result:
    import duckdb

    def own(log: Path, target: Path) -> None:
        with duckdb.connect() as database:
            target.mkdir()
            listed = _files(log)
            database.execute(
                f"copy (select * from read_parquet({listed})) to '{target}/own.parquet' (format parquet, codec zstd)"
            )

    def ask(files: list[str]) -> int:
        with duckdb.connect() as database:
            found = database.execute(
                f"select name, count(*), sum(octet_length(body)) from read_parquet({files}) group by name"
            ).fetchall()
        return sum(int(row[1]) for row in found)

    return _beside(
        ENGINES[0],
        effort,
        own,
        {"remuda": lambda log, copy: ask(_files(log)), "own files": lambda log, copy: ask(copy)},
    )


def by_polars(effort: Effort) -> Result:
    import polars

    def own(log: Path, target: Path) -> None:
        target.mkdir()
        polars.scan_delta(str(folder_of(log, "messages"))).sink_parquet(target / "own.parquet", compression="zstd")

    def ask(rows: polars.LazyFrame) -> int:
        found = rows.group_by("name").agg(polars.len(), polars.col("body").bin.size().sum().alias("bytes")).collect()
        return int(found["len"].sum())

    return _beside(
        ENGINES[1],
        effort,
        own,
        {
            "remuda": lambda log, copy: ask(polars.scan_delta(str(folder_of(log, "messages")))),
            "own files": lambda log, copy: ask(polars.scan_parquet(copy)),
        },
    )


Ask = Callable[[Path, list[str]], int]


def _beside(name: str, effort: Effort, own: Callable[[Path, Path], None], sides: Mapping[str, Ask]) -> Result:
    costs: dict[str, list[float]] = {side: [] for side in sides}
    walls: dict[str, list[float]] = {side: [] for side in sides}
    with scratch() as root:
        logs.fill(root / "log", effort.messages, segment_bytes=min(64 << 20, max(1 << 16, 50 * effort.messages)))
        (told,) = (one for one in lake.publish(root / "log", formats=[DELTA]) if one.table == "messages")
        own(root / "log", root / "copy")
        copy = [str(path) for path in (root / "copy").iterdir()]
        for number in range(effort.rounds + 1):
            for side in list(sides) if number % 2 else reversed(list(sides)):
                begun, used = time.perf_counter(), time.process_time()
                count = sides[side](root / "log", copy)
                spent = time.process_time() - used
                if count != told.end:
                    raise ValueError(f"{side} counted {count} rows, and {told.end} are sealed")
                if number:
                    costs[side].append(spent)
                    walls[side].append(time.perf_counter() - begun)
    ours, theirs = (statistics.median(costs[side]) for side in sides)
    return Result(
        name=name,
        unit=UNIT,
        remuda=round(ours, 3),
        peers={"own files": round(theirs, 3)},
        ratio_to_best_peer=round(theirs / ours, 3),
        settings={
            "remuda": f"{_QUERY}, over the sealed files as a table lists them",
            "own files": f"{_QUERY}, over the same rows as the engine itself writes them, with zstd",
            "bound_by": "decoding, and the number of row groups",
            "messages": effort.messages,
            "times": round(ours / theirs, 3),
            "times_by_wall": round(statistics.median(walls["remuda"]) / statistics.median(walls["own files"]), 3),
        },
    )


def _files(log: Path) -> list[str]:
    """The files that the table lists, since DuckDB's own reader of Delta is an extension to be downloaded."""
    from remuda.lake.delta import DeltaLakehouse

    table = DeltaLakehouse(log, "messages")
    table.refresh()
    return sorted(str(folder_of(log, "messages") / path) for path in table.listed())


def attempted(name: str, measuring: Callable[[Effort], Result]) -> Callable[[Effort], Result]:
    """The row, or one that says what is not installed."""

    def run(effort: Effort) -> Result:
        try:
            return measuring(effort)
        except ImportError as missing:
            return Result(name=name, unit=UNIT, remuda=0.0, settings={"remuda": f"{_NOT_MEASURED}{missing}"})

    return run


LAKE_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    COMMIT: commit,
    ENGINES[0]: attempted(ENGINES[0], by_duckdb),
    ENGINES[1]: attempted(ENGINES[1], by_polars),
}
