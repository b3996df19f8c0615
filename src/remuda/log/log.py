"""The log: records go in, are written in batches, and come back after a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

import google_crc32c
import msgspec

from remuda.log import checkpoint as checkpoints
from remuda.log import ledger as ledgers
from remuda.log import newest as newest_segment
from remuda.log.arranging import arrange
from remuda.log.checkpoint import KEPT, Checkpoint, Mark
from remuda.log.codec import EVENTS, MESSAGES, encode, encode_appended, encode_events
from remuda.log.disk import Disk
from remuda.log.fetch import Fetched, Fetcher
from remuda.log.frames import FRAME_BYTES, HEADER, MAX_PAYLOAD, NUMBERED, checksum, new_marker
from remuda.log.history import Finder
from remuda.log.index import SegmentIndex
from remuda.log.ledger import Ledger, Missed, Span
from remuda.log.newest import Newest
from remuda.log.recovery import UNKNOWN, Passage, Recovery, RecoveryReport, Replay, passages, read_first
from remuda.log.segments import (
    EVENTS_TABLE,
    HEADER_BYTES,
    MESSAGES_TABLE,
    Catalog,
    Counters,
    Files,
    TailSegment,
    list_files,
    set_aside_name,
)
from remuda.log.tail import Batch, Part, TailWriter, broken, passes
from remuda.log.tail import LogOptions as LogOptions
from remuda.log.walk import Damage, removed
from remuda.log.write_position import WritePosition
from remuda.model.errors import DirectoryInUse, StorageError
from remuda.model.message import Message
from remuda.model.records import Appended, Event, Events, Record

_SMALL: Final = 32 * 1024
_GUESS: Final = 256
"""About what a record of one message takes in memory and in the log, beside the body."""
_MOST_GATHERED: Final = 256 * 1024
_crc: Any = google_crc32c.value


class Log(WritePosition):
    """One writer's log on a disk.

    `append`, `reserve`, `take` and `mark` are called under the caller's lock; everything else may run beside them.
    """

    def __init__(self, disk: Disk, options: LogOptions, files: Files, kept: list[Checkpoint]) -> None:
        super().__init__()
        self.disk = disk
        self.options = options
        self.catalog = Catalog(files)
        self.unread: list[Passage] = []
        """Parts of the tail that were not read when the log was opened."""
        self.maintenance = threading.Lock()
        """Held by whoever seals or collects."""
        self._recovered = False
        self._failure: BaseException | None = None
        self._closed = False
        self._usable = False
        """Whether `_check` would find nothing."""
        self._half = options.segment_bytes // 2
        self._full = options.segment_bytes
        self._writer = TailWriter(disk, options, self)
        self._fetcher = Fetcher(disk, self.catalog)
        self._finder = Finder(disk, self.catalog.files)
        self._active: TailSegment | None = None
        self._upcoming = TailSegment(1, new_marker(), Counters(0, 0, 0))
        self._begun = 0
        """The time of the first record in the active segment."""
        self._pending: list[Part] = []
        self._gathered: list[Appended | Events] = []
        """Records that are not encoded yet, behind everything that is pending."""
        self._gathered_bytes = 0
        self._finished: list[TailSegment] = []
        self._before = 0
        """Bytes of the log before the active segment."""
        self._checkpoint_total = 0
        self._kept = [(kept.sequence, kept.mark) for kept in reversed(kept)]
        self._last_checkpoint = 0
        self._noted = 0
        self.ledger: Ledger | None = None
        """What was collected; None where nobody has taken note of it yet."""
        self._written_ledger: Ledger | None = None

    @classmethod
    def open(
        cls, disk: Disk, options: LogOptions | None = None, *, readable: Callable[[bytes], bool] = lambda snapshot: True
    ) -> tuple[Log, Recovery]:
        """Open the log for writing, and what it remembers. Take `Recovery.records` to their end before appending.

        A checkpoint whose snapshot is not `readable` is damaged like any other: an older one is used, or all the log.
        """
        try:
            disk.lock()
            return cls._open(disk, options or LogOptions(), readable)
        except DirectoryInUse:
            raise
        except BaseException:
            disk.unlock()
            raise

    @classmethod
    def _open(cls, disk: Disk, options: LogOptions, readable: Callable[[bytes], bool]) -> tuple[Log, Recovery]:
        found = checkpoints.read_all(disk, readable)
        newest = found.valid[0] if found.valid else None
        names = disk.list()
        for name in names:
            if name.startswith("sealed/") and name.endswith(".tmp"):
                disk.remove(name)  # what a crash left half written
        files = list_files(names)
        arranged = arrange(disk, files.tail)
        for copy in arranged.copies:
            disk.rename(copy.name, set_aside_name(copy))
        files = files._replace(tail=tuple(arranged.segments))
        segments = read_starts(disk, files)
        begun = _newest(disk)
        gone = begun is not None and newest_segment.is_missing(
            disk, begun, segments, newest.mark if newest else None, sealed_end(files)
        )
        segments = _drop_sealed(disk, files, segments, newest.mark.segment if newest else None)
        log = cls(disk, options, files._replace(tail=tuple(segments)), found.valid)
        log.unread = passages(segments, newest.mark if newest else None)
        log._last_checkpoint = max(checkpoints.sequences(disk), default=0)
        unreadable = None
        try:
            log.ledger = log._written_ledger = ledgers.read(disk, newest.mark if newest else None)
        except StorageError as error:
            if error.passing:
                raise
            unreadable = str(error)
        log._upcoming.sequence = max(
            [
                1,
                *(_after_mark(checkpoint.mark) for checkpoint in found.valid),
                *(segment.sequence + 1 for segment in files.tail),
                begun.segment + 1 if begun else 1,
            ]
        )
        begins_in_tail = (
            segments[0].sequence == 1 or segments[0].first.number == 0 or segments[0].first is UNKNOWN
            if segments
            else not found.damaged and (begun is None or begun.first.number == 0)
        )
        state_lost = newest is None and bool(files.messages or files.events or not begins_in_tail)
        expected = newest.mark.counters if newest else _before_tail(files, segments, state_lost)
        report = RecoveryReport(
            damaged_checkpoints=tuple(found.damaged),
            state_lost=state_lost,
            sealed=files.messages + files.events if state_lost else (),
            copies=tuple(set_aside_name(copy) for copy in arranged.copies),
            cut_off=begun if gone else None,
            damaged_ledger=unreadable,
        )
        replay = Replay(disk, segments, newest.mark if newest else None, expected, sealed_end(files), report.cut_off)
        records = log._recover(replay, report, files, expected if state_lost else None)
        return log, Recovery(newest.snapshot if newest else None, records, report)

    def _recover(
        self, replay: Replay, report: RecoveryReport, files: Files, rebuilt: Counters | None
    ) -> Iterator[Record]:
        unreadable: list[Damage] = []
        if rebuilt is not None:
            from remuda.log.rebuild import sealed_records  # Arrow is loaded only where there are files to read

            yield from sealed_records(self.disk, files, rebuilt, unreadable)
        yield from replay.records()
        end = replay.end or Counters(0, 0, 0)
        self._number = end.number
        # Numbers once given never come back, even when the newest part of the log was lost.
        self.next_offset = max([end.offset, *(file.last + 1 for file in files.messages)])
        self.next_position = max([end.position, *(file.last + 1 for file in files.events)])
        self._before = replay.bytes
        previous: TailSegment | None = None
        for segment in self.catalog.files().tail:
            if segment.written == 0:
                self.catalog.drop_tail(segment)
                continue
            if segment.first is UNKNOWN:
                segment.first = Counters(end.number, self.next_offset, self.next_position)
            if previous is not None:
                previous.end = segment.first
            previous = segment
        if previous is not None:
            previous.end = Counters(self._number, self.next_offset, self.next_position)
        report.torn = replay.torn
        report.torn_bytes = sum(hole.end - hole.start for hole in replay.torn)
        report.damages = (*unreadable, *replay.damages)
        report.next_offset, report.next_position = self.next_offset, self.next_position
        if self.ledger is not None:
            report.damages += self._gone(report.damages)
        elif report.state_lost or report.damaged_ledger:
            report.uncovered = tuple(self.uncovered())
        self._recovered = True
        self._usable = self._failure is None and not self._closed

    def append(self, record: Record) -> int:
        """Add a record to what is pending; gives how many bytes it takes. Nothing is written yet."""
        if self._gathered or self._held:
            self._append_gathered()
        return self._append((record,))

    def gather(self, record: Appended | Events) -> int:
        """As `append`, for a log that need not outlive the process: a small record is encoded later, with others, when
        somebody asks for what is pending, or at once and held, where that costs little. Gives about how many bytes it
        will take; 0, and nothing is done, if it is not small."""
        if size := self.hold_single(record):
            return size
        size = _GUESS
        if type(record) is Appended:
            messages = record.messages
            size += len(messages.bodies[0])
            if size > _SMALL or len(messages.bodies) != 1:
                return 0
        self.disarm()
        self._in_order = False
        self._gathered.append(record)
        self._gathered_bytes += size
        if self._gathered_bytes > _MOST_GATHERED:
            self._append_gathered()
        return size

    def _append_gathered(self) -> None:
        if self._held:
            self._add(self.let_go())
        if self._gathered:
            records, self._gathered, self._gathered_bytes = self._gathered, [], 0
            self._in_order = True
            self._append(records)

    def _append(self, records: Sequence[Record]) -> int:
        if not self._usable:
            self._check()
        size = 0
        for record in records:
            frame = self.frame_single(self._active, record)
            if frame is not None:
                self._add(frame)
                size += len(frame)
                continue
            kind, payload, offset, position = self._encoded(record)
            length = len(payload)
            if length > MAX_PAYLOAD:
                raise StorageError(f"a batch of {length} bytes is too large for one frame; nothing was stored")
            segment, byte = self._active, self._byte
            if segment is None or byte >= self.options.segment_bytes:
                segment, byte = self._segment(), 0
            if not self._pending or self._pending[-1].segment is not segment:
                self._pending.append(Part(segment))
            chunks = self._pending[-1].chunks
            if byte == 0:
                begin = self._begin(segment)
                chunks.append(begin)
                self._grow(len(begin))
                self._begun = time_of(record)
            if segment.index is not None:
                segment.index.note(record, self._byte)
            number = self._number
            crc = _crc(NUMBERED.pack(number, kind) + payload) if length < _SMALL else checksum(number, kind, payload)
            chunks.append(HEADER.pack(segment.marker, number, length, crc, kind))
            chunks.append(payload)
            self.next_offset, self.next_position = offset, position
            self._number = number + 1
            self._grow(length + FRAME_BYTES)
            size += length + FRAME_BYTES
        return size

    def _add(self, frame: bytes) -> None:
        """A frame of the active segment is pending."""
        segment, pending = self._active, self._pending
        assert segment is not None
        if not pending or pending[-1].segment is not segment:
            pending.append(Part(segment))
        pending[-1].chunks.append(frame)
        if self._byte >= self._full:
            self.room = 0

    def append_now(self, record: Record) -> int:
        """As `append` and `write_now`, for a small record when nothing is pending; 0, and nothing is done, where that
        does not hold. After an error that is `passing` it is appended, and pending."""
        size = self.write_single(record)
        if size:
            return size
        if self._pending or self._gathered or self._held or self._finished or not self._usable:
            return 0
        segment, byte = self._active, self._byte
        if segment is None or not 0 < byte < self._half:
            return 0
        offset, position = self.next_offset, self.next_position
        if type(record) is Events and record.first == position:
            kind, payload = EVENTS, encode_events(record, offset)
            position += len(record.rows)
        else:
            kind, payload, offset, position = self._encoded(record)
        length = len(payload)
        size = length + FRAME_BYTES
        if size > _SMALL:
            return 0
        if segment.index is not None:
            segment.index.note(record, byte)
        number = self._number
        crc = _crc(NUMBERED.pack(number, kind) + payload)
        data = HEADER.pack(segment.marker, number, length, crc, kind) + payload
        self.next_offset, self.next_position = offset, position
        self._number = number + 1
        self._byte = byte + size
        self.room -= size
        try:
            self._writer.write(segment, data)
        except BaseException as error:
            if not passes(error):
                self._fail(error)
            self._pending.append(Part(segment, [data]))
            raise
        return size

    def has(self, record: Appended | Events) -> bool:
        """Whether a record, which begins where the log stood lately, was appended since."""
        return record.first < (self.next_offset if type(record) is Appended else self.next_position)

    def write_now(self) -> bool:
        """Write what is pending at once, under the caller's lock; False, and nothing is done, where it is more than a
        small write to one segment. No batch that was taken may still have to be written. After an error that is
        `passing` all is still pending."""
        if self._gathered or self._held:
            self._append_gathered()
        if len(self._pending) != 1 or self._finished or self._byte >= self._half or not self._usable:
            return False
        part = self._pending[0]
        if sum(map(len, part.chunks)) > _SMALL:
            return False
        data = b"".join(part.chunks)
        self._pending = []
        try:
            self._writer.write(part.segment, data)
        except BaseException as error:
            if not passes(error):
                self._fail(error)
            self._pending = [part]
            raise
        return True

    def _encoded(self, record: Record) -> tuple[int, bytes, int, int]:
        """The kind and payload of a record, which must begin where the log stands, and the counters after it."""
        offset, position = self.next_offset, self.next_position
        if type(record) is Events:
            if record.first != position:
                _check_begin(record.first, position)
            return EVENTS, encode_events(record, offset), offset, position + len(record.rows)
        if type(record) is Appended:
            if record.first != offset:
                _check_begin(record.first, offset)
            return MESSAGES, encode_appended(record, position), offset + len(record.messages.bodies), position
        return *encode(record, offset, position), offset, position

    def reserve(self, extra_bytes: int, *, use_spare: bool = False) -> None:
        """Make room for what is pending and `extra_bytes` more, or raise `DiskFull` and change nothing.

        Answers to deliveries may `use_spare` room that publishing leaves free.
        """
        if not self._usable:
            self._check()
        if self._gathered or self._held:
            self._append_gathered()
        segment = self._active
        if segment is None or self._byte >= self.options.segment_bytes:
            segment = self._segment()
        needed = self._byte + extra_bytes + HEADER_BYTES
        if not use_spare:
            needed += self.options.spare_bytes
        if needed > segment.reserved:
            self._writer.reserve(segment, needed)
        self.room = segment.reserved - self._byte - HEADER_BYTES - self.options.spare_bytes

    def take(self) -> Batch:
        """Hand over what is pending. One batch at a time is written, while others append."""
        self._check()
        if self._gathered or self._held:
            self._append_gathered()
        parts, self._pending = self._pending, []
        finished, self._finished = self._finished, []
        half_full = self._byte >= self.options.segment_bytes // 2
        return Batch(self._writer, parts, finished, self._upcoming if half_full else None, self._fail)

    def sync(self) -> None:
        """Return once everything that was written survives a power loss. No batch that was taken may still have to be
        written."""
        self._writer.sync()

    def take_back(self, batch: Batch) -> None:
        """What of a batch could not be written is pending again, before everything that came since."""
        self._pending[:0] = batch.unwritten
        self._finished[:0] = batch.finished

    def roll(self, before: int) -> bool:
        """Begin a new segment with the next record if this one was begun before a time, in microseconds.

        Where little is written a segment would never be full, and what is in it never collected.
        """
        self._check()
        if self._gathered or self._held:
            self._append_gathered()
        segment = self._active
        if segment is None or self._byte == 0 or self._begun >= before:
            return False
        segment.end = Counters(self._number, self.next_offset, self.next_position)
        self._finished.append(segment)
        self._active = None
        self.disarm()
        self._before += self._byte
        self._byte = 0
        self.room = 0
        return True

    def mark(self) -> Mark:
        """The place after everything appended so far."""
        if self._gathered or self._held:
            self._append_gathered()
        segment = self._active.sequence if self._active else self._upcoming.sequence
        return Mark(segment, self._byte, self._number, self.next_offset, self.next_position, self._total)

    def check_there(self) -> None:
        """Raise if the segment that is written to was removed: what is written to it would go with it."""
        segment = self._active
        if segment is None or not segment.written:
            return
        try:
            self.disk.size(segment.name)
        except FileNotFoundError:
            if segment in self.catalog.files().tail:
                raise StorageError(
                    f"{segment.name} was removed while it was written to; nothing more is written. Restore it from a "
                    "copy, then open again"
                ) from None

    @property
    def unnoted(self) -> TailSegment | None:
        """The segment that is written to, until it is noted as the newest."""
        segment = self._active
        return segment if segment is not None and segment.written and segment.sequence > self._noted else None

    def note_newest(self, segment: TailSegment) -> None:
        """Have it missed if it goes away. Its beginning must be synced."""
        newest_segment.write(self.disk, Newest(segment.sequence, segment.first))
        self._noted = segment.sequence

    def write_checkpoint(self, mark: Mark, snapshot: bytes | Iterable[bytes]) -> int:
        """Keep `snapshot`, whole or in parts, as the state at `mark`; gives its size.

        Everything before the mark must be synced.
        """
        self._check()
        noted = msgspec.structs.replace(mark, ledger=self._begin_ledger())
        self._last_checkpoint += 1
        parts = (snapshot,) if isinstance(snapshot, bytes) else snapshot
        size = checkpoints.write(self.disk, self._last_checkpoint, noted, parts)
        self._kept = [*self._kept, (self._last_checkpoint, mark)][-KEPT:]
        self._checkpoint_total = mark.total
        kept = {sequence for sequence, _ in self._kept}
        for sequence in checkpoints.sequences(self.disk):
            if sequence not in kept:
                self.disk.remove(checkpoints.name_of(sequence))
        return size

    @property
    def pending_bytes(self) -> int:
        return sum(len(chunk) for part in self._pending for chunk in part.chunks)

    @property
    def _total(self) -> int:
        return self._before + self._byte

    @property
    def bytes_since_checkpoint(self) -> int:
        return self._total - self._checkpoint_total

    @property
    def records_since_checkpoint(self) -> int:
        """How many records a restart would have to play."""
        return self._number - (self._kept[-1][1].number if self._kept else 0)

    @property
    def settled_before(self) -> int:
        """The sequence of the first tail segment that a restart may need: those before live on in a checkpoint."""
        return min((mark.segment for _, mark in self._kept), default=0)

    def fetch(self, runs: Sequence[tuple[int, int]]) -> Fetched:
        """The whole messages at these runs of `(first offset, count)`, in this order."""
        return self._fetcher.fetch(runs)

    def uncovered(self) -> list[range]:
        """The offsets of which no file says that it holds them."""
        return [range(*span) for span in self._uncovered(MESSAGES_TABLE)]

    def note_collected(self, messages: Iterable[Span] = (), events: Iterable[Span] = ()) -> None:
        """Take note of what is collected, before its files go."""
        self._write_ledger(self._begun_ledger().noting(messages, events))

    def note_missed(self, missed: Iterable[Missed]) -> None:
        """Take note of the events that are missing and were not collected."""
        self._write_ledger(msgspec.structs.replace(self._begun_ledger(), missed=tuple(missed)))

    def missing(self) -> tuple[list[Span], list[Span]]:
        """The messages and the events that no file holds and that were not collected."""
        known = self._begun_ledger()
        return (
            ledgers.without(self._uncovered(MESSAGES_TABLE), known.messages),
            ledgers.without(self._uncovered(EVENTS_TABLE), known.events),
        )

    def _begun_ledger(self) -> Ledger:
        """In a log without one, nobody can tell what was collected: what is missing now counts as that."""
        if self.ledger is not None:
            return self.ledger
        return Ledger(tuple(self._uncovered(MESSAGES_TABLE)), tuple(self._uncovered(EVENTS_TABLE)))

    def _begin_ledger(self) -> bool:
        """Have a ledger on the disk; False where that cannot be, which must not keep anything else from being done."""
        try:
            self._write_ledger(self._begun_ledger())
        except StorageError as error:
            if error.passing:
                raise
            return False
        return True

    def _write_ledger(self, ledger: Ledger) -> None:
        self.ledger = ledger
        if ledger != self._written_ledger:
            ledgers.write(self.disk, ledger)
            self._written_ledger = ledger

    def _uncovered(self, table: str) -> list[Span]:
        end = self.next_offset if table == MESSAGES_TABLE else self.next_position
        return ledgers.uncovered(self.catalog.files(), table, end)

    def _gone(self, known: Sequence[Damage]) -> tuple[Damage, ...]:
        """What is missing beside the damage that is known."""
        messages, events = self.missing()
        messages = ledgers.without(messages, [(one.messages.start, one.messages.stop) for one in known if one.messages])
        events = ledgers.without(events, [(one.events.start, one.events.stop) for one in known if one.events])
        return (
            *(removed(MESSAGES_TABLE, *span) for span in messages),
            *(removed(EVENTS_TABLE, *span) for span in events),
        )

    def events_of(self, offset: int) -> list[tuple[int, Event]]:
        """All events that tell of a message, each with its time, in order."""
        return self._finder.events_of(offset)

    def record_of(self, offset: int) -> tuple[Message, tuple[str, ...]] | None:
        """A message and the queues it was routed to; None when it is not there any more."""
        return self._finder.message(offset)

    def find_id(self, wanted: str) -> int | None:
        """The offset of the newest message with this id."""
        return self._finder.offset_of(wanted)

    def abandon(self, error: BaseException) -> None:
        """Write nothing more: what is pending comes of a change that was cut short."""
        self._fail(error)

    def close(self) -> None:
        """Write and sync what is pending, and let the directory go."""
        try:
            if self._failure is None and self._recovered and not self._closed:
                batch = self.take()
                batch.write()
                if self._active is not None and self._active.written:
                    self._writer.finish(self._active)
                batch.sync()
        finally:
            self._writer.close()
            self._closed = True
            self._usable = False
            self.room = 0
            self.disk.unlock()

    def _segment(self) -> TailSegment:
        """The segment that the next record goes to."""
        if self._active is not None and self._byte < self.options.segment_bytes:
            return self._active
        if self._active is not None:
            self._active.end = Counters(self._number, self.next_offset, self.next_position)
            self._finished.append(self._active)
        self.disarm()
        self._active = self._upcoming
        self._upcoming = TailSegment(self._active.sequence + 1, new_marker(), Counters(0, 0, 0))
        self._active.first = Counters(self._number, self.next_offset, self.next_position)
        self._active.index = SegmentIndex()
        self._before += self._byte
        self._byte = 0
        self.go_to(self._active, self._active.index, self._active.marker)
        self.room = 0
        return self._active

    def _begin(self, segment: TailSegment) -> bytes:
        segment.first = Counters(self._number, self.next_offset, self.next_position)
        self.catalog.add_tail(segment)
        return segment.header()

    def _grow(self, size: int) -> None:
        self._byte += size
        self.room = self.room - size if self._byte < self.options.segment_bytes else 0

    def _check(self) -> None:
        if self._failure is not None:
            raise broken(self._failure)
        if self._closed:
            raise StorageError("the log was closed; nothing was stored. Open it again to go on")
        if not self._recovered:
            raise StorageError("the log is still being read; take Recovery.records to their end first")

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._usable = False
        self.disarm()
        self.room = 0


def time_of(record: Record) -> int:
    """When a record was made."""
    return record.created if isinstance(record, Appended) else record.time


def _check_begin(first: int, expected: int) -> None:
    if first != expected:
        raise StorageError(f"a record begins at {first} where the log expects {expected}; nothing was stored")


def read_starts(disk: Disk, files: Files) -> list[TailSegment]:
    """The segments with what they begin at. One that cannot be read at all begins where the next one does: the one
    before it is then still read to its end."""
    following = UNKNOWN
    for segment in reversed(files.tail):
        following = segment.first = read_first(disk, segment) or following
        segment.written = disk.size(segment.name)
    return list(files.tail)


def _newest(disk: Disk) -> Newest | None:
    try:
        return newest_segment.read(disk)
    except StorageError:
        return None  # `remuda check` tells; nothing is lost with it


def _after_mark(mark: Mark) -> int:
    """The sequence of a segment that is begun after a mark: never that of the segment the mark lies in, even if it is
    gone, or the next start would look for the mark in the new one."""
    return mark.segment + 1 if mark.byte else mark.segment


def _before_tail(files: Files, segments: list[TailSegment], state_lost: bool) -> Counters:
    """The counters at which the tail should begin when no checkpoint says so."""
    if not (state_lost and segments) or segments[0].first is UNKNOWN:
        return Counters(0, 0, 0)
    first = segments[0].first
    _, offset, position = sealed_end(files)
    return Counters(first.number, min(offset, first.offset), min(position, first.position))


def sealed_end(files: Files) -> Counters:
    offset = max((file.last + 1 for file in files.messages), default=0)
    return Counters(0, offset, max((file.last + 1 for file in files.events), default=0))


def _drop_sealed(disk: Disk, files: Files, segments: list[TailSegment], needed: int | None) -> list[TailSegment]:
    """Remove segments whose sealing was finished but for this. Not those from the `needed` one on, in which the newest
    checkpoint goes on: a copy taken beside the writer may have their rows as well, but not what they changed."""
    messages = {(file.first, file.last) for file in files.messages}
    events = {(file.first, file.last) for file in files.events}
    left = []
    for segment, following in zip_longest(segments, segments[1:]):
        if following is not None and (needed is None or segment.sequence < needed):
            offsets = (segment.first.offset, following.first.offset - 1)
            positions = (segment.first.position, following.first.position - 1)
            wanted = (offsets[0] <= offsets[1]) + (positions[0] <= positions[1])
            if wanted and wanted == (offsets in messages) + (positions in events):
                disk.remove(segment.name)
                continue
        left.append(segment)
    return left
