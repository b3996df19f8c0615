"""A disk in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from remuda.log.disk.disk_port import AppendFile


class MemoryDisk:
    """Files that live and die with the process."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._guard = threading.Lock()

    def list(self) -> list[str]:
        with self._guard:
            return sorted(self._files)

    def size(self, name: str) -> int:
        with self._guard:
            return len(self._file(name))

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        # Through a view, so that the bytes are copied once; it is released before the file can grow again.
        with self._guard, memoryview(self._file(name)) as view:
            return bytes(view[start:] if length is None else view[start : start + length])

    def open_append(self, name: str, position: int = 0) -> AppendFile:
        with self._guard:
            content = self._files.setdefault(name, bytearray())
            del content[position:]
            return _MemoryFile(content, self._guard)

    def write_atomic(self, name: str, data: bytes | Iterable[bytes]) -> None:
        content = bytearray(data if isinstance(data, bytes) else b"".join(data))
        with self._guard:
            self._files[name] = content

    def rename(self, source: str, target: str) -> None:
        with self._guard:
            self._files[target] = self._file(source)
            del self._files[source]

    def remove(self, name: str) -> None:
        with self._guard:
            self._files.pop(name, None)

    def path(self, name: str) -> str | None:
        return None

    def lock(self) -> None:
        pass

    def unlock(self) -> None:
        pass

    def _file(self, name: str) -> bytearray:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(name) from None


class _MemoryFile:
    def __init__(self, content: bytearray, guard: threading.Lock) -> None:
        self._content = content
        self._guard = guard

    def write(self, data: bytes) -> None:
        with self._guard:
            self._content += data

    def sync(self) -> None:
        pass

    def reserve(self, up_to: int) -> None:
        pass

    def truncate(self, size: int) -> None:
        with self._guard:
            del self._content[size:]

    def close(self) -> None:
        pass
