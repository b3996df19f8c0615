"""L7: directories that cannot be used say why, and stay as they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.model.errors import DirectoryInUse, DirectoryNotWritable, ForeignDirectory, UnsupportedFormat
from tests.privileges import unwritable_directory

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", code, *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_l7_a_second_process_is_told_who_has_the_directory(tmp_path: Path) -> None:
    open_it = "import sys; from remuda import open_broker; open_broker(sys.argv[1])"
    with open_broker(tmp_path / "log"):
        second = python(open_it, str(tmp_path / "log"))
        assert "DirectoryInUse" in second.stderr
        assert f"process {os.getpid()}" in second.stderr
        with pytest.raises(DirectoryInUse, match=f"process {os.getpid()}"):
            open_broker(tmp_path / "log")
    assert python(open_it, str(tmp_path / "log")).returncode == 0


FORK = """
import os, sys
from remuda import Message, open_broker
from remuda.model.errors import BrokerClosed
broker = open_broker(sys.argv[1])
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
