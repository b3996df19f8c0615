"""Charts as inline SVG. The drawing holds shapes only and stretches with the page; words stand around it as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Final, NamedTuple

from remuda.report.figures import Figures, Step, Times, Window
from remuda.report.formatting import counted, fine_clock, number, seconds
from remuda.report.html import Markup, join, tag
from remuda.report.scale import CountScale, Tick, TimeScale, clock_ticks

OUTCOMES: Final = ("succeeded", "dead", "moved", "waiting", "unchanged")
_WIDTH: Final = 1000
_HEIGHT: Final = 100
_BAR: Final = 0.78
_STEPS_DRAWN: Final = 12


class Drawing(NamedTuple):
    """A chart without its title: what it shows, in words for those who do not see it, and its legend."""

    picture: Markup
    summary: str
    legend: tuple[tuple[str, str], ...] = ()
    """Classes and words."""


def outcomes(found: Figures) -> list[int]:
    """What became of them, in the order of `OUTCOMES`."""
    waiting = max(found.published - found.succeeded - found.dead - found.moved, 0)
    return [found.succeeded, found.dead, found.moved, waiting, found.unchanged]


def columns(windows: Sequence[Window], window: float) -> Drawing:
    """How many were published in each window, stacked by what became of them."""
    heights = [outcomes(one.figures) for one in windows]
    sums = [sum(parts) for parts in heights]
    scale = CountScale(max(sums))
    shapes = [_grid(scale.ticks)]
    slot = _WIDTH / len(windows)
    for at, parts in enumerate(heights):
        bottom = 0.0
        for name, part in zip(OUTCOMES, parts, strict=True):
            if part:
                height = scale.place(part) * _HEIGHT
                x, y = (at + (1 - _BAR) / 2) * slot, _HEIGHT - bottom - height
                shapes.append(_rect(x, y, slot * _BAR, height, name))
                bottom += height
    used = [name for name, count in zip(OUTCOMES, map(sum, zip(*heights, strict=True)), strict=True) if count]

    def tell(one: Window) -> str:
        parts = [f"{number(part)} {name}" for name, part in zip(OUTCOMES, outcomes(one.figures), strict=True) if part]
        return f"{number(one.figures.published)} published; {', '.join(parts)}" if parts else "nothing"

    shapes.append(_hits(windows, window, tell))
    most = max(range(len(sums)), key=sums.__getitem__)
    summary = (
        f"{counted(sum(one.figures.published for one in windows), 'copy')} published in windows of {seconds(window)}; "
        f"the most in one window {number(sums[most])}, at {fine_clock(windows[most].start, window)}."
    )
    picture = _plot(shapes, scale.ticks, [one.start for one in windows], window, summary)
    return Drawing(picture, summary, tuple((name, name) for name in used))


def ranges(windows: Sequence[Window], window: float, pick: Callable[[Figures], Times], whole: Times) -> Drawing | None:
    """Percentiles of a time in each window: from the median, over the 95th, to the 99th. None without any."""
    times = [pick(one.figures) for one in windows]
    values = [value for one in times for value in (one.p50, one.p95, one.p99) if value is not None]
    if not values:
        return None
    scale = TimeScale(values)
    slot = _WIDTH / len(windows)
    shapes = [_grid(scale.ticks)]
    width = "wide" if len(windows) <= 80 else "thin" if len(windows) <= 300 else "hair"
    for at, one in enumerate(times):
        if one.p50 is None or one.p95 is None or one.p99 is None:
            continue
        x = (at + 0.5) * slot
        low, middle, high = ((1 - scale.place(value)) * _HEIGHT for value in (one.p50, one.p95, one.p99))
        shapes += [
            _line(x, low, x, high, f"p99 {width}"),
            _line(x, low, x, middle, f"p95 {width}"),
            _line(x, low, x, low, f"p50 {width}"),
        ]

    def tell(one: Window) -> str:
        found = pick(one.figures)
        return f"half within {seconds(found.p50)}, 95 % within {seconds(found.p95)}, 99 % within {seconds(found.p99)}"

    shapes.append(_hits(windows, window, lambda one: tell(one) if pick(one.figures).p50 is not None else "nothing"))
    summary = (
        f"Half within {seconds(whole.p50)}, 95 % within {seconds(whole.p95)}, 99 % within {seconds(whole.p99)}; "
        f"in the slowest window 99 % within {seconds(max(values))}."
    )
    legend = (("p50", "half"), ("p95", "95 %"), ("p99", "99 %"))
    return Drawing(_plot(shapes, scale.ticks, [one.start for one in windows], window, summary), summary, legend)


def stairs(steps: Sequence[Step]) -> Drawing:
    """The retry funnel: a bar for each attempt, divided into what succeeded, what went on, and what stayed there."""
    first = max(steps[0].reached, 1)
    rows = []
    for step, after in list(zip_longest(steps, steps[1:]))[:_STEPS_DRAWN]:
        on = after.reached if after is not None else 0
        stayed = max(step.reached - step.succeeded - on, 0)
        parts = (("succeeded", step.succeeded), ("on", on), ("dead", stayed))
        words = f"{number(step.reached)} reached it, {number(step.succeeded)} succeeded"
        label = f"Attempt {step.attempt}: {words}, {number(on)} went on, {number(stayed)} stayed"
        rows += [
            tag("span", f"attempt {step.attempt}"),
            _bar(parts, first, label),
            tag("span", words, class_="words"),
        ]
    last = steps[-1]
    summary = (
        f"{number(steps[0].reached)} were tried, {number(steps[0].succeeded)} of them succeeded at the first attempt; "
        f"{number(last.reached)} reached attempt {last.attempt}."
    )
    legend = (("succeeded", "succeeded there"), ("on", "went on"), ("dead", "ended or waits there"))
    return Drawing(tag("div", rows, class_="stairs"), summary, legend)


def share_bar(found: Figures) -> Markup:
    """All outcomes as one bar."""
    parts = list(zip(OUTCOMES, outcomes(found), strict=True))
    label = ", ".join(f"{number(part)} {name}" for name, part in parts if part)
    return _bar(parts, max(sum(part for _, part in parts), 1), label)


def meter(part: int, whole: int) -> Markup:
    """One count beside others."""
    return _bar((("dead", part),), max(whole, 1), None)


def sparkline(windows: Sequence[Window]) -> Markup:
    """Throughput in the height of a line of text; its numbers stand beside it."""
    counts = [one.figures.published for one in windows]
    most = max(counts, default=0) or 1
    slot = _WIDTH / max(len(counts), 1)
    shapes = [
        _rect(at * slot, _HEIGHT * (1 - count / most), slot, _HEIGHT * count / most, "succeeded")
        for at, count in enumerate(counts)
        if count
    ]
    return _svg(shapes, class_="spark", aria_hidden="true")


def _plot(
    shapes: Iterable[Markup], ticks: Iterable[Tick], starts: Sequence[datetime], window: float, summary: str
) -> Markup:
    beside = (tag("span", tick.label, style=f"bottom:{_percent(tick.at)}") for tick in ticks)
    below = (tag("span", tick.label, style=f"left:{_percent(tick.at)}") for tick in clock_ticks(starts, window))
    return tag(
        "div",
        tag("div", beside, class_="y", aria_hidden="true"),
        _svg(shapes, role="img", aria_label=summary, class_="drawing"),
        tag("div", below, class_="x", aria_hidden="true"),
        class_="plot",
    )


def _hits(windows: Sequence[Window], window: float, tell: Callable[[Window], str]) -> Markup:
    """What a pointer finds over each window."""
    slot = _WIDTH / len(windows)
    return join(
        tag(
            "rect",
            tag("title", f"{fine_clock(one.start, window)}: {tell(one)}"),
            x=_number(at * slot), y=0, width=_number(slot), height=_HEIGHT, class_="hit",
        )
        for at, one in enumerate(windows)
    )  # fmt: skip


def _bar(parts: Iterable[tuple[str, int]], whole: int, label: str | None) -> Markup:
    shapes, x = [], 0.0
    for name, part in parts:
        if part:
            shapes.append(_rect(x, 0, part / whole * _WIDTH, _HEIGHT, name))
            x += part / whole * _WIDTH
    if label is None:
        return _svg(shapes, class_="bar", aria_hidden="true")
    return _svg([tag("title", label), *shapes], class_="bar", role="img", aria_label=label)


def _grid(ticks: Iterable[Tick]) -> Markup:
    return join(_line(0, (1 - tick.at) * _HEIGHT, _WIDTH, (1 - tick.at) * _HEIGHT, "grid") for tick in ticks)


def _svg(shapes: Iterable[Markup], **attributes: str | None) -> Markup:
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    return tag("svg", shapes, viewBox=box, preserveAspectRatio="none", **attributes)


def _rect(x: float, y: float, width: float, height: float, name: str) -> Markup:
    return tag(
        "rect", x=_number(x), y=_number(y), width=_number(width), height=_number(height), class_=name
    )  # fmt: skip


def _line(x1: float, y1: float, x2: float, y2: float, name: str) -> Markup:
    return tag("line", x1=_number(x1), y1=_number(y1), x2=_number(x2), y2=_number(y2), class_=name)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _percent(value: float) -> str:
    return f"{_number(100 * value)}%"
