"""Runs of schedules, each once over all processes (B19): RabbitMQ does not refuse a second message with the same id, so
the processes agree in the definitions, whose order they share, on the copy that may run."""

from __future__ import annotations

from collections.abc import Callable

from remuda.broker.rabbitmq.shared_state.definitions_journal import Definitions
from remuda.broker.rabbitmq.shared_state.queue_definitions import BEGAN, PLANNED, change


class ScheduleRuns:
    """Implements `RunLedger`."""

    def __init__(self, definitions: Definitions, clock: Callable[[], int]) -> None:
        self._definitions = definitions
        self._clock = clock

    def is_planned(self, schedule: str, due: int) -> bool:
        return due in self._definitions.catalog.planned.get(schedule, ())

    def plan(self, schedule: str, due: int) -> None:
        self._definitions.propose(change(PLANNED, schedule, self._clock(), due=due))

    def planned(self) -> dict[str, int]:
        planned = self._definitions.catalog.planned
        return {schedule: max(dues) for schedule, dues in sorted(planned.items()) if dues}

    def begin(self, schedule: str, due: int, copy: str) -> bool:
        return self._definitions.propose(change(BEGAN, schedule, self._clock(), due=due, copy=copy))
