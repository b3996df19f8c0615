"""Small writes that keep the interpreter are writes like any other."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remuda.log.disk.system import QuickWriter


def crowded() -> QuickWriter:
    """A writer that keeps the interpreter."""
    writer = QuickWriter()
    writer._crowded_until = float("inf")
    return writer


@pytest.mark.parametrize("make", [QuickWriter, crowded])
def test_small_and_large_writes_land_where_they_should(make: Callable[[], QuickWriter], tmp_path: Path) -> None:
    writer = make()
    with open(tmp_path / "file", "w+b") as file:
        assert writer.write(file.fileno(), b"small", 3) == 5
        assert writer.write(file.fileno(), b"L" * 100_000, 8) == 100_000
        assert writer.write(file.fileno(), b"a\0b", 100_008) == 3
    assert (tmp_path / "file").read_bytes() == b"\0\0\0small" + b"L" * 100_000 + b"a\0b"


def test_a_refusal_is_an_error_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    handle = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as raised:
            crowded().write(handle, b"x", 0)
    finally:
        os.close(handle)
    assert raised.value.errno == errno.EBADF


def test_a_write_that_a_signal_ended_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `os.pwrite` does: on some file systems a signal ends it, and that is no failure of the disk."""
    writer = crowded()

    def interrupted(*args: object) -> int:
        ctypes.set_errno(errno.EINTR)
        return -1

    monkeypatch.setattr(writer, "_pwrite", interrupted)
    with open(tmp_path / "file", "w+b") as file:
        assert writer.write(file.fileno(), b"small", 0) == 5
    assert (tmp_path / "file").read_bytes() == b"small"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_told() -> None:
    handle = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            crowded().write(handle, b"x", 0)
    finally:
        os.close(handle)


def test_the_interpreter_is_kept_once_another_thread_has_had_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, released, kept = QuickWriter(), [], []

    def slow(handle: int, data: bytes, position: int) -> int:
        released.append(data)
        time.sleep(0.001)
        return len(data)

    def quick(handle: int, data: bytes, size: int, position: int) -> int:
        kept.append(data)
        return size

    monkeypatch.setattr(os, "pwrite", slow)
    monkeypatch.setattr(writer, "_pwrite", quick)
    for data in (b"first", b"second"):
        writer.write(0, data, 0)
    assert (released, kept) == ([b"first"], [b"second"])
    writer._crowded_until = 0.0
    writer.write(0, b"after a while", 0)
    assert released == [b"first", b"after a while"]


def test_a_disk_that_stalls_is_left_to_other_threads_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = crowded()
    given: list[bytes] = []
    real = writer._pwrite

    def stalling(*arguments: Any) -> Any:
        time.sleep(0.06)
        return real(*arguments)

    def released(handle: int, data: bytes, position: int) -> int:
        given.append(data)
        return len(data)

    monkeypatch.setattr(writer, "_pwrite", stalling)
    monkeypatch.setattr(os, "pwrite", released)
    with open(tmp_path / "file", "w+b") as file:
        writer.write(file.fileno(), b"first", 0)
        assert given == []
        writer.write(file.fileno(), b"second", 5)
    assert given == [b"second"]
