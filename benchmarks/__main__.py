"""`python -m benchmarks`: measure, print, keep."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console

from benchmarks import page
from benchmarks.big import BIG_ROWS
from benchmarks.musts import findings
from benchmarks.results import BUSY, LATEST, Result, load, merged, save, with_settings
from benchmarks.table import findings_table, results_table
from benchmarks.throughput import Effort, measure
from benchmarks.workload import workloads


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    console = Console(width=160)
    if asked.page:
        page.rewrite(load(asked.output))
        console.print(f"wrote the tables of {page.PAGE}")
        return
    quick = Effort(rounds=asked.rounds or 1, seconds=0.08)
    thorough = Effort(rounds=asked.rounds or 3)
    load_at_start = os.getloadavg()[0]
    measured = run(asked.only, quick if asked.quick else thorough, console)
    results = [
        with_settings(result, load_at_start=round(load_at_start, 2), cores=os.cpu_count()) for result in measured
    ]
    old = load(asked.output) if asked.only else []
    save(merged(old, results, row_names()), asked.output)
    console.print(results_table(results))
    console.print(findings_table(findings({result.name: result for result in results})))
    if load_at_start > BUSY:
        console.print(f"[red]The machine was busy (load {load_at_start:.1f} at the start): repeat this when idle.[/]")
    console.print(f"wrote {asked.output}")


def run(only: str | None, effort: Effort, console: Console) -> list[Result]:
    """Measure the rows that `only` names, all without it."""
    results = []
    for workload in workloads():
        if _wanted(workload.name, only):
            with console.status(workload.name):
                results.append(measure(workload, effort))
    for name, big in BIG_ROWS.items():
        if _wanted(name, only):
            with console.status(name):
                results.append(big(effort.rounds))
    return results


def row_names() -> list[str]:
    return [*(workload.name for workload in workloads()), *BIG_ROWS]


def _wanted(name: str, only: str | None) -> bool:
    return only is None or only in name or fnmatch(name, only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Remuda beside its peers.")
    parser.add_argument("--only", metavar="PATTERN", help="rows whose name holds or matches this; others are kept")
    parser.add_argument("--quick", action="store_true", help="one short round per contender")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds per contender, of which the median counts")
    parser.add_argument("--page", action="store_true", help="only rewrite the tables of docs/benchmarks.md")
    parser.add_argument("--output", type=Path, default=LATEST, metavar="FILE", help="where results are kept")
    return parser


if __name__ == "__main__":
    main()
