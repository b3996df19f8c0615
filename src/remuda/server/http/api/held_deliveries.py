"""Deliveries that HTTP clients hold, each under a token that nobody can guess."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from remuda.broker.delivery import AsyncDelivery
from remuda.broker.embedded.clock import Clock, steady_clock
from remuda.model.errors import NotFound
from remuda.model.messages import Messages
from remuda.model.values.durations import SECOND
from remuda.server.http.api.problems import Problem

HELD: Final = 10_000
_KEPT_AFTER: Final = 60 * SECOND
"""For this long after the deadline, a late answer counts as late rather than unknown."""
_SWEPT_EVERY: Final = 10 * SECOND


class _Held(NamedTuple):
    delivery: AsyncDelivery
    until: int


class Deliveries:
    """Bounded: a client that pulls and never answers costs a few bytes for each message, until a minute after the
    delivery's deadline."""

    def __init__(self, limit: int = HELD, now: Clock | None = None) -> None:
        self._limit = limit
        self._now = now or steady_clock()
        self._held: dict[str, _Held] = {}
        self._sweep_at = 0

    def check_room(self) -> None:
        if len(self._held) >= self._limit:
            self._sweep()
        if len(self._held) >= self._limit:
            raise Problem(
                503, "Too many deliveries", "too many deliveries wait for their answers", headers={"Retry-After": "5"}
            )

    def __len__(self) -> int:
        return len(self._held)

    def add(self, delivery: AsyncDelivery) -> str:
        """Keep a delivery after its messages were sent to the client; of the messages, only their number is kept."""
        if self._now() >= self._sweep_at:
            self._sweep()
        delivery.messages = Messages(bodies=[b""] * len(delivery), name="")
        token = secrets.token_urlsafe(18)
        self._held[token] = _Held(delivery, max(delivery.deadline, self._now()) + _KEPT_AFTER)
        return token

    def get(self, token: str) -> AsyncDelivery:
        held = self._held.get(token)
        if held is None:
            raise NotFound("there is no such delivery; if this answer is late, the messages are back in their queue")
        return held.delivery

    def renewed(self, token: str, seconds: int) -> None:
        held = self._held.get(token)
        if held is not None:
            self._held[token] = _Held(held.delivery, max(held.until, self._now() + seconds + _KEPT_AFTER))

    def drop(self, token: str) -> None:
        self._held.pop(token, None)

    def _sweep(self) -> None:
        now = self._now()
        self._sweep_at = now + _SWEPT_EVERY
        self._held = {token: held for token, held in self._held.items() if held.until > now}
