"""How a worker takes messages: how many at once, and whether it lets some gather first."""

from __future__ import annotations

import time
from typing import Any, Final

from remuda.bus.broker_api import BaseDelivery
from remuda.model.durations import SECOND

_QUICK: Final = 0.005
_SLOW: Final = 0.05
_DENSE: Final = 0.0002
_DENSE_AT_MOST: Final = 0.002
_GATHERING: Final = 0.002
_LONGEST: Final = 0.02
_FRESH: Final = 0.05


class AdaptivePrefetch:
    """More messages at once while they are quick, also to fail; one while they are slow or a crash lies behind.

    If the power fails, everything taken counts as attempted once; where there is no second attempt, a worker therefore
    takes one message at a time (`fixed`).
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
        """A delivery was worked through, or `lost` with who did. Gives how many seconds to wait before asking again.

        Where messages come faster than they are worth a turn each, and none is left, a moment in which more can come
        costs everyone less.
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
    """How fast messages come to a queue, as all its workers see it together."""

    def __init__(self) -> None:
        self._newest = 0
        self._turn = 0.0

    def seconds_apart(self, delivery: BaseDelivery[Any]) -> float:
        """How many seconds lie between messages since the delivery before this one, on average."""
        created = delivery.messages.created
        newest = created[-1] if isinstance(created, list) else created
        since, self._newest = newest - self._newest, newest
        return since / SECOND / len(delivery)

    def age(self, now: float) -> float:
        """How many seconds ago the newest message was made. If that is long, others wait behind it, also where the
        broker cannot tell of them."""
        return now - self._newest / SECOND

    def turn(self, now: float) -> float:
        """How many seconds a worker waits so that messages can gather. Several take turns: one asks every 2 ms."""
        self._turn = min(max(self._turn, now) + _GATHERING, now + _LONGEST)
        return self._turn - now
