"""One schedule: when it runs, and what happens to runs that were missed.

Each run is a message of its own, delayed until it is due, whose id is made from the schedule's name and that time. When
a run begins, the next one is published; publishing the same run again is refused as a duplicate. So the chain
continues after restarts, and each run happens once, however many processes share the broker.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from remuda.bus.scheduling.cron import Cron
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import SECOND, Duration, text
from remuda.model.values.option_reading import read_duration
from remuda.model.values.texts import shown

TOPIC: Final = "remuda-schedule."
NAME: Final = "remuda-schedule"
"""The header that says which schedule a message is a run of."""
RULE: Final = "remuda-schedule-rule"
LAST: Final = "remuda-schedule-last"
"""The header that says when the previous run was due."""
COPY: Final = "remuda-schedule-copy"
"""The header that tells copies of one run apart, on a broker that does not refuse duplicates."""
_TOLERANCE: Final = 60 * SECOND


class CatchUp(StrEnum):
    """What happens to the times that passed while nothing ran."""

    ONCE = "once"
    """One run makes up for all of them."""
    ALL = "all"
    """Each gets its run, one after the other."""
    SKIP = "skip"
    """They are skipped."""


class Every(msgspec.Struct, frozen=True):
    """Times that lie a fixed interval apart, the same in every process."""

    interval: int

    @classmethod
    def read(cls, interval: Duration) -> Every:
        length = read_duration("interval", interval)
        if length < SECOND:
            raise InvalidOption(f"a schedule cannot run more often than once a second, not every {shown(interval)}")
        return cls(length)

    def next_after(self, time: int) -> int | None:
        return (time // self.interval + 1) * self.interval

    def __str__(self) -> str:
        return f"every {text(self.interval)}"


class Schedule(msgspec.Struct, frozen=True):
    """A name, a rule, and what to do about missed runs."""

    name: str
    queue: str
    rule: Every | Cron
    catch_up: CatchUp

    @property
    def topic(self) -> str:
        return topic_of(self.name)

    def run_id(self, due: int) -> str:
        return run_id(self.name, due)

    def next_after(self, due: int, now: int) -> int:
        """When the run after the one due at `due` comes."""
        start = due if self.catch_up is CatchUp.ALL else max(due, now)
        following = self.rule.next_after(start)
        assert following is not None
        return following

    def is_missed(self, due: int, now: int) -> bool:
        """Whether a run comes so late that it is skipped."""
        if self.catch_up is not CatchUp.SKIP:
            return False
        following = self.rule.next_after(due)
        return now > due + _TOLERANCE or (following is not None and now >= following)


def topic_of(name: str) -> str:
    """The topic of a schedule's runs."""
    return TOPIC + name


def run_id(name: str, due: int) -> str:
    """The message id of the run that is due at this time."""
    return f"schedule:{name}:{due}"
