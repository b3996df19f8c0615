"""The whole truth about a directory: every file is read, and nothing is changed (L9)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from remuda.log.disk import Disk
from remuda.log.disk.directory import FOLDERS, LOCK, MARKER
from remuda.log.repair.inventory import Survey, expected_after, sealed_end, survey
from remuda.log.repair.recovery import Replay, passages
from remuda.log.retrying import look_again
from remuda.log.sealed import id_index, queue_changes
from remuda.log.segments import (
    EVENTS_TABLE,
    HEADER_BYTES,
    MESSAGES_TABLE,
    SET_ASIDE,
    Counters,
    Files,
    SealedFile,
    TailSegment,
    is_begun,
    list_files,
    parse_sealed,
    parse_tail,
)
from remuda.log.state import checkpoint as checkpoints
from remuda.log.state import ledger as ledgers
from remuda.log.state import newest_segment
from remuda.log.state.checkpoint import Mark
from remuda.log.state.ledger import Span, both, uncovered, without
from remuda.log.tail.record_scan import Damage, RecordScan, removed
from remuda.model.errors import StorageError
from remuda.model.records import Appended, Events, Record

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
    return look_again(lambda: _Check(disk, readable).run())


class _Check:
    def __init__(self, disk: Disk, readable: Callable[[bytes], bool]) -> None:
        self._disk = disk
        self._readable = readable
        self._report = CheckReport(findings=[])

    def run(self) -> CheckReport:
        report = self._report
        found = survey(self._disk, self._readable)
        files, segments, mark = found.files, found.segments, found.mark
        for copy in found.copies:
            self._note(copy.name, "this segment begins where another one does; opening the directory sets it aside")
        for segment in segments:
            if segment.file is not None:
                self._note(segment.file, f"this file was renamed: it is segment {segment.sequence:016x}")
        self._foreign(found.names)
        report.checkpoints = len(found.checkpoints) + len(found.damaged_checkpoints)
        for name in found.damaged_checkpoints:
            self._note(name, "this checkpoint cannot be read; an older one and the log after it take its place")
        for file in (*files.messages, *files.events):
            self._sealed(file)
        if found.damaged_note is not None:
            self._note(newest_segment.NAME, found.damaged_note)
        self._tail(found)
        if mark is not None:
            report.next_offset = max(report.next_offset, mark.next_offset)
            report.next_position = max(report.next_position, mark.next_position)
        if found.cut_off is not None:
            self._note(found.cut_off.name, found.cut_off.describe().partition(": ")[2])
        self._removed(files, segments, mark)
        for name in queue_changes.names(found.names):
            try:
                queue_changes.read(self._disk, name)
            except StorageError as error:
                self._note(name, str(error).partition(": ")[2] + "; restore it from a copy, or remove it")
        for name in found.names:
            if name.startswith(f"{SET_ASIDE}/"):
                self._note(
                    name, "not all of this segment could be read when it was sealed; restore it from a copy, or remove "
                    "it when nobody needs it any more",
                )  # fmt: skip
        self._spool()
        return report

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
        from remuda.log.repair.rebuild import readable_batches  # which loads Arrow
        from remuda.log.sealed.sealed_table import EventTable, MessageTable

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
        if is_message and not id_index.whole(self._disk, file):
            self._note(
                id_index.name_of(file),
                "this index is damaged, or another file's; ids are looked up in the sealed file instead, and opening "
                "the directory makes it again",
            )
        self._report.sealed_files += 1

    def _tail(self, found: Survey) -> None:
        """Read the tail as opening it does, and beside that what a checkpoint covers."""
        files, segments, mark = found.files, found.segments, found.mark
        sealed = sealed_end(files)

        def met(record: Record) -> None:
            if isinstance(record, Appended) and record.first >= sealed.offset:
                self._report.messages += len(record)
            elif isinstance(record, Events) and record.first >= sealed.position:
                self._report.events += len(record)

        self._report.tail_segments = sum(is_begun(self._disk, segment) for segment in segments)
        for passage in passages(segments, mark):
            for damage in passage.damages(self._disk, met):
                self._damage(damage)
        first = expected_after(mark, files, segments, state_lost=bool(files.messages or files.events))
        replay = Replay(self._disk, segments, mark, first, sealed, found.cut_off)
        for record in replay.records():
            met(record)
        for damage in replay.damages:
            self._damage(damage)
        self._end(replay, segments)
        end = replay.end or Counters(0, 0, 0)
        self._report.next_offset = max(self._report.next_offset, end.offset)
        self._report.next_position = max(self._report.next_position, end.position)

    def _end(self, replay: Replay, segments: list[TailSegment]) -> None:
        """Bytes behind the last record: cut short by a crash, damaged, or being written just now."""
        if not replay.torn:
            return
        time.sleep(_AGAIN)
        hole, after = replay.torn[0], replay.read_to
        segment = next(segment for segment in segments if segment.name == hole.file)
        start = max(hole.start, HEADER_BYTES)
        if hole.start >= HEADER_BYTES and any(
            RecordScan(after).records(self._disk, segment, start, self._disk.size(segment.name), bodies=False)
        ):
            return
        where = f"; everything from offset {after.offset} and position {after.position} on is missing" if after else ""
        for hole in replay.torn:
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
                if batch.path.exists():  # else it was taken in while it was listed
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
