"""Results and findings for the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from benchmarks.musts import Finding
from benchmarks.results import RATE, Result


def results_table(results: Iterable[Result]) -> Table:
    table = Table(title="Remuda beside its peers and a bare loop (more is better, but for seconds and MB)")
    table.add_column("row")
    table.add_column("unit")
    for heading in ("remuda", "huey", "persist-queue", "litequeue", "to best peer", "bare loop", "to loop"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(*cells(result))
    return table


def cells(result: Result) -> list[str]:
    """One row as texts."""
    peers = [result.peers.get(peer) for peer in ("huey", "persist-queue", "litequeue")]
    return [
        result.name,
        result.unit,
        number(result.remuda, result.unit),
        *(number(rate, result.unit) for rate in peers),
        "" if result.ratio_to_best_peer is None else f"{result.ratio_to_best_peer:,.1f}",
        number(result.limit, result.unit),
        "" if result.ratio_to_limit is None else f"{result.ratio_to_limit:.2f}",
    ]


def number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if unit == RATE else f"{value:,.2f}"


def findings_table(findings: Iterable[Finding]) -> Table:
    table = Table(title="What it must reach")
    table.add_column("must")
    table.add_column("found", justify="right")
    table.add_column("")
    for finding in findings:
        verdict = "[green]pass[/]" if finding.holds else "[red]fail[/]"
        table.add_row(finding.demand, finding.found, verdict)
    return table
