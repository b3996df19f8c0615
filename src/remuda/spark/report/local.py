"""Gathering the figures of a small log in this process: the same as Spark's, without waiting for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from remuda.model.life import PARKED
from remuda.model.state import State
from remuda.spark.report import figures, windows
from remuda.spark.report.figures import Figures, QueueReport, Reason, Report, Step, Times
from remuda.spark.report.limits import MOST_ATTEMPTS, MOST_QUEUES, MOST_REASONS, REASONS_PER_QUEUE
from remuda.spark.report.wish import Tell, Wish, empty
from remuda.spark.source.documents import lives
from remuda.spark.source.losses import Gap, tell_losses
from remuda.spark.source.selection import Selection
from remuda.spark.source.spark_log import SparkLog
from remuda.spark.source.tables import LIFECYCLE_SCHEMA

_COLUMNS: Final = (
    "offset", "queue", "name", "state", "success", "archived", "created", "consumed", "failed", "attempts",
    "reason", "duration", "moved_to",
)  # fmt: skip
_SCHEMA: Final = pa.schema([LIFECYCLE_SCHEMA.field(name) for name in _COLUMNS])
_SHARES: Final = (0.5, 0.95, 0.99)
_NOTHING: Final = Figures()

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def gather_here(log: SparkLog, wish: Wish, tell: Tell) -> Report:
    """The figures of a log's lives, of the queues that were asked for."""
    messages, events = log.cut()
    tell("reading the lives of messages")
    missing: list[Gap] = []
    rows = lives(log, range(messages), [range(events)], None, Selection(since=wish.since, until=wish.until), missing)
    table = pa.Table.from_batches((batch.select(_COLUMNS) for batch in rows), _SCHEMA).combine_chunks()
    tell_losses(wish.source, missing)
    copies = _Copies(_chosen(table, wish.queues))
    report = msgspec.structs.replace(empty(wish), **copies.overview())
    return report if report.first is None else _detailed(copies, report, wish, tell)


def _chosen(table: pa.Table, queues: Sequence[str]) -> pa.Table:
    """Those in these queues, and what was held back under the names that they have."""
    if not queues:
        return table
    own = table.filter(pc.is_in(table["queue"], pa.array(queues, pa.string())))
    unrouted = table.filter(pc.is_null(table["queue"]))
    fitting = unrouted.filter(pc.is_in(unrouted["name"], own["name"].unique()))
    return pa.concat_tables([own, fitting]).combine_chunks()


class _Copies:
    """Lives as columns of numbers."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.queues, self.queue = _coded(table["queue"])
        self.names, self.name = _coded(table["name"])
        self.created = _numbers(table["created"])
        self.attempts = _numbers(table["attempts"])
        self.success = _mask(table["success"])
        self.moved = _mask(pc.is_valid(table["moved_to"]))
        parked = pc.is_in(table["state"], pa.array(sorted(state.value for state in PARKED)))
        self.ended = _mask(parked) & ~self.moved
        self.unchanged = _mask(pc.equal(table["state"], State.UNCHANGED.value))
        self.in_retry = _mask(pc.equal(table["state"], State.RETRY.value))
        self.waiting = ~_mask(table["archived"])
        consumed = table["consumed"]
        self.wait = np.where(_mask(pc.is_valid(consumed)), _numbers(consumed) - self.created, -1)
        duration = table["duration"]
        self.processing = np.where(_mask(pc.is_valid(duration)), _numbers(duration), -1)

    def overview(self) -> dict[str, Any]:
        if not len(self.created):
            return {}
        return {
            "first": windows.moment(int(self.created.min())),
            "last": windows.moment(int(self.created.max())),
            "messages": pc.count_distinct(self.table["offset"]).as_py(),
            "queue_count": len(self.queues),
            "in_retry": int(self.in_retry.sum()),
        }

    def figures(self, groups: Numbers, count: int) -> list[Figures]:
        """Figures of groups 0 to `count`; a copy whose group is -1 is in none."""
        kept = groups >= 0
        published, succeeded, retried, dead, moved, unchanged, waiting = (
            np.bincount(groups[kept & chosen], minlength=count).tolist()
            for chosen in (
                np.ones_like(kept), self.success, self.attempts > 1, self.ended, self.moved, self.unchanged,
                self.waiting,
            )
        )  # fmt: skip
        wait, processing = (_percentiles(groups, values, count) for values in (self.wait, self.processing))
        return [
            Figures(
                published=published[group] - unchanged[group],
                succeeded=succeeded[group],
                dead=dead[group],
                moved=moved[group],
                waiting=waiting[group],
                retried=retried[group],
                unchanged=unchanged[group],
                wait=wait[group],
                processing=processing[group],
            )
            for group in range(count)
        ]

    def held_back(self) -> Numbers:
        """For each queue: how many messages were unchanged under the names of those that came to it."""
        unchanged = np.bincount(self.name[self.unchanged], minlength=len(self.names))
        routed = self.queue >= 0
        pairs = np.unique(self.queue[routed] * len(self.names) + self.name[routed])
        queue, name = np.divmod(pairs, max(len(self.names), 1))
        return np.bincount(queue, weights=unchanged[name], minlength=len(self.queues)).astype(np.int64)


def _detailed(copies: _Copies, report: Report, wish: Wish, tell: Tell) -> Report:
    first, last = report.first or report.written, report.last or report.written
    length = windows.window_length(wish.window, first, last)
    tell("counting the queues")
    (total,) = copies.figures(np.zeros_like(copies.created), 1)
    by_queue = copies.figures(copies.queue, len(copies.queues))
    if total.unchanged:
        held = copies.held_back().tolist()
        by_queue = [msgspec.structs.replace(found, unchanged=held[code]) for code, found in enumerate(by_queue)]
    order = sorted(range(len(by_queue)), key=lambda code: (-by_queue[code].published, copies.queues[code]))
    order = order[:MOST_QUEUES]
    busiest = order[: wish.detailed]
    tell("counting windows of time")
    reasons = _reasons(copies) if total.dead else []

    def of_queue(code: int) -> QueueReport:
        name, detailed = copies.queues[code], code in busiest
        if not detailed:
            return QueueReport(name=name, figures=by_queue[code])
        own = copies.queue == code
        return QueueReport(
            name=name,
            figures=by_queue[code],
            detailed=True,
            windows=_over_time(copies, own, length, report),
            funnel=_funnel(copies, own),
            reasons=tuple(reason for reason in reasons if reason.queue == name),
        )

    everything = np.ones_like(copies.success)
    return msgspec.structs.replace(
        report,
        window=length / 1e6,
        figures=total,
        windows=_over_time(copies, everything, length, report),
        funnel=_funnel(copies, everything),
        reasons=tuple(reasons),
        queues=tuple(map(of_queue, order)),
    )


def _over_time(copies: _Copies, own: Mask, length: int, report: Report) -> tuple[figures.Window, ...]:
    first, last = report.first or report.written, report.last or report.written
    starts = windows.starts(length, first, last)
    begin = int(copies.created.min()) // length
    found = copies.figures(np.where(own, copies.created // length - begin, -1), len(starts))
    return tuple(figures.Window(start, one) for start, one in zip(starts, found, strict=True))


def _funnel(copies: _Copies, own: Mask) -> tuple[Step, ...]:
    attempts = copies.attempts[own]
    reached = np.bincount(attempts)[::-1].cumsum()[::-1].tolist()
    succeeded = np.bincount(copies.attempts[own & copies.success], minlength=len(reached)).tolist()
    most = min(len(reached), MOST_ATTEMPTS + 1)
    return tuple(Step(attempt, reached[attempt], succeeded[attempt]) for attempt in range(1, most))


def _reasons(copies: _Copies) -> list[Reason]:
    """The most frequent reasons of each queue, and of all of those the most frequent."""
    ended = copies.table.filter(pa.array(copies.ended)).select(["queue", "state", "reason", "failed"])
    ended = ended.set_column(2, "reason", pc.fill_null(ended["reason"], "no reason given"))
    counted = ended.group_by(["queue", "state", "reason"]).aggregate([([], "count_all"), ("failed", "max")])
    by_queue: dict[str | None, list[Reason]] = defaultdict(list)
    for reason in _as_reasons(counted):
        by_queue[reason.queue].append(reason)
    chosen: list[Reason] = []
    for found in by_queue.values():
        chosen += sorted(found, key=_frequency)[:REASONS_PER_QUEUE]
    return sorted(chosen, key=_frequency)[:MOST_REASONS]


def _as_reasons(counted: pa.Table) -> Iterator[Reason]:
    columns = [counted[name].to_pylist() for name in ("queue", "state", "reason", "count_all")]
    times = counted["failed_max"].cast(pa.int64()).to_pylist()
    for queue, state, reason, messages, last in zip(*columns, times, strict=True):
        yield Reason(queue, State(state), reason, messages, None if last is None else windows.moment(last))


def _frequency(reason: Reason) -> tuple[int, str, str, str]:
    return -reason.messages, reason.queue or "", reason.reason, reason.state.value


def _percentiles(groups: Numbers, values: Numbers, count: int) -> list[Times]:
    """The percentiles of each group; values below 0 were not measured."""
    measured = (groups >= 0) & (values >= 0)
    group, value = groups[measured], values[measured]
    value = value[np.lexsort((value, group))]
    sizes = np.bincount(group, minlength=count)
    ends = sizes.cumsum()
    some = sizes > 0
    found = np.full((len(_SHARES), count), -1, np.int64)
    for row, share in enumerate(_SHARES):
        rank = np.ceil(share * sizes).astype(np.int64)
        found[row, some] = value[(ends - sizes + rank - 1)[some]]
    return [Times(*(None if time < 0 else time / 1e6 for time in times)) for times in found.T.tolist()]


def _coded(column: pa.ChunkedArray) -> tuple[list[Any], Numbers]:
    """The distinct values, and for each row the number of its own; -1 for none."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).cast(pa.int64()).to_numpy()


def _numbers(column: pa.ChunkedArray) -> Numbers:
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    found: Numbers = plain.fill_null(0).to_numpy().astype(np.int64)
    return found


def _mask(column: pa.ChunkedArray) -> Mask:
    found: Mask = pc.fill_null(column, False).to_numpy(zero_copy_only=False).astype(bool)
    return found
