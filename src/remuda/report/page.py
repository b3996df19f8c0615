"""The report as one page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from remuda.model.errors import DirectoryNotWritable
from remuda.report.charts import (
    OUTCOMES,
    Drawing,
    columns,
    meter,
    outcomes,
    ranges,
    share_bar,
    sparkline,
    stairs,
)
from remuda.report.figures import Figures, QueueReport, Reason, Report, Step, Times, Window
from remuda.report.formatting import REASON, clock, counted, fine_clock, number, seconds, share, state, visible
from remuda.report.html import Content, Markup, join, tag

# Should a text ever slip through unescaped, it could still load nothing and run nothing.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_REASONS: Final = 50
_COUNTS: Final = ("published", *OUTCOMES, "retried")


def render(report: Report) -> str:
    """The whole page."""
    title = f"Remuda report: {visible(report.source)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(Path(__file__).with_name("page.css").read_text())),
    )
    body = tag("body", _header(report), tag("main", _main(report)), _footer(report))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def check_place(path: str | os.PathLike[str]) -> None:
    """Raise if no page can be written there; called before the report is made, so that nobody waits in vain."""
    target = _target(path)
    if target.exists() and not target.is_file():
        raise DirectoryNotWritable(f"{str(path)!r} is not a file, so the report cannot be written there; name a file")
    if not target.parent.is_dir():
        raise DirectoryNotWritable(
            f"there is no directory {str(target.parent)!r} for the report; create it, or choose another place"
        )
    if not os.access(target.parent, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise DirectoryNotWritable(
            f"the directory {str(target.parent)!r} cannot be written, so the report cannot be kept there; "
            "change its permissions, or choose another place"
        )


def write_page(path: str | os.PathLike[str], report: Report) -> None:
    """Write the page whole or not at all; one that was there before stays until the new one is complete."""
    check_place(path)
    target = _target(path)
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(render(report))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DirectoryNotWritable(
            f"the report could not be written to {str(path)!r}: {error.strerror or error}; nothing was changed there"
        ) from error


def _target(path: str | os.PathLike[str]) -> Path:
    """A link stays a link; the file it leads to is replaced."""
    return Path(os.path.realpath(path))


def _header(report: Report) -> Markup:
    lines: list[Content] = [tag("h1", "What became of the messages in ", _foreign(report.source))]
    if report.selection:
        lines.append(tag("p", "Of all of them: ", tag("bdi", report.selection)))
    if report.first is None or report.last is None:
        lines.append(tag("p", "There are no messages to report on.", class_="soft"))
        return tag("header", lines)
    span = (report.last - report.first).total_seconds()
    lines.append(
        tag(
            "p",
            f"Published from {clock(report.first)} to {clock(report.last)} UTC, in {seconds(span)}. "
            f"Windows of {seconds(report.window)}; all times in UTC.",
            class_="soft",
        )
    )
    return tag("header", lines, _tiles(report))


def _tiles(report: Report) -> Markup:
    found = report.figures
    copies = counted(found.published, "copy")
    tiles = [
        _tile("messages", number(report.messages), f"messages, {copies} in {counted(report.queue_count, 'queue')}"),
        _tile("succeeded", number(found.succeeded), f"succeeded, {share(found.succeeded, found.published)}"),
        _tile("dead" if found.dead else "", number(found.dead), f"dead, {share(found.dead, found.published)}"),
        _tile("waiting", number(found.waiting), f"waiting, {number(report.in_retry)} of them in retry"),
        _tile("retried", number(found.retried), f"retried, {share(found.retried, found.published)}"),
        _tile("unchanged", number(found.unchanged), f"unchanged, {share(found.unchanged, report.messages)}"),
        _tile("wait", seconds(found.wait.p95), f"waiting time p95; p50 {seconds(found.wait.p50)}"),
        _tile("took", seconds(found.processing.p95), f"processing time p95; p50 {seconds(found.processing.p50)}"),
    ]
    return join(tag("div", tiles, class_="tiles"), tag("div", share_bar(found), class_="outcome"))


def _tile(name: str, value: str, words: str) -> Markup:
    return tag("div", tag("b", value), tag("span", words), class_=f"tile {name}".strip())


def _main(report: Report) -> Markup:
    if report.first is None:
        return Markup("")
    return join(
        tag("h2", "All queues"),
        tag("div", _charts(report.windows, report.window, report.figures), _funnel(report.funnel), class_="grid"),
        tag("h2", "Queues"),
        tag("div", tag("div", _queue_table(report), class_="scroll"), class_="card"),
        _left_out(report),
        tag("h2", "Why messages died") if report.figures.dead else "",
        _dead(report.reasons[:_REASONS], report.figures.dead, with_queue=True),
        (_queue_section(at, queue, report.window) for at, queue in enumerate(report.detailed)),
    )


def _left_out(report: Report) -> Markup:
    """What a long list does not show."""
    lines = []
    if len(report.detailed) < len(report.queues):
        lines.append(f"Charts are drawn for the {len(report.detailed)} busiest.")
    if (missing := report.queue_count - len(report.queues)) > 0:
        lines.append(f"{counted(missing, 'queue')} with fewer messages left out.")
    return tag("p", " ".join(lines), class_="summary") if lines else Markup("")


def _charts(windows: Sequence[Window], window: float, whole: Figures) -> Markup:
    return join(
        _figure("Throughput", columns(windows, window), _counts_table(windows, window)),
        _times("Waiting", windows, window, lambda one: one.wait, whole.wait),
        _times("Processing", windows, window, lambda one: one.processing, whole.processing),
    )


def _times(
    title: str, windows: Sequence[Window], window: float, pick: Callable[[Figures], Times], whole: Times
) -> Markup:
    drawing = ranges(windows, window, pick, whole)
    if drawing is None:
        return _note(title, "Nothing to measure yet.")
    rows = (
        (fine_clock(one.start, window), *map(seconds, (found.p50, found.p95, found.p99)))
        for one in windows
        if (found := pick(one.figures)).p50 is not None
    )
    return _figure(title, drawing, _table(("from", "half within", "95 % within", "99 % within"), rows))


def _funnel(steps: Sequence[Step]) -> Markup:
    if len(steps) <= 1 and all(step.reached == step.succeeded for step in steps):
        return Markup("")  # nothing was tried twice, and nothing gave up
    rows = ((str(step.attempt), number(step.reached), number(step.succeeded)) for step in steps)
    return _figure("Attempts", stairs(steps), _table(("attempt", "reached it", "succeeded there"), rows), full=True)


def _counts_table(windows: Sequence[Window], window: float) -> Markup:
    rows = (
        (
            fine_clock(one.start, window),
            *map(number, (one.figures.published, *outcomes(one.figures), one.figures.retried)),
        )
        for one in windows
        if one.figures.published or one.figures.unchanged
    )
    return _table(("from", *_COUNTS), rows)


def _figure(title: str, drawing: Drawing, numbers: Markup, *, full: bool = False) -> Markup:
    legend = tag(
        "ul", (tag("li", tag("i", class_=name), words) for name, words in drawing.legend), class_="legend"
    )  # fmt: skip
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), legend),
        tag("p", drawing.summary, class_="summary"),
        drawing.picture,
        tag("details", tag("summary", "Numbers"), tag("div", numbers, class_="scroll")),
        class_="card full" if full else "card",
    )


def _note(title: str, words: str) -> Markup:
    return tag("div", tag("h3", title), tag("p", words, class_="summary"), class_="card")


def _queue_table(report: Report) -> Markup:
    with_moved = any(queue.figures.moved for queue in report.queues)
    with_unchanged = any(queue.figures.unchanged for queue in report.queues)
    counts = ["published", "succeeded", "dead", "waiting", "retried"]
    counts += [*(["moved on"] if with_moved else []), *(["unchanged"] if with_unchanged else [])]
    above = tag(
        "tr",
        (tag("th", name, scope="col", rowspan=2) for name in ("queue", "over time")),
        (tag("th", name, scope="col", rowspan=2, class_="n") for name in counts),
        (tag("th", name, scope="colgroup", colspan=3, class_="group") for name in ("waiting time", "processing time")),
    )
    below = tag("tr", (tag("th", name, scope="col", class_="n") for name in 2 * ("p50", "p95", "p99")))
    places = {queue.name: at for at, queue in enumerate(report.detailed)}
    rows = (_queue_row(queue, places.get(queue.name), with_moved, with_unchanged) for queue in report.queues)
    return tag("table", tag("thead", above, below), tag("tbody", rows), class_="queues")


def _queue_row(queue: QueueReport, place: int | None, with_moved: bool, with_unchanged: bool) -> Markup:
    found = queue.figures
    name = _foreign(queue.name)
    counts = [found.published, found.succeeded, found.dead, found.waiting, found.retried]
    counts += [found.moved] if with_moved else []
    cells = [tag("td", number(count), class_="n died" if at == 2 and count else "n") for at, count in enumerate(counts)]
    if with_unchanged:
        cells.append(tag("td", share(found.unchanged, found.published + found.unchanged), class_="n"))
    times = [value for one in (found.wait, found.processing) for value in (one.p50, one.p95, one.p99)]
    return tag(
        "tr",
        tag("td", name if place is None else tag("a", name, href=f"#queue-{place}"), class_="name"),
        tag("td", sparkline(queue.windows) if queue.detailed else ""),
        cells,
        (tag("td", seconds(value), class_="n") for value in times),
    )


def _queue_section(place: int, queue: QueueReport, window: float) -> Markup:
    found = queue.figures
    words = f"{counted(found.published, 'copy')}: {number(found.succeeded)} succeeded, {number(found.dead)} dead, "
    words += f"{number(found.waiting)} waiting, {number(found.retried)} retried"
    if found.moved:
        words += f", {number(found.moved)} moved on to other queues"
    if found.unchanged:
        words += f"; {number(found.unchanged)} more held back as unchanged, "
        words += share(found.unchanged, found.published + found.unchanged)
    return tag(
        "section",
        tag("h2", _foreign(queue.name), id=f"queue-{place}"),
        tag("p", words, class_="soft"),
        tag("div", _charts(queue.windows, window, found), class_="grid three"),
        tag("div", _funnel(queue.funnel), _dead(queue.reasons, found.dead, with_queue=False), class_="grid"),
    )


def _dead(reasons: Sequence[Reason], dead: int, *, with_queue: bool) -> Markup:
    """Why messages died, as a table in which the counts are drawn too."""
    if not dead:
        return Markup("")
    names = ["messages", "reason", "how", *(["queue"] if with_queue else []), "last"]
    head = tag("tr", (tag("th", name, scope="col", colspan=None if at else 2) for at, name in enumerate(names)))
    most = max((one.messages for one in reasons), default=1)
    rows = [
        tag(
            "tr",
            tag("td", number(one.messages), class_="n"),
            tag("td", meter(one.messages, most), class_="meter"),
            tag("td", _foreign(one.reason, REASON), class_="reason"),
            tag("td", state(one.state), class_="how"),
            tag("td", _foreign(one.queue or ""), class_="name") if with_queue else "",
            tag("td", clock(one.last) if one.last else "", class_="n"),
        )
        for one in reasons
    ]
    rest = dead - sum(one.messages for one in reasons)
    more = tag("p", f"{number(rest)} more died of other reasons.", class_="summary") if rest > 0 else ""
    table = tag("table", tag("thead", head), tag("tbody", rows))
    return tag("div", tag("div", table, class_="scroll"), more, class_="card full")


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Numbers behind a chart; the first column says of when or what they are."""
    head = tag("tr", (tag("th", name, scope="col") for name in names))
    body = (tag("tr", (tag("td", cell) for cell in row)) for row in rows)
    return tag("table", tag("thead", head), tag("tbody", body), class_="numbers")


def _foreign(text: str, limit: int = 60) -> Markup:
    """A text from outside: its writing direction cannot affect what is beside it."""
    return tag("bdi", visible(text, limit))


def _footer(report: Report) -> Markup:
    words = (
        "A copy is a message in one queue. Each is counted in the window in which it was published, with what became "
        "of it by the time of this report. Waiting is the time to the first fetch, processing from the fetch that was "
        "first answered to that answer. Percentiles are approximate."
    )
    return tag("footer", tag("p", words), tag("p", f"Written by Remuda at {clock(report.written)} UTC."))
