"""One message's life, in the order in which it happened, from its events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from remuda.model.message import Message
from remuda.model.records import Event, QueueChange
from remuda.model.state import State
from remuda.server.http.service_values import TimelineEntry


def timeline(
    created: int,
    message: Message,
    document: Any,
    events: Sequence[tuple[int, Event]],
    forgotten: Sequence[QueueChange] = (),
) -> Iterator[TimelineEntry]:
    yield TimelineEntry(created, "", State.LOGGED, f"Published as {message.name}")
    available: dict[str, int] = {}
    fetched: dict[str, int] = {}
    moving: str | None = None
    for view in document.queues:
        first = next((event for _, event in events if event.queue == view.queue), None)
        if first is None or first.state is not State.QUEUED:
            due = message.due
            available[view.queue] = max(created, due or 0)
            yield TimelineEntry(created, view.queue, State.QUEUED, "Delayed" if due else "Queued", due=due)
    for time_, event in events:
        queue, state = event.queue, event.state
        waited = took = None
        arriving, moving = moving, event.to
        if state is State.FETCHED:
            waited = max(0, time_ - available[queue]) if queue in available else None
            fetched[queue] = time_
        elif queue in fetched and state is not State.COMPLETED:
            took = time_ - fetched.pop(queue)
        if state in (State.QUEUED, State.RETRY):
            available[queue] = event.due or time_
        yield TimelineEntry(
            time=time_,
            queue=queue,
            state=state,
            what=_words(state, event, arriving == queue),
            attempt=event.attempt,
            consumer=event.consumer,
            reason=event.reason,
            detail=event.detail,
            who=event.who,
            moved_to=event.to,
            due=event.due,
            waited=waited,
            took=took,
        )
    for change in forgotten:
        yield TimelineEntry(change.time, change.queue, State.DEAD, "Forgotten", who=change.who)


def _words(state: State, event: Event, arrived: bool) -> str:
    match state:
        case State.FETCHED:
            return f"Attempt {event.attempt} began"
        case State.QUEUED:
            if arrived:
                return "Moved here"
            return "Reprocessed" if event.reason == "reprocessed" else "Back in the queue"
        case State.SUCCESS:
            return "Confirmed"
        case State.COMPLETED:
            return "Completed"
        case State.RETRY:
            return f"Attempt {event.attempt or ''} failed".replace("  ", " ")
        case State.DEAD:
            return "Dead" if event.to is None else f"Moved to {event.to}"
        case State.INVALID:
            return "Rejected as invalid"
        case State.NOT_INTERESTED:
            return "Consumer not interested"
        case State.KICKED:
            return "Sent; no answer is expected"
        case _:
            return state.name.capitalize()
