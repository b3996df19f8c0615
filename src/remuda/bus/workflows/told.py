"""Telling a run of the end of a message that it waits for: by the bus that handled it, or by the broker if none did."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from remuda.bus.publishing import headers as names
from remuda.bus.workflows.history import ERROR, note_message
from remuda.model.errors import Duplicate, InvalidOption, NotFound, NotHeld
from remuda.model.message import Message
from remuda.model.notes import Note

if TYPE_CHECKING:
    from remuda.bus.broker_api import Broker

PREFIX: Final = "remuda-told."
_LONGEST: Final = 100


def topic_for(place: Note, number: int) -> str:
    """The topic under which this run is told of an end: callback and failure callback of the message."""
    queue = place.queue.encode("utf-8", "surrogatepass")
    if len(queue) > _LONGEST:
        raise InvalidOption(f"the queue of a workflow that waits for messages needs a name of at most {_LONGEST} bytes")
    return f"{PREFIX}{queue.hex()}.{place.offset}.{number}"


def _place(topic: str) -> Note:
    queue, offset, number = topic.removeprefix(PREFIX).split(".")
    return Note(bytes.fromhex(queue).decode("utf-8", "surrogatepass"), int(offset), int(number))


def tell(broker: Broker, topic: str, body: bytes, mime_type: str, headers: Mapping[str, str]) -> None:
    """Note the end on the run. One that is over, or knows it already, needs to hear nothing."""
    try:
        place = _place(topic)
    except ValueError:
        return
    more = {}
    if names.EXCEPTION in headers:
        body, mime_type = headers[names.EXCEPTION].encode("utf-8", "backslashreplace"), "text/plain"
        more[ERROR] = headers.get(names.ERROR_TYPE, "Exception")
    row = note_message(place, "member", headers.get(names.GROUP, ""), body, mime_type, more)
    with contextlib.suppress(Duplicate, NotHeld, NotFound):
        broker.publish(row_of(row), note=place)


def row_of(row: Message) -> list[Message]:
    return [row]
