"""How much a report shows at most."""

from __future__ import annotations

from typing import Final

MOST_QUEUES: Final = 5000
MOST_REASONS: Final = 500
REASONS_PER_QUEUE: Final = 10
MOST_ATTEMPTS: Final = 100
