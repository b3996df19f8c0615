"""The broker's replaceable parts (Q20): where messages wait in memory, and where records are replicated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from remuda.broker.embedded.delivering.caches import HeadCache
from remuda.core.extensions import HandlerFor, StrategyFor, no_handler
from remuda.core.queues.strategies import by_type
from remuda.model.messages import Messages
from remuda.model.queues.options import QueueOptions
from remuda.model.records import Record


class MessageStore(Protocol):
    """Holds waiting messages of one queue in memory. What it does not have is read from the log."""

    def put(self, first: int, messages: Messages) -> None:
        """Messages from offset `first` entered the queue."""
        ...

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        """The messages of these runs of (first offset, count), which are being delivered; None unless it has all."""
        ...

    def discard(self, first: int, count: int) -> None:
        """Messages left the queue undelivered."""
        ...


class Synchronizer(Protocol):
    """Gets every batch of records before anything in it is confirmed, to store it elsewhere too."""

    def replicate(self, records: Sequence[Record]) -> None:
        """Raise to refuse: nothing in them is confirmed, and nothing more is taken, until they are replicated, which is
        tried five times a second. So they may come again, after some that were stored."""
        ...


StoreFor = Callable[[str, QueueOptions], MessageStore]


def window_store(queue: str, options: QueueOptions) -> MessageStore:
    return HeadCache(options.queue_size)


class Extensions(msgspec.Struct, frozen=True, kw_only=True):
    """Replacements for the usual parts, by queue."""

    strategy_for: StrategyFor = by_type
    handler_for: HandlerFor = no_handler
    store_for: StoreFor = window_store
    synchronizer: Synchronizer | None = None
