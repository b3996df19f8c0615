"""Counting: batches of the log become sums by queue and minute, and failures by their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from remuda.history.duration_buckets import bucket_of
from remuda.history.failure_kinds import Kind, kind_of
from remuda.model.life import PARKED
from remuda.model.state import State
from remuda.model.values.durations import MINUTE

MESSAGE_COLUMNS: Final = ("offset", "created", "queues")
EVENT_COLUMNS: Final = ("position", "time", "queue", "state", "first", "count", "reason", "due", "detail", "to")
_DONE: Final = (State.SUCCESS.value, State.KICKED.value)
_PARKED: Final = tuple(sorted(state.value for state in PARKED))
_RETRY: Final = State.RETRY.value
_FETCHED: Final = State.FETCHED.value
_ENDS: Final = frozenset({*_DONE, *_PARKED, _RETRY})
_MEASURED: Final = 5_000
"""About how many messages of a batch are timed; counts are of all of them."""
_KEPT: Final = 100_000
"""The most messages whose times are remembered for what comes next."""

Numbers = NDArray[np.int64]
CreatedAt = Callable[[list[int]], dict[int, int]]


class Slot(msgspec.Struct):
    """What a queue did in one minute."""

    published: int = 0
    done: int = 0
    failed: int = 0
    """Attempts that failed, whether they are retried or were the last."""
    dead: int = 0
    """Messages that ended without success: dead, invalid or not interested."""
    wait: dict[int, int] = {}
    """How long messages were available before they were taken, by bucket."""
    took: dict[int, int] = {}
    """How long handlers took, by bucket."""


class FailureCount(msgspec.Struct):
    """Failures of one kind in one queue and one hour."""

    count: int
    first: int
    last: int
    sample: str


class Parked(msgspec.Struct, frozen=True):
    """Neighbouring messages that ended without success at once, and of what kind."""

    queue: str
    first: int
    count: int
    time: int
    kind: Kind


class Counts:
    """What was counted and is not stored yet."""

    def __init__(self) -> None:
        self.slots: dict[tuple[str, int], Slot] = {}
        """By queue and minute."""
        self.failures: dict[tuple[Kind, str, int], FailureCount] = {}
        """By kind, queue and minute."""
        self.parked: list[Parked] = []

    def slot(self, queue: str, minute: int) -> Slot:
        return self.slots.setdefault((queue, minute), Slot())

    def __bool__(self) -> bool:
        return bool(self.slots or self.failures or self.parked)


class Counting:
    """Takes batches in the log's order. `created_at` reads when older messages were published."""

    def __init__(self, created_at: CreatedAt) -> None:
        self._created_at = created_at
        self._offsets: Numbers = np.empty(0, np.int64)
        self._created: Numbers = np.empty(0, np.int64)
        self._available: dict[tuple[str, int], int] = {}
        self._fetched: dict[tuple[str, int], int] = {}

    def messages(self, batch: pa.RecordBatch, counts: Counts) -> None:
        created = _numbers(batch.column("created"))
        self._offsets = np.concatenate([self._offsets, _numbers(batch.column("offset"))])[-_KEPT:]
        self._created = np.concatenate([self._created, created])[-_KEPT:]
        queues = batch.column("queues")
        minutes = pa.array(created[pc.list_parent_indices(queues).to_numpy(zero_copy_only=False)] // MINUTE)
        table = pa.table({"queue": pc.list_flatten(queues), "minute": minutes})
        summed = table.group_by(["queue", "minute"]).aggregate([([], "count_all")])
        for queue, minute, count in _rows(summed, ("queue", "minute", "count_all")):
            counts.slot(queue, minute).published += count

    def events(self, batch: pa.RecordBatch, counts: Counts) -> None:
        self._sum(batch, counts)
        self._measure(batch, counts)
        reasons = batch.filter(pc.and_(pc.is_valid(batch.column("reason")), _among(batch, (_RETRY, *_PARKED))))
        if reasons.num_rows:
            self._failures(reasons, counts)

    def _sum(self, batch: pa.RecordBatch, counts: Counts) -> None:
        ended = batch.filter(_among(batch, tuple(_ENDS)))
        table = pa.table(
            {
                "queue": ended.column("queue"), "state": ended.column("state"), "count": ended.column("count"),
                "moved": pc.is_valid(ended.column("to")), "minute": pa.array(_numbers(ended.column("time")) // MINUTE),
            }
        )  # fmt: skip
        summed = table.group_by(["queue", "minute", "state", "moved"]).aggregate([("count", "sum")])
        columns = ("queue", "minute", "state", "moved", "count_sum")
        for queue, minute, state, moved, count in _rows(summed, columns):
            slot = counts.slot(queue, minute)
            if state in _DONE:
                slot.done += count
            elif state == _RETRY:
                slot.failed += count
            elif not moved:
                slot.dead += count
                slot.failed += count if state == State.DEAD.value else 0

    def _measure(self, batch: pa.RecordBatch, counts: Counts) -> None:
        """Time a share of the messages: those whose offset is a multiple of a power of two."""
        first, count = _numbers(batch.column("first")), _numbers(batch.column("count"))
        step = 1
        while count.sum() > 2 * _MEASURED * step:
            step *= 2
        begins = -(-first // step) * step
        timed = batch.filter(pa.array(begins < first + count))
        names = ("queue", "state", "first", "count")
        columns = [timed.column(name).to_pylist() for name in names]
        columns += [_numbers(timed.column("time")).tolist(), timed.column("due").cast(pa.int64()).to_pylist()]
        rows = list(zip(*columns, strict=True))
        published = self._published(rows, step)
        for queue, state, begin, length, time, due in rows:
            for offset in _multiples(begin, length, step):
                key = (queue, offset)
                if state == _FETCHED:
                    since = self._available.pop(key, None) or published.get(offset)
                    if since is not None:
                        _add(counts.slot(queue, time // MINUTE).wait, time - since)
                    self._fetched[key] = time
                    continue
                if state in _ENDS and (began := self._fetched.pop(key, None)) is not None:
                    _add(counts.slot(queue, time // MINUTE).took, time - began)
                if state in (_RETRY, State.QUEUED.value):
                    self._available[key] = due or time
        for kept in (self._available, self._fetched):
            while len(kept) > _KEPT:
                del kept[next(iter(kept))]

    def _published(self, rows: Iterable[tuple[Any, ...]], step: int) -> dict[int, int]:
        """When the messages that are fetched were published."""
        wanted = sorted(
            {
                offset
                for queue, state, first, count, _, _ in rows
                if state == _FETCHED
                for offset in _multiples(first, count, step)
                if (queue, offset) not in self._available
            }
        )
        if not wanted:
            return {}
        asked = np.array(wanted, np.int64)
        at = np.searchsorted(self._offsets, asked)
        known = at < len(self._offsets)
        known[known] = self._offsets[at[known]] == asked[known]
        found = dict(zip(asked[known].tolist(), self._created[at[known]].tolist(), strict=True))
        missing = asked[~known].tolist()
        return found | self._created_at(missing) if missing else found

    def _failures(self, batch: pa.RecordBatch, counts: Counts) -> None:
        names = ("queue", "state", "first", "count", "reason", "detail", "to")
        columns = [batch.column(name).to_pylist() for name in names]
        for time, queue, state, first, count, reason, detail, to in zip(
            _numbers(batch.column("time")).tolist(), *columns, strict=True
        ):
            if to is not None:
                continue
            kind = kind_of(reason, detail or "")
            key = (kind, queue, time // MINUTE)
            known = counts.failures.get(key)
            if known is None:
                counts.failures[key] = FailureCount(count, time, time, reason[:500])
            else:
                known.count, known.last, known.sample = known.count + count, time, reason[:500]
            if state in _PARKED:
                counts.parked.append(Parked(queue, first, count, time, kind))


def _multiples(first: int, count: int, step: int) -> range:
    return range(-(-first // step) * step, first + count, step)


def _add(counts: dict[int, int], duration: int) -> None:
    bucket = bucket_of(duration)
    counts[bucket] = counts.get(bucket, 0) + 1


def _among(batch: pa.RecordBatch, states: tuple[str, ...]) -> pa.Array:
    return pc.is_in(batch.column("state"), pa.array(states, pa.string()))


def _numbers(column: pa.Array) -> Numbers:
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    found: Numbers = plain.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _rows(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].to_pylist() for name in columns), strict=True)
