"""Sends the replies and settles the rows of finished calls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.bus.broker_api import BaseDelivery, Outcome, settlement
from remuda.bus.execution.failure_policy import Fate
from remuda.bus.handlers.result import storable
from remuda.bus.publishing.reply import Reply
from remuda.model.errors import BrokerClosed, InvalidMessage, InvalidOption, NotFound, RemudaError

if TYPE_CHECKING:
    from remuda.bus.execution.processor import QueueProcessor, SendReply

_log = logging.getLogger("remuda.bus")
_PAUSE = 1.0
_PERMANENT = (InvalidMessage, InvalidOption, NotFound, TypeError, ValueError, LookupError)
"""Errors that a retry would not cure."""


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
    ) -> None:
        self._processor = processor
        self._delivery = delivery
        self._replies = replies
        self._fates = fates
        self._send_reply = send_reply

    def apply(self, stopping: threading.Event) -> None:
        while True:
            try:
                self._reply()
                self._settle()
                self._processor.trouble = None
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
                if self._replies:
                    await asyncio.to_thread(self._reply)
                for settling in self._settle():
                    await settling
                self._processor.trouble = None
                return
            except BrokerClosed:
                raise
            except RemudaError as error:
                self._note_trouble(error)
                if stopping.is_set():
                    raise
                await asyncio.sleep(_PAUSE)

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
            self._delivery.answer(
                settled if moved_to is None else msgspec.structs.replace(settled, to=moved_to),
                None if len(rows) == whole else rows,
                wait=False,
            )
            for (settled, moved_to), rows in self._fates.items()
        ]

    def _note_trouble(self, error: RemudaError) -> None:
        if self._processor.trouble != str(error):
            _log.error("%s: handled messages cannot be settled yet: %s", self._processor.queue, error)
        self._processor.trouble = str(error)
