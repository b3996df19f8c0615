"""The bus's own queues: messages without a subscriber, replies to publish again, kept results."""

from __future__ import annotations

from typing import Final

RESULTS: Final = "remuda.results"
"""The queue of kept results. They are settled at once, and stay in the log as long as any message that succeeded."""
UNROUTED: Final = "remuda.unrouted"
"""Holds messages that have no subscriber (B13) or came from another system without their headers (M3).
Reprocessing the queue routes them again."""
CALLBACKS: Final = "remuda.callbacks"
"""Holds replies that could not be published at first (B9)."""
SYSTEM_QUEUES: Final = (UNROUTED, CALLBACKS, RESULTS)
TOLD: Final = "remuda.told"
"""What runs of workflows are told. Like the queue of chains and groups it carries the prefix of its bus."""
CANVAS: Final = "remuda.canvas"
"""The workflow of chains and groups."""


def is_own(name: str) -> bool:
    """Whether a queue is the bus's own: not an application's, and not meant by a name with *."""
    return name in SYSTEM_QUEUES or name.endswith((TOLD, CANVAS))
