"""A disk that breaks its heart on command: it loses what was not synced, tears writes, and dies at any operation.

What a process wrote survives its end. What was synced survives a power loss; of the rest any part may, in any order.
Everything random comes from the generator it is given.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from enum import StrEnum
from random import Random
from typing import Final

from remuda.broker.embedded.delivering.attempts import FILE as MARKS
from remuda.log.disk import AppendFile
from remuda.model.errors import DiskFull, StorageError, TooManyFiles

SECTORS: Final = (16, 64, 512, 4096)


class SimulatedCrash(BaseException):
    """The process or the machine ends here. Not an `Exception`: nobody may handle it and go on."""


class CrashKind(StrEnum):
    KILL = "kill"
    """The process ends; the operating system keeps what was written."""
    POWER = "power loss"
    """The machine ends; only what was synced is sure to be there."""


class Content:
    """A file's bytes as programs see them, and as they are on the platter."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0
        """Room behind the data, reserved and zero, counts too."""
        self.kept = b""
        self.kept_size = 0

    def write(self, data: bytes, position: int) -> None:
        if position > len(self.data):
            self.data += bytes(position - len(self.data))
        self.data[position : position + len(data)] = data
        self.size = max(self.size, len(self.data))

    def resize(self, size: int) -> None:
        del self.data[size:]
        self.size = size

    def keep(self) -> None:
        self.kept, self.kept_size = bytes(self.data), self.size

    @property
    def is_kept(self) -> bool:
        return self.kept_size == self.size and self.kept == self.data

    def read(self, start: int, length: int | None) -> bytes:
        stop = self.size if length is None else min(start + length, self.size)
        found = bytes(self.data[start:stop])
        return found + bytes(max(stop - start - len(found), 0))

    def survive(self, random: Random) -> None:
        """What a power loss leaves: the synced bytes, and of the others whatever chance brought to the platter."""
        if self.is_kept:
            return
        mode = random.random()
        if mode < 0.25:
            self.data, self.size = bytearray(self.kept), self.kept_size
        elif mode < 0.6:
            self._tear(random)
        elif mode < 0.9:
            self._shuffle(random)
        self.keep()

    def _tear(self, random: Random) -> None:
        """A prefix of what was written since the last sync."""
        first = next(
            (at for at, (old, new) in enumerate(zip(self.kept, self.data, strict=False)) if old != new),
            min(len(self.kept), len(self.data)),
        )
        cut = random.randint(first, max(len(self.data), first))
        torn = bytearray(self.data[:cut])
        torn += self.kept[cut:]
        self._become(torn, random)

    def _shuffle(self, random: Random) -> None:
        """Some sectors of what was written since, each on its own."""
        sector = random.choice(SECTORS)
        lucky = random.random()
        end = max(len(self.data), len(self.kept))
        mixed = bytearray(self.kept.ljust(end, b"\0"))
        new = bytes(self.data).ljust(end, b"\0")
        for start in range(0, end, sector):
            if random.random() < lucky:
                mixed[start : start + sector] = new[start : start + sector]
        self._become(mixed, random)

    def _become(self, data: bytearray, random: Random) -> None:
        size = random.choice((self.size, self.kept_size))
        self.data, self.size = data, max(size, len(data.rstrip(b"\0")))
        del self.data[self.size :]


class SimulatedDisk:
    """Implements `remuda.log.disk.Disk` on Python dictionaries."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.operations = 0
        self.full_chance = 0.0
        """Of there being no room, or no handle, for what is asked just now."""
        self.fault_chance = 0.0
        """Of a write or a sync that fails for good."""
        self.sync_failed = False
        self.can_reserve = random.random() < 0.6
        """Where it cannot, as on some file systems, a full disk is met by the write itself."""
        self.crash_kind: CrashKind | None = None
        self._crash_at = -1
        self._dead = False
        self._epoch = 0
        self._boots = 0
        self.folder: str | None = None
        self._locked = False
        self._names: dict[str, Content] = {}
        self._kept_names: dict[str, Content] = {}

    # What the simulation does to it

    def crash_in(self, operations: int, kind: CrashKind) -> None:
        """Die in the given number of operations from now."""
        self._crash_at = self.operations + operations
        self.crash_kind = kind

    def disarm(self) -> None:
        self._crash_at = -1
        self.crash_kind = None

    @property
    def armed(self) -> bool:
        return self._crash_at >= 0

    def end_process(self) -> None:
        """As a crash, but between two operations."""
        self._dead = True

    def restart(self, kind: CrashKind) -> None:
        """What is there when the next process looks."""
        self.disarm()
        self._dead = False
        self._locked = False
        self._epoch += 1
        self.sync_failed = False
        if kind is CrashKind.POWER:
            self._boots += 1
            self._lose_names()
            for name in sorted(self._names):
                self._names[name].survive(self.random)

    def calm(self) -> tuple[float, float]:
        """Fail no more; gives the chances as they were."""
        chances = self.full_chance, self.fault_chance
        self.full_chance = self.fault_chance = 0.0
        return chances

    def clone(self) -> SimulatedDisk:
        """Another disk with the same files, for a look that leaves no trace."""
        twin = SimulatedDisk(Random(0))
        twin._names = copy.deepcopy(self._names)
        twin._kept_names = dict(twin._names)
        return twin

    # What the log does with it

    def list(self) -> list[str]:
        self._step()
        return sorted(self._names)

    def size(self, name: str) -> int:
        self._step()
        return self._content(name).size

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self._step()
        return self._content(name).read(start, length)

    def open_append(self, name: str, position: int = 0) -> AppendFile:
        crashes = self._step(partial=True)
        fresh = name not in self._names
        if fresh and self.random.random() < self.full_chance:
            raise TooManyFiles(f"no handle for {name!r}")
        content = self._names.setdefault(name, Content())
        if not fresh and not (crashes and self.random.random() < 0.5):
            content.resize(position)
        self._crash_if(crashes)
        return _SimulatedFile(self, name, content, position, self._epoch)

    def write_atomic(self, name: str, data: bytes | Iterable[bytes]) -> None:
        data = data if isinstance(data, bytes) else b"".join(data)
        crashes = self._step(partial=True)
        if self.random.random() < self.full_chance:
            raise self.full(name)
        if crashes and self.random.random() < 0.5:
            self._crash_if(crashes)
        content = Content()
        content.write(data, 0)
        content.keep()
        self._names[name] = content
        # The name is replaced before its folder is synced: a crash in between may show either file.
        self._crash_if(crashes)
        self.sync_folder(name)

    def rename(self, source: str, target: str) -> None:
        crashes = self._step(partial=True)
        if crashes and self.random.random() < 0.5:
            self._crash_if(crashes)
        self._names[target] = self._content(source)
        del self._names[source]
        self.sync_folder(target)
        self.sync_folder(source)
        self._crash_if(crashes)

    def remove(self, name: str) -> None:
        crashes = self._step(partial=True)
        if crashes and self.random.random() < 0.5:
            self._crash_if(crashes)
        if self._names.pop(name, None) is not None:
            self._crash_if(crashes)
            self.sync_folder(name)
        self._crash_if(crashes)

    def path(self, name: str) -> str | None:
        """Marks of what was begun are written through memory, so they need a real file. It outlives a kill as this disk
        does; after a power loss it is of another boot."""
        return f"{self.folder}/{name}" if self.folder is not None and name == MARKS else None

    def boot(self) -> bytes:
        return b"boot %d" % self._boots

    def lock(self) -> None:
        assert not self._locked, "the log was opened twice"
        self._step()
        for name in {*self._names, *self._kept_names}:
            self._settle_name(name)
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    # For its files

    def check(self, epoch: int) -> None:
        if epoch != self._epoch or self._dead:
            raise SimulatedCrash

    def step(self) -> bool:
        return self._step(partial=True)

    def crash_if(self, crashes: bool) -> None:
        self._crash_if(crashes)

    def keep(self, content: Content) -> None:
        content.keep()

    def sync_folder(self, name: str) -> None:
        folder = name.rpartition("/")[0]
        for known in [*self._names, *self._kept_names]:
            if known.rpartition("/")[0] == folder:
                self._settle_name(known)

    def full(self, name: str) -> DiskFull:
        return DiskFull(f"no room for {name!r}")

    def fault(self, name: str) -> StorageError:
        return StorageError(f"{name!r} cannot be read or written: Input/output error")

    # Inside

    def _step(self, *, partial: bool = False) -> bool:
        """Count an operation; die in it if its number is up. With `partial` the caller dies halfway through."""
        if self._dead:
            raise SimulatedCrash
        self.operations += 1
        crashes = self._crash_at >= 0 and self.operations >= self._crash_at
        if not partial:
            self._crash_if(crashes)
        return crashes

    def _crash_if(self, crashes: bool) -> None:
        if crashes:
            self._dead = True
            raise SimulatedCrash

    def _content(self, name: str) -> Content:
        try:
            return self._names[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def _settle_name(self, name: str) -> None:
        if name in self._names:
            self._kept_names[name] = self._names[name]
        else:
            self._kept_names.pop(name, None)

    def _lose_names(self) -> None:
        """Names whose folder was not synced are as they were, or as they became."""
        for name in sorted({*self._names, *self._kept_names}):
            if self._names.get(name) is not self._kept_names.get(name) and self.random.random() < 0.5:
                if name in self._kept_names:
                    self._names[name] = self._kept_names[name]
                else:
                    del self._names[name]
            self._settle_name(name)


class _SimulatedFile:
    def __init__(self, disk: SimulatedDisk, name: str, content: Content, position: int, epoch: int) -> None:
        self._disk = disk
        self._name = name
        self._content = content
        self._position = position
        self._name_synced = False
        self._epoch = epoch

    def write(self, data: bytes) -> None:
        self._disk.check(self._epoch)
        crashes = self._disk.step()
        disk, random = self._disk, self._disk.random
        beyond = self._position + len(data) > self._content.size
        full = beyond and random.random() < disk.full_chance
        fails = random.random() < disk.fault_chance
        written = random.randint(0, len(data)) if crashes or full or fails else len(data)
        self._content.write(data[:written], self._position)
        disk.crash_if(crashes)
        if fails:
            raise disk.fault(self._name)
        if full:
            raise disk.full(self._name)
        self._position += len(data)

    def sync(self) -> None:
        self._disk.check(self._epoch)
        crashes = self._disk.step()
        # A sync that never returned promises nothing, but may have done its work.
        if crashes and self._disk.random.random() < 0.7:
            self._disk.crash_if(crashes)
        if self._disk.random.random() < self._disk.fault_chance:
            self._disk.sync_failed = True  # what was not on the platter may never get there
            raise self._disk.fault(self._name)
        self._disk.keep(self._content)
        if not self._name_synced:
            self._disk.sync_folder(self._name)
            self._name_synced = True
        self._disk.crash_if(crashes)

    def reserve(self, up_to: int) -> None:
        self._disk.check(self._epoch)
        crashes = self._disk.step()
        if up_to > self._content.size and self._disk.can_reserve:
            if self._disk.random.random() < self._disk.full_chance:
                raise self._disk.full(self._name)
            self._content.size = up_to
        self._disk.crash_if(crashes)

    def truncate(self, size: int) -> None:
        self._disk.check(self._epoch)
        crashes = self._disk.step()
        self._content.resize(size)
        self._disk.crash_if(crashes)

    def close(self) -> None:
        pass
