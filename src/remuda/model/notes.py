"""Notes on messages: what is recorded about one while it lives, such as the results of its steps (G2).

A note is a row in the log like any message, in no queue. The message it is about keeps its notes' places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from remuda.model.errors import InvalidMessage
from remuda.model.messages import Messages
from remuda.model.values.texts import read_count, read_name, shown

NOTE: Final = "remuda.note"
"""The name of every note; nothing else may be published under it."""
QUEUE: Final = "remuda-of-queue"
OFFSET: Final = "remuda-of"
NUMBER: Final = "remuda-number"
_HIGHEST: Final = 1 << 63


class Note(msgspec.Struct, frozen=True, array_like=True):
    """The last row of a published batch is a note on a message; it is stored with the whole batch, or not at all."""

    queue: str
    offset: int
    number: int
    """No message has two notes of the same number: the second is refused as a `Duplicate`, with its whole batch."""
    lease: int | None = None
    """The delivery of the message to its consumer, whose note this is; None for others, which wake the message."""


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """A note as it stands in the log."""

    number: int
    offset: int
    created: int
    headers: dict[str, str]
    body: bytes
    mime_type: str


def noted_in(messages: Messages, places: Iterable[int]) -> Iterator[Noted]:
    """The notes at these offsets, from the messages of the log there."""
    for row, offset in enumerate(places):
        one = messages[row]
        headers = dict(one.headers)
        number, created = int(headers.get(NUMBER, 0)), one.created or 0
        yield Noted(number, offset, created, headers, one.body, one.mime_type)


def note_headers(note: Note) -> dict[str, str]:
    """The headers that say what a note is about, for whoever reads the log."""
    return {QUEUE: note.queue, OFFSET: str(note.offset), NUMBER: str(note.number)}


def note_of(headers: Mapping[str, str]) -> Note | None:
    """What a note in the log is about."""
    try:
        return Note(headers[QUEUE], int(headers[OFFSET]), int(headers[NUMBER]))
    except (KeyError, ValueError):
        return None


def read_note(value: Note) -> Note:
    """A note's place, checked."""
    if not isinstance(value, Note):
        raise InvalidMessage(f"note must be a Note, not {shown(value)}; nothing was stored")
    if value.lease is not None:
        read_count("lease", value.lease, 0)
    queue = read_name("queue", value.queue)
    for name, number in (("offset", value.offset), ("number", value.number)):
        read_count(name, number, 0)
        if number >= _HIGHEST:
            raise InvalidMessage(f"{name} must be below 2**63, not {number}; nothing was stored")
    return Note(queue, value.offset, value.number, value.lease)
