"""How a queue's options map to RabbitMQ: native arguments, work of the bus, or a refusal that names the option."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from remuda.model.errors import Unsupported
from remuda.model.message import MAX_PRIORITY
from remuda.model.options import (
    AutoDestroy,
    CommitWhen,
    LimitExceeded,
    Persistence,
    QueueOptions,
    QueueType,
)
from remuda.model.texts import read_flag

DEAD: Final = ".dead"
"""Suffix of a queue's name: the queue in which its dead letters wait for an operator."""

FIXED: Final = (
    "message_timeout", "expired_queue", "message_limit", "byte_limit", "limit_exceeded", "auto_destroy", "persistence",
    "max_priority",
)  # fmt: skip
"""Options that are arguments of the queue, which cannot be changed in RabbitMQ."""

UNUSED: Final = 60_000
"""Milliseconds without a consumer after which RabbitMQ deletes a queue with `auto_destroy=no-consumers`."""
_MS: Final = 1000


class QueueKind(StrEnum):
    """RabbitMQ's type of a queue."""

    QUORUM = "quorum"
    CLASSIC = "classic"


class Native(msgspec.Struct, frozen=True):
    """How a queue is declared."""

    kind: QueueKind
    arguments: dict[str, Any]


def refuse(options: QueueOptions) -> None:
    """Raise `Unsupported` for what RabbitMQ has no equivalent of."""
    if options.type is QueueType.PUSH:
        raise _unsupported("type", "push", "give each consumer a channel of its own: broker.channel(name, topics)")
    if options.commit_when in (CommitWhen.SENT, CommitWhen.ACKNOWLEDGED):
        raise _unsupported("commit_when", options.commit_when, "a producer that waits for an answer uses bus.call")
    if options.delay_between_messages:
        raise _unsupported("delay_between_messages", "other than 0", "RabbitMQ does not pace a queue")
    if options.unique_ids:
        raise _unsupported("unique_ids", "true", "publish with id= and use an inbox on the consumer's side")
    if options.confirmations != 1:
        raise _unsupported("confirmations", "other than 1", "each message of a queue is answered once")
    if options.auto_destroy in (AutoDestroy.NO_MESSAGES, AutoDestroy.EMPTY):
        raise _unsupported("auto_destroy", options.auto_destroy, "use auto_destroy=no-consumers, or none")
    if options.single_active_consumer:
        instead = "client_limit=1 takes one consumer, and refuses the next until it leaves"
        raise _unsupported("single_active_consumer", "true", instead)
    if options.expired_queue is not None and _evicts(options):
        instead = "a queue of RabbitMQ has one dead-letter queue for both expired and evicted messages"
        raise _unsupported("expired_queue", "together with limit_exceeded=delete-oldest", instead)


def refuse_keep(keep: bool) -> None:
    """Raise `Unsupported` for a consumer that leaves and wants to keep its unanswered messages."""
    if read_flag("keep", keep):
        raise Unsupported(
            "RabbitMQ takes back what a consumer that leaves has not answered; answer it first, or leave keep= out. "
            "Nothing was changed",
            "keep",
        )


def refuse_change(before: QueueOptions, after: QueueOptions) -> None:
    """Raise `Unsupported` for a change that would need another queue."""
    refuse(after)
    for name in FIXED:
        if getattr(before, name) != getattr(after, name):
            raise Unsupported(
                f"RabbitMQ fixes {name} when a queue is created; create another queue and move the messages to it. "
                "Nothing was changed",
                name,
            )


def native(
    queue: str, options: QueueOptions, preferred: QueueKind, version: tuple[int, ...], max_priority: int = MAX_PRIORITY
) -> Native:
    """What to declare for a queue."""
    kind = QueueKind.CLASSIC if options.persistence is Persistence.MEMORY else preferred
    arguments: dict[str, Any] = {"x-queue-type": kind.value}
    quorum = kind is QueueKind.QUORUM
    evicts = _evicts(options)
    highest = min(max_priority, options.max_priority)
    if quorum:
        # Since 4.0 a quorum queue drops messages that were returned 20 times; the bus has its own limit.
        if version >= (4,):
            arguments["x-delivery-limit"] = -1
    elif highest:
        arguments["x-max-priority"] = highest
    if options.message_limit:
        arguments["x-max-length"] = options.message_limit
    if options.byte_limit:
        arguments["x-max-length-bytes"] = options.byte_limit
    if quorum or _is_limited(options):
        arguments["x-overflow"] = "drop-head" if evicts else "reject-publish"
    if options.message_timeout:
        arguments["x-message-ttl"] = -(-options.message_timeout // _MS)
    if options.persistence is Persistence.PERSISTENT:
        arguments["x-dead-letter-exchange"] = ""
        arguments["x-dead-letter-routing-key"] = options.expired_queue or options.dead_letter_queue or queue + DEAD
        if quorum and not evicts:
            arguments["x-dead-letter-strategy"] = "at-least-once"
    if options.auto_destroy is AutoDestroy.NO_CONSUMERS:
        arguments["x-expires"] = UNUSED
    return Native(kind, arguments)


def parking(kind: QueueKind, version: tuple[int, ...]) -> dict[str, Any]:
    """The arguments of a queue for dead letters."""
    arguments: dict[str, Any] = {"x-queue-type": kind.value}
    if kind is QueueKind.QUORUM and version >= (4,):
        arguments["x-delivery-limit"] = -1
    return arguments


def parks_natively(options: QueueOptions) -> bool:
    """Whether RabbitMQ itself may park messages of this queue: then its dead-letter queue must exist from the start."""
    return bool(options.message_timeout or _is_limited(options)) and options.persistence is Persistence.PERSISTENT


def version_of(server_properties: Mapping[str, Any]) -> tuple[int, ...]:
    """The server's version; an unknown one counts as the oldest that is supported."""
    text = str(server_properties.get("version", ""))
    parts = text.split("-")[0].split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else (3, 10)


def _is_limited(options: QueueOptions) -> bool:
    return bool(options.message_limit or options.byte_limit)


def _evicts(options: QueueOptions) -> bool:
    return _is_limited(options) and options.limit_exceeded is LimitExceeded.DELETE_OLDEST


def _unsupported(option: str, value: str, instead: str) -> Unsupported:
    return Unsupported(f"RabbitMQ has no equivalent of {option}={value}; {instead}. Nothing was changed", option)
