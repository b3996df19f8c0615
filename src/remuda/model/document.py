"""A whole message as one document (M7), built from its record and its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from remuda.model.message import Message
from remuda.model.records import Event
from remuda.model.state import LIVE, PARKED, State

_REFUSALS: Final = frozenset({State.RETRY, State.INVALID, State.NOT_INTERESTED, State.DEAD})
_SUCCEEDED: Final = frozenset({State.SUCCESS, State.KICKED, State.COMPLETED})
CONSUMER_LOST: Final = "consumer lost"
"""The reason recorded when a consumer is lost before it answers."""


def is_answer(event: Event) -> bool:
    """Whether this event is a consumer's answer. One without an answer, such as a timeout, names no consumer."""
    if event.state is State.SUCCESS:
        return True
    return event.state in _REFUSALS and bool(event.consumer) and event.reason != CONSUMER_LOST


class Consumption(msgspec.Struct, frozen=True, rename="camel"):
    """One consumer's attempt at the message."""

    consumer: str
    fetched: int
    confirmed: int | None = None
    duration: int | None = None


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


class _QueueHistory:
    """Folds one queue's events into a view."""

    def __init__(self, queue: str, created: int) -> None:
        self.queue = queue
        self.state = State.QUEUED
        self.modified = created
        self.attempts = 0
        self.confirmed = 0
        self.consumed: list[Consumption] = []
        self.first: dict[str, int] = {}
        self.fetched: int | None = None
        self.duration: int | None = None
        self.kicked = False
        self.reason: str | None = None
        self.detail: str | None = None
        self.moved_to: str | None = None

    def apply(self, event: Event, time: int) -> None:
        self.state, self.modified, self.moved_to = event.state, time, event.to
        clears_failure = event.state is State.QUEUED or event.state in _SUCCEEDED
        self.reason = event.reason or (None if clears_failure else self.reason)
        self.detail = event.detail or (None if clears_failure else self.detail)
        if is_answer(event) and "processed" not in self.first:
            self._note_first("processed", time)
            self.duration = None if self.fetched is None else time - self.fetched
        match event.state:
            case State.FETCHED:
                self._note_first("consumed", time)
                self.fetched = time
                self.attempts = event.attempt
                self.consumed += [Consumption(name, time) for name in (event.consumer or "").split(", ")]
            case State.SUCCESS:
                self.confirmed += 1
                self._confirm(event.consumer or "", time)
            case State.COMPLETED:
                self._note_first("completed", time)
            case State.KICKED:
                self.kicked = True
        if event.state in PARKED:
            self._note_first("failed", time)
        elif event.state is State.QUEUED:
            self.first.pop("failed", None)

    def view(self) -> QueueView:
        state = self.state
        return QueueView(
            queue=self.queue,
            state=state,
            queued=state in (State.QUEUED, State.RETRY),
            delivered="processed" in self.first or self.kicked,
            success=self.confirmed > 0 or state in (State.SUCCESS, State.COMPLETED, State.KICKED),
            archived=state not in LIVE,
            modified=self.modified,
            attempts=self.attempts,
            confirmed_count=self.confirmed,
            consumed_by=tuple(self.consumed),
            consumed=self.first.get("consumed"),
            processed=self.first.get("processed"),
            completed=self.first.get("completed"),
            failed=self.first.get("failed"),
            reason=self.reason,
            detail=self.detail,
            duration=self.duration,
            moved_to=self.moved_to,
        )

    def _note_first(self, moment: str, time: int) -> None:
        self.first.setdefault(moment, time)

    def _confirm(self, consumer: str, time: int) -> None:
        for index in range(len(self.consumed) - 1, -1, -1):
            entry = self.consumed[index]
            if entry.consumer == consumer and entry.confirmed is None:
                self.consumed[index] = Consumption(consumer, entry.fetched, time, time - entry.fetched)
                return


def document(offset: int, message: Message, queues: Iterable[str], events: Iterable[tuple[int, Event]]) -> Document:
    """The document of a message routed to `queues`, from its events in order, each with its time."""
    histories = {queue: _QueueHistory(queue, message.created) for queue in queues}
    for time, event in events:
        histories.setdefault(event.queue, _QueueHistory(event.queue, time)).apply(event, time)
    return Document(
        offset=offset,
        message=message,
        created=message.created,
        topic_count=len(message.topics or (message.name,)),
        queues=tuple(history.view() for history in histories.values()),
    )
