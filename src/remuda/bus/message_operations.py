"""Operations on published messages: status, result and cancelling by id; dead letters and clearing by queue."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from remuda.bus.errors import ResultNotReady
from remuda.bus.publishing import bodies, tracking
from remuda.bus.publishing.dead_letters import DeadLetter, FilterKwargs, dead_letter, message_filter
from remuda.bus.publishing.message_checks import Moment
from remuda.bus.publishing.tracking import MessageStatus
from remuda.bus.publishing.waiting import clear_waiting, waiting_filter
from remuda.model.errors import InvalidOption
from remuda.model.life import PARKED
from remuda.model.queues.system_queues import SYSTEM_QUEUES
from remuda.model.values.durations import SECOND, Duration
from remuda.model.values.option_reading import read_duration
from remuda.model.values.texts import read_flag, read_optional_text, shown

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

IfRunning = Literal["interrupt", "leave"]
"""What becomes of a handler whose message is cancelled."""


class Operations:
    """The operations of one bus: queue names get its prefix, and its user is named unless another is given."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def status(self, id: str) -> MessageStatus:
        broker = self._bus.broker
        return tracking.status_of(broker.message(tracking.check_id(id)), broker)

    def cancel(self, id: str, who: str | None, running: IfRunning) -> int:
        if running not in get_args(IfRunning):
            raise InvalidOption(f"running must be 'interrupt' or 'leave', not {shown(running)}")
        interrupt = self._bus._running.cancel if running == "interrupt" else None
        return tracking.cancel(self._bus.broker, tracking.check_id(id), self._who(who), interrupt)

    def result(self, id: str, wanted: Any, queue: str | None, timeout: Duration) -> Any:
        name = None if queue is None else self.queue_name(queue)
        bodies.read_wanted("result", wanted)
        seconds = read_duration("timeout", timeout) / SECOND
        return tracking.result_of(self._bus.broker, tracking.check_id(id), name, wanted, seconds)

    async def result_async(self, id: str, wanted: Any, queue: str | None, timeout: Duration) -> Any:
        import asyncio

        end = time.monotonic() + read_duration("timeout", timeout) / SECOND
        while True:
            try:
                return await asyncio.to_thread(self.result, id, wanted, queue, 0)
            except ResultNotReady:
                if time.monotonic() >= end:
                    raise
            await asyncio.sleep(tracking.POLL)

    def results(self, ids: Iterable[str], wanted: Any, timeout: Duration) -> Iterator[tuple[str, Any]]:
        bodies.read_wanted("result", wanted)
        seconds = read_duration("timeout", timeout) / SECOND
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise InvalidOption(f"ids must be a list of ids, not {shown(ids)}")
        chosen = [tracking.check_id(id) for id in ids]
        return tracking.results_of(self._bus.broker, chosen, wanted, seconds)

    def dead_letters(self, queue: str, limit: int, filters: FilterKwargs) -> list[DeadLetter]:
        name, broker = self.queue_name(queue), self._bus.broker
        parked = broker.parked(name, message_filter(filters), limit)
        return [dead_letter(name, one, broker.message(one.offset)) for one in parked]

    def reprocess(self, queue: str, waiting: bool, who: str | None, filters: FilterKwargs) -> int:
        chosen = message_filter(filters)
        if not read_flag("waiting", waiting) and chosen.states is None:
            chosen = msgspec.structs.replace(chosen, states=PARKED)
        return self._bus.broker.reprocess(self.queue_name(queue), chosen, who=self._who(who))

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
