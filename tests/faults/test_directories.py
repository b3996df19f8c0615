"""L7: directories that cannot be used say why, and stay as they were."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda import Message, open_broker
from remuda.broker.shared.wire import sockets
from remuda.log.disk.directory import DirectoryDisk
from remuda.model.errors import (
    DirectoryInUse,
    DirectoryNotWritable,
    ForeignDirectory,
    StorageError,
    TooManyFiles,
    UnsupportedFormat,
)
from tests.privileges import unwritable_directory

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", code, *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


def test_l7_a_second_process_is_told_who_has_the_directory(tmp_path: Path) -> None:
    open_it = "import sys; from remuda import open_broker; open_broker(sys.argv[1], shared=False)"
    with open_broker(tmp_path / "log", shared=False):
        second = python(open_it, str(tmp_path / "log"))
        assert "DirectoryInUse" in second.stderr
        assert f"process {os.getpid()}" in second.stderr
        with pytest.raises(DirectoryInUse, match=f"process {os.getpid()}"):
            open_broker(tmp_path / "log", shared=False)
        with pytest.raises(DirectoryInUse, match=f"process {os.getpid()}, which does not share it"):
            open_broker(tmp_path / "log")
    assert python(open_it, str(tmp_path / "log")).returncode == 0


FORK = """
import os, sys
from remuda import Message, open_broker
from remuda.broker.shared.wire import sockets
from remuda.model.errors import BrokerClosed
broker = open_broker(sys.argv[1], shared=False)
broker.create_queue("q", type="pull")
broker.publish(Message("q", b"before"))
child = os.fork()
if child == 0:
    told = 0
    for verb in (lambda: broker.publish(Message("q", b"child")), lambda: broker.pull("q"), lambda: broker.queue("q")):
        try:
            verb()
        except BrokerClosed as error:
            told += "fork" in str(error)
    broker.close()
    os._exit(0 if told == 3 else 1)
_, status = os.waitpid(child, 0)
broker.publish(Message("q", b"after"))
print(os.waitstatus_to_exitcode(status), broker.pull("q", 9).bodies)
broker.close()
"""


def test_l7_a_fork_can_neither_use_nor_harm_the_broker(tmp_path: Path) -> None:
    run = python(FORK, str(tmp_path / "log"))
    assert run.stdout.split(maxsplit=1) == ["0", "[b'before', b'after']\n"], run.stderr
    with open_broker(tmp_path / "log") as broker:
        assert broker.recovery.clean


ORPHAN = """
import os, sys, time
from remuda import open_broker
broker = open_broker(sys.argv[1])
child = os.fork()
if child == 0:
    os.close(1)
    os.close(2)
    time.sleep(30)
    os._exit(0)
print(child, flush=True)
os._exit(0)
"""


def test_l7_a_fork_that_outlives_its_parent_does_not_keep_the_directory(tmp_path: Path) -> None:
    orphan = int(python(ORPHAN, str(tmp_path / "log")).stdout)
    try:
        with open_broker(tmp_path / "log") as broker:
            broker.publish(Message("q", b""))
    finally:
        os.kill(orphan, 9)


def test_l7_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ForeignDirectory, match=r"thesis\.txt"):
        open_broker(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_l7_a_directory_of_a_newer_remuda_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "remuda.json").write_text('{"remuda": 999}')
    with pytest.raises(UnsupportedFormat, match="newer"):
        open_broker(tmp_path)


def test_l7_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    with pytest.raises(DirectoryNotWritable, match="choose another directory"):
        open_broker(tmp_path / "log")


def test_l7_an_unwritable_directory() -> None:
    with unwritable_directory() as directory, pytest.raises(DirectoryNotWritable, match="permissions"):
        open_broker(directory / "log", worker=1)


def test_l7_the_lock_cannot_be_got_round_by_removing_a_file(tmp_path: Path) -> None:
    place = tmp_path / "log"
    with open_broker(place, shared=False) as broker:
        for name in ("lock", "remuda.json"):
            (place / name).unlink()
        with pytest.raises((DirectoryInUse, ForeignDirectory)):
            open_broker(place, shared=False)
        (place / "remuda.json").write_text('{"remuda": 1}\n')
        with pytest.raises(DirectoryInUse):
            open_broker(place, shared=False)
        broker.publish(Message("q", b"x"))
    with open_broker(place) as broker:
        assert broker.queue("q").size == 1


def test_l7_files_are_for_their_owner_alone_unless_a_group_is_allowed(tmp_path: Path) -> None:
    def modes(path: Path) -> set[tuple[bool, int]]:
        return {(one.is_dir(), stat.S_IMODE(one.stat().st_mode)) for one in (path, *path.rglob("*"))}

    with open_broker(tmp_path / "own" / "log") as broker:
        broker.publish(Message("q", b"x"))
        broker.checkpoint()
    assert modes(tmp_path / "own") == {(True, 0o700), (False, 0o600)}
    disk = DirectoryDisk(tmp_path / "group", group=True)
    disk.lock()
    disk.open_append("tail/a.log").close()
    disk.write_atomic("checkpoint/b", b"")
    disk.unlock()
    assert modes(tmp_path / "group") == {(True, 0o770), (False, 0o660)}


@pytest.mark.parametrize("name", ["lock", "remuda.json", "tail/0000000000000001-0101010101010101.log", "sealed", "x"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_l7_links_and_pipes_are_refused_before_anything_is_opened(tmp_path: Path, name: str, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    place = tmp_path / "log"
    with open_broker(place) as broker:
        broker.publish(Message("q", b"x"))
    path = place / name
    path.parent.mkdir(exist_ok=True)
    if path.is_file():
        path.unlink()
    if kind == "link":
        path.symlink_to(victim)
    else:
        os.mkfifo(path)
    with pytest.raises(StorageError, match=r"link|plain file|neither a file"):
        open_broker(place)
    assert victim.read_text() == "precious"
    path.unlink()
    if name == "remuda.json":
        path.write_text('{"remuda": 1}\n')
    with open_broker(place) as broker:
        assert broker.queue("q").size == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_l7_files_of_others_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "log"
    with open_broker(place):
        pass
    planted = place / "tail" / "0000000000000009-0101010101010101.log"
    planted.parent.mkdir(exist_ok=True)
    planted.write_text("planted")
    os.chown(planted, 12345, -1)
    with pytest.raises(ForeignDirectory, match="owned by user 12345"):
        open_broker(place)
    assert planted.read_text() == "planted"


def test_l7_a_folder_that_cannot_be_listed_is_not_an_empty_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_broker(tmp_path / "log") as broker:
        broker.publish(Message("q", b"x"))
    disk = DirectoryDisk(tmp_path / "log", create=False)
    real = os.scandir

    def failing(path: object) -> object:
        if str(path).endswith("tail"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(StorageError, match="cannot be listed"):
        disk.list()
    with pytest.raises(StorageError):
        open_broker(tmp_path / "log")


def test_l7_a_listing_for_which_there_is_no_handle_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DirectoryDisk(tmp_path)

    def no_handle(path: object) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "scandir", no_handle)
    with pytest.raises(TooManyFiles, match="ulimit -n") as raised:
        disk.list()
    assert raised.value.passing


@pytest.mark.parametrize(
    ("group", "mode", "left"), [(False, 0o777, 0o755), (False, 0o775, 0o755), (True, 0o777, 0o775)]
)
def test_l7_a_directory_that_others_can_write_is_narrowed(
    tmp_path: Path, group: bool, mode: int, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where somebody opened all of it at once, with `chmod -R`."""
    path = tmp_path / "log"
    open_broker(path, group=group).close()
    everything = [path, *(one for one in path.rglob("*") if "guests" not in one.parts)]
    for one in everything:
        one.chmod(mode)
    disk = DirectoryDisk(path, group=group)
    disk.lock()
    disk.unlock()
    assert {stat.S_IMODE(one.stat().st_mode) for one in everything if one.exists()} == {left}
    assert f"and {len(everything) - 1} more of its files and folders" in caplog.text
    caplog.clear()
    path.chmod(0o700)
    (path / "tail").chmod(0o777)
    disk.lock()
    disk.unlock()
    assert caplog.text == "", "nobody else reaches it"


@contextlib.contextmanager
def as_somebody_else(act: Callable[[], None]) -> Iterator[None]:
    """Runs in a process of another user, until the block ends."""
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgid(65534)
            os.setuid(65534)
            act()
            os.write(ready[1], b"x")
            os.read(done[0], 1)
        finally:
            os._exit(0)
    try:
        os.read(ready[0], 1)
        yield
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)


@pytest.fixture
def open_place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="remuda-test-", dir="/tmp"))
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_s5_a_guest_asks_who_hosts_before_it_says_anything(open_place: Path) -> None:
    """Another user replaced the socket in a folder that everybody could write."""
    open_broker(open_place).close()
    open_place.chmod(0o777)

    def pretend_to_host() -> None:
        handle = os.open(open_place, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        pretending = socket.socket(socket.AF_UNIX)
        pretending.bind(str(open_place / "socket"))
        pretending.listen()
        kept.append((handle, pretending))

    kept: list[object] = []
    with (
        as_somebody_else(pretend_to_host),
        pytest.raises(ForeignDirectory, match="user 65534, who does not own the directory; nothing was sent to it"),
    ):
        open_broker(open_place)


@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_s5_a_guest_of_another_user_is_told_whose_directory_it_is(open_place: Path, tmp_path: Path) -> None:
    with open_broker(open_place) as broker:
        broker.publish(Message("q", b"x"))
        open_place.chmod(0o755)
        told, tell = os.pipe()

        def connect() -> None:
            try:
                sockets.connect(open_place)
            except ForeignDirectory as error:
                os.write(tell, str(error).encode())

        with as_somebody_else(connect):
            assert b"have its owner open it with group=True" in os.read(told, 1000)
