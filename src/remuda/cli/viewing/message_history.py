"""The history of one message, read from the log."""

from __future__ import annotations

from typing import NamedTuple

from remuda.log.eventlog import EventLog
from remuda.log.sealed.queue_changes import forgotten
from remuda.model.document import Document, document
from remuda.model.errors import NotFound
from remuda.model.records import Event, QueueChange


class MessageHistory(NamedTuple):
    """A message with everything that happened to it."""

    document: Document
    routed: tuple[str, ...]
    events: list[tuple[int, Event]]
    forgotten: list[QueueChange]
    """When and by whom it was forgotten as a dead letter, if it was."""


def message_history(log: EventLog, message: str | int) -> MessageHistory:
    """The history of a message, by its id or its offset."""
    offset = message if isinstance(message, int) else log.offset_of(message)
    found = None if offset is None else log.message(offset)
    if offset is None or found is None:
        raise NotFound(f"there is no message {message!r}; it may have been collected after its retention")
    events = log.events_of(offset)
    return MessageHistory(document(offset, *found, events), found[1], events, forgotten(log, offset))
