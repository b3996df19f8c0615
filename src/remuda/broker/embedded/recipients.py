"""Passes on the effects of commands once they are stored: to consumers' inboxes, and to producers that wait for the
outcome of their messages."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, InvalidStateError
from typing import Final

from remuda.broker.embedded.inbox import Inbox
from remuda.broker.embedded.notices import NoticeBoard
from remuda.core.effects import Confirmation, Dispatch, Effects
from remuda.model.errors import BrokerClosed, DeliveryFailed

CLOSED_BEFORE_OUTCOME: Final = "the broker was closed before the outcome of the message was known; the message is kept"


class Recipients:
    """Inboxes by tag of their subscription or pull, and producers by the watch they wait for."""

    def __init__(self, notices: NoticeBoard) -> None:
        self._notices = notices
        self.inboxes: dict[int, Inbox] = {}
        self._confirmations: dict[int, Future[None]] = {}

    def watch(self, number: int) -> Future[None]:
        """A future for the outcome of the messages under this watch."""
        return self._confirmations.setdefault(number, Future())

    def hand_out(self, dispatch: Dispatch) -> bool:
        """Put a delivery that is stored into its inbox, under the broker's lock. Returns False and does nothing if the
        inbox is diverted, or of another kind, like a guest's, which does more than hold it."""
        inbox = self.inboxes.get(dispatch.tag)
        return inbox is None or (type(inbox) is Inbox and inbox.offer(dispatch))

    def let_out(self, effects: Effects) -> None:
        """Pass on effects that are stored."""
        for dispatch in effects.dispatches:
            inbox = self.inboxes.get(dispatch.tag)
            if inbox is not None:
                inbox.put(dispatch)
        for tag in effects.closed:
            inbox = self.inboxes.pop(tag, None)
            if inbox is not None:
                inbox.close()
        for confirmation in effects.confirmations:
            self._confirm(confirmation)
        if effects.notices:
            self._notices.post(effects.notices)

    def release_all(self, failure: Exception | None) -> None:
        """Wake all that wait: nothing more will come, because of a failure or because the broker closes."""
        # Each is woken before it is removed, so that this can be repeated if Ctrl-C interrupts it.
        for tag, inbox in list(self.inboxes.items()):
            inbox.close(failure)
            self.inboxes.pop(tag, None)
        closed = BrokerClosed(CLOSED_BEFORE_OUTCOME)
        for number, future in list(self._confirmations.items()):
            _resolve(future, failure or closed)
            self._confirmations.pop(number, None)

    def _confirm(self, confirmation: Confirmation) -> None:
        future = self._confirmations.pop(confirmation.watch, None)
        if future is None:
            return
        if confirmation.reason is None:
            _resolve(future)
        else:
            text = (
                f"the message was stored but ended without success: {confirmation.reason}. It is kept with this reason"
            )
            _resolve(future, DeliveryFailed(text, confirmation.reason))


def _resolve(future: Future[None], error: Exception | None = None) -> None:
    """Resolve a producer's future, unless it is done or cancelled already."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
