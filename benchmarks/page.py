"""The table of `docs/benchmarks.md`, made from the results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.musts import findings
from benchmarks.results import BUSY, Result
from benchmarks.table import cells, number

PAGE: Final = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN: Final = "<!-- results: begin -->"
END: Final = "<!-- results: end -->"
_ELSEWHERE: Final = frozenset({"remuda", "bound_by", "load_at_start", "cores"})


def rewrite(results: list[Result], page: Path = PAGE) -> None:
    """Put the results between the page's two markers."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} has no line {BEGIN!r} followed by {END!r}; add both where the table belongs")
    page.write_text(f"{before}{BEGIN}\n{render(results)}\n{END}{after}")


def render(results: list[Result]) -> str:
    headings = [
        "row",
        "remuda",
        "huey",
        "persist-queue",
        "litequeue",
        "to best peer",
        "bare loop",
        "to loop",
        "bound by",
    ]
    rates = [_rate_row(result) for result in results if result.limit is not None]
    others = [
        [result.name, f"{number(result.remuda, result.unit)} {result.unit}", _details(result), _bound(result)]
        for result in results
        if result.limit is None
    ]
    musts = [
        [finding.demand, finding.found, "yes" if finding.holds else "**no**"]
        for finding in findings({result.name: result for result in results})
    ]
    return "\n\n".join(
        [
            *_warning(results),
            "Messages per second, from publish to acknowledgement:",
            _table(headings, rates, left={0, 8}),
            "Ten million messages:",
            _table(["row", "remuda", "details", "bound by"], others, left={0, 2, 3}),
            "What it must reach:",
            _table(["must", "found", "reached"], musts, left={0}),
        ]
    )


def _warning(results: list[Result]) -> list[str]:
    load = max((result.settings.get("load_at_start", 0) for result in results), default=0)
    if load <= BUSY:
        return []
    return [f"**The machine was busy with other work (load {load} at the start): even ratios are rough.**"]


def _rate_row(result: Result) -> list[str]:
    name, _, *figures = cells(result)
    return [f"`{name.removeprefix('embedded/')}`", *figures, _bound(result)]


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
