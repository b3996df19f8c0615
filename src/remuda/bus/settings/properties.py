"""All settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from remuda.bus.handlers.handler import ExecutorKind
from remuda.bus.settings.retry import DEFAULT
from remuda.model.errors import InvalidMessage, InvalidOption
from remuda.model.topics import check_topic
from remuda.model.values.durations import MILLISECOND, SECOND, micros
from remuda.model.values.option_reading import whole
from remuda.model.values.texts import LARGEST, shown


class Property(msgspec.Struct, frozen=True):
    """One setting: how it is read, its default, and whether a queue may have its own value."""

    read: Callable[[Any], Any]
    default: Any
    per_queue: bool = True


MOST_THREADS: Final = 10_000
"""The most that one queue may have."""


def _whole(minimum: int, most: int = LARGEST) -> Callable[[Any], int]:
    return lambda value: whole(value, minimum, most)


def _intervals(value: Any) -> tuple[int, ...]:
    if value in ("", [], ()):
        raise InvalidOption("must hold at least one interval; for no retries at all set message.retry.max to 0")
    entries = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    return tuple(micros(entry, SECOND) for entry in entries)


def _executor(value: Any) -> ExecutorKind:
    try:
        return ExecutorKind(value)
    except ValueError:
        raise InvalidOption(f"must be one of {', '.join(ExecutorKind)}; not {shown(value)}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidOption(f"must be a string, not {shown(value)}")
    return value


def _duration(unit: int, *, least: int = 0) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        length = micros(value, unit)
        if length < least:
            raise InvalidOption(f"must be longer than zero, not {shown(value)}")
        return length

    return read


def _prefix(value: Any) -> str:
    text = _text(value)
    try:
        check_topic(text + "x")
    except InvalidMessage as error:
        raise InvalidOption(str(error).removesuffix("; nothing was stored")) from None
    if "*" in text or "#" in text:
        raise InvalidOption(f"must not hold wildcards: {shown(text)}")
    return text


PROPERTIES: Final[dict[str, Property]] = {
    "message.retry.max": Property(_whole(0), 5),
    "message.retry.intervals": Property(_intervals, DEFAULT.intervals),
    "message.retry.min.interval": Property(_duration(MILLISECOND), DEFAULT.min_interval, per_queue=False),
    "message.retry.check.interval": Property(_duration(SECOND), 60 * SECOND, per_queue=False),
    "message.queue.size": Property(_whole(0), 500),
    "message.failover": Property(_text, None),
    "message.threads": Property(_whole(1, MOST_THREADS), 1),
    "message.timeout": Property(_duration(SECOND, least=1), None),
    "message.executor": Property(_executor, None),
    "message.prefix": Property(_prefix, "", per_queue=False),
}
