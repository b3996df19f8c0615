"""Rates, written as people write them: `100/s`, `10/min`, `20/s burst 5` (F3)."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.values.durations import SECOND, micros, text
from remuda.model.values.texts import shown

_TEXT: Final = re.compile(
    r"\s*(\d{1,9})\s*/\s*(\d{1,9}(?:\.\d+)?)?\s*(ms|s|sec|second|m|min|minute|h|hour|d|day)s?\s*(?:,?\s*burst\s+(\d{1,9}))?\s*"
)
_UNITS: Final = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d"}
_AT_ONCE: Final = SECOND // 10
"""Where no burst is given, as much may come at once as this time allows, and at least one."""


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts in `period`, and `burst` of them at once."""

    count: int
    period: int
    burst: int | None = None

    def __str__(self) -> str:
        unit = text(self.period)
        plain = f"{self.count}/{unit[1:] if unit[0] == '1' and not unit[1].isdigit() else unit}"
        return plain if self.burst is None else f"{plain} burst {self.burst}"

    @property
    def interval(self) -> float:
        """Microseconds from one start to the next."""
        return self.period / self.count

    @property
    def at_once(self) -> int:
        return self.burst or max(self.count * _AT_ONCE // self.period, 1)


def rate(value: Any) -> Rate:
    """A rate from its text."""
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidOption(f"{shown(value)} is not a rate; write it like 100/s, 10/min or 20/s burst 5")
    unit = match[3]
    count, period = int(match[1]), micros((match[2] or "1") + _UNITS.get(unit, unit))
    burst = None if match[4] is None else int(match[4])
    if not count or not period or burst == 0:
        raise InvalidOption(f"{shown(value)} lets nothing through; pause the queue to stop it")
    return Rate(count, period, burst)


def read_rate(name: str, value: Any) -> str | None:
    """A rate in its shortest text; None and an empty text are no rate."""
    if value is None or (isinstance(value, str) and not value):
        return None
    try:
        return str(rate(value))
    except InvalidOption as error:
        raise InvalidOption(f"{name}: {error}") from None
