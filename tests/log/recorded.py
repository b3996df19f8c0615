"""Records the system calls of a real directory, and rebuilds what a power loss at any of them could leave.

After a power loss a file holds what was synced and any part of what was written since; a folder holds the names as they
were when it was synced, and any of the changes since. Nothing else is promised by the system, so nothing else is
assumed here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from remuda.log.disk import MemoryDisk, system

_FOLDER = -1


class Call(NamedTuple):
    kind: str
    place: str
    """The path, or the number of the file for what happens to its content."""
    number: int = 0
    data: bytes = b""
    target: str = ""


class Recorder:
    """Everything that happens below a folder, in order."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.calls: list[Call] = []
        self._files = 0
        self._paths: dict[str, int] = {}
        self._handles: dict[int, int] = {}
        self._folders: dict[int, str] = {}

    @contextmanager
    def recording(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patched:

            def replace(name: str, make: Callable[[Any], Any]) -> None:
                patched.setattr(os, name, make(getattr(os, name)))

            for name in ("open", "close", "pwrite", "ftruncate", "posix_fallocate", "fsync", "replace", "unlink"):
                replace(name, getattr(self, f"_{name}"))
            replace("fdatasync", self._fsync)
            replace("rename", self._replace)
            replace("mkdir", self._mkdir)
            patched.setattr(system, "quick_write", lambda handle, data, at: os.pwrite(handle, data, at))
            yield

    def _below(self, path: Any) -> str | None:
        text = os.path.abspath(os.fspath(path))
        return text if text == self.root or text.startswith(self.root + "/") else None

    def _open(self, real: Any) -> Any:
        def call(path: Any, flags: int, *more: Any, **named: Any) -> int:
            known = self._below(path) if isinstance(path, str | os.PathLike) else None
            new = known is not None and flags & os.O_CREAT and not os.path.lexists(known)
            handle: int = real(path, flags, *more, **named)
            if known is None:
                return handle
            if os.path.isdir(known):
                self._folders[handle] = known
                return handle
            if new:
                self._files += 1
                self._paths[known] = self._files
                self.calls.append(Call("create", known, self._files))
            if known in self._paths:
                self._handles[handle] = self._paths[known]
                if flags & os.O_TRUNC:
                    self.calls.append(Call("truncate", "", self._paths[known]))
            return handle

        return call

    def _close(self, real: Any) -> Any:
        def call(handle: int) -> None:
            self._handles.pop(handle, None)
            self._folders.pop(handle, None)
            real(handle)

        return call

    def _pwrite(self, real: Any) -> Any:
        def call(handle: int, data: Any, at: int) -> int:
            written: int = real(handle, data, at)
            if handle in self._handles:
                self.calls.append(Call("write", str(at), self._handles[handle], bytes(data[:written])))
            return written

        return call

    def _ftruncate(self, real: Any) -> Any:
        def call(handle: int, size: int) -> None:
            real(handle, size)
            if handle in self._handles:
                self.calls.append(Call("truncate", str(size), self._handles[handle]))

        return call

    def _posix_fallocate(self, real: Any) -> Any:
        def call(handle: int, start: int, length: int) -> None:
            real(handle, start, length)
            if handle in self._handles:
                self.calls.append(Call("allocate", str(start + length), self._handles[handle]))

        return call

    def _fsync(self, real: Any) -> Any:
        def call(handle: int) -> None:
            real(handle)
            if handle in self._handles:
                self.calls.append(Call("sync", "", self._handles[handle]))
            elif handle in self._folders:
                self.calls.append(Call("sync folder", self._folders[handle]))

        return call

    def _replace(self, real: Any) -> Any:
        def call(source: Any, target: Any, *more: Any, **named: Any) -> None:
            real(source, target, *more, **named)
            old, new = self._below(source), self._below(target)
            if old is not None and new is not None and old in self._paths:
                self._paths[new] = self._paths.pop(old)
                self.calls.append(Call("rename", old, self._paths[new], target=new))

        return call

    def _unlink(self, real: Any) -> Any:
        def call(path: Any, *more: Any, **named: Any) -> None:
            real(path, *more, **named)
            known = self._below(path)
            if known is not None and self._paths.pop(known, None) is not None:
                self.calls.append(Call("unlink", known))

        return call

    def _mkdir(self, real: Any) -> Any:
        def call(path: Any, *more: Any, **named: Any) -> None:
            real(path, *more, **named)
            if (known := self._below(path)) is not None:
                self.calls.append(Call("mkdir", known))

        return call


class Machine:
    """What is on the disk for sure, and what may be."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._synced: dict[int, bytes] = {}
        self._since: dict[int, list[Call]] = {}
        self._names: dict[str, int] = {}
        self._pending: list[Call] = []

    def play(self, call: Call) -> None:
        match call.kind:
            case "write" | "truncate" | "allocate":
                self._since.setdefault(call.number, []).append(call)
            case "sync":
                self._synced[call.number] = _played(self._content(call.number), self._since.pop(call.number, []))
            case "sync folder":
                # A rename from another folder is safe once its new name is.
                done = [one for one in self._pending if _folder(one) == call.place]
                self._pending = [one for one in self._pending if _folder(one) != call.place]
                for one in done:
                    self._rename(one)
            case _:
                self._pending.append(call)

    def after_power_loss(self, rng: random.Random) -> MemoryDisk:
        names = dict(self._names)
        chance = rng.choice([0.0, 0.5, 1.0, 0.8])
        whole, self._names = self._names, names
        for call in self._pending:
            if rng.random() < chance:
                self._rename(call)
        names, self._names = self._names, whole
        disk = MemoryDisk()
        for path, number in names.items():
            if number == _FOLDER or not self._reachable(path, names):
                continue
            since = self._since.get(number, [])
            kept = since[: rng.randrange(len(since) + 1)]
            if kept and kept[-1].kind == "write" and rng.random() < 0.5:
                kept[-1] = kept[-1]._replace(data=kept[-1].data[: rng.randrange(len(kept[-1].data) + 1)])
            name = os.path.relpath(path, self._root)
            if not name.endswith(".tmp"):
                disk.write_atomic(name, _played(self._content(number), kept))
        return disk

    def _content(self, number: int) -> bytes:
        return self._synced.get(number, b"")

    def _reachable(self, path: str, names: dict[str, int]) -> bool:
        folder = os.path.dirname(path)
        while folder != self._root:
            if folder not in names:
                return False
            folder = os.path.dirname(folder)
        return True

    def _rename(self, call: Call) -> None:
        match call.kind:
            case "create":
                self._names[call.place] = call.number
            case "mkdir":
                self._names[call.place] = _FOLDER
            case "unlink":
                self._names.pop(call.place, None)
            case "rename":
                self._names.pop(call.place, None)
                self._names[call.target] = call.number


def _folder(call: Call) -> str:
    return os.path.dirname(call.target or call.place)


def _played(content: bytes, calls: list[Call]) -> bytes:
    data = bytearray(content)
    for call in calls:
        at = int(call.place or 0)
        if call.kind == "write":
            data[len(data) :] = bytes(max(at - len(data), 0))
            data[at : at + len(call.data)] = call.data
        elif call.kind == "truncate":
            del data[at:]
            data[len(data) :] = bytes(max(at - len(data), 0))
        else:
            data[len(data) :] = bytes(max(at - len(data), 0))
    return bytes(data)
