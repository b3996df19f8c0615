"""`python -m benchmarks`: measure, print, keep."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec
from rich.console import Console

from benchmarks import page
from benchmarks.big import BIG_ROWS
from benchmarks.bus.rows import BUS_ROWS
from benchmarks.effort import Effort
from benchmarks.flow.rows import FLOW_ROWS
from benchmarks.grow import GROW_ROWS
from benchmarks.http.rows import HTTP_ROWS
from benchmarks.index.rows import INDEX_ROWS
from benchmarks.lake.rows import LAKE_ROWS, is_lake
from benchmarks.musts import findings
from benchmarks.outbox.rows import OUTBOX_ROWS, is_outbox
from benchmarks.rabbitmq.rows import RABBITMQ_ROWS
from benchmarks.results import BUSY, LATEST, Result, load, merged, save, with_settings
from benchmarks.server.rows import SERVER_ROWS, is_server
from benchmarks.shared.rows import SHARED_ROWS
from benchmarks.spark.rows import SPARK_ROWS, STAGE, is_spark
from benchmarks.table import broker_table, bus_table, findings_table, is_bus, outbox_table, server_table, spark_table
from benchmarks.throughput import measure
from benchmarks.ways import EXCHANGE, PURE, WAYS_ROWS
from benchmarks.workflows.rows import WORKFLOW_ROWS
from benchmarks.workload import workloads

QUICK = Effort(rounds=1, seconds=0.08, messages=300_000)
THOROUGH = Effort()


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    console = Console(width=180)
    if asked.page:
        for path, render in page.PAGES.items():
            page.rewrite(load(asked.output), path, render)
            console.print(f"wrote the tables of {path}")
        return
    effort = QUICK if asked.quick else THOROUGH
    failed: list[str] = []
    results: list[Result] = []
    load_at_start = os.getloadavg()[0]
    old = load(asked.output)
    if asked.rounds:
        effort = msgspec.structs.replace(effort, rounds=asked.rounds)
    with closing(STAGE):
        for result in run(asked.only, effort, console, failed):
            results.append(with_settings(result, load_at_start=round(load_at_start, 2), cores=os.cpu_count()))
            save(merged(old, results, row_names()), asked.output)
    _show(results, console)
    if load_at_start > BUSY:
        console.print(f"[red]The machine was busy (load {load_at_start:.1f} at the start): repeat this when idle.[/]")
    console.print(f"wrote {asked.output}")
    if failed:
        raise SystemExit(f"not measured, and kept as they were: {', '.join(failed)}")


def run(only: str | None, effort: Effort, console: Console, failed: list[str]) -> Iterator[Result]:
    """Measure the rows that `only` names, all without it. A row that fails is told, and the others go on."""
    for name, measuring in rows().items():
        if _wanted(name, only):
            try:
                with console.status(name):
                    result = measuring(effort)
            except Exception:
                console.print_exception(max_frames=8)
                failed.append(name)
            else:
                yield result


def rows() -> dict[str, Callable[[Effort], Result]]:
    """How each row is measured, in the order of the table."""
    return {
        **{workload.name: partial(measure, workload) for workload in workloads()},
        **BUS_ROWS,
        **BIG_ROWS,
        **GROW_ROWS,
        **INDEX_ROWS,
        **SPARK_ROWS,
        **LAKE_ROWS,
        **OUTBOX_ROWS,
        **HTTP_ROWS,
        **RABBITMQ_ROWS,
        **SHARED_ROWS,
        **SERVER_ROWS,
        **FLOW_ROWS,
        **WORKFLOW_ROWS,
        **WAYS_ROWS,
    }


def row_names() -> list[str]:
    return list(rows())


def _show(results: Sequence[Result], console: Console) -> None:
    bus = [result for result in results if is_bus(result)]
    spark = [result for result in results if is_spark(result) or is_lake(result)]
    alone = {*HTTP_ROWS, *SHARED_ROWS, *FLOW_ROWS, *WORKFLOW_ROWS, EXCHANGE, PURE}
    http = [result for result in results if result.name in alone]
    outbox = [result for result in results if is_outbox(result)]
    server = [result for result in results if is_server(result)]
    broker = [result for result in results if result not in (*bus, *spark, *http, *outbox, *server)]
    if broker:
        console.print(broker_table(broker))
    if bus:
        console.print(bus_table(bus))
    if spark:
        console.print(spark_table(spark))
    if outbox:
        console.print(outbox_table(outbox))
    if server:
        console.print(server_table(server))
    for result in http:
        console.print(
            f"{result.name:22} {result.remuda:>12,.1f} {result.unit:12} {result.peers or ''} {result.settings}"
        )
    console.print(findings_table(findings({result.name: result for result in results})))


def _wanted(name: str, only: str | None) -> bool:
    return only is None or only in name or fnmatch(name, only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Remuda beside its peers.")
    parser.add_argument("--only", metavar="PATTERN", help="rows whose name holds or matches this; others are kept")
    parser.add_argument("--quick", action="store_true", help="one short round per contender")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds per contender, of which the median counts")
    parser.add_argument("--page", action="store_true", help="only rewrite the tables in docs")
    parser.add_argument("--output", type=Path, default=LATEST, metavar="FILE", help="where results are kept")
    return parser


def _end(number: int, frame: FrameType | None) -> None:
    """Leave by all `finally`, so that no side's process stays behind."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    main()
