"""Retry policies (B4, B5): PaperTrail's schedule by default, CAP's by name, or your own."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from remuda.jitter import CHANCE
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import HOUR, MINUTE, SECOND, Duration
from remuda.model.values.option_reading import read_duration
from remuda.model.values.texts import read_count, shown

_DAY: Final = 24 * HOUR


def error_types(name: str, types: object) -> tuple[type[BaseException], ...] | None:
    """Exception types as people write them: one, or several."""
    if types is None:
        return None
    listed = tuple(types) if isinstance(types, list | tuple | set | frozenset) else (types,)
    for one in listed:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise InvalidOption(f"{name} must name exception types, like ConnectionError; not {shown(one)}")
    return listed


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often to retry, and after how long. Durations are microseconds."""

    max_retries: int = 5
    intervals: tuple[int, ...] = (MINUTE, HOUR, 4 * HOUR, _DAY, _DAY)
    """The wait before each retry; the last entry repeats."""
    min_interval: int = 0
    jitter: float = 0.0
    """Lengthens each wait by a random fraction, up to this."""
    threshold: int | None = None
    """After this many attempts the threshold callback fires, once."""
    retry_on: tuple[type[BaseException], ...] = ()
    """Only these errors are retried; all errors if empty."""
    give_up_on: tuple[type[BaseException], ...] = ()
    """These errors are never retried."""

    def __post_init__(self) -> None:
        read_count("max_retries of a retry policy", self.max_retries)
        read_count("min_interval of a retry policy, in microseconds,", self.min_interval)
        if self.threshold is not None:
            read_count("threshold of a retry policy", self.threshold, 1)
        if isinstance(self.jitter, bool) or not isinstance(self.jitter, int | float) or not 0 <= self.jitter < inf:
            raise InvalidOption(f"jitter of a retry policy must be zero or more, not {shown(self.jitter)}")
        waits = self.intervals
        if not isinstance(waits, list | tuple) or any(type(wait) is not int or wait < 0 for wait in waits):
            raise InvalidOption(
                f"intervals of a retry policy must be microseconds, zero or more, not {shown(waits)}; "
                "with units they are written retry=['1s', '1m']"
            )
        force_setattr(self, "intervals", tuple(waits))
        for name in ("retry_on", "give_up_on"):
            force_setattr(self, name, error_types(name, getattr(self, name)) or ())

    @classmethod
    def cap(cls, failed_retry_count: int = 50) -> RetryPolicy:
        """CAP's policy: three attempts at once, then one a minute from the fourth minute on, 50 in all."""
        read_count("failed_retry_count", failed_retry_count, 1)
        return cls(
            max_retries=failed_retry_count - 1, intervals=(0, 0, 4 * MINUTE, MINUTE), threshold=failed_retry_count
        )

    @classmethod
    def exponential(
        cls,
        first: Duration = "1s",
        *,
        factor: float = 2.0,
        longest: Duration = "1h",
        retries: int = 10,
        jitter: float = 0.1,
    ) -> RetryPolicy:
        """Each wait is `factor` times the one before, up to `longest`, spread by `jitter`."""
        wait, limit = float(read_duration("first", first)), read_duration("longest", longest)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < inf:
            raise InvalidOption(f"factor must be at least 1, not {shown(factor)}")
        intervals = []
        for _ in range(read_count("retries", retries)):
            wait = min(wait, limit)
            intervals.append(round(wait))
            wait *= factor
        return cls(max_retries=retries, intervals=tuple(intervals), jitter=jitter)

    def retries(self, error: BaseException) -> bool:
        """Whether this error is worth another attempt."""
        if self.give_up_on and isinstance(error, self.give_up_on):
            return False
        return not self.retry_on or isinstance(error, self.retry_on)

    def after(self, attempt: int) -> int | None:
        """The wait after attempt n failed, counting from 1; None if it was the last."""
        if attempt > self.max_retries:
            return None
        interval = self.intervals[min(attempt, len(self.intervals)) - 1] if self.intervals else 0
        if self.jitter:
            interval += round(interval * self.jitter * CHANCE.random())
        return max(interval, self.min_interval)


DEFAULT: Final = RetryPolicy(min_interval=10 * SECOND)
"""PaperTrail's policy: five retries after 1 minute, 1 hour, 4 hours and two days, never sooner than 10 seconds."""

NEVER: Final = RetryPolicy(max_retries=0, intervals=())


cap, exponential = RetryPolicy.cap, RetryPolicy.exponential

RetrySpec = RetryPolicy | Sequence[Duration] | int | str | None


def policy(spec: RetrySpec) -> RetryPolicy | int | None:
    """A policy as people write it: a list of waits, a name, or a policy. A number of retries stays a number, and None
    stays None: the rest is then as configured."""
    if spec is None or isinstance(spec, RetryPolicy):
        return spec
    if isinstance(spec, str):
        named = {"default": DEFAULT, "papertrail": DEFAULT, "cap": cap(), "never": NEVER, "exponential": exponential()}
        if spec not in named:
            raise InvalidOption(
                f"no retry policy is named {shown(spec)}; there are {', '.join(named)}, or give a list of waits"
            )
        return named[spec]
    if isinstance(spec, int):
        return read_count("retry", spec)
    if not isinstance(spec, Sequence) or isinstance(spec, bytes | bytearray | memoryview):
        raise InvalidOption(
            f"retry must be a list of waits, a number of retries, a name or a policy, not {shown(spec)}"
        )
    waits = tuple(read_duration("retry", wait) for wait in spec)
    return RetryPolicy(max_retries=len(waits), intervals=waits)
