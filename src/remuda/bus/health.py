"""The health of a bus, for monitoring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from remuda.bus.broker_api import Broker, Health
from remuda.bus.companions import Companion


class BusHealth(TypedDict):
    """The result of `Bus.health`."""

    live: bool
    """Whether it can continue without being opened again."""
    ready: bool
    """Whether it takes messages and handlers work on them."""
    problems: NotRequired[dict[str, str]]
    """Each part that does not work, with the reason."""


def bus_health(broker: Broker, running: bool, trouble: str | None, companions: Sequence[Companion] = ()) -> BusHealth:
    """`running` says whether handlers run, `trouble` what keeps them from working."""
    asked = _ask(broker)
    problems = asked.problems if trouble is None else {**asked.problems, "handlers": trouble}
    troubles = {one.role: one.trouble for one in companions if one.trouble is not None}
    problems = {**problems, **troubles}
    ready = asked.ready and running and trouble is None and not troubles
    health: BusHealth = {"live": asked.live, "ready": ready}
    if problems:
        health["problems"] = problems
    return health


def _ask(broker: Broker) -> Health:
    """The broker's own report; one that makes none is healthy as long as it answers."""
    report = getattr(broker, "health", None)
    if report is None:
        broker.queues()
        return Health(True, True)
    health: Health = report()
    return health
