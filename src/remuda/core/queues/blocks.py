"""Blocks of delayed messages as columns."""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence
from typing import Final, overload

import msgspec

from remuda.core.queues.queue_entries import MessageRange
from remuda.core.queues.ready import NEVER
from remuda.model.state import State

_NUMBERS: Final = ("firsts", "counts", "dues", "fates", "deadlines", "times", "orders")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    tuple[bytes, bytes, bytes, bytes, bytes | None, bytes | None, bytes | None, list[str | None] | None]
).decode


class Columns(MutableSequence[MessageRange]):
    """A block of ranges as columns. Deadlines, times, orders and reasons have one only where some range needs it."""

    __slots__ = ("counts", "deadlines", "dues", "fates", "firsts", "orders", "reasons", "times")

    def __init__(self) -> None:
        self.firsts = array("q")
        self.counts = array("I")
        self.dues = array("q")
        self.fates = array("q")
        """State, flags, priority and attempt in one number."""
        self.deadlines: array[int] | None = None
        self.times: array[int] | None = None
        self.orders: array[int] | None = None
        self.reasons: list[str | None] | None = None

    def __len__(self) -> int:
        return len(self.firsts)

    @overload
    def __getitem__(self, at: int) -> MessageRange: ...
    @overload
    def __getitem__(self, at: slice) -> Columns: ...
    def __getitem__(self, at: int | slice) -> MessageRange | Columns:
        if isinstance(at, slice):
            return self._copy(at)
        fate = self.fates[at]
        return MessageRange(
            self.firsts[at],
            self.counts[at],
            State.RETRY if fate & 1 else State.QUEUED,
            NEVER if self.deadlines is None else self.deadlines[at],
            fate >> 3 & 31,
            (fate >> 8) - 1,
            -1,
            self.dues[at],
            bool(fate & 2),
            None if self.reasons is None else self.reasons[at],
            0 if self.times is None else self.times[at],
            bool(fate & 4),
            0 if self.orders is None else self.orders[at],
        )

    def insert(self, at: int, piece: MessageRange) -> None:
        size = len(self.firsts)
        fate = (
            (piece.attempt + 1) << 8
            | piece.priority << 3
            | piece.redelivered << 2
            | piece.front << 1
            | (piece.state is State.RETRY)
        )
        self.firsts.insert(at, piece.first)
        self.counts.insert(at, piece.count)
        self.dues.insert(at, piece.due)
        self.fates.insert(at, fate)
        if self.deadlines is not None or piece.deadline != NEVER:
            self.deadlines = _inserted(self.deadlines, at, piece.deadline, NEVER, size)
        if self.times is not None:
            self.times.insert(at, piece.time)
        elif piece.time:
            self.times = _inserted(None, at, piece.time, 0, size)
        if self.orders is not None or piece.order:
            self.orders = _inserted(self.orders, at, piece.order, 0, size)
        if piece.reason is not None and self.reasons is None:
            self.reasons = [None] * size
        if self.reasons is not None:
            self.reasons.insert(at, piece.reason)

    def append(self, piece: MessageRange) -> None:
        self.insert(len(self.firsts), piece)

    def __delitem__(self, at: int | slice) -> None:
        for column in (self.firsts, self.counts, self.dues, self.fates, self.deadlines, self.times, self.orders):
            if column is not None:
                del column[at]
        if self.reasons is not None:
            del self.reasons[at]

    def __setitem__(self, at: int | slice, value: object) -> None:
        raise TypeError("a range is taken out and put in, never replaced")

    def encoded(self) -> bytes:
        """The columns as a snapshot stores them."""
        columns = (self.firsts, self.counts, self.dues, self.fates, self.deadlines, self.times, self.orders)
        return _encode((*(None if column is None else column.tobytes() for column in columns), self.reasons))

    @staticmethod
    def decoded(data: bytes | memoryview) -> Columns:
        *kept, reasons = _decode(data)
        block = Columns()
        for name, column in zip(_NUMBERS, kept, strict=True):
            if column is not None:
                numbers = array("I" if name == "counts" else "q")
                numbers.frombytes(column)
                setattr(block, name, numbers)
        block.reasons = reasons
        return block

    def _copy(self, at: slice) -> Columns:
        copy = Columns()
        for name in Columns.__slots__:
            column = getattr(self, name)
            setattr(copy, name, None if column is None else column[at])
        return copy


def _inserted(column: array[int] | None, at: int, value: int, usual: int, size: int) -> array[int]:
    if column is None:
        column = array("q", [usual]) * size
    column.insert(at, value)
    return column
