"""Times as users type them: `2026-05-01`, `2026-05-01T10:30`, or `10m` for ten minutes ago."""

from __future__ import annotations

import time
from datetime import datetime

from remuda.model.errors import InvalidOption
from remuda.model.values.durations import micros


def point(text: str, option: str, now: int | None = None) -> int:
    """A point in time in microseconds, or an error that names the option."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1e6)
    except ValueError:
        pass
    try:
        ago = micros(text)
    except InvalidOption:
        raise InvalidOption(
            f"{option}: {text!r} is not a time; write it like 2026-05-01, '2026-05-01 10:30', or 10m for ten minutes "
            "ago"
        ) from None
    return (time.time_ns() // 1000 if now is None else now) - ago
