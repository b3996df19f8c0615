"""Notices of what happens in queues, for handlers that subscribe to them (Q19)."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class NoticeKind(StrEnum):
    QUEUE_CREATED = "queue created"
    QUEUE_REMOVED = "queue removed"
    CONSUMER_SUBSCRIBED = "consumer subscribed"
    CONSUMER_UNSUBSCRIBED = "consumer unsubscribed"
    STATUS_CHANGED = "status changed"
    PRODUCED = "produced"
    CONSUMED = "consumed"
    ACKNOWLEDGED = "acknowledged"
    TIMED_OUT = "timed out"
    ACKNOWLEDGE_TIMED_OUT = "acknowledge timed out"


class Notice(msgspec.Struct, frozen=True):
    """Something happened in a queue; for messages, to `count` adjacent ones from offset `first`."""

    kind: NoticeKind
    queue: str
    time: int
    first: int = 0
    count: int = 0
    consumer: str | None = None
    detail: str | None = None
