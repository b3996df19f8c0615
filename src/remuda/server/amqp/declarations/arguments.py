"""Arguments of declarations: checked and compared as RabbitMQ does, and refused in its words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from remuda.amqp.codec.tables import (
    Float32,
    Int8,
    Int16,
    Int64,
    Scaled,
    Table,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from remuda.server.amqp.protocol.failures import PRECONDITION_FAILED, Failure, inequivalent

OWN: Final = "x-remuda-"
_KINDS: Final[dict[type, str]] = {
    bool: "bool", Int8: "byte", UInt8: "unsignedbyte", Int16: "short", UInt16: "unsignedshort",
    UInt32: "unsignedint", Int64: "long", UInt64: "unsignedlong", Timestamp: "timestamp", float: "double",
    Float32: "float", str: "longstr", bytes: "binary", list: "array", dict: "table", Scaled: "decimal",
    type(None): "void",
}  # fmt: skip
LONGEST: Final = 315_360_000_000
"""Ten years: the most milliseconds that a time may have."""
_STREAMS_ONLY: Final = (
    "x-max-age", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes", "x-initial-cluster-size",
)  # fmt: skip
_OF_STREAMS: Final = {*_STREAMS_ONLY, "x-max-length-bytes", "x-queue-type", "x-queue-leader-locator"}
_INTERVAL: Final = re.compile(r"([0-9]{1,9})([YMDhms])")
_SECONDS: Final = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3600, "m": 60, "s": 1}


def kind_of(value: Any) -> str:
    """What RabbitMQ calls the type that a value has on the wire."""
    if type(value) is int:
        return "signedint" if -0x80000000 <= value <= 0x7FFFFFFF else "long"
    return _KINDS.get(type(value), "longstr")


def check_queue_arguments(name: str, vhost: str, arguments: Table, queue_type: str) -> None:
    """Refuse arguments that RabbitMQ would refuse: impossible ones, and those of another type of queue."""
    for argument, value in arguments.items():
        if argument == "x-dead-letter-exchange" and not isinstance(value, str):
            raise Failure(
                PRECONDITION_FAILED,
                f"invalid type '{kind_of(value)}' for arg '{argument}' in queue '{name}' in vhost '{vhost}'",
            )
        why = why_impossible(argument, value)
        if argument == "x-dead-letter-routing-key" and "x-dead-letter-exchange" not in arguments:
            why = why or "routing_key_but_no_dlx_defined"
        if why is not None:
            raise Failure(PRECONDITION_FAILED, f"invalid arg '{argument}' for queue '{name}' in vhost '{vhost}': {why}")
        foreign = argument in _STREAMS_ONLY
        if queue_type == "stream":
            foreign = argument.startswith("x-") and not argument.startswith(OWN) and argument not in _OF_STREAMS
        if foreign:
            raise Failure(
                PRECONDITION_FAILED,
                f"invalid arg '{argument}' for queue '{name}' in vhost '{vhost}' of queue type "
                f"rabbit_{queue_type}_queue",
            )


def why_impossible(argument: str, value: Any) -> str | None:
    """Why a queue's argument cannot have a value, in RabbitMQ's words; None if it can."""
    check = _CHECKS.get(argument)
    return check(value) if check is not None else None


def check_consumer_arguments(name: str, vhost: str, arguments: Table, queue_type: str) -> int:
    """Refuse arguments of a consumer that RabbitMQ would refuse; returns its priority."""
    if "x-stream-offset" in arguments and queue_type != "stream":
        raise Failure(
            PRECONDITION_FAILED,
            f"invalid arg 'x-stream-offset' for queue '{name}' in vhost '{vhost}' of queue type "
            f"rabbit_{queue_type}_queue",
        )
    priority = arguments.get("x-priority", 0)
    why = _whole(priority)
    if why is not None:
        raise Failure(PRECONDITION_FAILED, f"invalid arg 'x-priority' for queue '{name}' in vhost '{vhost}': {why}")
    return max(-0x80000000, min(int(priority), 0x7FFFFFFF))


def compare_arguments(asked: Table, standing: Table, names: tuple[str, ...], kind: str, name: str, vhost: str) -> None:
    """Refuse arguments that differ from those with which something was declared."""
    own = sorted({given for given in (*asked, *standing) if given.startswith(OWN)})
    for argument in (*names, *own):
        received, current = asked.get(argument), standing.get(argument)
        if received != current and not (argument == "x-queue-type" and {received, current} <= {None, "classic"}):
            both = received is not None and current is not None
            raise inequivalent(argument, kind, name, vhost, _said(received, both), _said(current, both))


def _said(value: Any, plainly: bool) -> str:
    if value is None:
        return "none"
    text = str(value).lower() if isinstance(value, bool) else value
    return f"'{text}'" if plainly else f"the value '{text}' of type '{kind_of(value)}'"


def _whole(value: Any) -> str | None:
    counts = isinstance(value, int) and not isinstance(value, bool | Timestamp)
    return None if counts else f'"expected integer, got {kind_of(value)}"'


def _not_negative(value: Any) -> str | None:
    why = _whole(value)
    return why if why is not None or value >= 0 else f"{{value_negative,{value}}}"


def _milliseconds(value: Any) -> str | None:
    why = _not_negative(value)
    return why if why is not None or value <= LONGEST else f"{{value_too_large,{value}}}"


def _from_one(value: Any) -> str | None:
    return _not_negative(value) or ("{value_zero,0}" if value == 0 else None)


def _expires(value: Any) -> str | None:
    return _from_one(value) or _milliseconds(value)


def _priority(value: Any) -> str | None:
    why = _not_negative(value)
    return why if why is not None or value <= 255 else f"{{max_value_exceeded,{value}}}"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else f"{{unacceptable_type,{kind_of(value)}}}"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{kind_of(value)}}}"


def _one_of(why: str, *known: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return _text(value) or (None if value in known else why.format(value))

    return check


def seconds_of(text: Any) -> int | None:
    """The seconds of an interval as streams write it, such as 7D or 12h; None if it is none."""
    found = _INTERVAL.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else int(found[1]) * _SECONDS[found[2]]


def _age(value: Any) -> str | None:
    return None if (seconds := seconds_of(value)) is not None and seconds <= LONGEST // 1000 else "invalid_max_age"


_CHECKS: Final[dict[str, Callable[[Any], str | None]]] = {
    "x-message-ttl": _milliseconds,
    "x-expires": _expires,
    "x-max-length": _not_negative,
    "x-max-length-bytes": _not_negative,
    "x-max-in-memory-length": _not_negative,
    "x-max-in-memory-bytes": _not_negative,
    "x-max-priority": _priority,
    "x-delivery-limit": _whole,
    "x-consumer-timeout": _not_negative,
    "x-quorum-initial-group-size": _from_one,
    "x-dead-letter-routing-key": _text,
    "x-dead-letter-strategy": _one_of("invalid_dlx_strategy", "at-most-once", "at-least-once"),
    "x-overflow": _one_of("invalid_overflow", "drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-leader-locator": _one_of("invalid_queue_locator_arg", "client-local", "balanced"),
    "x-queue-mode": _one_of("\"unsupported queue mode '{}'\"", "default", "lazy"),
    "x-queue-type": _one_of("\"unsupported queue type '{}'\"", "classic", "quorum", "stream"),
    "x-single-active-consumer": _flag,
    "x-max-age": _age,
    "x-stream-max-segment-size-bytes": _not_negative,
    "x-initial-cluster-size": _from_one,
}  # fmt: skip
