"""L3: a damaged sealed file is known to `broker.recovery`, with the numbers of what is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from remuda.broker.embedded.upkeep import background
from remuda.log.disk.directory import DirectoryDisk
from remuda.log.sealed.checksums import is_whole
from remuda.model.message import Message
from tests.spark.samples import broker_at, half_sealed


def damage(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 255
    file.write_bytes(data)


def test_l3_damage_is_reported_when_the_broker_is_opened(tmp_path: Path) -> None:
    half_sealed(tmp_path, 1500)
    with broker_at(tmp_path) as broker:
        assert broker.recovery.clean
    first, *_, last = sorted((tmp_path / "sealed").glob("messages-*.parquet"))
    damage(first, 100)
    damage(last, last.stat().st_size - 5)
    with broker_at(tmp_path) as broker:
        report = broker.recovery
        assert not report.clean
        assert {one.file for one in report.damages} == {f"sealed/{first.name}", f"sealed/{last.name}"}
        assert report.lost_messages == sum(len(one.messages or ()) for one in report.damages) > 0
        start = int(last.name.split("-")[1])
        assert f"messages ({start} to " in report.describe()
        broker.publish(Message("other", b"1"))
        assert broker.pull("other") is not None, "the broker goes on"


def test_l3_larger_logs_are_looked_through_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_SCRUB_FIRST", 1)
    monkeypatch.setattr(background, "_SCRUB", 1)
    half_sealed(tmp_path, 1500)
    oldest = min((tmp_path / "sealed").glob("messages-*.parquet"))
    damage(oldest, 100)
    with broker_at(tmp_path) as broker:
        end = time.monotonic() + 60
        while broker.recovery.clean:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert [one.file for one in broker.recovery.damages] == [f"sealed/{oldest.name}"]


def test_l3_every_flipped_byte_and_every_cut_is_found(tmp_path: Path) -> None:
    half_sealed(tmp_path, 700)
    file = min((tmp_path / "sealed").glob("messages-*.parquet"))
    whole = file.read_bytes()
    disk = DirectoryDisk(tmp_path)
    name = f"sealed/{file.name}"
    assert is_whole(disk, name)
    for at in range(4, len(whole), 97):
        damage(file, at)
        assert not is_whole(disk, name), at
        file.write_bytes(whole[:at])
        assert not is_whole(disk, name), at
        file.write_bytes(whole)
