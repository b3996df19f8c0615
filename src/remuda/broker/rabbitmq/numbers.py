"""Ids of messages, and the numbers that stand for them where the port speaks of offsets.

RabbitMQ numbers nothing that a publisher would learn. So a message's number is told from its id, by every process
alike: a snowflake is its own number, any other text has a hash beyond all snowflakes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from operator import sub

from remuda.log.streams.numbers import HASHED, reference
from remuda.model.ids import STEP, Snowflakes


class Ids:
    """Snowflakes for all threads of a broker. `worker` may be set anew when it was claimed again."""

    def __init__(self, worker: int) -> None:
        self._snowflakes = Snowflakes(worker)
        self._guard = threading.Lock()

    @property
    def worker(self) -> int:
        return self._snowflakes.worker

    @worker.setter
    def worker(self, worker: int) -> None:
        with self._guard:
            last = self._snowflakes.last
            self._snowflakes = Snowflakes(worker)
            self._snowflakes.resume(last)

    def take(self, count: int, now: int) -> range:
        with self._guard:
            return self._snowflakes.take(count, now)


number_of = reference
"""The number that stands for a message's id."""


def id_of(number: int) -> str | None:
    """The id of a message by its number, where the number tells it."""
    return str(number) if 0 <= number < HASHED else None


def runs_of(numbers: Sequence[int], step: int = STEP) -> list[tuple[int, int]]:
    """Neighbours together: each run is a first number and how many there are, a snowflake's step apart."""
    if not numbers:
        return []
    breaks = [at for at, gap in enumerate(map(sub, numbers[1:], numbers), 1) if gap != step]
    return [(numbers[start], stop - start) for start, stop in pairwise((0, *breaks, len(numbers)))]
