"""How long to measure."""

from __future__ import annotations

import msgspec


class Effort(msgspec.Struct, frozen=True):
    """More rounds make steadier medians, longer ones steadier rounds."""

    rounds: int = 3
    seconds: float = 0.3
    """About how long one contender's round takes."""
    messages: int = 10_000_000
    """How many the Spark rows go over."""
