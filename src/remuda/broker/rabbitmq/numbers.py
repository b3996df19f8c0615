"""Ids of messages, and the numbers that stand for them where the port speaks of offsets.

RabbitMQ numbers nothing that a publisher would learn. So a message's number is told from its id, by every process
alike: a snowflake is its own number, any other text has a hash beyond all snowflakes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

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
    if len(numbers) > 1 and numbers[-1] - numbers[0] == (len(numbers) - 1) * step:
        alone = range(numbers[0], numbers[-1] + 1, step)
        if list(alone) == numbers:
            return [(numbers[0], len(numbers))]
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][0] + runs[-1][1] * step:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs
