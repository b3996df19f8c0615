"""P2, L2: the intake ends at any of its steps, again and again, and each row of the spool is taken in once.

A seed decides what is laid, and how far each process gets: to its nth call of the file system, counted from outside.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from remuda.broker.embedded.runtime import Runtime
from remuda.broker.embedded.upkeep.spool_reader import SpoolReader
from remuda.broker.options import BrokerOptions, Sync
from remuda.log import spool
from remuda.log.disk.directory import DirectoryDisk
from tests.begun import begun
from tests.faults.test_disks import drained

pytestmark = pytest.mark.faults

APPS = ("a", "b")
BATCHES = 4
WATCHED = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.listdir", "os.scandir", "shutil.rmtree"}


class Killed(BaseException):
    """The process ends here. Not an `Exception`: nobody may handle it and go on."""


class Steps(threading.local):
    """Counts the steps of this thread, and ends it at one of them."""

    left = -1

    def step(self) -> None:
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                raise Killed


steps = Steps()


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in WATCHED:
        steps.step()


sys.addaudithook(watch)  # for good, but it does nothing while no steps are counted


class MortalFile:
    """Ends with its process in the middle of a write, or before or after a sync."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        steps.step()
        self._file.write(data)
        steps.step()

    def sync(self) -> None:
        steps.step()
        self._file.sync()
        steps.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class MortalDisk(DirectoryDisk):
    def open_append(self, name: str, position: int = 0) -> Any:
        return MortalFile(super().open_append(name, position))


def lay(place: Path, app: str, number: int, bodies: list[bytes]) -> None:
    rows = [{"name": "q", "body": body, "priority": 77 if body.startswith(b"bad") else 0} for body in bodies]
    pieces = [pa.RecordBatch.from_pylist(rows[at : at + 5], spool.SPOOL_SCHEMA) for at in range(0, len(rows), 5)]
    spool.lay(place, app, number, [spool.stage(place, [piece])[0] for piece in pieces])


def take_in(directory: Path, limit: int) -> bool:
    """A process takes in what lies there; False if it was killed at the step `limit`."""
    host = Runtime(MortalDisk(directory), BrokerOptions(sync=Sync.ALWAYS, worker=1))
    host.upkeep.stop()
    steps.left = limit
    try:
        SpoolReader(host).run()
    except Killed:
        steps.left = -1
        host._timer.stop()
        host.disown()  # as the end of the process does; nothing more is written
        host.engine.log._writer.close()
        return False
    finally:
        steps.left = -1
    host.close()
    return True


@pytest.mark.parametrize("seed", range(6))
def test_p2_each_row_is_taken_in_once_wherever_the_intake_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    directory = tmp_path / "log"
    place = spool.prepare(str(begun(directory)))
    laid: dict[tuple[str, int], list[bytes]] = {}
    for app in APPS:
        for number in range(1, BATCHES + 1):
            bodies = [
                b"%s %s/%d/%d" % (b"bad" if rng.random() < 0.1 else b"row", app.encode(), number, row)
                for row in range(rng.choice((0, 1, 3, 12)))
            ]
            lay(place, app, number, laid.setdefault((app, number), bodies))
    limit, kills = 1, 0
    while not take_in(directory, limit):
        kills += 1
        limit += rng.randint(0, 3)
        if rng.random() < 0.3:
            # Whoever laid it was killed too, does not know that it did, and lays it again.
            app, number = rng.choice(sorted(laid))
            lay(place, app, number, laid[app, number])
        assert kills < 1000
    assert kills > 10
    while not take_in(directory, -1):
        pass
    assert spool.waiting(place) == []
    rows = [body for batch in sorted(laid) for body in laid[batch]]
    taken = drained(directory, "q") if any(row.startswith(b"row") for row in rows) else []
    for app in APPS:
        mine = b" %s/" % app.encode()
        assert [body for body in taken if mine in body] == [
            body for body in rows if mine in body and body.startswith(b"row")
        ]
    refused: list[bytes] = []
    for path in (place / "refused").glob("*.arrow"):
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
            refused += reader.read_all().column("body").to_pylist()
    assert sorted(refused) == sorted(row for row in rows if row.startswith(b"bad"))
