"""Replies to send and rows to settle once calls have finished."""

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
"""What does not go away by itself."""


class PendingSettlement:
    """Replies and rows, those with one fate together.

    If the broker cannot take them now, as on a full disk, it is asked again until it does or the pool stops: whatever
    was handled is not handled again. What it will never take ends the message, with the reason.
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
                self._complain(error)
                if stopping.wait(_PAUSE):
                    raise

    async def apply_async(self, stopping: threading.Event) -> None:
        import asyncio

        while True:
            try:
                if self._replies:
                    await asyncio.to_thread(self._reply)
                for waiting in self._settle():
                    await waiting
                self._processor.trouble = None
                return
            except BrokerClosed:
                raise
            except RemudaError as error:
                self._complain(error)
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
        """The message ends, since what has to follow from it cannot."""
        for rows in self._fates.values():
            if row in rows:
                rows.remove(row)
        dead = settlement(Outcome.DEAD, storable(reason), consumer=self._delivery.consumer)
        self._fates.setdefault((dead, None), []).append(row)
        self._fates = {fate: rows for fate, rows in self._fates.items() if rows}
        _log.error("%s: message %s is dead: %s", self._processor.queue, self._delivery.messages.id(row), reason)

    def _settle(self) -> list[Awaitable[int]]:
        """Gives what the delivery's answers gave: for a coroutine, something to await."""
        whole = len(self._delivery)
        return [
            self._delivery.answer(
                settled if moved_to is None else msgspec.structs.replace(settled, to=moved_to),
                None if len(rows) == whole else rows,
                wait=False,
            )
            for (settled, moved_to), rows in self._fates.items()
        ]

    def _complain(self, error: RemudaError) -> None:
        if self._processor.trouble != str(error):
            _log.error("%s: what was handled cannot be settled yet: %s", self._processor.queue, error)
        self._processor.trouble = str(error)
