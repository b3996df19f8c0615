"""`python -m benchmarks.rabbitmq`: measure the clients and print a table."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from benchmarks.effort import Effort
from benchmarks.rabbitmq.rows import rabbitmq_rows, started_server
from benchmarks.results import Result


def main(quick: bool) -> None:
    effort = Effort(rounds=1, seconds=0.1) if quick else Effort(rounds=3, seconds=1.0)
    with started_server() as server:
        results = [measure(effort) for measure in rabbitmq_rows(server).values()]
    Console(width=120).print(table(results))


def table(results: list[Result]) -> Table:
    drawn = Table(title="On RabbitMQ, 100 B persistent, messages/s")
    peers = list(dict.fromkeys(peer for result in results for peer in result.peers))
    for heading in ("row", "remuda", *peers, "to best peer"):
        drawn.add_column(heading, justify="left" if heading == "row" else "right")
    for result in results:
        rates = (f"{result.peers[peer] or 0:,.0f}" if peer in result.peers else "" for peer in peers)
        drawn.add_row(result.name, f"{result.remuda:,.0f}", *rates, f"{result.ratio_to_best_peer:.1f}")
        costs = result.settings["cpu_us_per_message"]
        least = min(costs[peer] for peer in result.peers) / costs["remuda"]
        cells = (f"{costs[side]:,.1f}" if side in costs else "" for side in ("remuda", *peers))
        drawn.add_row("  CPU µs of the client for each", *cells, f"{least:.1f}")
    return drawn


if __name__ == "__main__":
    main("--quick" in sys.argv)
