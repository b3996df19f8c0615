"""The themes of the suite, and the test classes that a broker's own file has of them."""

from __future__ import annotations

from typing import Final

from tests.conformance import (
    asyncio_face,
    delivery,
    events,
    flow,
    life,
    limits,
    notes,
    publishing,
    queues,
    settling,
    topics,
    verbs,
)

THEMES: Final[tuple[type[object], ...]] = (
    publishing.Publishing,
    queues.Options,
    queues.Creation,
    queues.Statuses,
    queues.Consumers,
    queues.AutoDestroy,
    queues.Closing,
    delivery.Push,
    delivery.RoundRobin,
    delivery.Pull,
    delivery.Order,
    delivery.Pace,
    settling.Timeouts,
    settling.PutBack,
    settling.Answers,
    settling.Commits,
    settling.Confirmations,
    limits.Expiry,
    limits.MessageLimit,
    limits.SizeLimit,
    limits.UniqueIds,
    flow.Flow,
    topics.Topics,
    topics.Channels,
    topics.Compacter,
    topics.Routers,
    life.States,
    life.Operators,
    verbs.Verbs,
    life.Documents,
    life.Persistence,
    life.Spectators,
    notes.Notes,
    events.Events,
    asyncio_face.AsyncFace,
)


def suite(module: str) -> dict[str, type[object]]:
    """A class for every theme, by name, as if `module` had written each down: `globals().update(suite(__name__))`.

    The module says with its fixture `backend` which broker they test.
    """
    return {f"Test{theme.__name__}": _in(module, theme) for theme in THEMES}


def _in(module: str, theme: type[object]) -> type[object]:
    return type(f"Test{theme.__name__}", (theme,), {"__module__": module, "__doc__": theme.__doc__})
