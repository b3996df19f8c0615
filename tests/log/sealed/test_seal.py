"""L5: sealing changes where rows are, never what they are, and may stop at any step."""

from __future__ import annotations

import itertools
import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from remuda.log.disk import DirectoryDisk, MemoryDisk
from remuda.log.readers.reader import Reader
from remuda.log.repair.check import check
from remuda.log.sealed.parquet import write_sealed
from remuda.log.sealed.seal import seal
from remuda.log.sealed.table_schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA
from remuda.log.segments import HEADER_BYTES
from remuda.log.tail.writer import LogOptions
from remuda.model.errors import StorageError
from remuda.model.records import Record
from tests.log.samples import appended, change, commit, event_rows, fill, message_rows, open_log
from tests.log.simulated import PowerLoss, SimulatedDisk


def micros(value: datetime | None) -> int | None:
    return None if value is None else round(value.timestamp() * 1_000_000)


def test_l5_plain_parquet_shows_every_row(tmp_path: Path) -> None:
    disk = DirectoryDisk(tmp_path)
    log, _, _ = open_log(disk)
    given = fill(log, 120)
    log.append(change())
    commit(log)
    log.write_checkpoint(log.mark(), b"")
    sealed = seal(log)
    assert sealed
    assert all(one.damages == () for one in sealed)
    assert all(one.bytes_after > 0 for one in sealed)
    messages: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for name in disk.list():
        if name.startswith("sealed/messages-"):
            table = pq.read_table(tmp_path / name)
            assert table.schema.equals(MESSAGES_SCHEMA)
            first, last = (int(part) for part in Path(name).stem.split("-")[1:])
            assert table.column("offset").to_pylist() == list(range(first, last + 1))
            messages += table.to_pylist()
        elif name.startswith("sealed/events-"):
            table = pq.read_table(tmp_path / name)
            assert table.schema.equals(EVENTS_SCHEMA)
            events += table.to_pylist()
    expected = message_rows(given)
    assert len(messages) > 50
    for row, wanted in zip(messages, expected, strict=False):
        assert (
            row["offset"], row["name"], row["body"], row["id"], tuple(row["topics"]), row["object"], row["key"],
            micros(row["timestamp"]), row["mime_type"], dict(row["headers"]), row["priority"], micros(row["created"]),
            micros(row["expires"]), micros(row["due"]), tuple(row["queues"]), row["digest"],
        ) == wanted  # fmt: skip
    for row, (position, time, event) in zip(events, event_rows(given), strict=False):
        assert (row["position"], micros(row["time"]), row["queue"], row["state"]) == (
            position, time, event.queue, event.state.value,
        )  # fmt: skip
        assert (row["first"], row["count"], row["consumer"], row["priority"]) == (
            event.first, event.count, event.consumer, event.priority,
        )  # fmt: skip
    log.close()


def test_only_what_a_restart_does_not_need_is_sealed() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk)
    fill(log, 100)
    assert seal(log) == [], "without a checkpoint everything is needed"
    log.write_checkpoint(log.mark(), b"1")
    mark = log.mark()
    assert seal(log)
    tails = [name for name in disk.list() if name.endswith(".log")]
    assert all(int(name[5:21], 16) >= mark.segment for name in tails)
    fill(log, 100, seed=1)
    log.write_checkpoint(log.mark(), b"2")
    assert seal(log) == [], "the older checkpoint still needs them"
    log.write_checkpoint(log.mark(), b"3")
    assert seal(log)


def test_row_groups_are_bounded_by_rows_and_bytes() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, LogOptions(segment_bytes=30_000_000))
    commit(log, [appended(log, [b"x"] * 20_000)])
    commit(log, [appended(log, [bytes(5_000_000)] * 6)])
    log.append(change())
    commit(log)
    log.write_checkpoint(log.mark(), b"")
    seal(log)
    (name,) = (name for name in disk.list() if name.startswith("sealed/"))
    meta = pq.ParquetFile(pa.BufferReader(disk.read(name))).metadata
    sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
    assert sum(sizes) == 20_006
    assert max(sizes) <= 8192
    assert len(sizes) >= 8
    assert [len(body) for body in log.fetch([(19_999, 7)]).messages.bodies] == [1] + [5_000_000] * 6


def test_l3_sealing_a_damaged_segment_reports_the_loss_and_keeps_the_rest() -> None:
    disk = MemoryDisk()
    log, _, _ = open_log(disk, LogOptions(segment_bytes=2000))
    for _ in range(12):
        commit(log, [appended(log, [b"y" * 100] * 2)])
    log.write_checkpoint(log.mark(), b"")
    name = min(name for name in disk.list() if name.startswith("tail/"))
    broken = bytearray(disk.read(name))
    segment = log.catalog.files().tail[0]
    assert segment.end is not None
    frame = (len(broken) - HEADER_BYTES) // (segment.end.number - segment.first.number)
    broken[HEADER_BYTES + 2 * frame + 30] ^= 1
    disk.write_atomic(name, bytes(broken))
    sealed = seal(log)
    (damage,) = sealed[0].damages
    assert damage.messages == range(4, 6)
    fetched = log.fetch([(0, 10)])
    assert fetched.missing == [(4, 2)]
    assert fetched.messages.bodies == [b"y" * 100] * 8
    reader = Reader(disk)
    assert sum(batch.num_rows for batch in reader.message_batches()) == 22
    assert reader.gaps == (range(4, 6),)


class _BadSegment(MemoryDisk):
    """A disk of which some bytes of one file cannot be read any more."""

    bad = ""
    where = range(0)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        end = self.size(name) if length is None else start + length
        if name == self.bad and start < self.where.stop and end > self.where.start:
            raise StorageError(f"{name!r} cannot be read or written: Input/output error; check the disk")
        return super().read(name, start, length)


@pytest.mark.parametrize("where", [range(600, 700), range(10), range(1 << 20)])
def test_l3_a_segment_that_cannot_be_read_costs_itself_and_not_the_others(where: range) -> None:
    disk = _BadSegment()
    log, _, _ = open_log(disk, LogOptions(segment_bytes=2000))
    for number in range(40):
        commit(log, [appended(log, [b"%d" % number + b"y" * 100] * 2)])
    log.write_checkpoint(log.mark(), b"")
    names = [segment.name for segment in log.catalog.files().tail]
    disk.bad, disk.where = names[1], where
    tries = 0
    while (report := seal(log))[-1].failure is not None:
        tries += 1
        assert log.catalog.files().tail[0].name == names[1]
        assert tries < 20
    assert tries > 1, "it may be mended meanwhile"
    assert report[0].set_aside is not None
    assert disk.list().count(report[0].set_aside) == 1
    assert len(log.catalog.files().tail) == 1, "all others are sealed"
    lost = {offset for damage in report[0].damages for offset in damage.messages or ()}
    fetched = log.fetch([(0, 80)])
    assert {offset for first, count in fetched.missing for offset in range(first, first + count)} == lost
    assert len(lost) <= 20
    found = check(disk)
    assert not found.clean
    assert any(finding.file == report[0].set_aside for finding in found.findings)
    log.close()
    again, _, recovery = open_log(disk, LogOptions(segment_bytes=2000))
    assert again.next_offset == 80
    assert recovery.report.damages == ()


@pytest.mark.parametrize("power", [False, True])
def test_l5_a_crash_at_any_step_of_sealing_leaves_a_readable_log(power: bool) -> None:
    options = LogOptions(segment_bytes=900, reserve_bytes=300, spare_bytes=50)
    base = SimulatedDisk()
    log, _, _ = open_log(base, options)
    given: list[Record] = fill(log, 30)
    log.write_checkpoint(log.mark(), b"state")
    bodies = [row[2] for row in message_rows(given)]
    for steps in itertools.count(1):
        disk = base.after_kill()
        log, _, _ = open_log(disk, options)
        disk.dies_at = disk.operations + steps
        try:
            assert len(seal(log)) > 2
            break
        except PowerLoss:
            pass
        left = disk.after_power_loss(random.Random(steps)) if power else disk.after_kill()
        for _ in range(2):
            reader = Reader(left)
            assert message_rows(reader.messages()) == message_rows(given), steps
            assert event_rows(reader.events()) == event_rows(given)
            assert reader.gaps == ()
            log, _, recovery = open_log(left, options)
            assert recovery.report.clean
            assert log.next_offset == len(bodies)
            fetched = log.fetch([(0, len(bodies))])
            assert fetched.missing == []
            assert fetched.messages.bodies == bodies
            seal(log)
            left = left.after_kill()
    assert steps > 20


def test_an_empty_table_is_a_file_too() -> None:
    disk = MemoryDisk()
    rows, size = write_sealed(disk, "sealed/a", [], MESSAGES_SCHEMA, "messages")
    assert rows == 0
    assert disk.list() == ["sealed/a"]
    assert disk.size("sealed/a") == size
    assert pq.read_table(pa.BufferReader(disk.read("sealed/a"))).num_rows == 0
