"""Parts of a table that are read side by side and handed on in order, some bytes ahead and no more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

_PART_BYTES: Final = 32 << 20
"""So much of each part waits to be taken; at least one batch, however large."""
_PATIENCE: Final = 1.0

Read = Callable[[range], Iterator[pa.RecordBatch]]


class _Waiting:
    """The batches of one part that were read and not taken yet."""

    def __init__(self, read: Read, part: range) -> None:
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._ended = False
        self._abandoned = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._fill, args=(read, part), name="remuda-arrow")
        self._thread.start()

    def _fill(self, read: Read, part: range) -> None:
        error: BaseException | None = None
        try:
            for batch in read(part):
                if not self._put(batch):
                    return
        except BaseException as raised:
            error = raised
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        """False where nobody takes any more."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._abandoned or self._bytes < _PART_BYTES, _PATIENCE):
                if not threading.main_thread().is_alive():
                    # Python is about to end and waits for this thread, which waits for a reader that was forgotten.
                    raise BrokenPipeError("the program ended before all of the table was read")
            if self._abandoned:
                return False
            self._batches.append(batch)
            self._bytes += batch.nbytes
            self._changed.notify_all()
            return True

    def take(self) -> Iterator[pa.RecordBatch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._ended)
                if not self._batches:
                    if self._error is not None:
                        raise self._error
                    return
                batch = self._batches.popleft()
                self._bytes -= batch.nbytes
                self._changed.notify_all()
            yield batch

    def abandon(self) -> None:
        with self._changed:
            self._abandoned = True
            self._batches.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until nothing of the log is open here any more."""
        self._thread.join()


def read_ahead(read: Read, parts: Sequence[range], threads: int) -> Iterator[pa.RecordBatch]:
    """The batches of all parts in order. Decoding needs no lock of Python's."""
    begun: deque[_Waiting] = deque()
    left = iter(parts)
    try:
        while True:
            while len(begun) < threads and (part := next(left, None)) is not None:
                begun.append(_Waiting(read, part))
            if not begun:
                return
            yield from begun[0].take()
            begun.popleft()
    finally:
        for waiting in begun:
            waiting.abandon()
        for waiting in begun:
            waiting.join()


class Shared:
    """An iterator that threads may share: each takes what comes next."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._turn = threading.Lock()

    def __iter__(self) -> Shared:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._turn:
            return next(self._batches)
