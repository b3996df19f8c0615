"""Messages in flight and delayed, of a queue that counts them by key."""

from __future__ import annotations

from remuda.core.flow.keyed import KeyedMessages
from remuda.core.queues.delayed import DelayedMessages
from remuda.core.queues.ranges import MessageRange, RangeMap
from remuda.model.state import State

_RETRY = State.RETRY


class KeyedFlights(RangeMap):
    """Messages in flight. They use their keys' places, and give them back."""

    __slots__ = ("_ready",)

    def __init__(self, ready: KeyedMessages) -> None:
        super().__init__()
        self._ready = ready

    def add(self, piece: MessageRange) -> None:
        super().add(piece)
        self._ready.begun(piece.first, piece.count, 1)

    def remove(self, first: int, count: int) -> list[MessageRange]:
        taken = super().remove(first, count)
        for piece in taken:
            self._ready.begun(piece.first, piece.count, -1)
        return taken


class KeyedDelays(DelayedMessages):
    """Delayed messages. Those that were delivered before hold their keys."""

    __slots__ = ("_ready",)

    def __init__(self, ready: KeyedMessages) -> None:
        super().__init__()
        self._ready = ready

    def add(self, piece: MessageRange) -> None:
        super().add(piece)
        self._note(piece, 1)

    def remove(self, first: int, count: int) -> list[MessageRange]:
        taken = super().remove(first, count)
        for piece in taken:
            self._note(piece, -1)
        if taken and self._ready.rules.settling[0]:
            self._ready.rest(first, count)
        return taken

    def _take_standing(self, at: int, order: int, first: int) -> MessageRange | None:
        piece = super()._take_standing(at, order, first)
        if piece is not None:
            self._note(piece, -1)
        return piece

    def _note(self, piece: MessageRange, sign: int) -> None:
        holds = self._ready.rules.holds and (piece.state is _RETRY or piece.redelivered)
        self._ready.delay(piece.first, piece.count, sign, holds=holds)
