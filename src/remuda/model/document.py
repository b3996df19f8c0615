"""A whole message as one document (M7), built from its record and its events."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from remuda.model.life import LIVE, Consumption, Life
from remuda.model.message import Message
from remuda.model.records import Event
from remuda.model.state import State


class QueueView(msgspec.Struct, frozen=True, rename="camel"):
    """The message's copy in one queue."""

    queue: str
    state: State
    queued: bool
    delivered: bool
    success: bool
    archived: bool
    modified: int
    attempts: int
    confirmed_count: int
    consumed_by: tuple[Consumption, ...]
    consumed: int | None = None
    processed: int | None = None
    completed: int | None = None
    failed: int | None = None
    reason: str | None = None
    detail: str | None = None
    duration: int | None = None
    """From the fetch to the first answer; earlier fetches that got no answer do not count."""
    moved_to: str | None = None
    """The queue it went on to, by failover, by a move, or as a dead letter."""

    @classmethod
    def of(cls, queue: str, life: Life) -> QueueView:
        told = {name: getattr(life, name) for name in cls.__struct_fields__[1:]}
        return cls(queue=queue, **told | {"consumed_by": tuple(life.consumed_by)})


class Document(msgspec.Struct, frozen=True, rename="camel"):
    """A message with its life in each of its queues."""

    offset: int
    message: Message
    created: int
    topic_count: int
    queues: tuple[QueueView, ...]

    @property
    def state(self) -> State:
        """The state over all queues: a live copy's comes before that of one that ended, and it is UNCHANGED without any
        copy. A copy that moved on to another queue counts only if there is no other."""
        states = [view.state for view in self.queues if view.moved_to is None]
        states = states or [view.state for view in self.queues]
        live = [state for state in states if state in LIVE]
        return (live or states or [State.UNCHANGED])[0]

    @property
    def flags(self) -> dict[str, bool]:
        """The flags over all queues. A copy that moved on to another queue counts only if there is no other."""
        views = [view for view in self.queues if view.moved_to is None] or self.queues
        return {
            "queued": any(view.queued for view in views),
            "delivered": any(view.delivered for view in views),
            "success": bool(views) and all(view.success for view in views),
            "archived": all(view.archived for view in views),
        }


def document(offset: int, message: Message, queues: Iterable[str], events: Iterable[tuple[int, Event]]) -> Document:
    """The document of a message routed to `queues`, from its events in order, each with its time."""
    lives = {queue: Life.begun(message.created, queue) for queue in queues}
    for time, event in events:
        if event.queue not in lives:
            lives[event.queue] = Life.begun(time, event.queue)
        lives[event.queue].apply(event, time)
    return Document(
        offset=offset,
        message=message,
        created=message.created,
        topic_count=len(message.topics or (message.name,)),
        queues=tuple(QueueView.of(queue, life) for queue, life in lives.items()),
    )
