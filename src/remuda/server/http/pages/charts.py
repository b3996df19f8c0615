"""Graphics computed on the server: values for sparklines, heat maps and diagrams in SVG, and points for charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from remuda.model.message_row import MessageRow
from remuda.model.values.durations import MILLISECOND, MINUTE
from remuda.server.http.pages.render import span
from remuda.server.http.rates import Sample
from remuda.server.http.search.recent_messages import BUCKETS, SLOT, SLOTS

_WIDTH: Final = 96.0
_HEIGHT: Final = 22.0
_SPARK_SECONDS: Final = 120.0
_STEP_X: Final = 264
_STEP_Y: Final = 56


class Cell(msgspec.Struct, frozen=True):
    """One field of a heat map: `heat` is 0 to 9."""

    column: int
    row: int
    heat: int
    count: int


class HeatMap(msgspec.Struct, frozen=True):
    """How many messages took how long, by time and latency, and the percentiles over all."""

    cells: list[Cell]
    labels: list[str]
    columns: int
    rows: int
    total: int
    percentiles: dict[str, str]
    seconds: int


class Node(msgspec.Struct, frozen=True):
    """A message in the diagram of a conversation; `x` and `y` are its upper left corner."""

    row: MessageRow
    x: int
    y: int


class Diagram(msgspec.Struct, frozen=True):
    """What caused what: causes on the left, effects on the right."""

    nodes: list[Node]
    edges: list[str]
    """Paths from cause to effect."""
    width: int
    height: int
    node_width: int = 208
    node_height: int = 44


def conversation_diagram(tree: Sequence[tuple[int, MessageRow]]) -> Diagram:
    """The diagram of a conversation, given as rows with their depth, each after its cause."""
    children: list[list[int]] = [[] for _ in tree]
    path: list[int] = []
    for number, (depth, _) in enumerate(tree):
        del path[depth:]
        if path:
            children[path[-1]].append(number)
        path.append(number)
    lines: list[float] = [0.0] * len(tree)
    following = 0
    for number, below in enumerate(children):
        if not below:
            lines[number] = following
            following += 1
    for number in reversed(range(len(tree))):
        if below := children[number]:
            lines[number] = (lines[below[0]] + lines[below[-1]]) / 2
    places = [(depth * _STEP_X, lines[number] * _STEP_Y) for number, (depth, _) in enumerate(tree)]
    nodes = [Node(row, x, round(y)) for (x, y), (_, row) in zip(places, tree, strict=True)]
    drawn = Diagram(nodes, [], 0, 0)
    middle, right = drawn.node_height // 2, drawn.node_width
    edges = []
    for number, below in enumerate(children):
        for child in below:
            x0, y0 = nodes[number].x + right, nodes[number].y + middle
            x1, y1 = nodes[child].x, nodes[child].y + middle
            bend = (x0 + x1) // 2
            edges.append(f"M{x0} {y0}C{bend} {y0} {bend} {y1} {x1} {y1}")
    width = max(node.x for node in nodes) + right
    height = max(node.y for node in nodes) + drawn.node_height
    return msgspec.structs.replace(drawn, edges=edges, width=width, height=height)


def sparkline(samples: Sequence[Sample]) -> str:
    """Points of a line: how many messages waited over the last two minutes."""
    if len(samples) < 2:
        return ""
    end = samples[-1].time
    begin = end - _SPARK_SECONDS
    shown = [sample for sample in samples if sample.time >= begin]
    if earlier := [sample for sample in samples if sample.time < begin][-1:]:
        shown.insert(0, earlier[0]._replace(time=begin))  # the line begins with the last value before it
    most = max((sample.waiting + sample.in_flight for sample in shown), default=0)
    if not most:
        return ""
    return " ".join(
        f"{(sample.time - begin) / _SPARK_SECONDS * _WIDTH:.1f},"
        f"{_HEIGHT - 1 - (sample.waiting + sample.in_flight) / most * (_HEIGHT - 3):.1f}"
        for sample in shown
    )


def trend_line(values: Sequence[int]) -> str:
    """Points of a line through values at equal distances; empty if all are 0."""
    most, last = max(values, default=0), len(values) - 1
    if not most or last < 1:
        return ""
    return " ".join(
        f"{at / last * _WIDTH:.1f},{_HEIGHT - 1 - value / most * (_HEIGHT - 3):.1f}" for at, value in enumerate(values)
    )


def depth_points(samples: Sequence[Sample]) -> dict[str, Any]:
    """A queue over time: how many messages are where, and messages per second since the sample before."""
    published, done, failed = [], [], []
    for before, sample in pairwise(samples):
        passed = max(sample.time - before.time, 0.001)
        published.append(round(max(sample.published - before.published, 0) / passed, 2))
        done.append(round(max(sample.done - before.done, 0) / passed, 2))
        failed.append(round(max(sample.failed - before.failed, 0) / passed, 2))
    rates = {"published": published, "done": done, "failed": failed}
    return {
        "times": [round(sample.time, 2) for sample in samples],
        "depth": {
            "waiting": [sample.waiting for sample in samples],
            "in flight": [sample.in_flight for sample in samples],
            "delayed": [sample.delayed for sample in samples],
            "dead letters": [sample.parked for sample in samples],
        },
        # Nothing is known before the first sample: its rate is that of the second.
        "rates": {name: [*(values[:1] or [0.0] * len(samples)), *values] for name, values in rates.items()},
    }


def heat_map(slots: Mapping[int, Sequence[int]], now: int) -> HeatMap:
    """The last ten minutes; the hottest field is 9, and a field with anything in it at least 1."""
    last = now // SLOT
    first = last - SLOTS + 1
    recent = {slot: counts for slot, counts in slots.items() if first <= slot <= last}
    most = max((max(counts) for counts in recent.values()), default=0)
    cells = [
        Cell(slot - first, BUCKETS - 1 - bucket, max(1, round(9 * (count / most) ** 0.5)), count)
        for slot, counts in sorted(recent.items())
        for bucket, count in enumerate(counts)
        if count
    ]
    bounds = [MILLISECOND * 4**bucket for bucket in range(BUCKETS)]
    labels = [span(bound) if bound < MINUTE else f"{bound // MINUTE} min" for bound in bounds[:-1]]
    summed = [sum(counts[bucket] for counts in recent.values()) for bucket in range(BUCKETS)]
    total = sum(summed)
    percentiles = {
        name: _percentile(summed, total, part) for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    return HeatMap(cells, labels, SLOTS, BUCKETS, total, percentiles, SLOT // 1_000_000)


def _percentile(summed: Sequence[int], total: int, part: float) -> str:
    reached = 0
    for bucket, count in enumerate(summed):
        reached += count
        if total and reached >= part * total:
            if bucket == BUCKETS - 1:
                return f"over {span(MILLISECOND * 4 ** (BUCKETS - 2))}"
            return f"under {span(MILLISECOND * 4**bucket)}"
    return "-"
