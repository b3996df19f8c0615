"""Sends the replies and settles the rows of finished calls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from remuda.bus.broker_api import BaseDelivery, Outcome, settlement
from remuda.bus.execution.failure_policy import Fate
from remuda.bus.handlers.loops import LoopHolder, drive, drive_async
from remuda.bus.handlers.middleware import Steps
from remuda.bus.handlers.result import CallResult, storable
from remuda.bus.publishing.result_messages import Reply
from remuda.model.errors import BrokerClosed, InvalidMessage, InvalidOption, NotFound, Refused, RemudaError
from remuda.model.messages import cell

if TYPE_CHECKING:
    from remuda.bus.execution.processor import QueueProcessor, SendReply

_log = logging.getLogger("remuda.bus")
_PAUSE = 1.0
_PERMANENT = (InvalidMessage, InvalidOption, NotFound, TypeError, ValueError, LookupError)
"""Errors that a retry would not cure."""


PULL: Final = "pull"
SETTLE: Final = "settle"
START: Final = "start"
"""What can keep a queue's workers from their work: the broker refuses their pulls or answers, or no process starts."""


class Failover(msgspec.Struct, frozen=True):
    """A row that failed for good and is to go on in another queue."""

    row: int
    result: CallResult
    fate: Fate


class PendingSettlement:
    """The replies of a delivery, and its rows grouped by how they are settled.

    If the broker cannot store them now, for example because the disk is full, this is retried until it can or the
    pool stops, so that messages are not handled again. A reply that can never be stored makes its message dead.
    """

    def __init__(
        self,
        processor: QueueProcessor,
        delivery: BaseDelivery[Any],
        replies: list[tuple[int, Reply]],
        fates: dict[Fate, list[int]],
        send_reply: SendReply,
        moves: Sequence[Failover] = (),
    ) -> None:
        self._processor = processor
        self._delivery = delivery
        self._replies = replies
        self._fates = fates
        self._send_reply = send_reply
        self._moves = list(moves)

    def apply(self, stopping: threading.Event) -> None:
        while True:
            try:
                if self._moves:
                    drive(self._fail_over(self._processor.broker.message), LoopHolder())
                self._reply()
                self._settle()
                self._processor.troubles.pop(SETTLE, None)
                return
            except BrokerClosed:
                raise
            except RemudaError as error:
                self._note_trouble(error)
                if stopping.wait(_PAUSE):
                    raise

    async def apply_async(self, stopping: threading.Event) -> None:
        import asyncio

        while True:
            try:
                if self._moves:
                    await drive_async(self._fail_over(self._processor.broker.aio.message))
                if self._replies:
                    await asyncio.to_thread(self._reply)
                for settling in self._settle():
                    await settling
                self._processor.troubles.pop(SETTLE, None)
                return
            except BrokerClosed:
                raise
            except RemudaError as error:
                self._note_trouble(error)
                if stopping.is_set():
                    raise
                await asyncio.sleep(_PAUSE)

    def _fail_over(self, look_up: Callable[[int], Any]) -> Steps:
        """Move rows to the failover queue, each in one step: it arrives, or it has not left and ends here, which is
        reported. A queue that has had the message already does not get it again."""
        delivery, policy = self._delivery, self._processor.failure_policy
        while self._moves:
            row, result, fate = msgspec.structs.astuple(self._moves[0])
            settled, target = fate
            why = None
            try:
                document = yield look_up(delivery.offsets[row])
                if any(view.queue == target and view.moved_to is None for view in document.queues):
                    why = "it has had the message already"
            except NotFound:
                pass  # a message that the log does not find can still be moved
            if why is None:
                try:
                    yield delivery.answer(msgspec.structs.replace(settled, to=target, whole=True), [row])
                except (Refused, NotFound) as error:
                    why = str(error)
            if why is not None:
                stays = policy.stays(result, delivery.messages.id(row), fate, why)
                reply = policy.failure_reply(cell(delivery.messages.headers, row), result, stays)
                self._fates.setdefault(stays, []).append(row)
                if reply is not None:
                    self._replies.append((row, reply))
            del self._moves[0]

    def _reply(self) -> None:
        while self._replies:
            row, reply = self._replies[0]
            try:
                self._send_reply(self._delivery[row], reply)
            except _PERMANENT as error:
                self._fail(row, f"the reply cannot be sent: {type(error).__name__}: {error}")
            del self._replies[0]

    def _fail(self, row: int, reason: str) -> None:
        """End a message whose reply cannot be sent."""
        for rows in self._fates.values():
            if row in rows:
                rows.remove(row)
        dead = settlement(Outcome.DEAD, storable(reason), consumer=self._delivery.consumer)
        self._fates.setdefault((dead, None), []).append(row)
        self._fates = {fate: rows for fate, rows in self._fates.items() if rows}
        _log.error("%s: message %s is dead: %s", self._processor.queue, self._delivery.messages.id(row), reason)

    def _settle(self) -> list[Awaitable[int]]:
        """Settle the rows; for an asynchronous delivery, returns what has to be awaited."""
        whole = len(self._delivery)
        return [
            self._delivery.answer(settled, None if len(rows) == whole else rows, wait=False)
            for (settled, _), rows in self._fates.items()
        ]

    def _note_trouble(self, error: RemudaError) -> None:
        if self._processor.troubles.get(SETTLE) != str(error):
            _log.error("%s: handled messages cannot be settled yet: %s", self._processor.queue, error)
        self._processor.troubles[SETTLE] = str(error)
