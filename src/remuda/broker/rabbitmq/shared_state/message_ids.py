"""Ids of messages, and the numbers that take the place of offsets.

RabbitMQ gives messages no numbers that a publisher could learn. So every process computes a message's number from its
id: a snowflake is its own number, any other string has a hash above all snowflakes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from operator import sub

from remuda.log.streams.stream_numbers import HASHED, reference
from remuda.model.ids import STEP, Snowflakes


class Ids:
    """Snowflakes for all threads of a broker. `worker` may change when a number is claimed again."""

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
"""The number of a message's id."""


def id_of(number: int) -> str | None:
    """The id of a message by its number; None if the number is a hash."""
    return str(number) if 0 <= number < HASHED else None


def runs_of(numbers: Sequence[int], step: int = STEP) -> list[tuple[int, int]]:
    """Numbers as runs: each a first number and a count, a snowflake's step apart."""
    if not numbers:
        return []
    breaks = [at for at, gap in enumerate(map(sub, numbers[1:], numbers), 1) if gap != step]
    return [(numbers[start], stop - start) for start, stop in pairwise((0, *breaks, len(numbers)))]
