"""How fast counters grow: the difference between two looks at them, some seconds apart."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from remuda.model.operations.results import QueueInfo
from remuda.model.state import State

_APART: Final = 5.0
_ENDS: Final = (State.SUCCESS, State.KICKED, State.RETRY, State.DEAD, State.INVALID, State.NOT_INTERESTED)
"""How a delivery ends, unless it comes back."""
_Counts = Mapping[str, int]


class Rates:
    """Counters of many things by name, at two moments."""

    def __init__(self) -> None:
        self._before: tuple[float, dict[str, _Counts]] | None = None
        self._last: tuple[float, dict[str, _Counts]] | None = None

    def look(self, counts: Mapping[str, _Counts]) -> None:
        """Take the counters as they are now, unless the last look was a moment ago."""
        now = time.monotonic()
        if self._last is None or now - self._last[0] >= _APART:
            self._before, self._last = self._last, (now, dict(counts))

    def of(self, name: str, counts: _Counts) -> dict[str, Any]:
        """Each counter, and beside it how much it grows in a second."""
        reference = self._before or self._last
        now = time.monotonic()
        found: dict[str, Any] = {}
        for counter, value in counts.items():
            rate = 0.0
            if reference is not None and now > reference[0]:
                # What was not there yet had counted nothing.
                rate = max(value - reference[1].get(name, {}).get(counter, 0), 0) / (now - reference[0])
            found[counter] = value
            found[f"{counter}_details"] = {"rate": round(rate, 3)}
        return found


def counts_of(info: QueueInfo) -> dict[str, int]:
    """What ever happened in a queue, as RabbitMQ counts it."""
    entered = info.counts
    fetched, done = entered.get(State.FETCHED, 0), entered.get(State.SUCCESS, 0)
    answered = sum(entered.get(state, 0) for state in _ENDS)
    again = max(fetched - answered - info.in_flight, 0)
    retried = max(entered.get(State.RETRY, 0) - info.delayed, 0)
    return {
        "publish": max(entered.get(State.QUEUED, 0) - again - retried, 0),
        "deliver_get": fetched, "deliver": fetched, "deliver_no_ack": 0, "get": 0, "get_no_ack": 0, "get_empty": 0,
        "ack": done, "redeliver": again,
    }  # fmt: skip


def add(total: dict[str, int], counts: _Counts) -> None:
    for name, value in counts.items():
        total[name] = total.get(name, 0) + value
