"""The whole truth about a directory: every file is read, and nothing is changed (L9)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from remuda.log import changes, idindex
from remuda.log import checkpoint as checkpoints
from remuda.log import ledger as ledgers
from remuda.log import newest as newest_segment
from remuda.log.arranging import arrange
from remuda.log.checkpoint import Mark
from remuda.log.directory import FOLDERS, LOCK, MARKER
from remuda.log.disk import Disk
from remuda.log.inventory import read_starts, sealed_end
from remuda.log.ledger import Span, both, uncovered, without
from remuda.log.newest import Newest, is_missing
from remuda.log.recovery import closed_and_last, missing_before
from remuda.log.segments import (
    EVENTS_TABLE,
    HEADER_BYTES,
    MESSAGES_TABLE,
    SET_ASIDE,
    Files,
    SealedFile,
    TailSegment,
    list_files,
    parse_header,
    parse_sealed,
    parse_tail,
)
from remuda.log.walk import Damage, Walk, removed
from remuda.model.errors import StorageError
from remuda.model.records import Appended, Events

_ATTEMPTS: Final = 20
_ROOT_FILES: Final = (MARKER, LOCK, "begun.map")
_AGAIN: Final = 0.2
"""Seconds after which the end is looked at again: a writer may have been caught in the middle of a frame."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it should be."""

    file: str
    text: str
    messages: tuple[int, int] | None = None
    """The first and last offset concerned, where they are known."""
    events: tuple[int, int] | None = None


class CheckReport(msgspec.Struct, kw_only=True):
    """What is readable, and everything that is not."""

    messages: int = 0
    events: int = 0
    next_offset: int = 0
    next_position: int = 0
    tail_segments: int = 0
    sealed_files: int = 0
    checkpoints: int = 0
    spooled_batches: int = 0
    findings: list[Finding] = []

    @property
    def clean(self) -> bool:
        return not self.findings

    def describe(self) -> str:
        lines = [
            f"{self.messages} messages and {self.events} events can be read, up to offset {self.next_offset} and "
            f"position {self.next_position}, in {self.sealed_files} sealed files and {self.tail_segments} segments of "
            f"the tail; {self.checkpoints} checkpoints, {self.spooled_batches} batches in the spool"
        ]
        return "\n".join(lines + [f"{finding.file}: {finding.text}" for finding in self.findings])


def check(disk: Disk, readable: Callable[[bytes], bool] = lambda snapshot: True) -> CheckReport:
    """Read every file of a directory, also beside its writer. `readable` says whether a checkpoint's snapshot can be
    used: its format is not the log's."""
    for attempt in range(_ATTEMPTS):
        try:
            return _Check(disk, readable).run()
        except FileNotFoundError as error:
            # The writer sealed or removed a file in the meantime; a fresh listing knows where its rows are now.
            if attempt == _ATTEMPTS - 1:
                raise StorageError(f"the files change faster than they can be read: {error}; try again") from error
    raise AssertionError


class _Check:
    def __init__(self, disk: Disk, readable: Callable[[bytes], bool]) -> None:
        self._disk = disk
        self._readable = readable
        self._report = CheckReport(findings=[])

    def run(self) -> CheckReport:
        report = self._report
        # Checkpoints first: all that lies before their marks is in the files by the time those are listed.
        found = checkpoints.read_all(self._disk, self._readable)
        newest = self._newest()
        # The tail before the sealed files: what is sealed between the two looks is then in both, not in neither.
        tail = list_files(self._disk.list()).tail
        names = self._disk.list()
        files = list_files(names)._replace(tail=tail)
        arranged = arrange(self._disk, files.tail)
        files = files._replace(tail=tuple(arranged.segments))
        for copy in arranged.copies:
            self._note(copy.name, "this segment begins where another one does; opening the directory sets it aside")
        for segment in arranged.segments:
            if segment.file is not None:
                self._note(segment.file, f"this file was renamed: it is segment {segment.sequence:016x}")
        self._foreign(names)
        report.checkpoints = len(found.valid) + len(found.damaged)
        for name in found.damaged:
            self._note(name, "this checkpoint cannot be read; an older one and the log after it take its place")
        for file in (*files.messages, *files.events):
            self._sealed(file)
        segments = read_starts(self._disk, files)
        end = self._tail(files, segments)
        for checkpoint in found.valid[:1]:
            for damage in missing_before(self._disk, segments, checkpoint.mark, sealed_end(files)):
                self._damage(damage)
            report.next_offset = max(report.next_offset, checkpoint.mark.next_offset)
            report.next_position = max(report.next_position, checkpoint.mark.next_position)
        mark = found.valid[0].mark if found.valid else None
        if newest is not None and is_missing(self._disk, newest, segments, mark, sealed_end(files)):
            self._note(newest.name, newest.describe().partition(": ")[2])
            end = max(end[0], newest.first.offset), max(end[1], newest.first.position)
        report.next_offset = max(report.next_offset, end[0])
        report.next_position = max(report.next_position, end[1])
        self._removed(files, segments, mark)
        for name in changes.names(names):
            try:
                changes.read(self._disk, name)
            except StorageError as error:
                self._note(name, str(error).partition(": ")[2] + "; restore it from a copy, or remove it")
        for name in names:
            if name.startswith(f"{SET_ASIDE}/"):
                self._note(
                    name, "not all of this segment could be read when it was sealed; restore it from a copy, or remove "
                    "it when nobody needs it any more",
                )  # fmt: skip
        self._spool()
        return report

    def _newest(self) -> Newest | None:
        try:
            return newest_segment.read(self._disk)
        except StorageError as error:
            self._note(newest_segment.NAME, str(error))
            return None

    def _removed(self, files: Files, segments: list[TailSegment], mark: Mark | None) -> None:
        """What no file holds and retention has not removed. What is missing within the tail is known already."""
        gone = self._uncovered(files, segments)
        if any(gone):
            # A file that is rewritten while the folder is listed may not be in the list: look again.
            again = self._uncovered(list_files(self._disk.list()), segments)
            gone = [both(one, other) for one, other in zip(gone, again, strict=True)]
        try:
            # Read after the files were listed: it notes that a file is collected before the file is removed.
            collected = ledgers.read(self._disk, mark)
        except StorageError as error:
            self._note(ledgers.NAME, str(error).partition(": ")[2])
            return
        if collected is None:
            return
        known = [
            [(one.messages[0], one.messages[1] + 1) for one in self._report.findings if one.messages],
            [(one.events[0], one.events[1] + 1) for one in self._report.findings if one.events],
        ]
        for table, spans, noted, reported in zip(
            (MESSAGES_TABLE, EVENTS_TABLE), gone, (collected.messages, collected.events), known, strict=True
        ):
            for span in without(spans, (*noted, *reported)):
                self._damage(removed(table, *span))

    def _uncovered(self, files: Files, segments: list[TailSegment]) -> list[list[Span]]:
        tail = tuple(segments[:1])
        files = files._replace(tail=tail)
        return [
            uncovered(files, MESSAGES_TABLE, self._report.next_offset),
            uncovered(files, EVENTS_TABLE, self._report.next_position),
        ]

    def _foreign(self, names: list[str]) -> None:
        """Note what stands where the log's files and folders belong and is something else."""
        for name in names:
            if name in (*FOLDERS, "spool"):
                self._note(name, "this should be a folder")
            elif name.startswith(("tail/", "checkpoint/")) and not _is_known(name):
                self._note(name, "this is not a log file by its name, and is ignored")
        for folder in ("", *FOLDERS):
            place = self._disk.path(folder)
            if place is None or not os.path.isdir(place):
                continue
            with os.scandir(place) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False) and (name in _ROOT_FILES or _is_known(name)):
                        self._note(name, "this is a folder, where a file should be")
                    elif folder and not entry.is_dir() and not entry.is_file(follow_symlinks=False):
                        self._note(name, "this is a link or a pipe, which Remuda did not put there; it is not opened")

    def _sealed(self, file: SealedFile) -> None:
        from remuda.log.rebuild import readable_batches  # which loads Arrow
        from remuda.log.sealed import EventTable, MessageTable

        damages: list[Damage] = []
        is_message = file.table == MESSAGES_TABLE
        table = (MessageTable if is_message else EventTable)(self._disk, file)
        rows = sum(batch.num_rows for batch in readable_batches(self._disk, table, file.last + 1, damages))
        if is_message:
            self._report.messages += rows
        else:
            self._report.events += rows
        if table.sealed_as is not None:
            self._note(file.name, f"this file was sealed as {table.sealed_as}; rename it back")
        for damage in damages:
            numbers = damage.messages or damage.events or range(0)
            self._damage(damage, f"rows {numbers.start} to {numbers.stop - 1} cannot be read; restore it from a copy")
        if is_message and not idindex.whole(self._disk, file):
            self._note(
                idindex.name_of(file), "this index is damaged, or another file's; ids are looked up in the sealed file "
                "instead, and opening the directory makes it again",
            )  # fmt: skip
        self._report.sealed_files += 1

    def _tail(self, files: Files, segments: list[TailSegment]) -> tuple[int, int]:
        """Walk through all segments; returns the offset and the position after the last record."""
        _, sealed_offset, sealed_position = sealed_end(files)
        walk = Walk()
        for segment in closed_and_last(self._disk, segments):
            size = self._disk.size(segment.name)
            header = self._disk.read(segment.name, 0, HEADER_BYTES)
            if not header.strip(b"\0") and not self._disk.read(segment.name, HEADER_BYTES).strip(b"\0"):
                continue  # room that was reserved for a segment never begun
            self._report.tail_segments += 1
            walk.meet_header(segment.name, parse_header(header), len(header))
            for found in walk.records(self._disk, segment, HEADER_BYTES, size):
                if isinstance(found.record, Appended) and found.record.first >= sealed_offset:
                    self._report.messages += len(found.record)
                elif isinstance(found.record, Events) and found.record.first >= sealed_position:
                    self._report.events += len(found.record)
        for damage in walk.damages:
            self._damage(damage)
        self._end(walk, segments)
        return (walk.expected.offset, walk.expected.position) if walk.expected else (0, 0)

    def _end(self, walk: Walk, segments: list[TailSegment]) -> None:
        """Bytes behind the last record: cut short by a crash, damaged, or being written just now."""
        if not walk.holes:
            return
        time.sleep(_AGAIN)
        hole = walk.holes[0]
        segment = next(segment for segment in segments if segment.name == hole.file)
        again = Walk(walk.expected)
        start = max(hole.start, HEADER_BYTES)
        if hole.start >= HEADER_BYTES and any(
            again.records(self._disk, segment, start, self._disk.size(segment.name), bodies=False)
        ):
            return
        after = walk.expected
        where = f"; everything from offset {after.offset} and position {after.position} on is missing" if after else ""
        for hole in walk.holes:
            self._note(
                hole.file, f"the last bytes, {hole.start} to {hole.end - 1}, cannot be read or were never completely "
                f"written{where}",
            )  # fmt: skip

    def _spool(self) -> None:
        place = self._disk.path("spool")
        if place is None or not os.path.isdir(place):
            return
        from remuda.log import spool  # which loads Arrow

        for batch in spool.waiting(Path(place)):
            self._report.spooled_batches += 1
            try:
                spool.check(batch)
            except spool.DamagedBatch as error:
                self._note(f"{spool.SPOOL}/{batch.path.name}", str(error))
            except FileNotFoundError:
                continue  # taken in meanwhile

    def _damage(self, damage: Damage, text: str | None = None) -> None:
        self._report.findings.append(
            Finding(damage.file, text or damage.describe().partition(": ")[2], _ends(damage.messages),
                    _ends(damage.events))
        )  # fmt: skip

    def _note(self, file: str, text: str) -> None:
        self._report.findings.append(Finding(file, text))


def _is_known(name: str) -> bool:
    return (
        name in (newest_segment.NAME, ledgers.NAME)
        or checkpoints.is_name(name)
        or bool(parse_tail(name) or parse_sealed(name))
    )


def _ends(numbers: range | None) -> tuple[int, int] | None:
    return (numbers.start, numbers.stop - 1) if numbers else None
