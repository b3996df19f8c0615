"""`python -m tests.faults.backups --backups 20` takes backups beside a broker under load, and opens every one.

Each holds what was confirmed before it was begun, nothing that was settled before, and nothing that came later than its
end. Some are killed half-way: what is left is refused, or is whole, and the place can be used again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final, TypeVar

from remuda import open_broker
from remuda.log.disk import DirectoryDisk
from remuda.log.disk.directory import MARKER
from remuda.log.repair.backup import backup
from remuda.log.repair.check import check
from remuda.model.errors import ForeignDirectory, StorageError
from tests.faults.killing import PATIENCE, fork_server
from tests.faults.victim import SMALL_LOG, Job, run
from tests.faults.witness import Found, Witness, check_report

T = TypeVar("T")
_ENOUGH: Final = 300
"""Messages that are confirmed between two backups."""


class LoadedBroker:
    """A process that uses a directory until it is killed, and what it said so far."""

    def __init__(self, processes: ForkServerContext, job: Job) -> None:
        self._ears, mouth = processes.Pipe(duplex=False)
        self._process = processes.Process(target=run, args=(job, mouth), daemon=True)
        self._process.start()
        mouth.close()
        self._heard = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        while said := os.read(self._ears.fileno(), 1 << 16):
            self._heard += said

    def told(self) -> Witness:
        """Everything that it announced and confirmed up to now."""
        witness = Witness()
        witness.hear(bytes(self._heard))
        return witness

    def work(self, messages: int) -> None:
        """Let it go on until so many more are confirmed."""
        enough = len(self.told().names["P"]) + messages
        end = time.monotonic() + PATIENCE
        while len(self.told().names["P"]) < enough:
            assert self._process.is_alive(), "the broker ended by itself"
            assert time.monotonic() < end, "the broker stands still"
            time.sleep(0.02)

    def kill(self) -> Witness:
        self._process.kill()
        self._process.join(PATIENCE)
        self._listener.join(PATIENCE)
        return self.told()


@contextmanager
def loaded_broker(processes: ForkServerContext, directory: Path, seed: int) -> Iterator[LoadedBroker]:
    broker = LoadedBroker(processes, Job(directory, seed, 0, "os"))
    try:
        yield broker
    finally:
        broker.kill()


def restored(copy: Path, before: Witness, after: Witness) -> int:
    """Open a copy and compare it with what was known before it was begun and after it was made; how many wait in it."""
    with open_broker(copy, sync="os", shared=False, **SMALL_LOG) as broker:
        assert broker.recovery.clean, broker.recovery.describe()
        found = Found(broker)
    there = set(found.names)
    assert len(there) == len(found.names), "a message came out of the copy twice"
    assert not before.names["P"] - after.names["s"] - there, "what was accepted before is not in the copy"
    assert not before.names["S"] & there, "what was settled before came out of the copy"
    assert not there - after.names["p"], "the copy holds what nobody published"
    return len(there)


def patiently(call: Callable[[], T]) -> T:
    """Where files come and go faster than they can be read, whoever asked is told to try again."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except StorageError as error:
            if "try again" not in str(error) or time.monotonic() > end:
                raise


def take(broker: LoadedBroker, source: Path, target: Path, *, link: bool) -> int:
    """One backup beside the broker, restored and compared. A look beside the broker misses nothing either."""
    told = patiently(lambda: check(DirectoryDisk(source, create=False)))
    missing = [one for one in told.findings if one.messages or one.events]
    assert not missing, told.describe()
    before = broker.told()
    made = patiently(lambda: backup(source, target, link=link))
    after = broker.told()
    assert made.report.clean, made.report.describe()
    waiting = restored(target, before, after)
    shutil.rmtree(target)
    return waiting


def take_and_be_killed(
    processes: ForkServerContext, broker: LoadedBroker, source: Path, target: Path, after: float
) -> bool:
    """A backup that is killed after so many seconds. Gives whether it was whole by then."""
    before = broker.told()
    process = processes.Process(target=backup, args=(source, target), daemon=True)
    process.start()
    process.join(after)
    process.kill()
    process.join(PATIENCE)
    whole = (target / MARKER).exists()
    if whole:
        restored(target, before, broker.told())
    elif target.is_dir() and any(target.iterdir()):
        with contextlib.suppress(ForeignDirectory):
            open_broker(target, shared=False).close()
            raise AssertionError("half a copy was opened")
    shutil.rmtree(target, ignore_errors=True)
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backups", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    chance, processes = random.Random(chosen.seed), fork_server()
    waiting, killed = [], []
    with tempfile.TemporaryDirectory(prefix="remuda-backups-") as folder:
        source = Path(folder) / "log"
        with loaded_broker(processes, source, chosen.seed) as broker:
            for number in range(chosen.backups):
                broker.work(_ENOUGH)
                waiting.append(take(broker, source, Path(folder) / f"copy-{number}", link=bool(number % 2)))
                killed.append(take_and_be_killed(processes, broker, source, Path(folder) / "cut", chance.random() / 2))
            told = broker.kill()
        assert check(DirectoryDisk(source, create=False)).sealed_files, "nothing was sealed meanwhile"
        with open_broker(source, sync="os", shared=False, **SMALL_LOG) as again:
            check_report(again.recovery)
    print(
        f"{len(waiting)} backups beside a broker that took {len(told.names['P'])} messages, with {min(waiting)} to "
        f"{max(waiting)} waiting in them; {len(killed)} more were killed, {len(killed) - sum(killed)} of them half-way"
    )


if __name__ == "__main__":
    main()
