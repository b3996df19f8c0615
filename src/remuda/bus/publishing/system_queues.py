"""The bus's own queues: messages nobody subscribed to, replies that could not be published at first, kept results."""

from __future__ import annotations

from typing import Final

from remuda.bus.publishing.results import RESULTS

UNROUTED: Final = "remuda.unrouted"
"""Where messages are kept that have no subscriber (B13) or came from elsewhere without their headers (M3).
Reprocessing the queue routes them anew."""
CALLBACKS: Final = "remuda.callbacks"
"""Where replies wait that could not be published at first (B9)."""
SYSTEM_QUEUES: Final = (UNROUTED, CALLBACKS, RESULTS)
