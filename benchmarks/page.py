"""Writes the tables of `docs/benchmarks.md` and `docs/comparison.md` from the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from benchmarks.big import BIG_ROWS
from benchmarks.bus.failing import FAILING
from benchmarks.bus.rows import LATENCY
from benchmarks.grow import GROW_ROWS
from benchmarks.http.rows import HTTP_ROWS
from benchmarks.index.rows import INDEX_ROWS
from benchmarks.lake.rows import LAKE_ROWS
from benchmarks.musts import findings
from benchmarks.outbox.rows import is_outbox
from benchmarks.results import BUSY, RATE, Result
from benchmarks.server.rows import is_server
from benchmarks.spark.rows import is_measured, is_spark
from benchmarks.table import (
    BROKER_HEADINGS,
    BUS_HEADINGS,
    SERVER_HEADINGS,
    SPARK_HEADINGS,
    broker_cells,
    bus_cells,
    is_bus,
    number,
    server_cells,
    spark_cells,
)

BEGIN: Final = "<!-- results: begin -->"
END: Final = "<!-- results: end -->"
_DOCS: Final = Path(__file__).parent.parent / "docs"
_ELSEWHERE: Final = frozenset({"remuda", "bound_by", "load_at_start", "cores"})


def rewrite(results: list[Result], page: Path, render: Callable[[list[Result]], str]) -> None:
    """Put the results between the page's two markers."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} has no line {BEGIN!r} followed by {END!r}; add both where the table belongs")
    page.write_text(f"{before}{BEGIN}\n{render(results)}\n{END}{after}")


def everything(results: list[Result]) -> str:
    """For the page about the benchmarks."""
    tabled = {**BIG_ROWS, **GROW_ROWS, **INDEX_ROWS, **LAKE_ROWS, **HTTP_ROWS}
    elsewhere = (is_bus, is_spark, is_outbox, is_server, lambda result: result.name in tabled)
    broker = [result for result in results if not any(its(result) for its in elsewhere)]
    big, grow, index, lake, http = (
        [
            [result.name, f"{number(result.remuda, result.unit)} {result.unit}", _details(result), _bound(result)]
            for result in results
            if result.name in rows
        ]
        for rows in (BIG_ROWS, GROW_ROWS, INDEX_ROWS, LAKE_ROWS, HTTP_ROWS)
    )
    musts = [
        [finding.demand, finding.found, "yes" if finding.holds else "**no**"]
        for finding in findings({result.name: result for result in results})
    ]
    return "\n\n".join(
        [
            *_warning(results),
            "The broker, in messages per second from publish to acknowledgement:",
            _table(["row", *BROKER_HEADINGS, "bound by"], map(_broker_row, broker), left={0, 8}),
            *_bus_tables(results),
            *_reasons(results),
            "Large queues and logs:",
            _table(["row", "remuda", "details", "bound by"], big, left={0, 2, 3}),
            *_grow_table(grow),
            "The search index: messages and events per second, and milliseconds to find the newest 50 of two words:",
            _table(["row", "remuda", "details", "bound by"], index, left={0, 2, 3}),
            *(
                [
                    "HTTP, and the 95th percentile of each dashboard page:",
                    _table(["row", "remuda", "details"], [row[:3] for row in http], left={0, 2}),
                ]
                if http
                else []
            ),
            *_spark_tables(list(filter(is_spark, results))),
            *(
                ["The log as lakehouse tables:", _table(["row", "remuda", "details", "bound by"], lake, left={0, 2, 3})]
                if lake
                else []
            ),
            *_server_table(list(filter(is_server, results))),
            "Targets:",
            _table(["target", "measured", "met"], musts, left={0}),
        ]
    )


def _server_table(results: list[Result]) -> list[str]:
    if not results:
        return []
    rows = [[*server_cells(result), _bound(result)] for result in results]
    return [
        "The AMQP server and RabbitMQ: rates from the first publish to the last acknowledgement, and the server's CPU "
        "time per message:",
        _table(["row", "unit", *SERVER_HEADINGS, "bound by"], rows, left={0, 1, len(SERVER_HEADINGS) + 2}),
    ]


def _grow_table(rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    return [
        "The cost of an operation at the largest size, as a multiple of its cost at the smallest:",
        _table(["row", "remuda", "details"], [row[:3] for row in rows], left={0, 2}),
    ]


def comparison(results: list[Result]) -> str:
    """For the page that compares: the bus alone."""
    return "\n\n".join([*_warning(list(filter(is_bus, results))), *_bus_tables(results)])


PAGES: Final[dict[Path, Callable[[list[Result]], str]]] = {
    _DOCS / "benchmarks.md": everything,
    _DOCS / "comparison.md": comparison,
}


def _bus_tables(results: list[Result]) -> list[str]:
    rates = [result for result in results if is_bus(result) and result.unit == RATE]
    times = [result for result in results if result.name == LATENCY]
    failures = [result for result in results if result.name == FAILING]
    tables = []
    if rates:
        tables += [
            "The bus, in messages per second from the first publish to the last handled:",
            _table(["row", *BUS_HEADINGS], map(_bus_row, rates), left={0}),
        ]
    if times:
        tables += [
            "The bus, in milliseconds from publish to the start of the handler:",
            _table(["row", *BUS_HEADINGS], [line for result in times for line in _latency_rows(result)], left={0}),
        ]
    tables += [
        f"A failed message costs {result.remuda:.0f} µs of CPU from the fetch to the scheduled retry with logging, "
        f"{result.settings['µs_without_log']:.0f} µs without; a successful one costs "
        f"{result.settings['µs_of_success']:.0f} µs (`{result.name}`)."
        for result in failures
    ]
    return tables


def _spark_tables(results: list[Result]) -> list[str]:
    if not results:
        return []
    left = {0, 1, len(SPARK_HEADINGS) + 2}
    missing = [f"- {result.name}: {result.settings['remuda']}." for result in results if not is_measured(result)]
    return [
        "Spark over the log, in CPU seconds of the JVM and all Python workers:",
        _table(["row", "unit", *SPARK_HEADINGS, "bound by"], map(_spark_row, results), left),
        *(["\n".join(missing)] if missing else []),
    ]


def _reasons(results: list[Result]) -> list[str]:
    """Why some have no figure."""
    missing = {
        f"- {result.name}: {peer} {result.settings[peer]}."
        for result in results
        for peer, figure in result.peers.items()
        if figure is None
    }
    return ["\n".join(sorted(missing))] if missing else []


def _warning(results: list[Result]) -> list[str]:
    load = max((result.settings.get("load_at_start", 0) for result in results), default=0)
    if load <= BUSY:
        return []
    return [f"**The machine was busy with other work (load {load} at the start), so even ratios are rough.**"]


def _broker_row(result: Result) -> list[str]:
    name, _, *figures = broker_cells(result)
    return [f"`{name.removeprefix('embedded/')}`", *figures, _bound(result)]


def _bus_row(result: Result) -> list[str]:
    name, _, *figures = bus_cells(result)
    return [f"`{name}`", *figures]


def _spark_row(result: Result) -> list[str]:
    name, *figures = spark_cells(result)
    return [f"`{name}`", *figures, _bound(result)]


def _latency_rows(result: Result) -> list[list[str]]:
    """The middle, which the ratio is of, and the ninety-ninth of a hundred."""
    _, *middle = _bus_row(result)
    late = result.settings.get("p99_ms", {})
    return [
        [f"`{result.name}` p50", *middle],
        [f"`{result.name}` p99", *(number(late.get(side), result.unit) for side in BUS_HEADINGS[:-1]), ""],
    ]


def _details(result: Result) -> str:
    shown = {name: value for name, value in result.settings.items() if name not in _ELSEWHERE}
    return "; ".join(f"{name.replace('_', ' ')} {_detail(value)}" for name, value in shown.items())


def _detail(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bound(result: Result) -> str:
    return str(result.settings.get("bound_by", ""))


def _table(headings: list[str], rows: Iterable[list[str]], left: set[int]) -> str:
    rules = ["---" if column in left else "--:" for column in range(len(headings))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [headings, rules, *rows])
