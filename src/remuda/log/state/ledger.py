"""The ledger: which offsets and positions retention has removed, so that anything else that is gone counts as missing.

It is a file beside the tail, begun with the first checkpoint: before, all of the log is in the tail, whose frames show
what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from remuda.log.disk import Disk
from remuda.log.segments import EVENTS_TABLE, MESSAGES_TABLE, Catalog, Files
from remuda.log.state import checked
from remuda.log.state.checkpoint import Mark
from remuda.log.tail.record_scan import Damage, removed
from remuda.model.errors import StorageError

NAME: Final = "tail/collected"
_MAGIC: Final = b"RMDL"

Span = tuple[int, int]
"""The first number, and the one after the last."""


class Missed(msgspec.Struct, frozen=True, array_like=True):
    """Events that no file holds and that were not collected, and the offset that the log had reached when that was
    found: they concern messages before it."""

    first: int
    stop: int
    before: int


class Ledger(msgspec.Struct, frozen=True, array_like=True):
    """What was collected, in order and as few spans as possible."""

    messages: tuple[Span, ...] = ()
    events: tuple[Span, ...] = ()
    missed: tuple[Missed, ...] = ()

    def noting(self, messages: Iterable[Span] = (), events: Iterable[Span] = ()) -> Ledger:
        """With more that was collected."""
        return msgspec.structs.replace(
            self, messages=merged([*self.messages, *messages]), events=merged([*self.events, *events])
        )


class LedgerKeeper:
    """The ledger of an open log. What is collected is noted here before its files go, so that whatever else is missing
    is known. `ends` returns the next offset and the next position."""

    def __init__(self, disk: Disk, catalog: Catalog, known: Ledger | None, ends: Callable[[], Span]) -> None:
        self.known = known
        """What was noted so far; None where the log has no ledger yet."""
        self._disk = disk
        self._catalog = catalog
        self._ends = ends
        self._written = known

    def note_collected(self, messages: Iterable[Span] = (), events: Iterable[Span] = ()) -> None:
        """Note what is collected, before its files go."""
        self._write(self._begun().noting(messages, events))

    def note_missed(self, missed: Iterable[Missed]) -> None:
        """Note the events that are missing and were not collected."""
        self._write(msgspec.structs.replace(self._begun(), missed=tuple(missed)))

    def begin(self) -> bool:
        """Make sure that a ledger is on the disk; False where it cannot be written, which must not stop the caller."""
        try:
            self._write(self._begun())
        except StorageError as error:
            if error.passing:
                raise
            return False
        return True

    def uncovered(self, table: str) -> list[Span]:
        """The numbers of which no file says that it holds them."""
        offset, position = self._ends()
        return uncovered(self._catalog.files(), table, offset if table == MESSAGES_TABLE else position)

    def missing(self) -> tuple[list[Span], list[Span]]:
        """The messages and the events that no file holds and that were not collected."""
        known = self._begun()
        return (
            without(self.uncovered(MESSAGES_TABLE), known.messages),
            without(self.uncovered(EVENTS_TABLE), known.events),
        )

    def gone(self, damages: Sequence[Damage]) -> tuple[Damage, ...]:
        """What is missing beside the damage that is known."""
        messages, events = self.missing()
        messages = without(messages, [(one.messages.start, one.messages.stop) for one in damages if one.messages])
        events = without(events, [(one.events.start, one.events.stop) for one in damages if one.events])
        return (
            *(removed(MESSAGES_TABLE, *span) for span in messages),
            *(removed(EVENTS_TABLE, *span) for span in events),
        )

    def _begun(self) -> Ledger:
        """The ledger; in a log that has none yet, everything that is missing now counts as collected."""
        if self.known is not None:
            return self.known
        return Ledger(tuple(self.uncovered(MESSAGES_TABLE)), tuple(self.uncovered(EVENTS_TABLE)))

    def _write(self, ledger: Ledger) -> None:
        self.known = ledger
        if ledger != self._written:
            write(self._disk, ledger)
            self._written = ledger


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Ledger).decode


def write(disk: Disk, ledger: Ledger) -> None:
    disk.write_atomic(NAME, checked.pack(_MAGIC, _encode(ledger)))


def read(disk: Disk, mark: Mark | None = None) -> Ledger | None:
    """What was noted; None where nothing was yet. Raises `StorageError` where it cannot be read, or is missing although
    the newest checkpoint's `mark` says that it was there."""
    if mark is not None and not mark.ledger:
        return None  # an earlier version wrote to the log since, and collects without a ledger
    try:
        data = disk.read(NAME)
    except FileNotFoundError:
        if mark is not None:
            raise StorageError(_lost("missing")) from None
        return None
    try:
        return _decode(checked.unpack(_MAGIC, data))
    except ValueError as error:
        raise StorageError(_lost("damaged")) from error


def _lost(what: str) -> str:
    return f"{NAME} is {what}: files that retention collected cannot be told from files that were lost"


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in order, those that touch or overlap as one."""
    joined: list[Span] = []
    for first, stop in sorted(spans):
        if first >= stop:
            continue
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((first, stop))
    return tuple(joined)


def without(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """What of some spans is in none of the others."""
    left: list[Span] = []
    covered = merged(others)
    at = 0
    for first, stop in merged(spans):
        while at and covered[at - 1][1] > first:
            at -= 1  # one that reaches from the span before into this one
        while at < len(covered) and covered[at][0] < stop:
            start, end = covered[at]
            if start > first:
                left.append((first, start))
            first = max(first, end)
            at += 1
        if first < stop:
            left.append((first, stop))
    return left


def both(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """What of some spans is in the others too."""
    spans = list(spans)
    return without(spans, without(spans, others))


def uncovered(files: Files, table: str, end: int) -> list[Span]:
    """The numbers before `end` of which no file says that it holds them."""
    if table == MESSAGES_TABLE:
        sealed = files.messages
        tail = [(one.first.offset, end if one.end is None else one.end.offset) for one in files.tail]
    else:
        assert table == EVENTS_TABLE
        sealed = files.events
        tail = [(one.first.position, end if one.end is None else one.end.position) for one in files.tail]
    return without([(0, end)], [*((file.first, file.last + 1) for file in sealed), *tail])
