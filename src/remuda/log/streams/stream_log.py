"""The event log on a stream, as its readers see it. Reading changes nothing in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic, sleep, time_ns
from typing import Final, NamedTuple

import msgspec

from remuda.log.eventlog import Columns, Ends, EventLog, Wanted
from remuda.log.sealed.arrow import pa
from remuda.log.sealed.arrow_records import event_batch, message_batch
from remuda.log.sealed.table_schemas import MESSAGES_SCHEMA
from remuda.log.streams.entries import StreamEntry, decode_entry
from remuda.log.streams.references import References
from remuda.log.streams.stream_numbers import GONE, STREAM, creation_time, entry_after, entry_of, first_of, reference
from remuda.log.streams.stream_source import Place, RawEntry, StreamSource
from remuda.log.tail.record_codec import Damaged
from remuda.log.tail.regroup import join_appended, offset_since, slice_appended
from remuda.model.message import Message
from remuda.model.messages import cell
from remuda.model.records import Appended, Event, Events
from remuda.model.values.durations import SECOND

_GROUP_ROWS: Final = 8192
_GROUP_BYTES: Final = 8 << 20
_SKEW: Final = 10 * SECOND
"""By how much the clocks of writers and broker may differ before what is sought by time is not found at once."""
_NEAR: Final = 60 * SECOND
"""How long after it was made a message is looked for at first."""
AHEAD: Final = 1024
"""Entries by which an event may be ahead of its message, where two processes wrote them at the same time."""
_AHEAD_TIME: Final = 30 * SECOND
_FRESH: Final = 5 * SECOND
"""Where an event is not older, its message may still be on the way."""
_WAIT: Final = 2.0
_BACK: Final = 64
"""Entries that are looked through at first, going backwards; then twice as many, and so on."""


class _EventRun(NamedTuple):
    """Neighbouring events that differ in the message only."""

    position: int
    time: int
    event: Event
    references: Sequence[int]


class StreamLog(EventLog):
    """The event log on a stream. May be used from several threads."""

    def __init__(self, where: Place, stream: str = STREAM) -> None:
        super().__init__()
        self._source = StreamSource(where, stream)
        self._references = References()
        self._damaged: dict[range, None] = {}
        self._seen: StreamEntry | None = None
        self._known = 0

    def __repr__(self) -> str:
        return f"the event log {self._source!r}"

    def close(self) -> None:
        """Close the connection; a later call makes another."""
        self._source.close()

    @property
    def damaged(self) -> tuple[range, ...]:
        """Those of the gaps that the broker still holds, as entries that are not Remuda's."""
        return tuple(self._damaged)

    @property
    def is_same(self) -> bool:
        """Whether the stream still holds what was read last; else another may have been made under its name."""
        seen = self._seen
        if seen is None:
            return True
        self._known = 0  # another stream may be shorter
        now = self.entry(seen.number)
        return now is not None and (now.writer, now.sequence) == (seen.writer, seen.sequence)

    def ends(self) -> Ends:
        last = self._source.last()
        first = None if last is None else self._source.first(known=True)
        if first is None or last is None:
            return Ends(0, 0, 0, 0)
        begin, end = first_of(first.number), first_of(last.number + 1)
        return Ends(begin, end, begin, end)

    def end(self) -> int:
        """The number that comes next, of messages and of events alike."""
        return first_of(self._next_entry())

    def entry(self, number: int) -> StreamEntry | None:
        """One entry, if it is still there and Remuda's."""
        for raw in self._source.entries(number, self._up_to(number + 1)) if number >= 0 else ():
            return self._decoded(raw) if raw.number == number else None
        return None

    def entries(self, start: int, stop: int) -> Iterator[StreamEntry]:
        """Entries from number `start` to before `stop`, as far as they are there. These are numbers of entries, not of
        rows."""
        for raw in self._source.entries(start, self._up_to(stop)):
            if raw.number < stop and (entry := self._decoded(raw)) is not None:
                yield entry

    def last_entry(self) -> StreamEntry | None:
        """The newest entry."""
        raw = self._source.last()
        return None if raw is None else self._decoded(raw)

    def offset_at(self, time: int) -> int:
        """The first offset of a message created at `time` (microseconds) or later; the next one when there is none.

        Exact where the clocks of all that write differ by less than 10 seconds.
        """
        for entry in self._since(time):
            for record in entry.messages(bodies=False):
                if (offset := offset_since(record, time)) is not None:
                    return offset
        return self.end()

    def position_at(self, time: int) -> int:
        for entry in self._since(time):
            for position, moment, _, _ in entry.events():
                if moment >= time:
                    return position
        return self.end()

    def offset_of(self, id: str) -> int | None:
        """The offset of the newest message with this id.

        That of a snowflake is found near its time; any other by reading backwards, at worst all of the stream, once.
        """
        sought, end = reference(id), self._next_entry()
        for _ in range(2):
            self._look_up({sought}, range(end, end))
            offset = self._references.find(sought, first_of(end))
            found = None if offset is None else self.message(offset)
            if found is not None and found[0].id == id:
                return offset
            self._read_back(set(), end, whole=True)
        return None

    def message(self, offset: int) -> tuple[Message, tuple[str, ...]] | None:
        entry = self.entry(entry_of(offset))
        for record in entry.messages() if entry is not None else ():
            if 0 <= (row := offset - record.first) < len(record):
                return record.messages[row], cell(record.queues, row)
        return None

    def events_of(self, offset: int) -> list[tuple[int, Event]]:
        """All events of a message, each with its time, in order: the stream is read from the message on."""
        found = self.message(offset)
        if found is None:
            return []
        sought, own = reference(found[0].id), entry_of(offset)
        events: list[tuple[int, Event]] = []
        used_before = False
        for entry in self.entries(max(own - AHEAD, 0), self._next_entry()):
            if any(sought in names for _, names in entry.references()):
                if entry.number > own:
                    return events  # the id was used again, and what follows concerns that message
                if entry.number == own and used_before:
                    events = []
                used_before = True
            for _, time, event, references in entry.events():
                hits = sum(one == sought for one in references) if sought in references else 0
                events += [(time, msgspec.structs.replace(event, first=offset))] * hits
        return events

    def message_batches(
        self, start: int = 0, stop: int | None = None, *, columns: Columns = None, wanted: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Messages as Arrow batches. A stream knows no blocks, so all of them are read."""
        bodies = columns is None or "body" in columns
        for group in _grouped(self._messages(start, stop, bodies=bodies)):
            batch = message_batch(join_appended(group), columns)
            if columns is None or "offset" in columns:
                offsets = [row for one in group for row in range(one.first, one.first + len(one))]
                batch = batch.set_column(0, MESSAGES_SCHEMA.field("offset"), pa.array(offsets, pa.int64()))
            yield batch

    def event_batches(
        self, start: int = 0, stop: int | None = None, *, columns: Columns = None, wanted: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        resolve = columns is None or "first" in columns
        for group in self._events(start, stop, resolve=resolve):
            yield event_batch(group, columns)

    def messages(self, start: int = 0, stop: int | None = None) -> Iterator[Appended]:
        """Messages as records, those of one entry together."""
        return self._messages(start, stop)

    def events(self, start: int = 0, stop: int | None = None) -> Iterator[Events]:
        for group in self._events(start, stop):
            yield from group

    def follow_messages(
        self, start: int = 0, *, poll: float = 0.1, stop: threading.Event | None = None
    ) -> Iterator[Appended]:
        for entry in self._follow(start, poll, stop or threading.Event()):
            if entry is not None:
                yield from _cut(entry.messages(), start, None)

    def follow_events(
        self, start: int = 0, *, poll: float = 0.1, stop: threading.Event | None = None
    ) -> Iterator[Events]:
        for entry in self._follow(start, poll, stop or threading.Event()):
            if entry is not None:
                self._references.add(entry.number, entry.references())
                span = range(entry.number, entry.number + 1)
                yield from self._resolved(_event_runs(entry, start, None), span, resolve=True)

    def offset_of_last(self, rows: int) -> int:
        return self._back(rows, lambda entry: entry.message_count)

    def position_of_last(self, rows: int) -> int:
        return self._back(rows, lambda entry: entry.event_count)

    # Entries.

    def _next_entry(self) -> int:
        last = self._source.last(known=self._known > 0)
        self._known = max(self._known, 0 if last is None else last.number + 1)
        return 0 if last is None else last.number + 1

    def _up_to(self, stop: int) -> int:
        """`stop`, or the end of the stream if that comes first. The broker is asked only where it is not known."""
        return stop if stop <= self._known else min(stop, self._next_entry())

    def _decoded(self, raw: RawEntry) -> StreamEntry | None:
        try:
            entry = decode_entry(*raw)
        except Damaged:
            whole = range(first_of(raw.number), first_of(raw.number + 1))
            self._gaps[whole] = self._event_gaps[whole] = self._damaged[whole] = None
            return None
        if self._seen is None or entry.number > self._seen.number:
            self._seen = entry
        return entry

    def _range(self, start: int, stop: int | None, gaps: dict[range, None]) -> Iterator[StreamEntry]:
        """The entries with rows from `start` to before `stop`. Those that have expired at the broker go to `gaps`."""
        last = self._next_entry() if stop is None else self._up_to(entry_after(stop))
        first = entry_of(max(start, 0))
        begun = False
        for raw in self._source.entries(first, last):
            if not begun and raw.number > first:
                gaps[range(start, min(first_of(raw.number), first_of(last) if stop is None else stop))] = None
            begun = True
            if raw.number < last and (entry := self._decoded(raw)) is not None:
                yield entry

    def _since(self, time: int) -> Iterator[StreamEntry]:
        """The entries that may hold something that happened at a time or later."""
        last = self.last_entry()
        if last is None:
            return
        found = self._source.at_time(time - _SKEW, known=True)
        if found is None:
            if time - _SKEW > last.time:
                return
            found = self._source.first(known=True)
        if found is not None:
            yield from self.entries(found.number, last.number + 1)

    def _follow(self, start: int, poll: float, stop: threading.Event) -> Iterator[StreamEntry | None]:
        for raw in self._source.follow(entry_of(max(start, 0)), stop, poll):
            yield None if raw is None else self._decoded(raw)

    def _back(self, rows: int, count: Callable[[StreamEntry], int]) -> int:
        stop = self._next_entry()
        end = first_of(stop)
        left, step = rows, _BACK
        while left > 0 and stop > 0:
            start = max(stop - step, 0)
            found = [(entry.number, count(entry)) for entry in self.entries(start, stop)]
            for number, counted in reversed(found):
                if counted >= left:
                    return first_of(number) + counted - left
                left -= counted
            end = first_of(found[0][0]) if found else end
            stop, step = start if found and found[0][0] <= start else 0, 2 * step
        return end

    # Messages and events.

    def _messages(self, start: int, stop: int | None, *, bodies: bool = True) -> Iterator[Appended]:
        for entry in self._range(start, stop, self._gaps):
            yield from _cut(entry.messages(bodies=bodies), start, stop)

    def _events(self, start: int, stop: int | None, *, resolve: bool = True) -> Iterator[list[Events]]:
        """Events in groups of many; the messages of a whole group are looked up together."""
        runs: list[_EventRun] = []
        span = range(0)
        rows = 0
        for entry in self._range(start, stop, self._event_gaps):
            span = range(span.start if span else entry.number, entry.number + 1)
            self._references.add(entry.number, entry.references())
            for run in _event_runs(entry, start, stop):
                runs.append(run)
                rows += len(run.references)
            if rows >= _GROUP_ROWS:
                yield list(self._resolved(runs, span, resolve=resolve))
                runs, rows = [], 0
        if runs:
            yield list(self._resolved(runs, span, resolve=resolve))

    def _resolved(self, runs: Iterable[_EventRun], span: range, *, resolve: bool) -> Iterator[Events]:
        """Records with the offsets in place of the references. What is not in these entries is sought around them."""
        runs = list(runs)
        find = self._references.find
        if resolve:
            unknown = {one for run in runs for one in run.references if find(one, run.position) is None}
            if unknown:
                self._look_up(unknown, span, max(run.time for run in runs))
        for position, time, event, references in runs:
            offsets = [find(one, position) if resolve else None for one in references]
            rows = [msgspec.structs.replace(event, first=GONE if one is None else one) for one in offsets]
            yield Events(position, time, rows)

    def _read_ahead(self, left: set[int], behind: int, moment: int) -> None:
        """Look for the messages of references among the next entries and those still to come, unless they are old."""
        fresh = {one for one in left if (created := creation_time(one)) is None or created > moment - _NEAR}
        known = len(fresh)
        deadline, at = monotonic() + _WAIT, behind
        while fresh and at < behind + AHEAD:
            end = self._up_to(behind + AHEAD)
            for entry in self.entries(at, end):
                at = entry.number + 1
                self._see(entry, fresh)
                if not fresh or entry.time > moment + _AHEAD_TIME:
                    break
            else:
                at = max(at, end)
                if time_ns() // 1000 - moment < _FRESH and monotonic() < deadline:
                    sleep(0.05)
                    continue
            break
        if len(fresh) < known:
            left -= {one for one in left if self._references.find(one, 0) is not None}

    def _look_up(self, left: set[int], span: range, moment: int | None = None) -> None:
        """Look for the messages of references: near the time that their ids tell, just before the entries of their
        events, just behind, and at last by going backwards, as far as it takes.
        """
        times = sorted(time for one in left if (time := creation_time(one)) is not None)
        for begin, end in _spans(times):
            self._read_near(left, begin, end, span.start)
        if moment is not None:
            self._read_back(left, span.start, floor=span.start - _BACK)
            self._read_ahead(left, span.stop, moment)
        self._read_back(left, span.start)

    def _read_near(self, left: set[int], begin: int, end: int, before: int) -> None:
        found = self._source.at_time(begin - _SKEW) if left else None
        if found is None or found.number >= before:
            return
        for entry in self.entries(found.number, before):
            self._see(entry, left)
            if not left or entry.time > end + _NEAR:
                return

    def _read_back(self, left: set[int], before: int, *, floor: int = 0, whole: bool = False) -> None:
        floor = max(floor, 0)
        stop, step = self._references.first_covered(before), _BACK
        while (left or whole) and stop > floor:
            start = max(stop - step, floor)
            reached = stop
            for entry in self.entries(start, stop):
                reached = min(reached, entry.number)
                self._see(entry, left)
            if reached > start:
                return  # nothing older is there
            stop, step = self._references.first_covered(start), 2 * step

    def _see(self, entry: StreamEntry, left: set[int]) -> None:
        if self._references.covers(entry.number):
            return
        seen = list(entry.references())
        self._references.add(entry.number, iter(seen))
        if left:
            for _, references in seen:
                left.difference_update(references)


def _event_runs(entry: StreamEntry, start: int, stop: int | None) -> Iterator[_EventRun]:
    for position, time, event, references in entry.events():
        skipped = max(start - position, 0)
        kept = len(references) if stop is None else min(stop - position, len(references))
        if skipped < kept:
            yield _EventRun(position + skipped, time, event, references[skipped:kept])


def _cut(records: Iterable[Appended], start: int, stop: int | None) -> Iterator[Appended]:
    for record in records:
        first = max(start - record.first, 0)
        last = len(record) if stop is None else min(stop - record.first, len(record))
        if first < last:
            yield slice_appended(record, first, last)


def _grouped(records: Iterable[Appended]) -> Iterator[list[Appended]]:
    group: list[Appended] = []
    rows = size = 0
    for record in records:
        group.append(record)
        rows += len(record)
        size += sum(map(len, record.messages.bodies))
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _spans(times: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Times in order as spans, those near each other together."""
    begin = end = None
    for time in times:
        if begin is not None and end is not None and time - end > _NEAR:
            yield begin, end
            begin = None
        begin = time if begin is None else begin
        end = time
    if begin is not None and end is not None:
        yield begin, end
