"""Contains the mistakes of a user's message store (Q20): what it does not give back as it got it, the log has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from remuda.broker.embedded.delivering.caches import HeadCache
from remuda.model.messages import Messages
from remuda.model.queues.options import QueueOptions

if TYPE_CHECKING:
    from remuda.broker.embedded.extensions import MessageStore, StoreFor

_log = logging.getLogger("remuda.extensions")
_MOST: Final = 100_000
"""How many messages of a store are remembered by their marks; it is not asked for the others."""


def store_of(store_for: StoreFor, queue: str, options: QueueOptions) -> MessageStore:
    """A queue's store: the usual one as it is, any other contained."""
    try:
        store = store_for(queue, options)
    except Exception:
        _log.exception("queue %s: its message store could not be made; its messages are read from the log", queue)
        return HeadCache(0)
    return store if isinstance(store, HeadCache) else ContainedStore(queue, store)


class ContainedStore:
    """Wraps a user's store. After an error, or other messages than it was given, it is not asked again."""

    def __init__(self, queue: str, store: MessageStore) -> None:
        self._queue = queue
        self._store = store
        self._marks: dict[int, int] = {}
        """What a message must look like when it comes back, by its offset."""
        self._failed = False

    def put(self, first: int, messages: Messages) -> None:
        if self._failed:
            return
        if len(self._marks) + len(messages.bodies) <= _MOST:
            self._marks.update((first + row, _mark(messages, row)) for row in range(len(messages.bodies)))
        # A list of its own, since other queues may hold the same messages.
        self._ask("put", self._store.put, first, msgspec.structs.replace(messages, bodies=messages.bodies[:]))

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        expected = [self._marks.pop(offset, None) for first, count in runs for offset in range(first, first + count)]
        if self._failed or None in expected:
            return None
        taken = self._ask("take", self._store.take, list(runs))
        if taken is None:
            return None
        try:
            same = type(taken) is Messages and [_mark(taken, row) for row in range(len(taken.bodies))] == expected
        except Exception:
            same = False
        if same:
            return taken  # type: ignore[no-any-return]
        self._fail(f"it gave other messages than those at {list(runs)[:3]}")
        return None

    def discard(self, first: int, count: int) -> None:
        for offset in range(first, first + count) if count < len(self._marks) else list(self._marks):
            if first <= offset < first + count:
                self._marks.pop(offset, None)
        if not self._failed:
            self._ask("discard", self._store.discard, first, count)

    def _ask(self, verb: str, ask: Callable[..., Any], *args: Any) -> Any:
        try:
            return ask(*args)
        except Exception as error:
            self._fail(f"its {verb} raised {type(error).__name__}: {error}")
            return None

    def _fail(self, problem: str) -> None:
        self._failed = True
        self._marks.clear()
        _log.error(
            "queue %s: its message store failed (%s); from now on its messages are read from the log",
            self._queue, problem,
        )  # fmt: skip


def _mark(messages: Messages, row: int) -> int:
    name = messages.name
    return hash((messages.id(row), name[row] if type(name) is list else name, messages.bodies[row]))
