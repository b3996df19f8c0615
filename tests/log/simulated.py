"""A disk that fails on demand: it dies at the n-th operation, loses and tears what was not synced, and fills up."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from remuda.log.disk import AppendFile
from remuda.model.errors import DiskFull


class PowerLoss(Exception):
    """The machine stopped here."""


@dataclass(eq=False)
class _File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    named: bool = False
    reserved: int = 0

    @property
    def room(self) -> int:
        return max(len(self.content), self.reserved)


class SimulatedDisk:
    """Files in memory, each with what would be left of it after a power loss."""

    def __init__(self, *, dies_at: int | None = None, capacity: int | None = None) -> None:
        self.files: dict[str, _File] = {}
        self.dies_at = dies_at
        self.capacity = capacity
        self.operations = 0
        self.syncs = 0
        self.writes = 0

    def after_kill(self) -> SimulatedDisk:
        """What the next process finds when this one was killed: all that was handed to the operating system."""
        disk = SimulatedDisk(capacity=self.capacity)
        for name, file in self.files.items():
            padding = bytes(max(file.reserved - len(file.content), 0))
            content = bytes(file.content) + padding
            disk.files[name] = _File(bytearray(content), content, True)
        return disk

    def after_power_loss(self, rng: random.Random) -> SimulatedDisk:
        """What is found after a power loss: what was synced, and any part of the rest, torn at any byte."""
        disk = SimulatedDisk(capacity=self.capacity)
        for name, file in self.files.items():
            if not file.named and rng.random() < 0.5:
                continue
            kept = bytes(file.content[: len(file.durable) + rng.randrange(len(file.content) - len(file.durable) + 1)])
            if len(file.content) <= len(file.durable):
                kept = file.durable
            content = kept + bytes(max(file.reserved - len(kept), 0))
            disk.files[name] = _File(bytearray(content), content, True)
        return disk

    def step(self) -> None:
        self.operations += 1
        if self.dies_at is not None and self.operations >= self.dies_at:
            raise PowerLoss

    def room_for(self, extra: int) -> None:
        if self.capacity is not None and sum(file.room for file in self.files.values()) + extra > self.capacity:
            raise DiskFull("no room on the simulated disk")

    def list(self) -> list[str]:
        return sorted(self.files)

    def size(self, name: str) -> int:
        return self._file(name).room

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        file = self._file(name)
        stop = file.room if length is None else min(start + length, file.room)
        return bytes(file.content[start:stop]).ljust(max(stop - start, 0), b"\0")

    def open_append(self, name: str, position: int = 0) -> AppendFile:
        self.step()
        file = self.files.setdefault(name, _File())
        if len(file.content) > position:
            del file.content[position:]
        file.reserved = 0
        return _Handle(self, file)

    def write_atomic(self, name: str, data: bytes | Iterable[bytes]) -> None:
        data = data if isinstance(data, bytes) else b"".join(data)
        self.step()
        self.room_for(len(data))
        self.step()
        self.files[name] = _File(bytearray(data), data, True)
        self.step()

    def rename(self, source: str, target: str) -> None:
        self.step()
        self.files[target] = self.files.pop(source)
        self.step()

    def remove(self, name: str) -> None:
        self.step()
        self.files.pop(name, None)
        self.step()

    def path(self, name: str) -> str | None:
        return None

    def lock(self) -> None:
        pass

    def unlock(self) -> None:
        pass

    def _file(self, name: str) -> _File:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]


class _Handle:
    def __init__(self, disk: SimulatedDisk, file: _File) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: bytes) -> None:
        self._disk.step()
        self._disk.writes += 1
        self._disk.room_for(max(len(self._file.content) + len(data) - self._file.room, 0))
        half = len(data) // 2
        self._file.content += data[:half]
        self._disk.step()
        self._file.content += data[half:]

    def sync(self) -> None:
        self._disk.step()
        self._disk.syncs += 1
        self._file.durable = bytes(self._file.content)
        self._file.named = True

    def reserve(self, up_to: int) -> None:
        self._disk.step()
        self._disk.room_for(max(up_to - self._file.room, 0))
        self._file.reserved = max(self._file.reserved, up_to)

    def truncate(self, size: int) -> None:
        self._disk.step()
        del self._file.content[size:]
        self._file.reserved = 0

    def close(self) -> None:
        pass
