"""Delays: a fixed set of queues, each with one time to live, from which RabbitMQ passes messages on when they expire.

In such a queue all messages wait equally long, so none blocks another, and no message needs a queue of its own. A delay
between two levels is waited for in steps: a message goes through the longest level that fits, comes to its queue, and
its consumer there sends it back for the rest. Without a consumer, it waits in the queue it is meant for.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

LEVELS: Final = (
    25, 50, 100, 200, 500,
    *(count * _SECOND for count in (1, 2, 5, 10, 20, 30)),
    *(count * _MINUTE for count in (1, 2, 4, 10, 20, 30)),
    *(count * _HOUR for count in (1, 2, 4, 8, 12)),
    *(count * _DAY for count in (1, 2, 4, 7, 14, 28)),
)  # fmt: skip
"""Milliseconds."""


def level_for(delay: int) -> int:
    """The longest level within a delay of this many microseconds; the shortest if there is none."""
    at = bisect_right(LEVELS, delay // 1000)
    return LEVELS[max(at - 1, 0)]


def exchange_of(level: int) -> str:
    """The name of a level's fanout exchange, and of its queue. The routing key names the queue a message goes on to."""
    return f"remuda.delay.{level}"


def level_arguments(level: int, version: tuple[int, ...]) -> dict[str, Any]:
    """The arguments of a level's queue. At-least-once: a message leaves only when its next queue has confirmed it."""
    arguments: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-message-ttl": level,
        "x-dead-letter-exchange": "",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    if version >= (4,):
        arguments["x-delivery-limit"] = -1
    return arguments
