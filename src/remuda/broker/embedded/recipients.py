"""Who hears what comes of commands once it is kept: consumers through their inboxes, producers that wait for a fate."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, InvalidStateError

from remuda.broker.embedded.inbox import Inbox
from remuda.broker.embedded.notices import NoticeBoard
from remuda.core.effects import Confirmation, Dispatch, Effects
from remuda.model.errors import BrokerClosed, DeliveryFailed


class Recipients:
    """Inboxes by tag of their subscription or pull, and producers by the watch they wait for."""

    def __init__(self, notices: NoticeBoard) -> None:
        self._notices = notices
        self.inboxes: dict[int, Inbox] = {}
        self._confirmations: dict[int, Future[None]] = {}

    def watch(self, number: int) -> Future[None]:
        """What tells the fate of the messages under this watch."""
        return self._confirmations.setdefault(number, Future())

    def hand_out(self, dispatch: Dispatch) -> bool:
        """Put a delivery that is kept into its inbox, under the broker's lock; False, and nothing is done, if it has to
        go elsewhere, or to an inbox of another kind, like a guest's, which does more than keep it."""
        inbox = self.inboxes.get(dispatch.tag)
        return inbox is None or (type(inbox) is Inbox and inbox.offer(dispatch))

    def let_out(self, effects: Effects) -> None:
        """Tell everyone concerned. What they are told is kept by now."""
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
        """Nothing more will come: everyone who waits is told so, or why."""
        # Nobody is forgotten before being told, so that this can be begun again where Ctrl-C ended it.
        for tag, inbox in list(self.inboxes.items()):
            inbox.close(failure)
            self.inboxes.pop(tag, None)
        closed = BrokerClosed("the broker was closed; the message is kept and its fate is not known yet")
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
                f"the message was taken in but ended without success: {confirmation.reason}. It is kept with its reason"
            )
            _resolve(future, DeliveryFailed(text, confirmation.reason))


def _resolve(future: Future[None], error: Exception | None = None) -> None:
    """Settle what a producer waits for, unless closing, or the producer itself, was quicker."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
