"""Whole messages by offset, from the tail and from sealed files, with a small cache of what was read last (Q21)."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from remuda.log.disk import Disk
from remuda.log.retrying import read_on
from remuda.log.segments import HEADER_BYTES, Catalog, SealedFile, TailSegment
from remuda.log.tail.record_codec import MESSAGES, Damaged, decode, decode_messages, message_range
from remuda.log.tail.regroup import join_messages
from remuda.log.tail.segment_index import SegmentIndex
from remuda.log.tail.tail_frames import Frame, scan, scan_file
from remuda.model.messages import Messages

CACHE_BYTES: Final = 8 * 1024 * 1024

Run = tuple[int, int]


class Fetched(NamedTuple):
    """The messages found, the runs of offsets they stand at, and the runs that are not there any more."""

    messages: Messages
    offsets: list[Run]
    missing: list[Run]


class Piece(NamedTuple):
    """Neighbouring messages from offset `first`."""

    first: int
    messages: Messages


class Cached(Protocol):
    """Something read from the disk that is worth keeping a while."""

    @property
    def bytes(self) -> int: ...


class Fetcher:
    """Reads messages for all threads of a broker, one request at a time."""

    def __init__(self, disk: Disk, catalog: Catalog) -> None:
        self._disk = disk
        self._catalog = catalog
        self._guard = threading.Lock()
        self._cache: OrderedDict[Hashable, Cached] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._held = 0

    def fetch(self, runs: Sequence[Run]) -> Fetched:
        parts: list[Messages] = []
        found: list[Run] = []
        missing: list[Run] = []
        with self._guard:
            for first, count in runs:
                offset, stop = first, first + count
                for piece in self._pieces(first, stop):
                    if piece.first > offset:
                        add_run(missing, offset, piece.first - offset)
                    parts.append(piece.messages)
                    add_run(found, piece.first, len(piece.messages.bodies))
                    offset = piece.first + len(piece.messages.bodies)
                if offset < stop:
                    add_run(missing, offset, stop - offset)
        return Fetched(join_messages(parts), found, missing)

    def _pieces(self, offset: int, stop: int) -> Iterator[Piece]:
        """Everything there is from `offset` to `stop`, in order."""

        def rest() -> Iterator[Piece]:
            nonlocal offset
            while offset < stop and (source := self._source(offset)) is not None:
                if isinstance(source, TailSegment):
                    following = source.end.offset if source.end is not None else stop
                    pieces = self._tail_pieces(source, max(offset, source.first.offset), min(stop, following))
                else:
                    following = source.last + 1
                    pieces = self._sealed_pieces(source, max(offset, source.first), min(stop, following))
                for piece in pieces:
                    offset = piece.first + len(piece.messages.bodies)
                    yield piece
                offset = max(offset, following)

        return read_on(rest)

    def _source(self, offset: int) -> TailSegment | SealedFile | None:
        """The file that holds `offset`, else the first one after it."""
        tail, messages, _ = self._catalog.files()
        at = bisect_right(tail, offset, key=lambda segment: segment.first.offset) - 1
        if at >= 0 and ((end := tail[at].end) is None or offset < end.offset):
            return tail[at]
        entry = bisect_right(messages, offset, key=lambda file: file.first) - 1
        if entry >= 0 and offset <= messages[entry].last:
            return messages[entry]
        candidates: list[TailSegment | SealedFile] = [*tail[at + 1 : at + 2], *messages[entry + 1 : entry + 2]]
        return min(candidates, key=_start, default=None)

    def _tail_pieces(self, segment: TailSegment, offset: int, stop: int) -> Iterator[Piece]:
        if segment.index is None:
            segment.index = build_index(self._disk, segment)
        while offset < stop:
            at = segment.index.block(offset)
            if at is None:
                return
            key = (segment.sequence, at.start)
            block = self._cache.get(key)
            if not isinstance(block, TailBlock):
                block = TailBlock(segment, at.start)
            # The index knows of frames that are still pending: what lies beyond `written` is not there to be read yet.
            end = segment.written if at.end is None else min(at.end, segment.written)
            if block.end < end:
                block.grow(self._disk, end)
            self._keep(key, block)
            for piece in block.pieces(offset, stop):
                yield piece
                offset = piece.first + len(piece.messages.bodies)
            self._keep(key, block)
            if at.following is None:
                return
            offset = max(offset, at.following)

    def _sealed_pieces(self, file: SealedFile, offset: int, stop: int) -> Iterator[Piece]:
        # Arrow is loaded when the first sealed file is read, not at every start.
        from remuda.log.sealed.sealed_table import MessageRows, MessageTable

        key = (file.name, file.generation)
        table = self._cache.get(key)
        if not isinstance(table, MessageTable):
            table = MessageTable(self._disk, file)
        self._keep(key, table)
        for group in table.groups(offset, stop):
            group_key = (*key, group)
            rows = self._cache.get(group_key)
            if not isinstance(rows, MessageRows):
                rows = table.messages(group)
            self._keep(group_key, rows)
            yield from rows.pieces(offset, stop)

    def _keep(self, key: Hashable, value: Cached) -> None:
        self._cache[key] = value
        self._cache.move_to_end(key)
        self._held += value.bytes - self._sizes.get(key, 0)
        self._sizes[key] = value.bytes
        while self._held > CACHE_BYTES and len(self._cache) > 1:
            dropped, _ = self._cache.popitem(last=False)
            self._held -= self._sizes.pop(dropped)


class TailBlock:
    """The message frames between two entries of a segment's index, decoded when asked for."""

    def __init__(self, segment: TailSegment, start: int) -> None:
        self._segment = segment
        self.end = start
        self.bytes = 0
        self._firsts: list[int] = []
        self._frames: list[bytes | Messages] = []

    def grow(self, disk: Disk, end: int) -> None:
        """Read on to `end`."""
        data = disk.read(self._segment.name, self.end, end - self.end)
        for item in scan(data, self._segment.marker):
            if isinstance(item, Frame) and item.kind == MESSAGES:
                try:
                    self._firsts.append(message_range(item.payload).start)
                except Damaged:
                    continue
                self._frames.append(item.payload)
                self.bytes += len(item.payload)
        self.end = end

    def pieces(self, offset: int, stop: int) -> Iterator[Piece]:
        """What is here from `offset` to `stop`; frames whose messages adjoin make one piece."""
        parts: list[Messages] = []
        begin = end = offset
        for entry in range(max(bisect_right(self._firsts, offset) - 1, 0), bisect_left(self._firsts, stop)):
            first, messages = self._firsts[entry], self._messages(entry)
            after = first + len(messages.bodies)
            if first < offset or after > stop:
                messages = messages.slice(max(offset - first, 0), stop - first)
                first, after = max(first, offset), min(after, stop)
            if first >= after:
                continue
            if first != end:
                if parts:
                    yield Piece(begin, join_messages(parts))
                    parts = []
                begin = first
            parts.append(messages)
            end = after
        if parts:
            yield Piece(begin, join_messages(parts))

    def _messages(self, entry: int) -> Messages:
        frame = self._frames[entry]
        if isinstance(frame, bytes):
            size = len(frame)
            try:
                frame = decode_messages(frame)
            except Damaged:
                frame = Messages(bodies=[], name="")
            self._frames[entry] = frame
            self.bytes += max(frame.memory() - size, 0)  # decoded, it may take many times as much
        return frame


def build_index(disk: Disk, segment: TailSegment) -> SegmentIndex:
    """The index of a segment that was written before this log was opened."""
    index = SegmentIndex()
    for item in scan_file(partial(disk.read, segment.name), segment.marker, HEADER_BYTES, segment.written):
        if isinstance(item, Frame):
            try:
                index.note(decode(item.kind, item.payload, bodies=False).record, item.start)
            except Damaged:
                continue
    return index


def add_run(runs: list[Run], first: int, count: int) -> None:
    """Append a run, as part of the last one where they adjoin."""
    if runs and sum(runs[-1]) == first:
        first, count = runs[-1][0], runs.pop()[1] + count
    runs.append((first, count))


def _start(source: TailSegment | SealedFile) -> int:
    return source.first.offset if isinstance(source, TailSegment) else source.first
