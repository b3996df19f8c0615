"""Cron expressions: parsing their five fields, and finding the next time that one names in a time zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.values.durations import SECOND
from remuda.model.values.texts import shown

_LONGEST: Final = 200
_SEARCHED_DAYS: Final = 366 * 8
"""Eight years hold every date, 29 February included, even around a year like 2100."""

_MACROS: Final = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_MONTHS: Final = {name: at for at, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
_DAYS: Final = {name: at for at, name in enumerate("sun mon tue wed thu fri sat".split())}
_FIELDS: Final[tuple[tuple[str, int, int, dict[str, int]], ...]] = (
    ("minute", 0, 59, {}), ("hour", 0, 23, {}), ("day", 1, 31, {}), ("month", 1, 12, _MONTHS), ("weekday", 0, 7, _DAYS),
)  # fmt: skip


class Cron(msgspec.Struct, frozen=True):
    """A parsed cron expression."""

    text: str
    zone: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    @classmethod
    def read(cls, text: str, zone: str = "UTC") -> Cron:
        """Read `minute hour day month weekday`, like `0 3 * * mon-fri`; raises `InvalidOption`."""
        if not isinstance(text, str) or len(text) > _LONGEST:
            raise InvalidOption(
                f"a cron expression must be a string of at most {_LONGEST} characters, like '0 3 * * mon-fri'"
            )
        fields = _MACROS.get(text.strip().lower(), text).split()
        if len(fields) != len(_FIELDS):
            raise InvalidOption(
                "a cron expression has five fields, minute hour day month weekday, like '0 3 * * mon-fri'; "
                f"not {shown(text)}"
            )
        _zone(zone)
        sets = [_read_field(*known, field, text) for known, field in zip(_FIELDS, fields, strict=True)]
        minutes, hours, days, months, weekdays = sets
        made = cls(
            " ".join(fields), zone, tuple(sorted(minutes)), tuple(sorted(hours)), frozenset(days), frozenset(months),
            frozenset(day % 7 for day in weekdays), fields[2] in ("*", "?"), fields[4] in ("*", "?"),
        )  # fmt: skip
        if made.next_after(0) is None:
            raise InvalidOption(f"the cron expression {shown(text)} never matches: none of its months has such a day")
        return made

    def next_after(self, time: int) -> int | None:
        """The first time after this one, in microseconds since the epoch."""
        zone = _zone(self.zone)
        after = datetime.fromtimestamp(time / SECOND, UTC)
        day = after.astimezone(zone).date()
        for _ in range(_SEARCHED_DAYS):
            if self._takes(day):
                later = [moment for moment in self._moments(day, zone) if moment > after]
                if later:
                    return round(min(later).timestamp()) * SECOND
            day += timedelta(days=1)
        return None

    def _takes(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday

    def _moments(self, day: date, zone: ZoneInfo) -> Iterator[datetime]:
        """The times of a local day. A time that a change of clocks skips runs when it would have come without the
        change; one that it repeats runs once, or twice if the expression names every hour."""
        every_hour = len(self.hours) == 24
        for hour in self.hours:
            for minute in self.minutes:
                local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                moment = local.astimezone(UTC)
                yield moment
                if every_hour:
                    again = local.replace(fold=1).astimezone(UTC)
                    if again > moment:
                        yield again

    def __str__(self) -> str:
        return f"cron {self.text} {self.zone}"


def _read_field(name: str, least: int, most: int, words: dict[str, int], field: str, text: str) -> set[int]:
    values: set[int] = set()
    for part in field.lower().split(","):
        span, slash, step_text = part.partition("/")
        step = _number(name, step_text, 1, most - least + 1, {}, text) if slash else 1
        if span in ("*", "?"):
            first, last = least, most if name != "weekday" else 6
        else:
            start, dash, end = span.partition("-")
            first = _number(name, start, least, most, words, text)
            last = _number(name, end, least, most, words, text) if dash else (most if slash else first)
            if first > last:
                raise InvalidOption(f"the {name} of the cron expression {shown(text)} runs backwards: {shown(span)}")
        values.update(range(first, last + 1, step))
    return values


def _number(name: str, written: str, least: int, most: int, words: dict[str, int], text: str) -> int:
    value = words.get(written[:3] if written.isalpha() else written)
    if value is None and written.isascii() and written.isdigit() and len(written) <= 2:
        value = int(written)
    if value is None or not least <= value <= most:
        raise InvalidOption(
            f"the {name} of the cron expression {shown(text)} must be from {least} to {most}, not {shown(written)}"
        )
    return value


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise InvalidOption(f"there is no time zone {shown(name)}; write it like 'Europe/Berlin' or 'UTC'") from None
