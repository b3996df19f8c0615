"""How many messages a worker pulls at once, and how long it lets them gather first."""

from __future__ import annotations

import time
from typing import Any, Final

from remuda.bus.broker_api import BaseDelivery
from remuda.model.values.durations import SECOND

_QUICK: Final = 0.005
_SLOW: Final = 0.05
_DENSE: Final = 0.0002
_DENSE_AT_MOST: Final = 0.002
_GATHERING: Final = 0.002
_LONGEST: Final = 0.02
_FRESH: Final = 0.05


class AdaptivePrefetch:
    """Pulls more messages at once while they are handled quickly, fewer while they are slow or after a crash.

    If the power fails, every message pulled counts as attempted. Where there is no second attempt, a worker therefore
    pulls one message at a time (`fixed`).
    """

    def __init__(self, fixed: int | None, most: int, arrivals: ArrivalRate) -> None:
        self._fixed = fixed
        self._arrival_rate = arrivals
        self.count = fixed or 1
        self.most = fixed or most
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()

    def end(self, delivery: BaseDelivery[Any], *, lost: bool) -> float:
        """A delivery was handled, or `lost` together with its worker. Returns how many seconds to wait before the next.

        If messages arrive so fast that pulling them one by one costs more than handling them, and none is left,
        waiting a moment for more is cheaper for everyone.
        """
        took = time.monotonic() - self._began
        if self._fixed is None:
            if lost or took > _SLOW:
                self.count = max(1, self.count // 4)
            elif took < _QUICK:
                self.count = min(self.count * 2, self.most)
        dense = self._arrival_rate.seconds_apart(delivery) < min(max(2 * took / len(delivery), _DENSE), _DENSE_AT_MOST)
        if not dense or self.count < 2 or any(delivery.remaining) or self._arrival_rate.age(time.time()) > _FRESH:
            return 0.0
        return self._arrival_rate.turn(time.monotonic())


class ArrivalRate:
    """How fast messages arrive at a queue; shared by its workers."""

    def __init__(self) -> None:
        self._newest = 0
        self._turn = 0.0

    def seconds_apart(self, delivery: BaseDelivery[Any]) -> float:
        """The average seconds between messages since the previous delivery."""
        created = delivery.messages.created
        newest = created[-1] if isinstance(created, list) else created
        since, self._newest = newest - self._newest, newest
        return since / SECOND / len(delivery)

    def age(self, now: float) -> float:
        """The seconds since the newest message delivered was published. If that is long, others wait behind it, even if
        the broker cannot say how many."""
        return now - self._newest / SECOND

    def turn(self, now: float) -> float:
        """The seconds that a worker waits for messages to gather. Workers take turns: one pulls every 2 ms."""
        self._turn = min(max(self._turn, now) + _GATHERING, now + _LONGEST)
        return self._turn - now
