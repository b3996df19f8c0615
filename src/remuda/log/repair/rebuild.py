"""What is rebuilt from sealed files: their records, for a log that has lost all its checkpoints, and their indexes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from remuda.log.disk import Disk
from remuda.log.readers.reader import neighbours
from remuda.log.sealed import id_index
from remuda.log.sealed.arrow import pa
from remuda.log.sealed.arrow_records import to_appended, to_events
from remuda.log.sealed.sealed_table import EventTable, MessageTable, Table
from remuda.log.segments import MESSAGES_TABLE, Counters, Files, SealedFile
from remuda.log.tail.record_scan import Damage
from remuda.model.records import Record


def sealed_records(disk: Disk, files: Files, before: Counters, damages: list[Damage]) -> Iterator[Record]:
    """Messages and events from before the tail. All messages come first: events refer to them by offset. What cannot be
    read is added to `damages`."""
    for file in files.messages:
        for batch in readable_batches(disk, MessageTable(disk, file), before.offset, damages):
            for part in neighbours(batch):
                yield to_appended(part)
    for file in files.events:
        for batch in readable_batches(disk, EventTable(disk, file), before.position, damages):
            yield from to_events(batch)


def index_ids(disk: Disk, file: SealedFile) -> None:
    """Make the index of a sealed file of messages, unless some of it cannot be read: it may be restored from a copy."""
    table = MessageTable(disk, file)
    entries = array("Q")
    for group in range(table.group_count):
        batch = table.batch(group, ["offset", "id"])
        if batch is None:
            return
        for offset, id in zip(batch.column("offset").to_pylist(), batch.column("id").to_pylist(), strict=True):
            if id is not None:
                entries.append(id_index.entry(id, offset - file.first))
    if table.readable:
        id_index.write(disk, file, entries)


def readable_batches(disk: Disk, table: Table, before: int, damages: list[Damage]) -> Iterator[pa.RecordBatch]:
    """The row groups of a file that begin before a number; what cannot be read is added to `damages`."""
    if not table.readable:
        damages.append(unreadable(disk, table.file, range(table.file.first, table.file.last + 1)))
        return
    for group in table.groups(0, before):
        batch = table.batch(group)
        if batch is None:
            first, count = table.bounds(group)
            damages.append(unreadable(disk, table.file, range(first, first + count)))
        else:
            yield batch


def unreadable(disk: Disk, file: SealedFile, numbers: range) -> Damage:
    """A part of a sealed file is lost, with the rows at these numbers that had not been collected."""
    size = disk.size(file.name)
    if file.table == MESSAGES_TABLE:
        return Damage(file.name, 0, size, messages=numbers)
    return Damage(file.name, 0, size, events=numbers)
