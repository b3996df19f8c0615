"""Plans the runs of schedules, and decides about each run as it begins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from remuda.bus.broker_api import Broker, RunLedger
from remuda.bus.scheduling.schedule import COPY, LAST, NAME, RULE, Schedule
from remuda.bus.settings.settings import QueueSettings
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

    def fitted(self, broker: Broker, chosen: Mapping[str, QueueSettings]) -> Mapping[str, QueueSettings]:
        """The queue settings to declare. With a run ledger, the queues of schedules need no unique ids."""
        if run_ledger(broker) is None:
            return chosen
        mine = {schedule.queue for schedule in self.by_topic.values()}
        return {
            queue: msgspec.structs.replace(settings, unique=False) if queue in mine else settings
            for queue, settings in chosen.items()
        }

    def plan_all(self) -> None:
        """Publish the next run of each schedule, unless it is planned already."""
        now = self._bus.now()
        for topic, schedule in self.by_topic.items():
            due = schedule.rule.next_after(now)
            assert due is not None
            self._plan(topic, schedule, due, None)

    def begin(self, message: Message) -> bool:
        """Plan the run after this one, which begins now. False if this one must not run."""
        schedule = self.by_topic.get(message.name)
        if schedule is None or NAME not in message.headers:
            return True
        now, due = self._bus.now(), message.due or message.created
        ledger = run_ledger(self._bus.broker)
        if ledger is not None and not ledger.begin(schedule.name, due, message.headers.get(COPY, "")):
            _log.debug("%s: the run %s has begun elsewhere", schedule.name, message.id)
            return False
        self._plan(message.name, schedule, schedule.next_after(due, now), due)
        if message.headers.get(RULE) != str(schedule.rule):
            _log.info("%s: skipping a run that was planned before the schedule was changed", schedule.name)
            return False
        if schedule.is_missed(due, now):
            _log.warning("%s: skipping a run that comes too late", schedule.name)
            return False
        return True

    def _plan(self, topic: str, schedule: Schedule, due: int, last: int | None) -> None:
        run = schedule.run_id(due)
        headers = {NAME: schedule.name, RULE: str(schedule.rule)}
        if last is not None:
            headers[LAST] = str(last)
        broker = self._bus.broker
        ledger = run_ledger(broker)
        if ledger is not None:
            if not ledger.is_planned(schedule.name, due):
                headers[COPY] = uuid4().hex
                broker.publish(_run(topic, run, headers, due), queue=schedule.queue)
                # Only after publishing: a run that was noted but not published would be lost. Of two copies, one runs.
                ledger.plan(schedule.name, due)
            return
        message = _run(topic, run, headers, due)
        try:
            broker.message(run)
        except NotFound:
            try:
                broker.publish(message, queue=schedule.queue)
            except (Duplicate, PartlyRefused):
                _log.debug("%s: the run %s is already planned", schedule.name, run)


def run_ledger(broker: Broker) -> RunLedger | None:
    """The record of planned and begun runs, on a broker whose queues cannot have unique ids."""
    found: RunLedger | None = getattr(broker, "runs", None)
    return found


def _run(topic: str, run: str, headers: dict[str, str], due: int) -> Message:
    return Message(topic, b"null", id=run, mime_type="application/json", headers=headers, due=due)
