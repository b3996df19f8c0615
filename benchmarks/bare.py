"""The limit: the same bytes and the same number of syncs, by a loop that does nothing else."""

from __future__ import annotations

import os
import struct
import time
from collections import deque
from pathlib import Path
from typing import Final

import google_crc32c

from benchmarks.workload import Workload

_HEADER: Final = struct.Struct("<8sQIIB")
_MARKER: Final = b"barelog!"
_ANSWER: Final = bytes(24)
_STEP: Final = 4 << 20
"""Room is taken from the disk in steps of this size, as Remuda's log does."""


def describe(workload: Workload, syncs_per_message: float) -> str:
    if workload.durability == "memory":
        return "a deque of batches, one thread; every body touched"
    counted = f"{syncs_per_message * workload.batch:.3g} fdatasyncs per batch as counted for Remuda"
    syncs = counted if workload.durability == "always" else "no syncs"
    return (
        f"one thread appends a frame per batch (header, lengths, bodies, crc32c) and one per answer, and touches "
        f"every body; the file is preallocated in steps of 4 MiB; {syncs}"
    )


def run(workload: Workload, directory: Path, count: int, syncs_per_message: float) -> float:
    """The seconds that `count` messages take."""
    bodies = workload.bodies()
    batches = max(count // workload.batch, 1)
    if workload.durability == "memory":
        return _in_memory(bodies, batches)
    syncs = syncs_per_message * workload.batch if workload.durability == "always" else 0
    return _on_disk(bodies, batches, directory / "bare.log", syncs)


def _in_memory(bodies: list[bytes], batches: int) -> float:
    line: deque[list[bytes]] = deque()
    start = time.perf_counter()
    for _ in range(batches):
        line.append(bodies)
        sum(map(len, line.popleft()))
    return time.perf_counter() - start


def _on_disk(bodies: list[bytes], batches: int, path: Path, syncs_per_batch: float) -> float:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    position = reserved = 0
    owed = 0.0
    try:
        start = time.perf_counter()
        for number in range(batches):
            for kind, payload in ((1, _frame(bodies)), (2, _ANSWER)):
                header = _HEADER.pack(_MARKER, number, len(payload), google_crc32c.value(payload), kind)
                frame = header + payload
                while position + len(frame) > reserved:
                    os.posix_fallocate(handle, reserved, _STEP)
                    reserved += _STEP
                os.pwrite(handle, frame, position)
                position += len(frame)
                owed += syncs_per_batch / 2
                if owed >= 1:
                    os.fdatasync(handle)
                    owed -= 1
            sum(map(len, bodies))
        return time.perf_counter() - start
    finally:
        os.close(handle)


def _frame(bodies: list[bytes]) -> bytes:
    """The least that can be read back: how long each body is, and the bodies."""
    return struct.pack(f"<{len(bodies)}I", *map(len, bodies)) + b"".join(bodies)
