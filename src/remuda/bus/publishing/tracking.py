"""Following up on a message by its id (B20): its status, its result or error, and cancelling it."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from remuda.bus.broker_api import Broker, end_message
from remuda.bus.errors import HandlerFailed, NoResult, ResultNotReady
from remuda.bus.publishing import bodies
from remuda.bus.publishing.results import result_id
from remuda.bus.publishing.system_queues import SYSTEM_QUEUES
from remuda.model.document import Document, QueueView
from remuda.model.errors import InvalidOption, NotFound
from remuda.model.records import is_moved
from remuda.model.state import LIVE, PARKED, State
from remuda.model.texts import shown

_POLL: Final = 0.02
_WORDS: Final = {
    State.QUEUED: "waiting", State.FETCHED: "running", State.RETRY: "waiting for a retry", State.SUCCESS: "done",
    State.COMPLETED: "done", State.KICKED: "done", State.DEAD: "dead", State.INVALID: "invalid",
    State.NOT_INTERESTED: "not interested", State.UNCHANGED: "unchanged", State.LOGGED: "logged",
}  # fmt: skip


class QueueStatus(msgspec.Struct, frozen=True):
    """A message's state in one queue."""

    queue: str
    state: State
    word: str
    """The state in a word: waiting, running, done, dead …"""
    attempts: int
    reason: str | None
    detail: str | None
    """The traceback of the last failure."""


class MessageStatus(msgspec.Struct, frozen=True):
    """A message's state in all its queues."""

    id: str
    topic: str
    created: int
    queues: dict[str, QueueStatus]

    @property
    def done(self) -> bool:
        """Whether every queue has handled it successfully."""
        words = {view.word for view in self.queues.values()} - {"moved"}
        return words == {"done"}

    @property
    def failed(self) -> bool:
        """Whether it ended without success in some queue."""
        return any(view.state in PARKED and view.word != "moved" for view in self.queues.values())

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it without an operator."""
        return not any(view.state in LIVE for view in self.queues.values())

    @property
    def word(self) -> str:
        """The state of the queue that is furthest from its end."""
        views = list(self.queues.values())
        live = [view for view in views if view.state in LIVE]
        parked = [view for view in views if view.state in PARKED and view.word != "moved"]
        return (live or parked or views[-1:])[0].word if views else "logged"


def status_of(document: Document) -> MessageStatus:
    views = {
        view.queue: QueueStatus(
            view.queue, view.state, _word(view), view.attempts, view.reason, view.detail
        )
        for view in document.queues
        if view.queue not in SYSTEM_QUEUES or len(document.queues) == 1
    }  # fmt: skip
    return MessageStatus(document.message.id, document.message.name, document.created, views)


def _word(view: QueueView) -> str:
    return "moved" if is_moved(view.state, view.reason) else _WORDS[view.state]


def cancel(broker: Broker, message_id: str, who: str | None) -> bool:
    """Cancel a message wherever it still waits; returns whether it did anywhere. Running handlers continue."""
    document = broker.message(message_id)
    waiting = [view.queue for view in document.queues if view.state in (State.QUEUED, State.RETRY)]
    ended = [end_message(broker, queue, document.offset, "cancelled", who) for queue in waiting]
    return any(ended)


def result_of(broker: Broker, message_id: str, queue: str | None, wanted: Any, timeout: float) -> Any:
    """The result of a handled message; raises the error if it failed for good."""
    deadline = time.monotonic() + timeout
    while True:
        document = broker.message(message_id)
        view = _chosen(document, queue)
        if view is not None and view.state in PARKED:
            raise _failure(view, message_id)
        if view is not None and view.state not in LIVE:
            try:
                kept = broker.message(result_id(view.queue, message_id)).message
            except NotFound:
                raise NoResult(
                    f"message {message_id} was handled in {view.queue}, but its result was not kept; "
                    "publish it with keep_result=True"
                ) from None
            return bodies.decode(kept.body, kept.mime_type, wanted)
        if time.monotonic() >= deadline:
            raise ResultNotReady(f"message {message_id} has not been handled yet; it is kept and will be handled")
        time.sleep(_POLL)


def _chosen(document: Document, queue: str | None) -> QueueView | None:
    views = [view for view in document.queues if view.queue == queue or queue is None]
    if queue is not None and not views:
        raise NotFound(f"message {document.message.id} is not in the queue {shown(queue)}")
    live = [view for view in views if view.state in LIVE]
    # A message that failed over has left its first queue; the last queue that got it decides.
    return next(reversed(live or views), None)


def _failure(view: QueueView, message_id: str) -> HandlerFailed:
    reason = view.reason or "failed"
    kind, separator, _ = reason.partition(": ")
    return HandlerFailed(
        reason,
        error_type=kind if separator and kind.isidentifier() else "",
        detail=view.detail,
        queue=view.queue,
        message_id=message_id,
    )


def check_id(id: str) -> str:
    if not isinstance(id, str) or not id:
        raise InvalidOption(f"an id must be a string, not {shown(id)}")
    return id
