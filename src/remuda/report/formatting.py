"""Figures and names as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from remuda.model.state import State

NOTHING: Final = "-"
NAME: Final = 60
REASON: Final = 300


def visible(text: str, limit: int = NAME) -> str:
    """A foreign text on one line: what would not show, or would move its neighbours about, as escapes; not too long.

    Of a long text both ends are kept, since names often differ in their last letters.
    """
    if len(text) > limit:
        text = f"{text[: limit - limit // 3 - 1]}…{text[-(limit // 3) :]}"
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def listed(names: Iterable[str]) -> str:
    return ", ".join(visible(name) for name in names)


def number(value: int) -> str:
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """`1 queue`, `2 queues`, `3 copies`."""
    if value == 1:
        return f"1 {noun}"
    return f"{number(value)} {noun[:-1]}ies" if noun.endswith("y") else f"{number(value)} {noun}s"


def share(part: int, whole: int) -> str:
    """A part in per cent. What is neither nothing nor all is never shown as 0 or 100."""
    if not whole:
        return NOTHING
    value = 100 * part / whole
    if 0 < part < whole:
        value = min(max(value, 0.1), 99.9)
    return f"{value:.1f}".removesuffix(".0") + " %"


def seconds(value: float | None) -> str:
    """A length of time with three digits or two units."""
    if value is None:
        return NOTHING
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 60:
        return f"{_three_digits(value)} s" if value >= 1 else f"{_three_digits(value * 1e3)} ms"
    for size, unit, rest, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        whole, left = divmod(round(value / rest), size // rest)
        if whole:
            return f"{whole} {unit} {left} {small}" if left else f"{whole} {unit}"
    raise AssertionError(value)


def clock(moment: datetime) -> str:
    """A moment to the second. Reports show all times in UTC, in which their windows begin."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def short_clock(moment: datetime) -> str:
    return f"{moment:%b %d %H:%M}"


def fine_clock(moment: datetime, window: float) -> str:
    """The beginning of a window, as exact as its length asks for."""
    if window >= 86400:
        return f"{moment:%Y-%m-%d}"
    if window >= 60:
        return f"{moment:%Y-%m-%d %H:%M}"
    text = f"{moment:%Y-%m-%d %H:%M:%S}"
    return text if window >= 1 else f"{text}.{moment.microsecond // 1000:03d}"


def state(letter: State) -> str:
    return letter.name.lower().replace("_", " ")


def _three_digits(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
