"""Passes on the effects of commands once they are stored: to consumers' inboxes, and to producers that wait for the
outcome of their messages."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Final

from remuda.broker.embedded.delivering.inbox import Inbox
from remuda.broker.embedded.delivering.notices import NoticeBoard
from remuda.core.effects import Confirmation, Dispatch, Effects
from remuda.model.errors import BrokerClosed, DeliveryFailed

_log = logging.getLogger("remuda.broker")
CLOSED_BEFORE_OUTCOME: Final = "the broker was closed before the outcome of the message was known; the message is kept"


class EffectDispatcher:
    """Inboxes by tag of their subscription or pull, and producers by the watch they wait for."""

    def __init__(self, notices: NoticeBoard) -> None:
        self._notices = notices
        self.inboxes: dict[int, Inbox] = {}
        self._confirmations: dict[int, Future[None]] = {}
        self._watched: dict[int, tuple[int, int]] = {}
        """The first offset under each watch, and how many may follow."""

    def watch(self, number: int, first: int, count: int) -> Future[None]:
        """A future for the outcome of the messages under this watch."""
        self._watched[number] = (first, count)
        return self._confirmations.setdefault(number, Future())

    def watch_again(self, watch: Callable[[int, int], int | None]) -> None:
        """After the queues were rebuilt: `watch` gives the new number for the same messages; None if all is well."""
        waiting, self._confirmations = self._confirmations, {}
        watched, self._watched = self._watched, {}
        for number, future in waiting.items():
            first, count = watched[number]
            again = None if future.done() else watch(first, count)
            if again is None:
                _resolve(future)
            else:
                self._confirmations[again], self._watched[again] = future, (first, count)

    def waiting(self, unsent: Sequence[Effects]) -> set[int]:
        """Subscriptions, and pulls whose one delivery neither came nor is among what is yet to be sent."""
        coming = {dispatch.tag for effects in unsent for dispatch in effects.dispatches}
        coming.update(*(effects.closed for effects in unsent))
        return {tag for tag, inbox in self.inboxes.items() if inbox.lasting or not (inbox.reached or tag in coming)}

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
                self._put(inbox, dispatch)
        for tag in effects.closed:
            inbox = self.inboxes.pop(tag, None)
            if inbox is not None:
                inbox.close()
        for confirmation in effects.confirmations:
            self._confirm(confirmation)
        if effects.notices:
            self._notices.post(effects.notices)

    def _put(self, inbox: Inbox, dispatch: Dispatch) -> None:
        try:
            inbox.put(dispatch)
        except Exception:  # it is this delivery's, which comes back when its time is up, and nobody else's
            _log.exception("a delivery of queue %s could not be handed to %s", dispatch.queue, dispatch.consumer)

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
        self._watched.pop(confirmation.watch, None)
        future = self._confirmations.pop(confirmation.watch, None)
        if future is None:
            return
        if confirmation.reason is None:
            _resolve(future)
        else:
            kept = "It goes on there" if confirmation.moved else "It is kept with this reason"
            text = f"the message was stored but ended without success: {confirmation.reason}. {kept}"
            _resolve(future, DeliveryFailed(text, confirmation.reason))


def _resolve(future: Future[None], error: Exception | None = None) -> None:
    """Resolve a producer's future, unless it is done or cancelled already."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
