"""The report as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from remuda.report.figures import Figures, QueueReport, Report, Window
from remuda.report.formatting import clock, counted, number, seconds, share, short_clock, state, visible

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ROOMY: Final = 100
"""From so many columns on there is room for everything."""
_QUEUES: Final = 25
_REASONS: Final = 15
_NAME: Final = 32
_NARROWEST: Final = 12
_REASON: Final = 200


def print_report(report: Report, console: Console, *, short: bool = False) -> None:
    """Print the totals, the queues and why messages died; unless it is to be `short`, also times and attempts."""
    for line in summary(report):
        console.print(Text(line))
    if report.first is None:
        return
    shown = report.queues[:_QUEUES]
    console.print(_queues(shown, roomy=console.width >= _ROOMY))
    if (missing := report.queue_count - len(shown)) > 0:
        console.print(Text(f"{counted(missing, 'queue')} with fewer messages not shown; --json and --output list them"))
    if not short:
        console.print(_times([("all", report.figures), *((queue.name, queue.figures) for queue in shown)]))
        if any(len(queue.funnel) > 1 for queue in report.detailed):
            console.print(_funnels(report.detailed))
    if report.reasons:
        console.print(_dead(report))


def summary(report: Report) -> Iterable[str]:
    """The totals, in a few lines."""
    where = visible(report.source) + (f" ({report.selection})" if report.selection else "")
    if report.first is None or report.last is None:
        yield f"{where}: there are no messages to report on"
        return
    found = report.figures
    span = (report.last - report.first).total_seconds()
    yield (
        f"{where}: {counted(report.messages, 'message')}, {counted(found.published, 'copy')} in "
        f"{counted(report.queue_count, 'queue')}; from {clock(report.first)} to {clock(report.last)} UTC, "
        f"in {seconds(span)}"
    )
    yield (
        f"{number(found.succeeded)} succeeded ({share(found.succeeded, found.published)}), {number(found.dead)} dead, "
        f"{number(found.waiting)} waiting ({number(report.in_retry)} in retry), {number(found.retried)} retried, "
        f"{number(found.unchanged)} unchanged ({share(found.unchanged, report.messages)} of messages)"
    )


def sparkline(windows: Sequence[Window], width: int) -> Text:
    """Throughput as a row of blocks, red where messages died."""
    cells = [(0, 0)] * min(width, len(windows))
    for at, window in enumerate(windows):
        cell = at * len(cells) // len(windows)
        published, dead = cells[cell]
        cells[cell] = (published + window.figures.published, dead + window.figures.dead)
    most = max((published for published, _ in cells), default=0)
    drawn = Text()
    for published, dead in cells:
        block = _BLOCKS[(published * len(_BLOCKS) - 1) // most] if published else " "
        drawn.append(block, style="red" if dead else "cyan")
    return drawn


def _queues(queues: Sequence[QueueReport], *, roomy: bool) -> Table:
    with_moved = any(queue.figures.moved for queue in queues)
    with_unchanged = any(queue.figures.unchanged for queue in queues)
    columns = ["queue", "over time", "published", "succeeded", "dead", *(["moved"] if with_moved else []), "waiting"]
    columns += ["unchanged"] if with_unchanged else []
    columns += ["retried", "wait p95", "took p95"] if roomy else []
    table = _table("Queues", columns, words=("queue", "over time"))
    for queue in queues:
        found = queue.figures
        cells: list[str | Text] = [
            _name(queue.name),
            sparkline(queue.windows, 20 if roomy else 10),
            number(found.published),
            number(found.succeeded),
            Text(number(found.dead), style="red" if found.dead else ""),
            *([number(found.moved)] if with_moved else []),
            number(found.waiting),
        ]
        if with_unchanged:
            cells.append(share(found.unchanged, found.published + found.unchanged))
        if roomy:
            cells += [number(found.retried), seconds(found.wait.p95), seconds(found.processing.p95)]
        table.add_row(*cells)
    return table


def _times(rows: Iterable[tuple[str, Figures]]) -> Table:
    shares = ("p50", "p95", "p99")
    table = _table("Times", ["queue", *(f"{what} {one}" for what in ("wait", "took") for one in shares)])
    for name, found in rows:
        values = [getattr(times, one) for times in (found.wait, found.processing) for one in shares]
        table.add_row(_name(name), *map(seconds, values))
    return table


def _funnels(queues: Iterable[QueueReport]) -> Table:
    table = _table("Attempts", ["queue", "attempt", "reached it", "succeeded there"])
    for queue in queues:
        if len(queue.funnel) > 1:
            table.add_section()
            for step in queue.funnel:
                name = _name(queue.name if step.attempt == 1 else "")
                table.add_row(name, str(step.attempt), number(step.reached), number(step.succeeded))
    return table


def _dead(report: Report) -> Table:
    shown = report.reasons[:_REASONS]
    table = _table(
        "Why messages died", ["queue", "how", "messages", "last", "reason"], words=("queue", "how", "last", "reason")
    )
    for one in shown:
        last = "" if one.last is None else short_clock(one.last)
        reason = Text(visible(one.reason, _REASON))
        table.add_row(_name(one.queue or ""), state(one.state), number(one.messages), last, reason)
    rest = report.figures.dead - sum(one.messages for one in shown)
    if rest > 0:
        table.add_row("", "", number(rest), "", "other reasons")
    return table


def _table(title: str, columns: Sequence[str], words: Sequence[str] = ("queue",)) -> Table:
    """A table of numbers. Where it is too wide, names and reasons are folded, never a number."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title=title, title_justify="left")
    for column in columns:
        foreign = column in ("queue", "reason")
        table.add_column(
            column,
            justify="left" if column in words else "right",
            no_wrap=not foreign,
            overflow="fold",
            min_width=_NARROWEST if foreign else None,
            max_width=_NAME if column == "queue" else None,
        )
    return table


def _name(text: str) -> Text:
    return Text(visible(text, _NAME))
