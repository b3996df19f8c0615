"""Which rows are wanted: asked for by options, or by a filter that Spark hands down."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from remuda.log.sealed.sealed_table import Table
from remuda.model.topics import has_prefix
from remuda.spark.source.tables import MESSAGES, MOMENT, NUMBER

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = 1 << 62


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Rows with numbers from `start` to before `stop`, times from `since` to before `until`, and some of the texts."""

    start: int = 0
    stop: int = _LAST
    since: int | None = None
    until: int | None = None
    queues: frozenset[str] | None = None
    states: frozenset[str] | None = None
    topics: tuple[str, ...] | None = None
    """Prefixes, of which one must cover one of a message's topics."""

    def options(self) -> dict[str, str | int]:
        """As options of the source, all but the numbers."""
        texts = {"queues": self.queues, "states": self.states, "topics": self.topics}
        listed = {
            name: msgspec.json.encode(sorted(value)).decode() for name, value in texts.items() if value is not None
        }
        times = {"since": self.since, "until": self.until}
        return {**listed, **{name: time for name, time in times.items() if time is not None}}

    def columns(self, table: str) -> set[str]:
        """What must be read to tell which rows of a table are wanted."""
        needed = {NUMBER[table]}
        if self.since is not None or self.until is not None:
            needed.add(MOMENT[table])
        if self.queues is not None:
            needed.add("queues" if table == MESSAGES else "queue")
        if self.states is not None:
            needed.add("state")
        if self.topics is not None:
            needed |= {"name", "topics"}
        return needed

    def may_hold(self, name: str, sealed: Table, group: int) -> bool:
        """Whether a row group of a sealed file can hold rows that are wanted, as far as its statistics tell."""

        def bounds(column: str) -> tuple[Any, Any] | None:
            return sealed.statistics(group, column)

        if self.since is not None or self.until is not None:
            times = bounds(MOMENT[name])
            if times is not None:
                if self.since is not None and _micros(times[1]) < self.since:
                    return False
                if self.until is not None and _micros(times[0]) >= self.until:
                    return False
        places = {"queues": "queues.list.element" if name == MESSAGES else "queue", "states": "state"}
        for field, column in places.items():
            values: frozenset[str] | None = getattr(self, field)
            ends = None if values is None else bounds(column)
            if values is not None and ends is not None and not any(ends[0] <= value <= ends[1] for value in values):
                return False
        return True

    def apply(self, table: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are wanted. Their numbers are in the range already."""
        masks = list(self._masks(table, batch))
        return batch.filter(functools.reduce(pc.and_, masks)) if masks else batch

    def _masks(self, table: str, batch: pa.RecordBatch) -> Iterable[pa.Array]:
        if self.since is not None:
            yield pc.greater_equal(_numbers(batch.column(MOMENT[table])), self.since)
        if self.until is not None:
            yield pc.less(_numbers(batch.column(MOMENT[table])), self.until)
        if self.queues is not None:
            yield (
                _any_in(batch.column("queues"), self.queues)
                if table == MESSAGES
                else _in(batch.column("queue"), self.queues)
            )
        if self.states is not None:
            yield _in(batch.column("state"), self.states)
        if self.topics is not None:
            yield _below(batch, self.topics)


EVERYTHING: Final = Selection()


def parse_time(value: str) -> int:
    """Microseconds of a time as people write it: ISO 8601, in UTC unless it names a zone; or a whole number of them."""
    text = value.strip()
    if text.lstrip("-").isdigit():
        micros = int(text)
    else:
        moment = datetime.fromisoformat(text)
        micros = _micros(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    if abs(micros) >= 1 << 63:
        raise ValueError("the time is out of range")
    return micros


def _micros(moment: datetime | date) -> int:
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    return (moment - _EPOCH if moment.tzinfo else moment - _EPOCH.replace(tzinfo=None)) // timedelta(microseconds=1)


def _numbers(times: pa.Array) -> pa.Array:
    return times.cast(pa.int64())


def _in(column: pa.Array, values: Iterable[str]) -> pa.Array:
    return pc.is_in(column, pa.array(sorted(values), pa.string()))


def _any_in(lists: pa.Array, values: Iterable[str]) -> pa.Array:
    rows = pc.list_parent_indices(lists).filter(_in(pc.list_flatten(lists), values))
    return pc.is_in(pa.array(range(len(lists)), pa.int64()), rows.cast(pa.int64()))


def _below(batch: pa.RecordBatch, prefixes: tuple[str, ...]) -> pa.Array:
    """Whether one of a message's topics, or its name where it lists none, lies under one of the prefixes."""
    names, topics = batch.column("name"), batch.column("topics")
    known = pc.unique(pa.concat_arrays([names.cast(pa.string()), pc.list_flatten(topics)])).to_pylist()
    fitting = [topic for topic in known if topic is not None and any(has_prefix(topic, one) for one in prefixes)]
    unlisted = pc.equal(pc.fill_null(pc.list_value_length(topics), 0), 0)
    return pc.or_(_any_in(topics, fitting), pc.and_(unlisted, _in(names, fitting)))
