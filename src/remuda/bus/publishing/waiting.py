"""Clearing some of the messages that wait in a queue (B15)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from remuda.bus.broker_api import Broker, EmbeddedBroker
from remuda.bus.publishing.message_checks import Moment, moment
from remuda.model.errors import InvalidOption, NotAllowed
from remuda.model.life import CLEARING
from remuda.model.messages import cell
from remuda.model.values.extras import has_arrow
from remuda.model.values.number_runs import merged
from remuda.model.values.texts import shown

_FEW: Final = 200
"""Up to this many messages are looked up one by one. For more, the log is read once, from the first of them on."""


class WaitingFilter(msgspec.Struct, frozen=True):
    """Which messages: by topic, by part of the reason of their last failure, by when they were published."""

    topic: str | None = None
    reason: str | None = None
    since: int | None = None
    until: int | None = None

    def fits(self, topic: str, created: int) -> bool:
        return (
            (self.topic is None or topic == self.topic)
            and (self.since is None or created >= self.since)
            and (self.until is None or created < self.until)
        )

    def fits_reason(self, reason: str | None) -> bool:
        return self.reason is None or self.reason in (reason or "")


def waiting_filter(
    topic: str | None, reason: str | None, since: Moment | None, until: Moment | None
) -> WaitingFilter | None:
    """The filter from the arguments of `clear`; None if none is given."""
    for name, text in (("topic", topic), ("reason", reason)):
        if text is not None and not isinstance(text, str):
            raise InvalidOption(f"{name} must be a string, not {shown(text)}")
    if topic is None and reason is None and since is None and until is None:
        return None
    return WaitingFilter(
        topic,
        reason,
        None if since is None else moment("since", since),
        None if until is None else moment("until", until),
    )


def clear_waiting(broker: Broker, queue: str, wanted: WaitingFilter, who: str | None) -> int:
    """End the waiting and delayed messages of a queue that match the filter."""
    offsets = [offset for first, count in broker.waiting(queue) for offset in range(first, first + count)]
    chosen = merged((offset, 1) for offset in _chosen(broker, queue, offsets, wanted))
    return broker.clear(queue, offsets=chosen, who=who) if chosen else 0


def _chosen(broker: Broker, queue: str, offsets: list[int], wanted: WaitingFilter) -> list[int]:
    if len(offsets) > _FEW and isinstance(broker, EmbeddedBroker) and has_arrow():
        try:
            return _by_scanning(broker, queue, offsets, wanted)
        except NotAllowed:
            pass  # a user who may not read the whole log may still look up single messages
    return list(_one_by_one(broker, queue, offsets, wanted))


def _one_by_one(broker: Broker, queue: str, offsets: list[int], wanted: WaitingFilter) -> Iterator[int]:
    for offset in offsets:
        document = broker.message(offset)
        reasons = [view.reason for view in document.queues if view.queue == queue]
        if wanted.fits(document.message.name, document.created) and any(map(wanted.fits_reason, reasons)):
            yield offset


def _by_scanning(broker: EmbeddedBroker, queue: str, offsets: list[int], wanted: WaitingFilter) -> list[int]:
    """Like `_one_by_one`, in one pass over the log: single look-ups would read the same parts again and again."""
    spectator = broker.spectate()
    left, last = set(offsets), max(offsets)
    found: dict[int, str | None] = {}
    oldest: int | None = None
    for record in spectator.messages(min(offsets)):
        if record.first > last:
            break
        for row in range(len(record)):
            offset = record.first + row
            if offset in left and wanted.fits(cell(record.messages.name, row), record.created):
                found[offset] = None
                oldest = record.created if oldest is None else min(oldest, record.created)
    if wanted.reason is None or oldest is None:
        return list(found)
    for events in spectator.events(since=oldest):
        for event in events.rows:
            if event.queue == queue:
                for offset in range(event.first, event.first + event.count):
                    if offset in found:
                        found[offset] = event.reason or (None if event.state in CLEARING else found[offset])
    return [offset for offset, reason in found.items() if wanted.fits_reason(reason)]
