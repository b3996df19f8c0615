"""Small writes that keep the interpreter are writes like any other."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from remuda.log.quick import QuickWriter


def test_small_and_large_writes_land_where_they_should(tmp_path: Path) -> None:
    writer = QuickWriter()
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
            QuickWriter().write(handle, b"x", 0)
    finally:
        os.close(handle)
    assert raised.value.errno == errno.EBADF


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_told() -> None:
    handle = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            QuickWriter().write(handle, b"x", 0)
    finally:
        os.close(handle)


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is written by a call that lets others have the interpreter meanwhile."""
    given: list[bytes] = []
    real = os.pwrite

    def pwrite(handle: int, data: bytes, position: int) -> int:
        given.append(data)
        return real(handle, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    return given


def slow(write: Any, seconds: float) -> Any:
    def write_slowly(*arguments: Any) -> Any:
        time.sleep(seconds)
        return write(*arguments)

    return write_slowly


def test_a_thread_that_has_to_wait_for_the_interpreter_keeps_it(
    tmp_path: Path, released: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = QuickWriter()
    monkeypatch.setattr(os, "pwrite", slow(os.pwrite, 0.001))
    with open(tmp_path / "file", "w+b") as file:
        writer.write(file.fileno(), b"alone", 0)
        writer._crowded_until += 3600
        writer.write(file.fileno(), b"kept", 5)
        writer.write(file.fileno(), b"L" * 100_000, 9)
    assert released == [b"alone", b"L" * 100_000]
    assert (tmp_path / "file").read_bytes()[:9] == b"alonekept"


def test_a_disk_that_stalls_is_left_to_other_threads_for_a_while(
    tmp_path: Path, released: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = QuickWriter()
    writer._crowded_until = time.monotonic() + 3600
    monkeypatch.setattr(writer, "_pwrite", slow(writer._pwrite, 0.06))
    monkeypatch.setattr(os, "pwrite", slow(os.pwrite, 0.001))
    with open(tmp_path / "file", "w+b") as file:
        writer.write(file.fileno(), b"first", 0)
        assert released == []
        writer.write(file.fileno(), b"second", 5)
        writer.write(file.fileno(), b"third", 11)
    assert released == [b"second", b"third"]
