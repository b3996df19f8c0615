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
