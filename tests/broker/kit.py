"""A clock that tests move, and disks that tests watch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from remuda.broker.embedded.runtime import Runtime
from remuda.broker.opening import open_broker
from remuda.broker.options import BrokerOptions
from remuda.broker.threads import EmbeddedBroker
from remuda.log.disk import AppendFile
from remuda.log.disk.directory import DirectoryDisk
from remuda.log.disk.system import DirectoryFile

START = 1_800_000_000_000_000
MILLISECOND = 1_000
SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def pass_time(broker: EmbeddedBroker, clock: ManualClock, duration: int) -> None:
    """Move the clock and let the broker do what has become due."""
    clock.now += duration
    broker.runtime.tick()


def open_at(url: str | os.PathLike[str], clock: ManualClock, **options: Any) -> EmbeddedBroker:
    return open_broker(url, clock=clock, **{"sync": "os", **options})


class WatchedDisk(DirectoryDisk):
    """A real directory that counts writes and syncs, and can be slow or fail."""

    def __init__(self, path: Path, sync_takes: float = 0) -> None:
        super().__init__(path)
        self.sync_takes = sync_takes
        self.writes = 0
        self.syncs = 0
        self.failure: Exception | None = None

    def open_append(self, name: str, position: int = 0) -> Any:
        return WatchedFile(self, super().open_append(name, position))


class WatchedFile:
    def __init__(self, disk: WatchedDisk, file: DirectoryFile) -> None:
        self._disk = disk
        self._file: AppendFile = file

    def write(self, data: bytes) -> None:
        if self._disk.failure is not None:
            raise self._disk.failure
        self._disk.writes += 1
        self._file.write(data)

    def sync(self) -> None:
        time.sleep(self._disk.sync_takes)
        self._disk.syncs += 1
        self._file.sync()

    def reserve(self, up_to: int) -> None:
        self._file.reserve(up_to)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


def hosted_on(disk: WatchedDisk, **options: Any) -> Runtime:
    return Runtime(disk, BrokerOptions.parse(**options))
