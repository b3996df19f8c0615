"""Durations, written as people write them: `250ms`, `30s`, `1.5h`; kept as whole microseconds."""

from __future__ import annotations

import re
from datetime import timedelta
from math import inf
from typing import Final

from remuda.model.errors import InvalidOption
from remuda.model.values.texts import shown

MICROSECOND: Final = 1
MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

_LONGEST: Final = 36_600 * DAY

Duration = int | float | str | timedelta

_UNITS: Final = {"us": 1, "ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_TEXT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)?\s*")

_WORDS: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(second|minute|hour|day)s?\s*", re.ASCII)
_NAMED: Final = {"second": SECOND, "minute": MINUTE, "hour": HOUR, "day": DAY}


def micros(value: Duration, unit: int = SECOND) -> int:
    """`value` in microseconds; a bare number counts in `unit`."""
    length: float
    if type(value) is int:
        length = value * unit
    elif isinstance(value, timedelta):
        length = value.total_seconds() * SECOND
    elif isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if not match:
            raise _not_a_duration(value)
        length = float(match[1]) * (_UNITS[match[2]] if match[2] else unit)
    elif isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < inf:
        raise _not_a_duration(value)
    else:
        length = value * unit
    result = round(max(-1, min(length, _LONGEST + 1)))  # clamped first: infinity cannot be rounded
    if result > _LONGEST:
        raise InvalidOption(f"{shown(value)} is too long; the longest duration is about 100 years")
    if result < 0:
        raise InvalidOption(f"{shown(value)} is negative; a duration is zero or more")
    return result


def parse_window(asked: str) -> int:
    """Microseconds of a window of time, such as `1 minute`, or `30s` as durations are written."""
    match = _WORDS.fullmatch(asked)
    try:
        length = round(float(match[1]) * _NAMED[match[2]]) if match else micros(asked)
    except (InvalidOption, OverflowError):
        length = 0
    if not MILLISECOND <= length <= _LONGEST:
        raise InvalidOption(
            f"{asked!r} is not a window; write it like '1 minute' or 30s, a millisecond at least and 100 years at most"
        )
    return length


def _not_a_duration(value: object) -> InvalidOption:
    return InvalidOption(f"{shown(value)} is not a duration; write it like 250ms, 30s, 5m, 4h or 1d")


def text(duration: int) -> str:
    """A duration for people: the largest unit that keeps it whole."""
    for name, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", MILLISECOND)):
        if duration and duration % size == 0:
            return f"{duration // size}{name}"
    return f"{duration}us" if duration else "0s"
