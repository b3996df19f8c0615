"""Operations on published messages: status, result and cancelling by id; dead letters and clearing by queue."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.bus.broker_api import reprocess_retries
from remuda.bus.publishing import bodies, tracking
from remuda.bus.publishing.checks import Moment
from remuda.bus.publishing.dead_letters import DeadLetter, FilterKwargs, dead_letter, message_filter
from remuda.bus.publishing.system_queues import SYSTEM_QUEUES
from remuda.bus.publishing.tracking import MessageStatus
from remuda.bus.publishing.waiting import clear_waiting, waiting_filter
from remuda.model.durations import SECOND, Duration
from remuda.model.errors import InvalidOption
from remuda.model.options import read_duration
from remuda.model.texts import read_flag, read_optional_text, shown

if TYPE_CHECKING:
    from remuda.bus.bus import Bus


class Operations:
    """The operations of one bus: queue names get its prefix, and its user is named unless another is given."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def status(self, id: str) -> MessageStatus:
        return tracking.status_of(self._bus.broker.message(tracking.check_id(id)))

    def cancel(self, id: str, who: str | None) -> bool:
        return tracking.cancel(self._bus.broker, tracking.check_id(id), self._who(who))

    def result(self, id: str, wanted: Any, queue: str | None, timeout: Duration) -> Any:
        name = None if queue is None else self.queue_name(queue)
        bodies.read_wanted("result", wanted)
        seconds = read_duration("timeout", timeout) / SECOND
        return tracking.result_of(self._bus.broker, tracking.check_id(id), name, wanted, seconds)

    def dead_letters(self, queue: str, limit: int, filters: FilterKwargs) -> list[DeadLetter]:
        name, broker = self.queue_name(queue), self._bus.broker
        parked = broker.parked(name, message_filter(filters), limit)
        return [dead_letter(name, one, broker.message(one.offset)) for one in parked]

    def reprocess(self, queue: str, waiting: bool, who: str | None, filters: FilterKwargs) -> int:
        name, chosen = self.queue_name(queue), message_filter(filters)
        who, waiting = self._who(who), read_flag("waiting", waiting)
        count = self._bus.broker.reprocess(name, chosen, who=who)
        if waiting and filters.get("states") is None:
            count += reprocess_retries(self._bus.broker, name, chosen, who)
        return count

    def forget(self, queue: str, who: str | None, filters: FilterKwargs) -> int:
        return self._bus.broker.forget(self.queue_name(queue), message_filter(filters), who=self._who(who))

    def clear(
        self,
        queue: str,
        topic: str | None,
        reason: str | None,
        since: Moment | None,
        until: Moment | None,
        who: str | None,
    ) -> int:
        name, who = self.queue_name(queue), self._who(who)
        wanted = waiting_filter(topic, reason, since, until)
        if wanted is None:
            return self._bus.broker.clear(name, who=who)
        if self._bus.prefix and wanted.topic is not None:
            wanted = msgspec.structs.replace(wanted, topic=self._bus.prefix + wanted.topic)
        return clear_waiting(self._bus.broker, name, wanted, who)

    def queue_name(self, queue: str) -> str:
        """The queue's name at the broker, with the prefix."""
        if not isinstance(queue, str) or not queue:
            raise InvalidOption(f"queue must be the name of a queue, not {shown(queue)}")
        return queue if queue in SYSTEM_QUEUES or not self._bus.prefix else self._bus.prefix + queue

    def _who(self, named: str | None) -> str:
        """The user to record: the one named, else that of the bus, else that of the operating system."""
        if read_optional_text("who", named):
            return str(named)
        if self._bus.user is not None:
            return self._bus.user
        try:
            return getpass.getuser()
        except (KeyError, OSError):
            return "unknown"
