"""Options of a queue, written where its handler is, or on the type of its messages (B21)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict

from remuda.model.queues.options import (
    AutoDestroy,
    CommitWhen,
    LimitExceeded,
    OnRetry,
    Persistence,
    PutBack,
    QueueOptions,
    Singleton,
)
from remuda.model.values.durations import Duration

Rules = tuple[tuple[str, Any], ...]
"""Options as they were written, by name."""


class QueueRuleKwargs(TypedDict, total=False):
    """The options of a bus's queue. The others follow from its handlers and from the settings."""

    commit_when: CommitWhen | str
    message_timeout: Duration
    expired_queue: str | None
    message_limit: int
    limit_exceeded: LimitExceeded | str
    byte_limit: int
    message_size_limit: int
    client_limit: int
    delay_between_messages: Duration
    put_back: PutBack | str
    put_back_delay: Duration
    auto_destroy: AutoDestroy | str
    unique_ids: bool
    persistence: Persistence | str
    delivery_limit: int
    dead_letter_queue: str | None
    max_priority: int
    single_active_consumer: bool
    flow_key: str
    ordered: bool
    on_retry: OnRetry | str
    concurrency: int
    concurrency_per_key: int
    limits: Mapping[str, int | str] | Iterable[str]
    rate: str | None
    rate_per_key: str | None
    key_limits: Mapping[str, int | str] | Iterable[str]
    fair: bool
    weights: Mapping[str, int] | Iterable[str]
    debounce: Duration
    max_wait: Duration
    throttle: Duration
    singleton: Singleton | str


_NAMES: Final = frozenset(QueueRuleKwargs.__annotations__)
_QUEUES: Final = ("expired_queue", "dead_letter_queue")


def read_rules(given: Mapping[str, Any]) -> Rules:
    """The options of the queue among these, checked."""
    found = {name: value for name, value in given.items() if name in _NAMES}
    if found:
        QueueOptions.parse(found)
    return tuple(sorted(found.items()))


def with_prefix(rules: Rules, prefix: str) -> Rules:
    """The queues that rules name, as they are called at a broker that several applications share."""
    return tuple((name, prefix + value if name in _QUEUES and value else value) for name, value in rules)
