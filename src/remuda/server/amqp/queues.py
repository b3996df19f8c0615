"""A queue as AMQP declares it: its arguments, checked and compared as RabbitMQ does, and as options of the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from remuda.amqp.tables import Table
from remuda.model.durations import MILLISECOND
from remuda.model.errors import InvalidOption
from remuda.model.message import MAX_PRIORITY
from remuda.model.options import (
    AutoDestroy,
    LimitExceeded,
    Persistence,
    PutBack,
    QueueOptions,
    read_options,
)
from remuda.server.amqp.failures import NOT_IMPLEMENTED, PRECONDITION_FAILED, Failure, inequivalent
from remuda.server.amqp.names import DEAD_LETTERS, VHost

OWN: Final = "x-remuda-"
_OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")
_TYPES: Final = ("classic", "quorum")
_PROTECTED: Final = frozenset({"type", "acknowledge", "confirmations", "persistence", "dead_letter_queue"})
"""Options that follow from the declaration itself."""


class QueueDeclaration(msgspec.Struct, frozen=True, array_like=True):
    """How a queue was declared."""

    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Table = {}
    owner: str | None = None
    """The connection that an exclusive queue lives and dies with, as the server that holds it names it."""

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
        return _number(self.arguments.get("x-delivery-limit"))

    @property
    def expires(self) -> int | None:
        """After how many milliseconds without use the queue goes."""
        return _number(self.arguments.get("x-expires"))

    @property
    def consumer_timeout(self) -> int | None:
        return _number(self.arguments.get("x-consumer-timeout"))

    @property
    def is_quorum(self) -> bool:
        return self.arguments.get("x-queue-type") == "quorum"


def options_of(vhost: VHost, full: str, declaration: QueueDeclaration, consumer_seconds: float) -> QueueOptions:
    """The broker's options for a queue that was declared so. Another queue that they name is one of the same vhost."""
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
    if (limit := _number(arguments.get("x-max-length"))) is not None:
        values["message_limit"] = max(limit, 1)
    if (size := _number(arguments.get("x-max-length-bytes"))) is not None:
        values["byte_limit"] = max(size, 1)
    drops = declaration.overflow == "drop-head"
    values["limit_exceeded"] = LimitExceeded.DELETE_OLDEST if drops else LimitExceeded.REJECT_NEW
    if arguments.get("x-single-active-consumer") is True:
        values["single_active_consumer"] = True
    if declaration.dead_letter_exchange is not None:
        values["dead_letter_queue"] = DEAD_LETTERS + full
    own = _own_options(arguments)
    if own.get("expired_queue"):
        own["expired_queue"] = vhost.queue(own["expired_queue"])
    values.update(own)
    return QueueOptions().with_values(values)


def _own_options(arguments: Table) -> dict[str, Any]:
    named = {
        name.removeprefix(OWN).replace("-", "_"): _plain(value)
        for name, value in arguments.items()
        if name.startswith(OWN)
    }
    for name in named:
        if name in _PROTECTED:
            raise InvalidOption(f"{OWN}{name.replace('_', '-')} cannot be set over AMQP")
    return read_options(named) or {}


def check_arguments(name: str, vhost: str, declaration: QueueDeclaration) -> None:
    """Refuse arguments that RabbitMQ would refuse, and those that no queue here could keep."""
    arguments = declaration.arguments

    def invalid(argument: str, why: str) -> Failure:
        return Failure(PRECONDITION_FAILED, f"invalid arg '{argument}' for queue '{name}' in vhost '{vhost}': {why}")

    for argument, value in arguments.items():
        check = _CHECKS.get(argument)
        why = check(value) if check is not None else None
        if why is not None:
            raise invalid(argument, why)
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise invalid("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined")
    if declaration.overflow == "reject-publish-dlx" and declaration.is_quorum:
        raise invalid("x-overflow", "reject-publish-dlx is not supported by quorum queues")
    kind = arguments.get("x-queue-type")
    if kind == "stream":
        raise Failure(
            NOT_IMPLEMENTED, "streams are not offered; read the event log instead, or declare a classic or quorum queue"
        )
    if declaration.is_quorum and (not declaration.durable or declaration.exclusive):
        wrong = "exclusive" if declaration.exclusive else "non-durable"
        raise Failure(PRECONDITION_FAILED, f"invalid property '{wrong}' for queue '{name}' in vhost '{vhost}'")


def check_equivalent(name: str, vhost: str, asked: QueueDeclaration, standing: QueueDeclaration) -> None:
    """Refuse a declaration that differs from how the queue was declared."""
    for flag in ("durable", "exclusive", "auto_delete"):
        if getattr(asked, flag) != getattr(standing, flag):
            received, current = (f"'{str(getattr(one, flag)).lower()}'" for one in (asked, standing))
            raise inequivalent(flag, "queue", name, vhost, received, current)
    compare_arguments(asked.arguments, standing.arguments, _COMPARED, "queue", name, vhost)


def compare_arguments(asked: Table, standing: Table, names: tuple[str, ...], kind: str, name: str, vhost: str) -> None:
    own = sorted({given for given in (*asked, *standing) if given.startswith(OWN)})
    for argument in (*names, *own):
        received, current = asked.get(argument), standing.get(argument)
        if received != current and not (argument == "x-queue-type" and {received, current} <= {None, "classic"}):
            raise inequivalent(argument, kind, name, vhost, _said(received, "none"), _said(current, "none"))


def _said(value: Any, nothing: str) -> str:
    if value is None:
        return nothing
    kind = "bool" if isinstance(value, bool) else "signedint" if isinstance(value, int) else "longstr"
    return f"the value '{str(value).lower() if kind == 'bool' else value}' of type '{kind}'"


def _whole(value: Any, least: int = 0) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{{unacceptable_type,{_kind(value)}}}"
    if value < 0:
        return f"{{value_negative,{value}}}"
    if value < least:
        return f"{{value_zero,{value}}}"
    return f"{{value_too_big,{value}}}" if value >= 1 << 50 else None


def _from_one(value: Any) -> str | None:
    return _whole(value, 1)


def _is_text(value: Any) -> str | None:
    return None if isinstance(value, str) else f"{{unacceptable_type,{_kind(value)}}}"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{_kind(value)}}}"


def _priority(value: Any) -> str | None:
    why = _whole(value)
    return why if why is not None or value <= 255 else f"{{max_value_exceeded,{value}}}"


def _overflow(value: Any) -> str | None:
    return None if value in _OVERFLOWS else f"invalid_overflow: '{value}'"


def _queue_type(value: Any) -> str | None:
    return None if value in (*_TYPES, "stream") else f"unsupported queue type '{value}'"


def _kind(value: Any) -> str:
    return (
        "bool" if isinstance(value, bool) else {str: "longstr", int: "long", float: "double"}.get(type(value), "table")
    )


_CHECKS: Final[dict[str, Callable[[Any], str | None]]] = {
    "x-message-ttl": _whole,
    "x-expires": _from_one,
    "x-max-length": _whole,
    "x-max-length-bytes": _whole,
    "x-max-priority": _priority,
    "x-delivery-limit": _whole,
    "x-consumer-timeout": _from_one,
    "x-dead-letter-exchange": _is_text,
    "x-dead-letter-routing-key": _is_text,
    "x-overflow": _overflow,
    "x-queue-type": _queue_type,
    "x-single-active-consumer": _flag,
}
_COMPARED: Final = tuple(_CHECKS)


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    """A value without the type it had on the wire."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    return [_plain(one) for one in value] if isinstance(value, list) else value
