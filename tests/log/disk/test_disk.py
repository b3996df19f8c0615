"""L7: directories that cannot be used say why, and what to do."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.log.disk import DirectoryDisk, Disk, MemoryDisk
from remuda.model.errors import (
    DirectoryInUse,
    DirectoryNotWritable,
    DiskFull,
    ForeignDirectory,
    StorageError,
    UnsupportedFormat,
)
from tests.log.simulated import SimulatedDisk
from tests.privileges import unwritable_directory


@pytest.fixture(params=["directory", "memory", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    kinds: dict[str, Disk] = {
        "directory": DirectoryDisk(tmp_path / "d"),
        "memory": MemoryDisk(),
        "simulated": SimulatedDisk(),
    }
    return kinds[request.param]


def test_files_grow_and_are_read_in_parts(disk: Disk) -> None:
    file = disk.open_append("tail/a")
    file.write(b"hello ")
    file.write(b"world")
    file.sync()
    file.truncate(11)
    file.close()
    assert disk.read("tail/a") == b"hello world"
    assert disk.read("tail/a", 6) == b"world"
    assert disk.read("tail/a", 6, 2) == b"wo"
    assert disk.read("tail/a", 9, 100) == b"ld"
    assert disk.read("tail/a", 50, 5) == b""
    assert disk.size("tail/a") == 11
    assert "tail/a" in disk.list()


def test_opening_to_append_cuts_what_lies_behind(disk: Disk) -> None:
    disk.write_atomic("tail/a", b"hello world")
    file = disk.open_append("tail/a", 5)
    assert disk.read("tail/a") == b"hello"
    file.write(b"!")
    file.close()
    assert disk.read("tail/a") == b"hello!"


def test_files_are_replaced_renamed_and_removed(disk: Disk) -> None:
    disk.write_atomic("sealed/a", b"1")
    disk.write_atomic("sealed/a", b"22")
    disk.rename("sealed/a", "other/b")
    assert disk.read("other/b") == b"22"
    disk.remove("other/b")
    disk.remove("other/b")
    for look in (disk.read, disk.size):
        with pytest.raises(FileNotFoundError):
            look("other/b")
    with pytest.raises(FileNotFoundError):
        disk.read("sealed/a")


def test_reserved_room_reads_as_zeros_or_is_not_there(disk: Disk) -> None:
    file = disk.open_append("tail/a")
    file.reserve(4096)
    file.write(b"x")
    assert disk.read("tail/a").rstrip(b"\0") == b"x"
    file.truncate(1)
    assert disk.read("tail/a") == b"x"
    file.close()


def test_l7_a_second_process_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    script = (
        "import sys; from remuda.log.disk import DirectoryDisk; disk = DirectoryDisk(sys.argv[1]); disk.lock();"
        "print('locked', flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"locked\n"
        disk = DirectoryDisk(tmp_path)
        with pytest.raises(DirectoryInUse, match=f"process {other.pid};.*nothing was changed"):
            disk.lock()
    finally:
        other.stdin.close()
        other.wait()
        other.stdout.close()
    disk.lock()
    disk.unlock()


def test_l7_a_second_opener_in_the_same_process_is_refused(tmp_path: Path) -> None:
    first, second = DirectoryDisk(tmp_path), DirectoryDisk(tmp_path)
    first.lock()
    with pytest.raises(DirectoryInUse, match=str(os.getpid())):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_l7_a_directory_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("precious")
    with pytest.raises(ForeignDirectory, match=r"thesis\.doc.*nothing was changed"):
        DirectoryDisk(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.doc"]


def test_l7_a_marker_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "remuda.json").write_text("[]")
    with pytest.raises(ForeignDirectory, match="not a marker"):
        DirectoryDisk(tmp_path)


def test_l7_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "remuda.json").write_text(json.dumps({"remuda": 99}))
    with pytest.raises(UnsupportedFormat, match=r"format 99.*newer"):
        DirectoryDisk(tmp_path)


def test_l7_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryNotWritable, match="nothing was changed"):
        DirectoryDisk(tmp_path / "file")
    with pytest.raises(DirectoryNotWritable, match="nothing was changed"):
        DirectoryDisk(tmp_path / "file" / "below")


def test_l7_a_directory_without_permission_to_write() -> None:
    with unwritable_directory() as directory, pytest.raises(DirectoryNotWritable, match="permissions"):
        DirectoryDisk(directory).lock()


def test_a_reader_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no directory"):
        DirectoryDisk(tmp_path / "none", create=False)
    assert os.listdir(tmp_path) == []


def test_a_crash_before_the_marker_does_not_make_the_directory_foreign(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1\n")
    (tmp_path / "remuda.json.1.tmp").write_text("{")
    disk = DirectoryDisk(tmp_path)
    disk.lock()
    assert sorted(os.listdir(tmp_path)) == ["lock", "remuda.json"]
    disk.unlock()


def test_what_a_crash_left_half_written_is_swept(tmp_path: Path) -> None:
    disk = DirectoryDisk(tmp_path)
    disk.lock()
    disk.write_atomic("sealed/a", b"1")
    (tmp_path / "sealed" / "b.77.tmp").write_text("half")
    assert disk.list() == ["lock", "remuda.json", "sealed/a"]
    disk.unlock()
    again = DirectoryDisk(tmp_path)
    assert (tmp_path / "sealed" / "b.77.tmp").exists(), "only the holder of the lock may sweep"
    again.lock()
    assert not (tmp_path / "sealed" / "b.77.tmp").exists()
    again.unlock()


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_l7_no_room_is_told_by_every_way_of_writing(tmp_path: Path) -> None:
    disk = DirectoryDisk(tmp_path)
    file = disk.open_append("tail/a")
    with pytest.raises(DiskFull, match="Free some space"):
        file.reserve(1 << 20)
    with pytest.raises(DiskFull):
        file.write(bytes(1 << 20))
    with pytest.raises(DiskFull):
        disk.write_atomic("sealed/a", bytes(1 << 20))
    file.close()
    assert disk.list() == ["tail/a"], "no half written file is left"
