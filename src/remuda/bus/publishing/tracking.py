"""Following up on a message by its id (B20): its status, its result or error, and cancelling it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from remuda.bus.broker_api import CANCELLED, Broker, end_message, offsets_of
from remuda.bus.errors import HandlerFailed, NoResult, ResultNotReady
from remuda.bus.observing import progress
from remuda.bus.publishing import bodies
from remuda.bus.publishing.result_messages import result_id
from remuda.model.document import Document, QueueView
from remuda.model.errors import InvalidOption, NotFound, RemudaError
from remuda.model.life import LIVE, PARKED
from remuda.model.operations.worker_orders import Progress
from remuda.model.queues.system_queues import SYSTEM_QUEUES
from remuda.model.state import State
from remuda.model.values.texts import shown

POLL: Final = 0.02
_WORDS: Final = {
    State.QUEUED: "waiting", State.FETCHED: "running", State.RETRY: "waiting for a retry", State.SUCCESS: "done",
    State.COMPLETED: "done", State.KICKED: "done", State.DEAD: "dead", State.INVALID: "invalid",
    State.NOT_INTERESTED: "not interested",
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
    progress: Progress | None = None
    """How far its handler has come, if it runs and says so."""


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
        return (live or parked or views[-1:])[0].word if views else "in no queue"


def status_of(document: Document, broker: Broker | None = None) -> MessageStatus:
    views = {
        view.queue: QueueStatus(
            view.queue, view.state, _word(view), view.attempts, view.reason, view.detail,
            None if broker is None else _progress(broker, view, document.offset),
        )
        for view in document.queues
        if view.queue not in SYSTEM_QUEUES or len(document.queues) == 1
    }  # fmt: skip
    return MessageStatus(document.message.id, document.message.name, document.created, views)


def _word(view: QueueView) -> str:
    return _WORDS[view.state] if view.moved_to is None else "moved"


Interrupt = Callable[[str, int, str], bool]
"""Cancels the message of a queue at an offset, for somebody, if this process handles it; tells whether it does."""


def cancel(broker: Broker, message_id: str, who: str | None, interrupt: Interrupt | None) -> int:
    """Cancel the messages with this id: they end where they wait, and their handlers are interrupted where they are
    handled, here at once. Returns how many end by it. Without `interrupt`, handlers continue."""
    cancelled = 0
    for offset in offsets_of(broker, message_id):
        document = broker.message(offset)
        ended = [_cancel(broker, document, view, who, interrupt) for view in document.queues]
        cancelled += any(ended)
    return cancelled


def _cancel(broker: Broker, document: Document, view: QueueView, who: str | None, interrupt: Interrupt | None) -> bool:
    queue, offset = view.queue, document.offset
    if view.state in (State.QUEUED, State.RETRY):
        if end_message(broker, queue, offset, CANCELLED, who):
            return True
        # It was fetched in between, or has ended.
        view = next((one for one in broker.message(offset).queues if one.queue == queue), view)
    if view.state is not State.FETCHED or interrupt is None or _is_run(view.queue):
        return False
    return interrupt(queue, offset, who or "") or broker.cancel_running(queue, offset, who=who)


def _is_run(queue: str) -> bool:
    """Whether this queue has the runs of a workflow, of a bus with whatever prefix: they are cancelled in their own
    way."""
    prefix, found, _ = queue.partition("workflow.")
    return bool(found) and not prefix[-1:].isalnum()


def result_of(broker: Broker, message_id: str, queue: str | None, wanted: Any, timeout: float) -> Any:
    """The result of a handled message; raises the error if it failed for good."""
    deadline = time.monotonic() + timeout
    while True:
        document = broker.message(message_id)
        view = _chosen(document, queue)
        if view is not None and view.state in PARKED:
            raise _failure(view, message_id)
        if not document.queues:
            raise NoResult(
                f"message {message_id} is in no queue, so it will not be handled: no queue takes its topic, it repeats "
                "what was last said of its object, or its queue skipped it since one of its key is enough"
            )
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
        time.sleep(POLL)


def results_of(broker: Broker, ids: list[str], wanted: Any, timeout: float) -> Iterator[tuple[str, Any]]:
    """The results of many messages, each as soon as it is there; errors are given, not raised."""
    deadline, left = time.monotonic() + timeout, dict.fromkeys(ids)
    while left:
        ended = 0
        for id in list(left):
            try:
                found: Any = result_of(broker, id, None, wanted, 0)
            except ResultNotReady:
                continue
            except RemudaError as error:
                found = error
            del left[id]
            ended += 1
            yield id, found
        if not left:
            return
        if time.monotonic() >= deadline:
            break
        if not ended:
            time.sleep(min(POLL, max(deadline - time.monotonic(), 0)))
    for id in left:
        yield id, ResultNotReady(f"message {id} has not been handled yet; it is kept and will be handled")


def _progress(broker: Broker, view: QueueView, offset: int) -> Progress | None:
    """How far a running handler has come, here or in another process."""
    if view.state is not State.FETCHED:
        return None
    own = progress.latest(view.queue, offset)
    if own is not None:
        return own
    try:
        calls = [call for worker in broker.workers() for call in worker.running]
    except RemudaError:
        return None
    return next((call.progress for call in calls if (call.queue, call.offset) == (view.queue, offset)), None)


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
