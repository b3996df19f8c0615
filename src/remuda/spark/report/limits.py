"""How much a report shows at most."""

from __future__ import annotations

from typing import Final

MOST_QUEUES: Final = 5000
MOST_REASONS: Final = 500
REASONS_PER_QUEUE: Final = 10
MOST_ATTEMPTS: Final = 100
HERE: Final = 2_000_000
"""Up to so many messages, and as many events, are counted in this process; more than that Spark counts faster."""
