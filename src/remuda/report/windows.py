"""Windows of time: how long they are, and which of them a report has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from remuda.model.errors import InvalidOption
from remuda.model.values.durations import DAY, HOUR, MILLISECOND, MINUTE, SECOND, parse_window, text

POINTS: Final = 60
MOST_POINTS: Final = 1000
_LENGTHS: Final = (
    *(number * MILLISECOND for number in (100, 200, 500)),
    *(number * SECOND for number in (1, 2, 5, 10, 15, 30)),
    *(number * MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * HOUR for number in (1, 2, 3, 6, 12)),
    *(number * DAY for number in (1, 2, 7, 14, 28, 91, 364)),
)
_LONGEST: Final = POINTS * _LENGTHS[-1]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def window_length(asked: str, first: datetime, last: datetime) -> int:
    """Microseconds of a window: as asked for, or such that the range has about 60 of them."""
    span = (last - first) // timedelta(microseconds=1)
    if asked == "auto":
        return next((length for length in _LENGTHS if span < POINTS * length), _LENGTHS[-1] * (span // _LONGEST + 1))
    length = parse_window(asked)
    if span > MOST_POINTS * length:
        least = next((one for one in _LENGTHS if span <= MOST_POINTS * one), _LENGTHS[-1])
        raise InvalidOption(
            f"windows of {text(length)} would be {span // length} over the time from {first:%Y-%m-%d %H:%M} to "
            f"{last:%Y-%m-%d %H:%M}, and a report has at most {MOST_POINTS}; choose {text(least)} or more, or auto"
        )
    return length


def starts(length: int, first: datetime, last: datetime) -> list[datetime]:
    """When each window of a range begins. They are counted from 1970, as Spark counts them."""
    step = timedelta(microseconds=length)
    begin = (first - _EPOCH) // step
    return [_EPOCH + number * step for number in range(begin, (last - _EPOCH) // step + 1)]


def moment(time: int) -> datetime:
    """Microseconds as a time."""
    return _EPOCH + timedelta(microseconds=time)
