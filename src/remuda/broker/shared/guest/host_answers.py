"""Handles the host's frames: resolves requests, and puts deliveries into their inboxes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.wire_frames import Carried
from remuda.model.errors import NotFound, RemudaError
from remuda.model.operations.commands import (
    Publish,
    Pull,
    RemoveExchange,
    RemoveQueue,
    SetCredit,
    Settle,
    Subscribe,
    Unsubscribe,
)
from remuda.model.queues.notices import Notice

if TYPE_CHECKING:
    from remuda.broker.embedded.delivering.inbox import Inbox
    from remuda.broker.embedded.delivering.notices import NoticeBoard
    from remuda.broker.shared.guest.open_state import OpenState
    from remuda.broker.shared.guest.pending_requests import PendingRequests
    from remuda.broker.shared.guest.request import Request
    from remuda.core.effects import Dispatch

_log = logging.getLogger("remuda.guest")


class Answers:
    """Handles the host's frames, one by one, on the thread that reads them."""

    def __init__(
        self, line: PendingRequests, holdings: OpenState, notices: NoticeBoard, give_back: Callable[[Dispatch], None]
    ) -> None:
        self._line = line
        self._holdings = holdings
        self._notices = notices
        self._give_back = give_back

    def take(self, kind: int, payload: bytes) -> None:
        if kind == wire_frames.RECEIPT:
            self._receipt(*wire_frames.decode(wire_frames.Received, payload))
        elif kind == wire_frames.RESULT:
            answer = wire_frames.decode(wire_frames.Answered, payload)
            request = self._line.requests.get(answer.request)
            if request is not None:
                try:
                    result = request.shape(answer.result)
                except RemudaError as error:
                    self._fail(request, error)
                else:
                    self._resolve(request, result)
                # Last, since a caller that reads may be interrupted before: then the request is sent again.
                self._line.requests.pop(answer.request, None)
        elif kind == wire_frames.FAILED:
            number, why = wire_frames.decode(tuple[int, wire_frames.Error], payload)
            failed = self._line.requests.get(number)
            if failed is not None:
                self._fail(failed, wire_frames.raised(why))
                self._line.requests.pop(number, None)
            elif number == 0:
                _log.error("the host refused this process: %s", why.text)
        elif kind == wire_frames.DELIVERY:
            tag, delivered = wire_frames.decode(tuple[int, wire_frames.Delivered], payload)
            self._deliver(tag, delivered)
        elif kind == wire_frames.CLOSED:
            tag, why = wire_frames.decode(tuple[int, wire_frames.Error | None], payload)
            self._holdings.close_inbox(tag, None if why is None else wire_frames.raised(why))
        elif kind == wire_frames.CONFIRMED:
            number, why = wire_frames.decode(tuple[int, wire_frames.Error | None], payload)
            self._holdings.confirmed(number, why)
        elif kind == wire_frames.NOTICES:
            self._notices.post(wire_frames.decode(list[Notice], payload))

    # Requests

    def _receipt(self, number: int, first: int, ids: list[int | str]) -> None:
        """A publish is stored, and nothing of it was refused."""
        line = self._line
        request = line.requests.get(number)
        if request is not None:
            line.published(number)
            request.resolve(wire_frames.plain_receipt(first, ids))
            line.requests.pop(number, None)

    def _resolve(self, request: Request, result: Any) -> None:
        """Resolve a request with the host's result, and update what this guest holds."""
        command, holdings = request.command, self._holdings
        if type(command) is Publish:
            result, watched = result
            if watched:
                outcome: Future[None] = Future()
                request.pending.confirmed = outcome
                holdings.watched[request.number] = (outcome, result.first, result.accepted)
            self._line.published(request.number)
        elif type(command) is Settle:
            if not result and request.again:
                result = holdings.settled_before(command, request.expected)
            holdings.settled(command, result)
        elif type(command) is Subscribe and not request.restores:
            assert request.inbox is not None
            holdings.subscriptions[command.tag] = (command, request.inbox)
        elif type(command) is Pull:
            self._took(request, command, result)
        elif type(command) is SetCredit:
            holdings.set_credit(command)
        elif type(command) is Unsubscribe:
            holdings.unsubscribed(command, self._give_back)
        request.resolve(result)

    def _fail(self, request: Request, error: Exception) -> None:
        if type(request.command) is Publish:
            self._line.published(request.number)
        if request.restores and request.inbox is not None:
            command = request.command
            assert isinstance(command, Subscribe | Pull)
            self._holdings.close_inbox(command.tag, error)
        if request.query == "watch":
            self._holdings.confirmed(request.number, wire_frames.error_of(error))
        if isinstance(error, NotFound) and type(request.command) in (RemoveQueue, RemoveExchange) and request.again:
            self._resolve(request, None)  # sent again, and the last host had carried it out
            return
        if type(request.command) is Settle and not request.waits:
            _log.error("an answer for queue %s could not be stored: %s", request.command.queue, error)
        request.fail(error)

    def published(self, raw: Any) -> Any:
        receipt = wire_frames.decode(wire_frames.FullReceipt, raw)
        return wire_frames.receipt_of(receipt), receipt.watched

    def pulled(self, raw: Any) -> Carried | None:
        return wire_frames.carried(wire_frames.decode(wire_frames.Delivered, raw))

    def watched_again(self, number: int, raw: Any) -> None:
        if not wire_frames.decode(bool, raw):
            self._holdings.confirmed(number, None)  # it succeeded before the new host was asked

    def _took(self, request: Request, command: Pull, found: Carried | None) -> None:
        if found is not None:
            self._holdings.hold(found, pulled=True)
            request.pending.held = found.messages
            if request.restores:
                self._holdings.pulls.pop(command.tag, None)
                assert request.inbox is not None
                request.inbox.put(found)
        elif command.wait and request.inbox is not None and not request.restores:
            self._holdings.pulls[command.tag] = (command, request.inbox, time.monotonic() + command.wait / 1e6)

    # Deliveries

    def _deliver(self, tag: int, delivered: wire_frames.Delivered) -> None:
        found, holdings = wire_frames.carried(delivered, tag), self._holdings
        if found is None:
            return
        pull = holdings.pulls.pop(tag, None)
        if pull is not None:
            holdings.hold(found, pulled=True)
            pull[1].put(found)
            return
        subscription = holdings.subscriptions.get(tag) or self._subscribing(tag)
        if subscription is None:
            self._give_back(found)
            return
        holdings.hold(found, pulled=False)
        subscription[1].put(found)

    def _subscribing(self, tag: int) -> tuple[Subscribe, Inbox] | None:
        """A delivery may overtake the answer to its own subscription."""
        for request in list(self._line.requests.values()):
            if type(request.command) is Subscribe and request.command.tag == tag and request.inbox is not None:
                return request.command, request.inbox
        return None
