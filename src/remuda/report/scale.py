"""Scales: where a value lies on an axis, and which values are written beside it. Places are shares from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import ceil, log, log10
from typing import Final, NamedTuple

from remuda.model.values.durations import DAY, HOUR, MINUTE, SECOND
from remuda.report.formatting import seconds

_ROUND_TIMES: Final = (
    1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 7 * 86400.0,
    28 * 86400.0, 364 * 86400.0, 3640 * 86400.0,
)  # fmt: skip
_STEPS: Final = (
    *(number * SECOND // 10 for number in (1, 2, 5)),
    *(number * SECOND for number in (1, 2, 5, 10, 15, 30)),
    *(number * MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * HOUR for number in (1, 2, 3, 6, 12)),
    *(number * DAY for number in (1, 2, 7, 14, 28, 91, 182, 364)),
)
_MOST_LABELS: Final = 6
_ROOM: Final = 0.96
"""A label further to the right would stand over the edge."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Tick(NamedTuple):
    """A value written beside an axis."""

    at: float
    label: str


class CountScale:
    """From nothing to a round number."""

    def __init__(self, most: int) -> None:
        step = _round_step(most)
        self._top = max(ceil(most / step), 1) * step
        self.ticks = [Tick(value / self._top, _short(value)) for value in range(0, self._top + 1, step)]

    def place(self, value: int) -> float:
        return value / self._top


class TimeScale:
    """Lengths of time by their magnitude: a millisecond and an hour both have room."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = max(min(values), _ROUND_TIMES[0]), max(values)
        bottom = max(at for at, one in enumerate(_ROUND_TIMES) if one <= low)
        top = next((at for at, one in enumerate(_ROUND_TIMES) if one >= high and at > bottom), len(_ROUND_TIMES) - 1)
        self._low, self._high = log(_ROUND_TIMES[bottom]), log(_ROUND_TIMES[top])
        every = 2 if top - bottom > _MOST_LABELS else 1
        self.ticks = [Tick(self.place(one), seconds(one)) for one in _ROUND_TIMES[bottom : top + 1 : every]]
        if min(values) < _ROUND_TIMES[0]:
            self.ticks[0] = Tick(0.0, f"≤ {seconds(_ROUND_TIMES[0])}")

    def place(self, value: float) -> float:
        return min(max((log(max(value, 1e-9)) - self._low) / (self._high - self._low), 0.0), 1.0)


def clock_ticks(starts: Sequence[datetime], window: float) -> list[Tick]:
    """Labels at round times, from the beginning of the first window to the end of the last."""
    whole = timedelta(seconds=window) * len(starts)
    step = next((one for one in _STEPS if whole < _MOST_LABELS * timedelta(microseconds=one)), 10 * _STEPS[-1])
    length = timedelta(microseconds=step)
    begin = starts[0]
    first = begin + -(begin - _EPOCH) % length
    times = [first + number * length for number in range(_MOST_LABELS + 1)]
    ticks = [Tick((time - begin) / whole, _clock(time, step)) for time in times if time <= begin + _ROOM * whole]
    return ticks or [Tick(0.0, _clock(begin, step))]


def _clock(moment: datetime, step: int) -> str:
    if step >= DAY or (step >= HOUR and moment.hour == 0):
        return f"{moment:%b} {moment.day}" if step < 91 * DAY else f"{moment:%b %Y}"
    if step >= MINUTE:
        return f"{moment:%H:%M}"
    return f"{moment:%H:%M:%S}" if step >= SECOND else f"{moment:%S}.{moment.microsecond // 100_000} s"


def _round_step(most: int) -> int:
    """1, 2 or 5 times a power of ten, of which at most four reach over `most`."""
    if most <= 4:
        return 1 if most != 4 else 2
    rough = most / 4
    power = 10 ** int(log10(rough))
    return int(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough))


def _short(value: int) -> str:
    for size, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return str(value)
