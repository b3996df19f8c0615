"""No two processes make the same id (M4)."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remuda.broker.embedded.upkeep.worker_numbers import claim_worker
from remuda.broker.opening import open_broker
from remuda.model.errors import InvalidOption, StorageError
from remuda.model.ids import STEP, Snowflakes, time_of
from tests.conformance.kit import numbered

CLAIM = """
import sys, pathlib
from remuda.broker.embedded.upkeep.worker_numbers import claim_worker
claim = claim_worker(None, pathlib.Path(sys.argv[1]))
print(claim.number, flush=True)
sys.stdin.read()
"""
PUBLISH = """
from remuda.broker.opening import open_broker
from remuda.model.message import Message
with open_broker("memory://") as broker:
    print("ready", flush=True)
    input()
    for _ in range(20):
        print("\\n".join(broker.publish([Message("orders", b"")] * 100).ids))
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_m4_the_configured_number_is_taken_as_it_is() -> None:
    claim = claim_worker(7)
    assert claim.number == 7
    claim.release()


def test_m4_claims_in_one_process_differ(tmp_path: Path) -> None:
    claims = [claim_worker(None, tmp_path) for _ in range(20)]
    assert len({claim.number for claim in claims}) == 20
    for claim in claims:
        claim.release()


def test_m4_two_processes_claim_different_numbers(tmp_path: Path) -> None:
    processes = [python(CLAIM, str(tmp_path)) for _ in range(2)]
    numbers = [int(first_line(process)) for process in processes]
    ours = claim_worker(None, tmp_path)
    assert len({*numbers, ours.number}) == 3
    ours.release()
    for process in processes:
        end(process)


def test_m4_a_crash_frees_the_number(tmp_path: Path) -> None:
    process = python(CLAIM, str(tmp_path))
    number = int(first_line(process))
    with (tmp_path / f"{number:04d}").open("a") as claim, pytest.raises(BlockingIOError):
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with (tmp_path / f"{number:04d}").open("a") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_m4_ids_of_several_processes_never_meet() -> None:
    processes = [python(PUBLISH) for _ in range(3)]
    for process in processes:
        assert first_line(process) == "ready"
    outputs = [process.communicate("go\n", timeout=60)[0].split() for process in processes]
    ids = [one for output in outputs for one in output]
    assert len(ids) == 6000
    assert len(set(ids)) == 6000


def test_m4_the_worker_can_be_configured() -> None:
    with open_broker("memory://", worker=5) as broker:
        assert int(broker.publish(numbered(1)).id) % STEP == 5


@pytest.mark.parametrize("worker", [-1, 1024])
def test_m4_an_impossible_worker_is_refused(worker: int) -> None:
    with pytest.raises(InvalidOption, match=r"worker .*0 to 1023"):
        open_broker("memory://", worker=worker)


def test_m4_ids_never_go_back_when_the_clock_does() -> None:
    snowflakes = Snowflakes(3)
    now = 1_800_000_000_000_000
    ids = [*snowflakes.take(10_000, now), *snowflakes.take(5, now - 10_000_000), *snowflakes.take(5, now)]
    assert ids == sorted(set(ids))
    assert time_of(ids[0]) == now


def test_m4_a_folder_of_numbers_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "workers"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(StorageError, match="nobody else can write to"):
        claim_worker(None, place)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(StorageError, match="should be a folder"):
        claim_worker(None, tmp_path / "link")
    assert list(elsewhere.iterdir()) == []


def test_m4_a_folder_for_temporary_files_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"no worker number can be claimed.*Not a directory.*set TMPDIR"):
        claim_worker(None, tmp_path / "file" / "workers")
