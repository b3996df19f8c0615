"""A queue as AMQP declares it: arguments are checked and compared as in RabbitMQ, and become the broker's options."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from remuda.amqp.codec.tables import Table
from remuda.model.errors import InvalidOption
from remuda.model.message import MAX_PRIORITY
from remuda.model.operations.results import QueueInfo
from remuda.model.queues.options import (
    AutoDestroy,
    LimitExceeded,
    Persistence,
    PutBack,
    QueueOptions,
    read_options,
)
from remuda.model.values.durations import MILLISECOND, SECOND
from remuda.server.amqp.declarations.arguments import LONGEST, OWN, check_queue_arguments, compare_arguments, seconds_of
from remuda.server.amqp.protocol.failures import PRECONDITION_FAILED, Failure, inequivalent, locked
from remuda.server.amqp.protocol.vhosts import VHost, dead_letters_of

_COMPARED: Final = (
    "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority", "x-delivery-limit",
    "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-overflow", "x-queue-type", "x-single-active-consumer",
    "x-max-age",
)  # fmt: skip
DEAD: Final = f"{OWN}dead"
"""What becomes of messages that die and have no dead-letter exchange: keep or drop."""
_MOST: Final = (1 << 50) - 1
"""More than any queue can hold."""
_PROTECTED: Final = frozenset({"type", "acknowledge", "confirmations", "persistence", "dead_letter_queue"})
"""Options that follow from the declaration itself."""


class QueueDeclaration(msgspec.Struct, frozen=True, array_like=True):
    """How a queue was declared."""

    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Table = {}
    owner: str | None = None
    """The connection that an exclusive queue ends with, see `owner_of`."""

    @property
    def dead_letter_exchange(self) -> str | None:
        return _text(self.arguments.get("x-dead-letter-exchange"))

    @property
    def dead_letter_key(self) -> str | None:
        return _text(self.arguments.get("x-dead-letter-routing-key"))

    @property
    def overflow(self) -> str:
        return _text(self.arguments.get("x-overflow")) or "drop-head"

    @property
    def delivery_limit(self) -> int | None:
        """How often a message may be redelivered; None, or a negative number on the wire, sets no limit."""
        limit = _number(self.arguments.get("x-delivery-limit"))
        return limit if limit is None or limit >= 0 else None

    @property
    def drops_dead(self) -> bool | None:
        """Whether messages that die without a dead-letter exchange are dropped, as in RabbitMQ, and not kept; None for
        the server's default."""
        how = self.arguments.get(DEAD)
        if self.is_stream:
            return how != "keep"  # what grew too old, or is too much
        return None if how is None else how == "drop"

    @property
    def expires(self) -> int | None:
        """After how many milliseconds without use the queue is deleted."""
        return _number(self.arguments.get("x-expires"))

    @property
    def consumer_timeout(self) -> int | None:
        """Within how many milliseconds deliveries must be answered; None or 0 is the server's default."""
        timeout = _number(self.arguments.get("x-consumer-timeout"))
        return None if timeout is None else min(timeout, LONGEST)

    @property
    def is_quorum(self) -> bool:
        return self.arguments.get("x-queue-type") == "quorum"

    @property
    def is_stream(self) -> bool:
        return self.arguments.get("x-queue-type") == "stream"

    @property
    def type(self) -> str:
        return "stream" if self.is_stream else "quorum" if self.is_quorum else "classic"


def options_of(vhost: VHost, full: str, declaration: QueueDeclaration, consumer_seconds: float) -> QueueOptions:
    """The broker's options for a declared queue. A queue that they name belongs to the same vhost."""
    arguments = declaration.arguments
    timeout = declaration.consumer_timeout
    values: dict[str, Any] = {
        "put_back": PutBack.PRIORITY,
        "acknowledge_timeout": timeout * MILLISECOND if timeout else round(consumer_seconds * 1_000_000),
        "persistence": Persistence.PERSISTENT if declaration.durable else Persistence.MEMORY,
        "max_priority": min(_number(arguments.get("x-max-priority")) or 0, MAX_PRIORITY),
    }
    if declaration.auto_delete:
        values["auto_destroy"] = AutoDestroy.NO_CONSUMERS
    if (ttl := _number(arguments.get("x-message-ttl"))) is not None:
        values["message_timeout"] = max(ttl * MILLISECOND, 1)
    if declaration.is_stream and (age := seconds_of(arguments.get("x-max-age"))) is not None:
        values["message_timeout"] = max(age, 1) * SECOND
    if (limit := _number(arguments.get("x-max-length"))) is not None:
        values["message_limit"] = min(max(limit, 1), _MOST)
    if (size := _number(arguments.get("x-max-length-bytes"))) is not None:
        values["byte_limit"] = min(max(size, 1), _MOST)
    drops = declaration.overflow == "drop-head"
    values["limit_exceeded"] = LimitExceeded.DELETE_OLDEST if drops else LimitExceeded.REJECT_NEW
    if arguments.get("x-single-active-consumer") is True:
        values["single_active_consumer"] = True
    if declaration.dead_letter_exchange is not None:
        values["dead_letter_queue"] = dead_letters_of(full)
    own = _own_options(arguments)
    if own.get("expired_queue"):
        own["expired_queue"] = vhost.queue(own["expired_queue"])
    values.update(own)
    return QueueOptions().with_values(values)


def _own_options(arguments: Table) -> dict[str, Any]:
    named = {
        name.removeprefix(OWN).replace("-", "_"): value for name, value in arguments.items() if name.startswith(OWN)
    }
    named.pop(DEAD.removeprefix(OWN), None)
    for name in named:
        if name in _PROTECTED:
            raise InvalidOption(f"{OWN}{name.replace('_', '-')} cannot be set over AMQP")
    return read_options(named) or {}


def check_arguments(name: str, vhost: str, declaration: QueueDeclaration, given: Table) -> None:
    """Refuse what RabbitMQ would refuse, and streams. `given` are the arguments with their types on the wire."""
    kind = declaration.arguments.get("x-queue-type")
    check_queue_arguments(name, vhost, given, kind if isinstance(kind, str) else "classic")
    if given.get(DEAD) not in (None, "keep", "drop"):
        raise Failure(PRECONDITION_FAILED, f"{DEAD} of queue '{name}' must be keep or drop")
    if not (declaration.is_quorum or declaration.is_stream):
        return
    if not declaration.durable or declaration.exclusive or (declaration.is_stream and declaration.auto_delete):
        wrong = "exclusive-owner" if declaration.exclusive else "auto-delete" if declaration.durable else "non-durable"
        raise Failure(PRECONDITION_FAILED, f"invalid property '{wrong}' for queue '{name}' in vhost '{vhost}'")


def check_equivalent(name: str, vhost: str, asked: QueueDeclaration, standing: QueueDeclaration) -> None:
    """Refuse a declaration that differs from how the queue was declared."""
    if asked.exclusive != standing.exclusive:
        raise locked(name, vhost)
    for flag in ("durable", "auto_delete"):
        if getattr(asked, flag) != getattr(standing, flag):
            received, current = (f"'{str(getattr(one, flag)).lower()}'" for one in (asked, standing))
            raise inequivalent(flag, "queue", name, vhost, received, current)
    compare_arguments(asked.arguments, standing.arguments, _COMPARED, "queue", name, vhost)


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) else None


def as_declared(vhost: VHost, info: QueueInfo, asked: QueueDeclaration) -> QueueDeclaration:
    """A bus's own queue, as if it had been declared with those of the arguments that agree with its options."""
    durable = info.options.persistence is Persistence.PERSISTENT
    wanted = options_of(vhost, info.name, asked, 1)
    agrees = {
        "x-message-ttl": "message_timeout", "x-max-length": "message_limit", "x-max-length-bytes": "byte_limit",
        "x-max-priority": "max_priority", "x-single-active-consumer": "single_active_consumer",
    }  # fmt: skip
    kept = {
        argument: value
        for argument, value in asked.arguments.items()
        if argument not in agrees or getattr(wanted, agrees[argument]) == getattr(info.options, agrees[argument])
    }
    return msgspec.structs.replace(asked, durable=durable, exclusive=False, auto_delete=False, arguments=kept)
