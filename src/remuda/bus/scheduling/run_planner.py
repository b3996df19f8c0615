"""Plans the runs of schedules, and decides about each run as it begins."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec

from remuda.bus.broker_api import Broker, Outcome, RunLedger
from remuda.bus.handlers.result import DONE, CallResult
from remuda.bus.scheduling.schedule import COPY, LAST, NAME, RULE, Schedule
from remuda.bus.settings.settings import QueueSettings
from remuda.model.errors import BrokerClosed, Duplicate, NotFound, RemudaError
from remuda.model.life import LIVE
from remuda.model.message import Message
from remuda.model.values.durations import SECOND

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

_log = logging.getLogger("remuda.bus")
NEVER: Final = 1 << 62
_PATIENCE: Final = 5 * SECOND
"""How long to wait before looking again for a run that is late, or whose queue takes nothing."""
_LONGEST: Final = 3600.0


class Schedules:
    """All schedules of one bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.by_topic: dict[str, Schedule] = {}
        self.next_look = 0
        """When the next run of some schedule should have been planned."""
        self._newest: dict[str, int] = {}
        """The newest run of each schedule that is planned, as far as this process knows."""
        self._owed: dict[str, int] = {}
        """Runs that could not be planned yet."""

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

    def pause(self) -> float:
        """Seconds until the next look."""
        return min(max(self.next_look - self._bus.now(), 0) / SECOND, _LONGEST)

    def plan_all(self) -> int:
        """Plan the next run of each schedule that has none. Returns when to look again.

        A schedule outlives its runs: one that was cancelled or cleared is left out, and the next comes in its time. If
        a queue takes nothing at present, its run is planned when it does.
        """
        now = self._bus.now()
        looks = [self._look_after(topic, schedule, now) for topic, schedule in self.by_topic.items()]
        self.next_look = min(looks, default=NEVER)
        return self.next_look

    def begin(self, message: Message) -> CallResult | None:
        """Plan the run after this one, which begins now. The result for a run that must not begin."""
        schedule = self.by_topic.get(message.name)
        if schedule is None or NAME not in message.headers:
            return None
        now, due = self._bus.now(), message.due or message.created
        ledger = run_ledger(self._bus.broker)
        if ledger is not None and not ledger.begin(schedule.name, due, message.headers.get(COPY, "")):
            _log.debug("%s: the run %s has begun elsewhere", schedule.name, message.id)
            return DONE
        self._plan(message.name, schedule, schedule.next_after(due, now), due)
        why = None
        if message.headers.get(RULE) != str(schedule.rule):
            why = "it was planned before the schedule was changed"
        elif schedule.is_missed(due, now):
            why = "it comes too late"
        if why is None or self._began_before(message.id, schedule.queue):
            return None
        return CallResult(Outcome.NOT_INTERESTED, f"skipped: {why}", error_type="Skipped")

    def _look_after(self, topic: str, schedule: Schedule, now: int) -> int:
        """Plan a schedule's next run unless it has one. Returns when to look again."""
        newest = self._newest.get(topic)
        owed = self._owed.get(topic)
        if owed is None and newest is not None:
            if newest > now:
                return newest
            if self._waits(schedule.run_id(newest)):  # as it begins, it plans the next
                return now + _PATIENCE
        due = owed or schedule.rule.next_after(now)
        assert due is not None
        return due if self._plan(topic, schedule, due, None) else now + _PATIENCE

    def _waits(self, run: str) -> bool:
        """Whether a run waits or is being handled, as far as that can be known."""
        try:
            return any(view.state in LIVE for view in self._bus.broker.message(run).queues)
        except NotFound:
            return False
        except RemudaError:
            return True

    def _began_before(self, run: str, queue: str) -> bool:
        """Whether a run that begins now began earlier: then it comes again, by a retry or an operator."""
        try:
            views = self._bus.broker.message(run).queues
        except RemudaError:
            return False
        return any(view.queue == queue and len(view.consumed_by) > 1 for view in views)

    def _plan(self, topic: str, schedule: Schedule, due: int, last: int | None) -> bool:
        """Publish a run, once over all processes. False if its queue takes nothing now: it is tried again."""
        self._newest[topic] = max(due, self._newest.get(topic, 0))
        try:
            self._publish(topic, schedule, due, last)
        except BrokerClosed:
            raise
        except RemudaError as error:
            if self._owed.get(topic) != due:
                _log.warning("%s: the next run cannot be planned yet: %s", schedule.name, error)
            self._owed[topic] = due
            self.next_look = min(self.next_look, self._bus.now() + _PATIENCE)
            return False
        self._owed.pop(topic, None)
        return True

    def _publish(self, topic: str, schedule: Schedule, due: int, last: int | None) -> None:
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
        try:
            broker.publish(_run(topic, run, headers, due), queue=schedule.queue, once="ever")
        except Duplicate:
            _log.debug("%s: the run %s is already planned", schedule.name, run)


class Planner:
    """Looks after the schedules while the bus runs: wakes up when the next run should have been planned."""

    role = "schedules"
    trouble: str | None = None

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._schedules.by_topic:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="remuda-planner", daemon=True)
            self._thread.start()

    def stop(self, grace: float = 10.0) -> None:
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(grace)

    def is_idle(self) -> bool:
        return True

    def pump(self) -> int:
        if self._schedules.by_topic:
            self._schedules.plan_all()
        return 0

    def _run(self) -> None:
        while not self._stopping.wait(self._schedules.pause()):
            try:
                self._schedules.plan_all()
            except BrokerClosed:
                return
            except RemudaError as error:
                _log.warning("schedules cannot be looked after at present: %s", error)
                if self._stopping.wait(_PATIENCE / SECOND):
                    return


def run_ledger(broker: Broker) -> RunLedger | None:
    """The record of planned and begun runs, on a broker whose queues cannot have unique ids."""
    found: RunLedger | None = getattr(broker, "runs", None)
    return found


def _run(topic: str, run: str, headers: dict[str, str], due: int) -> Message:
    return Message(topic, b"null", id=run, mime_type="application/json", headers=headers, due=due)
