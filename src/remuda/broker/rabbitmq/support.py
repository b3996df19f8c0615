"""How a queue's options map to RabbitMQ: native arguments, work of the bus, or a refusal that names the option."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from remuda.model.errors import Unsupported
from remuda.model.message import MAX_PRIORITY
from remuda.model.notes import Note
from remuda.model.queues.options import (
    AutoDestroy,
    CommitWhen,
    LimitExceeded,
    Persistence,
    QueueOptions,
    QueueType,
    written,
)
from remuda.model.values.texts import read_flag

DEAD: Final = ".dead"
"""Suffix of a queue's name: the queue in which its dead letters wait for an operator."""


class How(StrEnum):
    """What becomes of an option on RabbitMQ. One that has no entry here is refused where it is not the default."""

    ARGUMENT = "an argument of the queue, fixed when it is created"
    BUS = "done by the bus"
    REFUSED = "refused, unless it is the default"


SUPPORT: Final[dict[str, How]] = {
    "type": How.BUS,
    "acknowledge": How.BUS,
    "acknowledge_timeout": How.BUS,
    "commit_when": How.BUS,
    "message_timeout": How.ARGUMENT,
    "expired_queue": How.ARGUMENT,
    "message_limit": How.ARGUMENT,
    "limit_exceeded": How.ARGUMENT,
    "byte_limit": How.ARGUMENT,
    "message_size_limit": How.BUS,
    "client_limit": How.BUS,
    "delay_between_messages": How.REFUSED,
    "put_back": How.BUS,
    "put_back_delay": How.BUS,
    "auto_destroy": How.ARGUMENT,
    "unique_ids": How.REFUSED,
    "persistence": How.ARGUMENT,
    "confirmations": How.REFUSED,
    "queue_size": How.BUS,
    "topics": How.BUS,
    "patterns": How.BUS,
    "delivery_limit": How.BUS,
    "dead_letter_queue": How.BUS,
    "max_priority": How.ARGUMENT,
    "single_active_consumer": How.ARGUMENT,
    "flow_key": How.REFUSED,
    "ordered": How.REFUSED,
    "on_retry": How.REFUSED,
    "concurrency": How.REFUSED,
    "concurrency_per_key": How.REFUSED,
    "limits": How.REFUSED,
    "rate": How.REFUSED,
    "rate_per_key": How.REFUSED,
    "key_limits": How.REFUSED,
    "fair": How.REFUSED,
    "weights": How.REFUSED,
    "debounce": How.REFUSED,
    "max_wait": How.REFUSED,
    "throttle": How.REFUSED,
    "singleton": How.REFUSED,
}
"""Every option of a queue."""
_INSTEAD: Final = {
    "delay_between_messages": "RabbitMQ does not pace a queue",
    "unique_ids": "publish with id= and use an inbox on the consumer's side",
    "confirmations": "each message of a queue is answered once",
    **dict.fromkeys(
        ("flow_key", "on_retry", "weights", "debounce", "max_wait", "throttle", "singleton"), "it has no rules per key"
    ),
    "ordered": "single_active_consumer=True handles a queue in its order, and a consistent-hash router in front of "
    "several such queues as many keys side by side",
    "concurrency": "the threads of all workers are its limit",
    "limits": "the threads of all workers are its limit",
    **dict.fromkeys(
        ("concurrency_per_key", "rate_per_key", "key_limits", "fair"), "use a queue for each key, or a Remuda broker"
    ),
    "rate": "pace the handler, or use a Remuda broker",
}
"""What to do instead of what is refused."""

_DEFAULTS: Final = QueueOptions()
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
    for name, usual in msgspec.structs.asdict(_DEFAULTS).items():
        value = getattr(options, name)
        if value != usual and SUPPORT.get(name, How.REFUSED) is How.REFUSED:
            instead = _INSTEAD.get(name, "leave it out")
            raise _unsupported(name, str(written(name, value)).lower(), instead)
    if options.auto_destroy in (AutoDestroy.NO_MESSAGES, AutoDestroy.EMPTY):
        raise _unsupported("auto_destroy", options.auto_destroy, "use auto_destroy=no-consumers, or none")
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


def refuse_once(once: str | None) -> None:
    """Raise `Unsupported` for a publish that depends on which ids there are."""
    if once is not None:
        raise Unsupported(
            "RabbitMQ does not look at ids, so it cannot refuse the second message with the same one: unique=, "
            "idempotency_key= and once= need a Remuda broker; publish with id=, and use an inbox on the consumer's "
            "side. Nothing was stored",
            "once",
        )


def refuse_note(note: Note | None) -> None:
    """Raise `Unsupported` for notes on messages, such as the steps of workflows."""
    if note is not None:
        raise Unsupported(
            "RabbitMQ keeps no notes on messages that wait in its queues, so it cannot run workflows; run them on a "
            "directory, or on a server of Remuda (remuda://). Nothing was stored",
            "note",
        )


def refuse_change(before: QueueOptions, after: QueueOptions) -> None:
    """Raise `Unsupported` for a change that would need another queue."""
    refuse(after)
    for name, how in SUPPORT.items():
        if how is How.ARGUMENT and getattr(before, name) != getattr(after, name):
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
    if options.single_active_consumer:
        arguments["x-single-active-consumer"] = True
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
