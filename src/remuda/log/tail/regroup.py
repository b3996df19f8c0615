"""Joining batches column by column: what all share stays shared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from msgspec.structs import astuple

from remuda.model.messages import Column, Messages, cell, cut
from remuda.model.records import Appended

T = TypeVar("T")


def join_column(columns: Sequence[Column[T]], counts: Sequence[int]) -> Column[T]:
    """One column of several, of `counts` rows each."""
    first = columns[0]
    if not isinstance(first, list) and columns.count(first) == len(columns):
        return first
    joined: list[T] = []
    for column, count in zip(columns, counts, strict=True):
        if isinstance(column, list):
            joined += column
        elif count == 1:
            joined.append(column)
        else:
            joined += [column] * count
    return joined


def join_messages(parts: Sequence[Messages]) -> Messages:
    """The messages of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Messages(bodies=[], name="")
    # By position, since a worker's delivery may be made of hundreds of single messages.
    bodies, name, ids, *rest = zip(*map(astuple, parts), strict=True)
    counts = [*map(len, bodies)]
    columns = [join_column(column, counts) for column in rest]
    return Messages([*chain.from_iterable(bodies)], join_column(name, counts), _join_ids(ids, counts), *columns)


def join_appended(parts: Sequence[Appended]) -> Appended:
    """Batches at neighbouring offsets as one; `created` is that of the first, each message keeps its own."""
    first = parts[0]
    if len(parts) == 1:
        return first
    counts = [len(part.messages.bodies) for part in parts]
    return Appended(
        first.first,
        first.created,
        join_messages([part.messages for part in parts]),
        join_column([part.queues for part in parts], counts),
        join_column([part.digest for part in parts], counts),
    )


def slice_appended(record: Appended, start: int, stop: int) -> Appended:
    """Some neighbouring messages of a batch."""
    if start == 0 and stop >= len(record):
        return record
    return Appended(
        record.first + start,
        record.created,
        record.messages.slice(start, stop),
        cut(record.queues, start, stop),
        cut(record.digest, start, stop),
    )


def offset_since(record: Appended, time: int) -> int | None:
    """The first offset of a batch whose message was created at `time` (microseconds) or later."""
    created = record.messages.created
    for row in range(len(record) if isinstance(created, list) else 1):
        if cell(created, row) >= time:
            return record.first + row
    return None


def regroup(records: Iterable[Appended], rows: int, size: int) -> Iterator[Appended]:
    """The same messages in batches of at most `rows` messages, and of not much more than `size` bytes of memory."""
    group: list[Appended] = []
    count = weight = 0
    for whole in records:
        for record in _pieces(whole, rows, size):
            added = record.messages.memory()
            adjoins = not group or group[-1].first + len(group[-1]) == record.first
            if group and (not adjoins or count + len(record) > rows or weight + added > size):
                yield join_appended(group)
                group, count, weight = [], 0, 0
            group.append(record)
            count += len(record)
            weight += added
    if group:
        yield join_appended(group)


def _pieces(record: Appended, rows: int, size: int) -> Iterator[Appended]:
    start = weight = 0
    for row, body in enumerate(record.messages.bodies):
        weight += len(body)
        if row > start and (row - start >= rows or weight > size):
            yield slice_appended(record, start, row)
            start, weight = row, len(body)
    if start < len(record):
        yield slice_appended(record, start, len(record))


def _join_ids(columns: Sequence[range | list[str] | None], counts: Sequence[int]) -> range | list[str] | None:
    first, last = columns[0], columns[-1]
    if columns.count(None) == len(columns):
        return None
    if isinstance(first, range) and isinstance(last, range) and _adjoin(columns):
        return range(first.start, last.stop, first.step)
    joined: list[str] = []
    for ids, count in zip(columns, counts, strict=True):
        joined += [""] * count if ids is None else map(str, ids)
    return joined


def _adjoin(ids: Sequence[range | list[str] | None]) -> bool:
    previous = ids[0]
    for following in ids[1:]:
        if not (isinstance(previous, range) and isinstance(following, range)):
            return False
        if previous.step != following.step or previous.stop != following.start:
            return False
        previous = following
    return True
