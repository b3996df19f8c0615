"""Settings as people write and read them."""

from __future__ import annotations

from typing import Any

from remuda.bus.settings.retry import RetryPolicy
from remuda.model.values.durations import text


def in_words(name: str, value: Any) -> str:
    plain = as_written(name, value)
    if plain is None:
        return "none"
    return ", ".join(plain) if isinstance(plain, list) else str(plain)


def as_written(name: str, value: Any) -> Any:
    """A value as you would write it."""
    if isinstance(value, RetryPolicy):
        waits = [text(max(wait, value.min_interval)) for wait in value.intervals[: value.max_retries]]
        if value.max_retries > len(waits) and waits:
            waits.append(f"… {value.max_retries} in all")
        return waits
    if isinstance(value, tuple):
        return [text(interval) for interval in value]
    if isinstance(value, int) and name.startswith(("message.retry.min", "message.retry.check", "message.timeout")):
        return text(value)
    return value
