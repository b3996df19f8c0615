"""Planning the runs of schedules, and deciding about each run as it begins."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from remuda.bus.scheduling.schedule import LAST, NAME, RULE, Schedule
from remuda.model.errors import Duplicate, NotFound, PartlyRefused
from remuda.model.message import Message

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

_log = logging.getLogger("remuda.bus")


class Schedules:
    """All schedules of one bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.by_topic: dict[str, Schedule] = {}

    def add(self, schedule: Schedule, topic: str) -> None:
        self.by_topic[topic] = schedule

    def plan_all(self) -> None:
        """Make sure that each schedule has its next run."""
        now = self._bus.now()
        for topic, schedule in self.by_topic.items():
            due = schedule.rule.next_after(now)
            assert due is not None
            self._plan(topic, schedule, due, None)

    def begin(self, message: Message) -> bool:
        """A run begins: plan the next one. False if this one is to be left out."""
        schedule = self.by_topic.get(message.name)
        if schedule is None or NAME not in message.headers:
            return True
        now, due = self._bus.now(), message.due or message.created
        self._plan(message.name, schedule, schedule.next_after(due, now), due)
        if message.headers.get(RULE) != str(schedule.rule):
            _log.info("%s: the run that was due under its former rule is left out", schedule.name)
            return False
        if schedule.is_missed(due, now):
            _log.warning("%s: a run was missed and is left out", schedule.name)
            return False
        return True

    def _plan(self, topic: str, schedule: Schedule, due: int, last: int | None) -> None:
        run = schedule.run_id(due)
        headers = {NAME: schedule.name, RULE: str(schedule.rule)}
        if last is not None:
            headers[LAST] = str(last)
        message = Message(topic, b"null", id=run, mime_type="application/json", headers=headers, due=due)
        broker = self._bus.broker
        try:
            broker.message(run)
        except NotFound:
            try:
                broker.publish(message, queue=schedule.queue)
            except (Duplicate, PartlyRefused):
                _log.debug("%s: the run %s is planned already", schedule.name, run)
