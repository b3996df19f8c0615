"""Dead letters that an operator forgot. The log still has them for a while, and they can be sent again from there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

import msgspec

from remuda.bus.broker_api import Broker
from remuda.bus.publishing import headers as names
from remuda.log.eventlog import EventLog
from remuda.model.errors import NotFound
from remuda.model.message import CORRELATION, Message
from remuda.model.messages import Messages
from remuda.model.records import FORGOTTEN, QueueChange
from remuda.model.values.number_runs import merged
from remuda.model.values.texts import counted, shown

_BATCH: Final = 1000


def together(changes: list[QueueChange]) -> Iterator[QueueChange]:
    """The changes of a queue, one for each command: letters that were forgotten at once are counted together."""
    for (forgot, _, _), several in groupby(changes, lambda one: (one.action == FORGOTTEN, one.time, one.who)):
        if not forgot:
            yield from several
            continue
        found = list(several)
        yield msgspec.structs.replace(found[0], count=sum(one.count for one in found))


class SentAgain(msgspec.Struct, frozen=True, rename="camel"):
    """How many forgotten messages were sent again, and how many the log no longer has."""

    sent: int
    gone: int = 0

    @property
    def words(self) -> str:
        gone = f"; the log no longer has {counted(self.gone, 'other')}" if self.gone else ""
        return f"{counted(self.sent, 'forgotten message')} sent again{gone}"


def send_again(broker: Broker, queue: str, time: int | None, who: str) -> SentAgain:
    """Publish again what was forgotten at a time, or last, to the queue it was in, each under a new id with the old one
    as its cause."""
    broker.queue(queue)
    log = broker.spectate().log
    found = [one for one in log.changes(queue) if one.action == FORGOTTEN and time in (None, one.time)]
    if not found:
        raise NotFound(f"no dead letters of {shown(queue)} were forgotten{' then' if time else ''}; nothing was sent")
    runs = merged((one.first, one.count) for one in found if one.time == found[-1].time)
    batch: list[Message] = []
    sent = 0
    for message in _read(log, runs):
        headers = {**message.headers, CORRELATION: message.id, names.USER: who}
        fresh = {"id": "", "created": 0, "due": None, "expires": None, "headers": headers}
        batch.append(msgspec.structs.replace(message, **fresh))
        if len(batch) == _BATCH:
            sent += _publish(broker, queue, batch)
            batch = []
    sent += _publish(broker, queue, batch)
    return SentAgain(sent, sum(count for _, count in runs) - sent)


def _read(log: EventLog, runs: list[tuple[int, int]]) -> Iterator[Message]:
    for first, count in runs:
        for record in log.messages(first, first + count):
            yield from (
                message
                for offset, message in enumerate(record.messages, record.first)
                if first <= offset < first + count
            )


def _publish(broker: Broker, queue: str, batch: list[Message]) -> int:
    if batch:
        broker.publish(Messages.of(batch), queue=queue)
    return len(batch)
