"""How a bus is, for those who watch over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from remuda.bus.broker_api import Broker, Health
from remuda.bus.companions import Companion


class BusHealth(TypedDict):
    """What `Bus.health` gives."""

    live: bool
    """Whether it can go on without being opened again."""
    ready: bool
    """Whether it takes messages and handlers work on them."""
    problems: NotRequired[dict[str, str]]
    """What does not work, by part, with the reason."""


def bus_health(broker: Broker, running: bool, trouble: str | None, companions: Sequence[Companion] = ()) -> BusHealth:
    """`running` is whether handlers are, `trouble` what keeps them from their work."""
    asked = _ask(broker)
    problems = asked.problems if trouble is None else {**asked.problems, "handlers": trouble}
    waiting = next((one.trouble for one in companions if one.trouble is not None), None)
    if waiting is not None:
        problems = {**problems, "relay": waiting}
    ready = asked.ready and running and trouble is None and waiting is None
    health: BusHealth = {"live": asked.live, "ready": ready}
    if problems:
        health["problems"] = problems
    return health


def _ask(broker: Broker) -> Health:
    """One that does not tell is well as long as it answers."""
    tell = getattr(broker, "health", None)
    if tell is None:
        broker.queues()
        return Health(True, True)
    told: Health = tell()
    return told
