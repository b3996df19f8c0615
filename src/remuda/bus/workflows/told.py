"""Telling a run of the end of a message that it waits for: by the bus that handled it, or by the broker if none did."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from remuda.bus.publishing import headers as names
from remuda.bus.workflows.history import ERROR, note_message
from remuda.model.errors import Duplicate, InvalidOption, NotFound, NotHeld
from remuda.model.life import LIVE, PARKED
from remuda.model.notes import Note
from remuda.model.queues.end_reports import TOLD_TOPIC

if TYPE_CHECKING:
    from remuda.bus.broker_api import Broker

PREFIX: Final = TOLD_TOPIC
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
    note_on(broker, place, "member", headers.get(names.GROUP, ""), body, mime_type, more)


def note_on(
    broker: Broker, place: Note, kind: str, name: str, body: bytes, mime_type: str, more: Mapping[str, str]
) -> None:
    """Note something on a run that another holds, also if it was moved to another queue meanwhile."""
    for queue in _queues(broker, place):
        here = Note(queue, place.offset, place.number)
        try:
            broker.publish([note_message(here, kind, name, body, mime_type, more)], note=here)
        except (NotHeld, NotFound):
            continue
        except Duplicate:
            pass
        return


def _queues(broker: Broker, place: Note) -> Iterator[str]:
    """Where the run was, and then where it is."""
    yield place.queue
    with contextlib.suppress(NotFound):
        for view in broker.message(place.offset).queues:
            if view.queue != place.queue and (view.state in LIVE or view.state in PARKED) and view.moved_to is None:
                yield view.queue
