"""The log: records go in, are written in batches, and come back after a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import google_crc32c
import msgspec

from remuda.log.disk import Disk
from remuda.log.readers.fetch import Fetched, Fetcher
from remuda.log.readers.finder import Finder
from remuda.log.repair.inventory import Inventory, sealed_end, take_inventory
from remuda.log.repair.recovery import UNKNOWN, Passage, Recovery, Replay, passages
from remuda.log.segments import (
    HEADER_BYTES,
    MESSAGES_TABLE,
    Catalog,
    Counters,
    TailSegment,
)
from remuda.log.state.checkpoint import CheckpointKeeper, Mark
from remuda.log.state.ledger import LedgerKeeper
from remuda.log.tail.record_codec import EVENTS, MESSAGES, encode, encode_appended, encode_events
from remuda.log.tail.record_scan import Damage
from remuda.log.tail.segment_index import SegmentIndex
from remuda.log.tail.tail_frames import FRAME_BYTES, HEADER, MAX_PAYLOAD, NUMBERED, checksum, new_marker
from remuda.log.tail.write_position import WritePosition
from remuda.log.tail.writer import LogOptions as LogOptions
from remuda.log.tail.writer import SegmentPart, TailWriter, WriteBatch, broken, passes
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

    def __init__(self, disk: Disk, options: LogOptions, found: Inventory) -> None:
        super().__init__()
        self.disk = disk
        self.options = options
        self.catalog = Catalog(found.files)
        self.unread: list[Passage] = passages(list(found.files.tail), found.mark)
        """Parts of the tail that were not read when the log was opened."""
        self.maintenance = threading.Lock()
        """Held while sealing or collecting."""
        self._recovered = False
        self._failure: BaseException | None = None
        self._closed = False
        self._usable = False
        """Whether `_check` would pass."""
        self._direct_until = options.segment_bytes // 2
        self._full = options.segment_bytes
        self._writer = TailWriter(disk, options, self)
        self._fetcher = Fetcher(disk, self.catalog)
        self._finder = Finder(disk, self.catalog.files)
        self._active: TailSegment | None = None
        self._upcoming = TailSegment(found.next_sequence, new_marker(), Counters(0, 0, 0))
        self._begun = 0
        """The time of the first record in the active segment."""
        self._pending: list[SegmentPart] = []
        self._gathered: list[Record] = []
        """Records that are not encoded yet, behind everything that is pending."""
        self._gathered_bytes = 0
        self._finished: list[TailSegment] = []
        self._taken: WriteBatch | None = None
        """The batch that was taken last."""
        self._before = 0
        """Bytes of the log before the active segment."""
        self._checkpoints = CheckpointKeeper(disk, found.checkpoints)
        self.ledger = LedgerKeeper(disk, self.catalog, found.ledger, lambda: (self.next_offset, self.next_position))

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
        found = take_inventory(disk, readable)
        log = cls(disk, options, found)
        sealed = sealed_end(found.files)
        replay = Replay(disk, list(found.files.tail), found.mark, found.expected, sealed, found.report.cut_off)
        records = log._recover(replay, found)
        return log, Recovery(found.newest.snapshot if found.newest else None, records, found.report)

    def _recover(self, replay: Replay, found: Inventory) -> Iterator[Record]:
        files, report = found.files, found.report
        unreadable: list[Damage] = []
        if report.state_lost:
            from remuda.log.repair.rebuild import sealed_records  # Arrow is loaded only where there are files to read

            yield from sealed_records(self.disk, files, found.expected, unreadable)
        yield from replay.records()
        replay.cut()
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
        if self.ledger.known is not None:
            report.damages += self.ledger.gone(report.damages)
        elif report.state_lost or report.damaged_ledger:
            report.uncovered = tuple(self.uncovered())
        self._recovered = True
        self._usable = self._failure is None and not self._closed

    def append(self, record: Record) -> int:
        """Add a record to what is pending; returns how many bytes it takes. Nothing is written yet."""
        if self._gathered or self._held:
            self._append_gathered()
        return self._append((record,))

    def gather(self, record: Record) -> int:
        """As `append`, for a log that need not outlive the process: a small record is encoded at once where that is
        cheap, else later and with others, when what is pending is needed. Returns about how many bytes it will take;
        0, with nothing done, if it is not small."""
        if self._held and not self._gathered:  # the buffer of held frames may be full
            self._add(self.let_go())
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
            records, done = self._gathered, 0
            self._in_order = True
            try:
                for record in records:
                    self._append((record,))
                    done += 1
            finally:  # what an error keeps from being appended is not lost
                self._gathered, self._gathered_bytes = records[done:], 0
                self._in_order = done == len(records)

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
            if segment is None or (byte >= self._full and self._is_over(segment, length + FRAME_BYTES)):
                segment, byte = self._segment(), 0
            if not self._pending or self._pending[-1].segment is not segment:
                self._pending.append(SegmentPart(segment))
            chunks = self._pending[-1].chunks
            if byte == 0:
                self._begin(segment)
                self._grow(HEADER_BYTES)
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
        """Add a frame of the active segment to what is pending."""
        segment, pending = self._active, self._pending
        assert segment is not None
        if not pending or pending[-1].segment is not segment:
            pending.append(SegmentPart(segment))
        pending[-1].chunks.append(frame)
        if self._byte >= self._full:
            self.room = 0

    def append_now(self, record: Record) -> int:
        """As `append` and `write_now`, for a small record when nothing is pending; 0, with nothing done, in any other
        case. After an error that is `passing` the record is appended, and pending."""
        if self._pending or self._gathered or self._held or self._finished or not self._usable:
            return 0
        segment, byte = self._active, self._byte
        if segment is None or not 0 < byte < self._direct_until:
            return 0
        offset, position = self.next_offset, self.next_position
        if type(record) is Events and record.first == position:
            kind, payload = EVENTS, encode_events(record, offset)
            position += len(record.rows)
        elif type(record) is Appended and record.first == offset:
            kind, payload = MESSAGES, encode_appended(record, position)
            offset += len(record.messages.bodies)
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
        self._byte = byte = byte + size  # as `_grow`
        self.room = self.room - size if byte < self._full else 0
        try:
            self._writer.write(segment, data)
        except BaseException as error:
            if not passes(error):
                self._fail(error)
            self._pending.append(SegmentPart(segment, [data]))
            raise
        return size

    def write_now(self) -> bool:
        """Write what is pending at once, under the caller's lock; False, with nothing done, where it is more than a
        small write to one segment. Every batch that was taken must have been written. After an error that is
        `passing` everything is still pending."""
        if self._gathered or self._held:
            self._append_gathered()
        if len(self._pending) != 1 or self._finished or self._byte >= self._direct_until or not self._usable:
            return False
        part = self._pending[0]
        if not part.segment.written:
            return False  # beginning a segment takes several syncs
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
                raise _misplaced(record.first, position)
            return EVENTS, encode_events(record, offset), offset, position + len(record.rows)
        if type(record) is Appended:
            if record.first != offset:
                raise _misplaced(record.first, offset)
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
        if segment is not None and self._byte >= self._full:
            self._writer.prepare(self._upcoming)
        if segment is None or (self._byte >= self._full and self._is_over(segment, extra_bytes)):
            segment = self._segment()
        needed = self._byte + extra_bytes + HEADER_BYTES
        if not use_spare:
            needed += self.options.spare_bytes
        if needed > segment.reserved:
            self._writer.reserve(segment, needed)
        self.room = segment.reserved - self._byte - HEADER_BYTES - self.options.spare_bytes

    def take(self) -> WriteBatch:
        """Hand over what is pending. One batch at a time is written, while others append."""
        self._check()
        if self._gathered or self._held:
            self._append_gathered()
        self._take_up()
        parts, finished = self._pending, self._finished
        upcoming = self._upcoming if self._byte >= self._direct_until else None
        if upcoming is not None and upcoming.reserved:
            self._direct_until, upcoming = self._full, None
        self._taken = batch = WriteBatch(self._writer, parts, finished, upcoming, self._fail)
        self._pending, self._finished = [], []
        return batch

    def _take_up(self) -> None:
        """What an error kept from being written of the last batch comes first."""
        taken, self._taken = self._taken, None
        if taken is not None and taken.unwritten:
            self.take_back(taken)

    def sync(self) -> None:
        """Return once everything that was written survives a power loss. Every batch that was taken must have been
        written."""
        self._writer.sync()

    def take_back(self, batch: WriteBatch) -> None:
        """Make what could not be written of a batch pending again, before everything that came since."""
        self._taken = None
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
        return Mark(segment, self._byte, self._number, self.next_offset, self.next_position, self.total)

    def check_there(self) -> None:
        """Raise if the segment that is written to was removed: what is written to it would be lost with it."""
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

    def write_checkpoint(self, mark: Mark, snapshot: bytes | Iterable[bytes]) -> int:
        """Keep `snapshot`, whole or in parts, as the state at `mark`; returns its size.

        Everything before the mark must be synced.
        """
        self._check()
        return self._checkpoints.write(msgspec.structs.replace(mark, ledger=self.ledger.begin()), snapshot)

    @property
    def total(self) -> int:
        """Bytes appended since the log was opened, those replayed included; not what is only gathered yet."""
        return self._before + self._byte

    @property
    def bytes_since_checkpoint(self) -> int:
        return self.total - self._checkpoints.total

    @property
    def records_since_checkpoint(self) -> int:
        """How many records a restart would have to play."""
        return self._number - self._checkpoints.newest_number

    @property
    def settled_before(self) -> int:
        """The sequence of the first tail segment that a restart may need: those before live on in a checkpoint."""
        return self._checkpoints.oldest_segment

    def fetch(self, runs: Sequence[tuple[int, int]]) -> Fetched:
        """The whole messages at these runs of `(first offset, count)`, in this order."""
        return self._fetcher.fetch(runs)

    def uncovered(self) -> list[range]:
        """The offsets of which no file says that it holds them."""
        return [range(*span) for span in self.ledger.uncovered(MESSAGES_TABLE)]

    def events_of(self, offset: int) -> list[tuple[int, Event]]:
        """All events of a message, each with its time, in order."""
        return self._finder.events_of(offset)

    def record_of(self, offset: int) -> tuple[Message, tuple[str, ...]] | None:
        """A message and the queues it was routed to; None when it is not there any more."""
        return self._finder.message(offset)

    def find_id(self, wanted: str) -> int | None:
        """The offset of the newest message with this id."""
        return self._finder.offset_of(wanted)

    def find_ids(self, wanted: str) -> list[int]:
        """The offsets of all messages with this id, the newest first."""
        return self._finder.offsets_of(wanted)

    def abandon(self, error: BaseException) -> None:
        """Write nothing more: what is pending belongs to a change that was cut short."""
        self._fail(error)

    def salvage(self) -> None:
        """Write and sync what is pending, before the log is opened again after an error elsewhere. An error that is
        `passing` leaves the rest pending."""
        self._failure, self._usable = None, True
        if self._gathered or self._held:
            self._append_gathered()
        self._take_up()
        pending = self._pending
        while pending:
            self._writer.write(pending[0].segment, b"".join(pending[0].chunks))
            del pending[0]
        self._writer.sync()

    def opened_again(self, readable: Callable[[bytes], bool]) -> tuple[Log, Recovery]:
        """The same log, read anew by the process that writes it; this object is over. The directory stays locked."""
        self._fail(StorageError("the log was opened again meanwhile; nothing was stored. Try again"))
        self._writer.close()
        return self._open(self.disk, self.options, readable)

    def close(self) -> None:
        """Write and sync what is pending, and release the directory."""
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

    def _is_over(self, segment: TailSegment, size: int) -> bool:
        """Whether a record of this size goes to the next segment, once this one is full. Where the disk has no room for
        a next one, the room that was kept free for answers is in this one."""
        return bool(self._upcoming.reserved) or self._byte + HEADER_BYTES + size > segment.reserved

    def _segment(self) -> TailSegment:
        """Begin the next segment, which the next record goes to."""
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
        self._direct_until = self._full // 2
        self.go_to(self._active, self._active.index, self._active.marker)
        self.room = 0
        return self._active

    def _begin(self, segment: TailSegment) -> None:
        segment.first = Counters(self._number, self.next_offset, self.next_position)
        self.catalog.add_tail(segment)

    def _grow(self, size: int) -> None:
        self._byte += size
        self.room = self.room - size if self._byte < self._full else 0

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


def _misplaced(first: int, expected: int) -> StorageError:
    return StorageError(f"a record begins at {first} where the log expects {expected}; nothing was stored")
