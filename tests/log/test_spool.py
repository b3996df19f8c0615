"""P2: a damaged batch in the spool is set aside with its reason; none of its rows is published."""

from __future__ import annotations

import os
import random
import re
import struct
import time
from pathlib import Path

import pyarrow as pa
import pytest

from remuda import open_broker
from remuda.log import spool
from remuda.log.disk import DirectoryDisk
from remuda.log.repair.check import check
from remuda.log.spool import SPOOL_SCHEMA, DamagedBatch, SpoolBatch
from remuda.model.errors import InvalidOption
from tests.begun import begun


def laid(path: Path, app: str = "app", number: int = 0) -> SpoolBatch:
    rows = [
        {"name": "orders", "body": b"%d" % n * 20, "headers": [("n", str(n))], "topics": ["orders.a", "orders.b"]}
        for n in range(50)
    ]
    place = spool.prepare(str(begun(path)))
    staged, count = spool.stage(place, [pa.RecordBatch.from_pylist(rows, SPOOL_SCHEMA)])
    assert count == 50
    assert spool.lay(place, app, number, [staged])
    return next(batch for batch in spool.waiting(place) if (batch.app, batch.number) == (app, number))


def damaged(data: bytes, seed: int) -> bytes:
    rng = random.Random(seed)
    kind = seed % 4
    if kind == 0:
        broken = bytearray(data)
        broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(broken)
    if kind == 1:
        return data[: rng.randrange(len(data))]
    at = rng.randrange(len(data))
    if kind == 2:
        return data[:at] + rng.randbytes(16) + data[at + 16 :]
    return data[:at] + data[at + rng.randrange(1, 64) :]


def test_p2_a_part_carries_its_checksum(tmp_path: Path) -> None:
    batch = laid(tmp_path)
    (part,) = batch.parts()
    assert re.fullmatch(r"000000-of-000001-[0-9a-f]{8}\.arrow", part.name)
    assert spool.count_rows(batch) == 50


def test_p2_no_damage_goes_unnoticed(tmp_path: Path) -> None:
    batch = laid(tmp_path)
    (part,) = batch.parts()
    data = part.read_bytes()
    for seed in range(300):
        changed = damaged(data, seed)
        if changed != data:
            part.write_bytes(changed)
            with pytest.raises(DamagedBatch):
                spool.check(batch)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_p2_l9_a_part_that_is_gone_is_missed(tmp_path: Path, gone: int) -> None:
    rows = pa.RecordBatch.from_pylist([{"name": "orders", "body": b"x"}], SPOOL_SCHEMA)
    place = spool.prepare(str(begun(tmp_path)))
    assert spool.lay(place, "app", 1, [spool.stage(place, [rows])[0] for _ in range(3)])
    (batch,) = spool.waiting(place)
    assert spool.count_rows(batch) == 3
    batch.parts()[gone].unlink()
    assert [f"lacks 1 of its parts: {gone}" in one.text for one in check(DirectoryDisk(tmp_path)).findings] == [True]
    with pytest.raises(DamagedBatch):
        spool.count_rows(batch)


def test_p2_rows_that_lead_astray_are_refused_even_with_a_right_checksum(tmp_path: Path) -> None:
    """A part as an earlier version laid it, or one that somebody made: without checksum, or with one that holds."""
    batch = laid(tmp_path)
    (part,) = batch.parts()
    data = part.read_bytes()
    bare = part.with_name("000000.arrow")
    part.unlink()
    bare.write_bytes(data)
    assert spool.count_rows(batch) == 50
    refused = 0
    places = [at for at in range(0, len(data) - 12, 4) if data[at : at + 4] == struct.pack("<i", 40)]
    assert places
    for at in places:
        bare.write_bytes(data[:at] + struct.pack("<i", 1 << 30) + data[at + 4 :])
        try:
            for rows in spool.rows_of(batch):
                rows.to_pylist()
        except DamagedBatch:
            refused += 1
    assert refused


def test_p2_damaged_batches_are_set_aside_with_their_reason_and_others_are_taken(tmp_path: Path) -> None:
    for number in range(12):
        batch = laid(tmp_path, f"app-{number}")
        (part,) = batch.parts()
        if number % 2:
            part.write_bytes(damaged(part.read_bytes(), 4 * number + number % 3))
    pipe = laid(tmp_path, "pipe").parts()[0]
    pipe.unlink()
    os.mkfifo(pipe)
    with open_broker(tmp_path, sync="os") as broker:
        deadline = time.monotonic() + 60
        while spool.waiting(tmp_path / "spool"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert broker.queue("orders").size == 6 * 50
    aside = sorted(path.name for path in (tmp_path / "spool" / "refused").iterdir())
    assert len(aside) == 7
    for name in aside:
        assert (tmp_path / "spool" / "refused" / name / spool.REASON).read_text().strip()


def test_p2_single_batches_are_taken_in_as_they_were_written(tmp_path: Path) -> None:
    """So that of two INSERTs the first comes first, also where the broker was away."""
    names = [spool.new_once() for _ in range(20)]
    for app in reversed(names):
        laid(tmp_path, app)
    assert [batch.app for batch in spool.waiting(tmp_path / "spool")] == names


@pytest.mark.parametrize("number", [-1, 1 << 63, 10**20])
def test_p2_a_number_that_would_never_be_taken_in_is_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(InvalidOption, match="a batch's number must be from 0 to 9223372036854775807"):
        laid(tmp_path, number=number)
