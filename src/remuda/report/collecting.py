"""Gathering the figures: lives are read some at a time, and kept as columns of numbers, 50 bytes for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from remuda.model.errors import NotFound
from remuda.model.life import PARKED
from remuda.model.state import State
from remuda.report import figures, windows
from remuda.report.figures import Figures, QueueReport, Reason, Report, Step, Times
from remuda.report.limits import MOST_ATTEMPTS, MOST_QUEUES, MOST_REASONS, REASONS_PER_QUEUE
from remuda.report.report_request import ReportRequest, Tell, empty
from remuda.spark.source.losses import Gap, tell_losses
from remuda.spark.source.selection import Selection
from remuda.spark.source.spark_log import open_log
from remuda.spark.source.tables import LIFECYCLE, LIFECYCLE_SCHEMA, MESSAGES

_COLUMNS: Final = (
    "offset", "queue", "name", "state", "success", "archived", "created", "consumed", "failed", "attempts",
    "reason", "duration", "moved_to",
)  # fmt: skip
_SCHEMA: Final = pa.schema([LIFECYCLE_SCHEMA.field(name) for name in _COLUMNS])
_AT_ONCE: Final = 1 << 20
"""Messages whose lives are put together at once, with all their events."""
_SHARES: Final = (0.5, 0.95, 0.99)
_NO_REASON: Final = "no reason given"

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def gather(request: ReportRequest, tell: Tell) -> Report:
    """The figures of a log, or of a lake, of the queues and times that were asked for."""
    tell("reading the lives of messages")
    return counted(_of_log(request) if request.lake is None else _of_lake(request.lake, _times(request)), request, tell)


def counted(lives: Iterable[pa.RecordBatch], request: ReportRequest, tell: Tell) -> Report:
    copies = _Copies(lives, request.queues)
    report = msgspec.structs.replace(empty(request), **copies.overview())
    return report if report.first is None else _detailed(copies, report, request, tell)


def _of_log(request: ReportRequest) -> Iterator[pa.RecordBatch]:
    from remuda.spark.source.documents import lives

    assert request.url is not None
    log, missing = open_log(request.url), list[Gap]()
    messages, events = log.cut()
    told = log.telling(events)
    for part in log.parts(MESSAGES, 0, messages, _AT_ONCE) if messages else ():
        about = [places for places, some in told if some.start < part.stop and some.stop > part.start]
        for batch in lives(log, part, about, None, _times(request), missing):
            yield batch.select(_COLUMNS)
    tell_losses(request.source, missing)


def _of_lake(lake: str, times: Selection) -> Iterator[pa.RecordBatch]:
    from remuda.spark.lake.coverage import newest
    from remuda.spark.lake.files import Reading, named
    from remuda.spark.lake.store import lake_place
    from remuda.spark.lake.versions import LOG_COLUMN

    table = newest(lake, LIFECYCLE)
    if not table.version:
        raise NotFound(
            f"there is no table of lives in {lake!r}; make it: remuda pipeline run lifecycle DIR --lake {lake}"
        )
    columns = _SCHEMA.append(pa.field(LOG_COLUMN, pa.string()))
    reading, logs = Reading(f"{lake_place(lake)}/{LIFECYCLE}", bytes(columns.serialize())), _Names()
    for batch in reading.rows(iter([named(table.files)])):
        rows = times.apply(LIFECYCLE, batch)
        # Offsets are those of one log: the logs are told apart by what no offset has room for.
        offset = _numbers(rows["offset"]) + (logs.codes(rows[LOG_COLUMN]).astype(np.int64) + 1 << 48)
        yield rows.set_column(0, "offset", pa.array(offset)).select(_COLUMNS)


def _times(request: ReportRequest) -> Selection:
    return Selection(since=request.since, until=request.until)


class _Names:
    """Texts by number; None has -1."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def codes(self, column: pa.Array) -> NDArray[np.int32]:
        encoded = column.dictionary_encode()
        own = [self.known.setdefault(text, len(self.known)) for text in encoded.dictionary.to_pylist()]
        codes: NDArray[np.int32] = np.array([*own, -1], np.int32)[_numbers(encoded.indices)]
        return codes


class _Copies:
    """Lives as columns of numbers: those in some queues, with what was held back under the names that they have."""

    def __init__(self, lives: Iterable[pa.RecordBatch], queues: Sequence[str]) -> None:
        names = {name: _Names() for name in ("queue", "name", "state", "reason")}
        parts = [_empty(), *(_numbered(batch, names) for batch in lives)]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.queues, self.names, self.states, self.reasons = (list(one.known) for one in names.values())
        if queues:
            own = np.isin(columns["queue"], [code for code, name in enumerate(self.queues) if name in queues])
            unrouted = (columns["queue"] < 0) & np.isin(columns["name"], columns["name"][own])
            columns = {name: column[own | unrouted] for name, column in columns.items()}
            self.queues, columns["queue"] = _again(self.queues, columns["queue"])
        self.offset, self.queue, self.name, self.state = (columns[one] for one in ("offset", "queue", "name", "state"))
        self.reason, self.failed = columns["reason"], columns["failed"]
        self.created, self.attempts, self.success = (columns[one] for one in ("created", "attempts", "success"))
        self.wait, self.processing = columns["wait"], columns["processing"]
        self.moved, self.waiting = columns["moved"], columns["waiting"]
        self.ended = self._are(*PARKED) & ~self.moved
        self.unchanged, self.in_retry = self._are(State.UNCHANGED), self._are(State.RETRY)

    def _are(self, *states: State) -> Mask:
        return np.isin(self.state, [code for code, state in enumerate(self.states) if State(state) in states])

    def overview(self) -> dict[str, Any]:
        if not len(self.created):
            return {}
        return {
            "first": windows.moment(int(self.created.min())),
            "last": windows.moment(int(self.created.max())),
            "messages": len(np.unique(self.offset)),
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
        pairs = np.unique(self.queue[routed].astype(np.int64) * len(self.names) + self.name[routed])
        queue, name = np.divmod(pairs, max(len(self.names), 1))
        return np.bincount(queue, weights=unchanged[name], minlength=len(self.queues)).astype(np.int64)


def _detailed(copies: _Copies, report: Report, request: ReportRequest, tell: Tell) -> Report:
    first, last = report.first or report.written, report.last or report.written
    length = windows.window_length(request.window, first, last)
    tell("counting the queues")
    (total,) = copies.figures(np.zeros_like(copies.created), 1)
    by_queue = copies.figures(copies.queue, len(copies.queues))
    if total.unchanged:
        held = copies.held_back().tolist()
        by_queue = [msgspec.structs.replace(found, unchanged=held[code]) for code, found in enumerate(by_queue)]
    order = sorted(range(len(by_queue)), key=lambda code: (-by_queue[code].published, copies.queues[code]))
    order = order[:MOST_QUEUES]
    busiest = order[: request.detailed]
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
    names = ("queue", "state", "reason")
    ended = pa.table({name: getattr(copies, name)[copies.ended] for name in (*names, "failed")})
    counted = ended.group_by(list(names)).aggregate([([], "count_all"), ("failed", "max")])
    by_queue: dict[str | None, list[Reason]] = defaultdict(list)
    for row in counted.to_pylist():
        queue = copies.queues[row["queue"]] if row["queue"] >= 0 else None
        reason = copies.reasons[row["reason"]] if row["reason"] >= 0 else _NO_REASON
        last = None if row["failed_max"] < 0 else windows.moment(row["failed_max"])
        by_queue[queue].append(Reason(queue, State(copies.states[row["state"]]), reason, row["count_all"], last))
    chosen: list[Reason] = []
    for found in by_queue.values():
        chosen += sorted(found, key=_frequency)[:REASONS_PER_QUEUE]
    return sorted(chosen, key=_frequency)[:MOST_REASONS]


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


def _numbered(batch: pa.RecordBatch, names: dict[str, _Names]) -> dict[str, NDArray[Any]]:
    created = _numbers(batch["created"])
    consumed = _numbers(batch["consumed"])
    return {
        **{name: known.codes(batch[name]) for name, known in names.items()},
        "offset": _numbers(batch["offset"]),
        "created": created,
        "failed": _numbers(batch["failed"]),
        "attempts": _numbers(batch["attempts"]).clip(0).astype(np.int32),
        "wait": np.where(_mask(batch["consumed"].is_valid()), consumed - created, -1),
        "processing": _numbers(batch["duration"]),
        "success": _mask(batch["success"]),
        "waiting": ~_mask(batch["archived"]),
        "moved": _mask(batch["moved_to"].is_valid()),
    }


def _empty() -> dict[str, NDArray[Any]]:
    none = pa.RecordBatch.from_pylist([], _SCHEMA)
    return _numbered(none, {name: _Names() for name in ("queue", "name", "state", "reason")})


def _again(names: list[str], codes: NDArray[np.int32]) -> tuple[list[str], NDArray[np.int32]]:
    """Only the names that are in use, numbered anew."""
    used = np.unique(codes[codes >= 0])
    numbers = np.full(len(names) + 1, -1, np.int32)
    numbers[used] = np.arange(len(used))
    return [names[code] for code in used], numbers[codes]


def _numbers(column: pa.Array) -> Numbers:
    """Whole numbers; -1 for none."""
    found: Numbers = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return found


def _mask(column: pa.Array) -> Mask:
    found: Mask = column.fill_null(False).to_numpy(zero_copy_only=False)
    return found
