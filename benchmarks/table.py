"""Results and findings for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.table import Table

from benchmarks.musts import Finding
from benchmarks.results import RATE, Result
from benchmarks.spark.rows import is_measured
from benchmarks.spark.scans import BATCH_SOURCE, NATIVE
from benchmarks.spark.scans import UNIT as CPU_RATE

BROKER_PEERS: Final = ("huey", "persist-queue", "litequeue")
BUS_PEERS: Final = ("huey", "huey-memory", "dramatiq", "celery")
BROKER_HEADINGS: Final = ("remuda", *BROKER_PEERS, "to best peer", "bare loop", "to loop")
BUS_HEADINGS: Final = ("remuda", "remuda, always", *BUS_PEERS, "to best peer")

OUTBOX_PEERS: Final = ("pgqueuer", "procrastinate")
OUTBOX_HEADINGS: Final = ("remuda", *OUTBOX_PEERS, "to best peer", "raw SQL", "to raw SQL")

SERVER_PEERS: Final = ("classic", "quorum")
SERVER_HEADINGS: Final = (
    "remuda", "RabbitMQ, classic", "RabbitMQ, quorum", "to classic", "to quorum", "CPU µs/message", "RabbitMQ's",
)  # fmt: skip

SPARK_PEERS: Final = (NATIVE, BATCH_SOURCE)
SPARK_HEADINGS: Final = ("remuda", *SPARK_PEERS, "ratio", "ratio by wall", "growth")


def is_bus(result: Result) -> bool:
    return result.name.startswith("bus/")


def broker_table(results: Iterable[Result]) -> Table:
    table = Table(title="The broker, its peers and a bare loop (more is better, except for seconds and MB)")
    return _filled(table, BROKER_HEADINGS, (broker_cells(result) for result in results))


def bus_table(results: Iterable[Result]) -> Table:
    table = Table(title="The bus and its peers (more is better, except for ms); only Remuda and huey are durable")
    return _filled(table, BUS_HEADINGS, (bus_cells(result) for result in results))


def spark_table(results: Iterable[Result]) -> Table:
    table = Table(title="Spark over the log, in CPU seconds of the JVM and all Python workers")
    return _filled(table, SPARK_HEADINGS, (spark_cells(result) for result in results))


def outbox_table(results: Iterable[Result]) -> Table:
    table = Table(title="The outbox on PostgreSQL with fsync on, its peers and raw SQL (more is better, except for ms)")
    return _filled(table, OUTBOX_HEADINGS, (outbox_cells(result) for result in results))


def server_table(results: Iterable[Result]) -> Table:
    table = Table(title="The AMQP server and RabbitMQ with the same clients, and the cost of a message for each server")
    return _filled(table, SERVER_HEADINGS, (server_cells(result) for result in results))


def server_cells(result: Result) -> list[str]:
    """One row as texts; the costs are CPU time of the server for each message."""
    rates = [result.peers.get(peer) for peer in SERVER_PEERS]
    costs = result.settings.get("server_us_per_message", {})
    return [
        *_beginning(result),
        *(number(rate, result.unit) for rate in rates),
        *("" if not rate else f"{result.remuda / rate:.1f}" for rate in rates),
        *(number(costs.get(side), "µs") for side in ("remuda", "quorum" if "quorum" in costs else "classic")),
    ]


def outbox_cells(result: Result) -> list[str]:
    return [
        *_beginning(result),
        *(number(result.peers.get(peer), result.unit) for peer in OUTBOX_PEERS),
        ratio(result),
        number(result.limit, result.unit),
        "" if result.ratio_to_limit is None else f"{result.ratio_to_limit:.2f}",
    ]


def broker_cells(result: Result) -> list[str]:
    """One row as texts."""
    return [
        *_beginning(result),
        *(number(result.peers.get(peer), result.unit) for peer in BROKER_PEERS),
        ratio(result),
        number(result.limit, result.unit),
        "" if result.ratio_to_limit is None else f"{result.ratio_to_limit:.2f}",
    ]


def bus_cells(result: Result) -> list[str]:
    always = result.settings.get("always", {})
    return [
        *_beginning(result),
        number(always.get("remuda"), result.unit),
        *(number(result.peers.get(peer), result.unit) for peer in BUS_PEERS),
        ratio(result),
    ]


def spark_cells(result: Result) -> list[str]:
    """Growth is what a million cost in the large run, beside what they cost in the small one."""
    if not is_measured(result):
        return [result.name, result.unit, "not measured", *[""] * (len(SPARK_HEADINGS) - 1)]
    return [
        *_beginning(result),
        *(number(result.peers.get(peer), result.unit) for peer in SPARK_PEERS),
        *map(_hundredths, (result.ratio_to_best_peer, *map(result.settings.get, ("ratio_by_wall", "growth")))),
    ]


def number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if unit in (RATE, CPU_RATE) else f"{value:,.2f}"


def _hundredths(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def ratio(result: Result) -> str:
    return "" if result.ratio_to_best_peer is None else f"{result.ratio_to_best_peer:,.1f}"


def findings_table(findings: Iterable[Finding]) -> Table:
    table = Table(title="Targets")
    table.add_column("target")
    table.add_column("measured", justify="right")
    table.add_column("")
    for finding in findings:
        verdict = "[green]pass[/]" if finding.holds else "[red]fail[/]"
        table.add_row(finding.demand, finding.found, verdict)
    return table


def _beginning(result: Result) -> list[str]:
    return [result.name, result.unit, number(result.remuda, result.unit)]


def _filled(table: Table, headings: Iterable[str], rows: Iterable[list[str]]) -> Table:
    table.add_column("row")
    table.add_column("unit")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
