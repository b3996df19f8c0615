"""What a guest has at its host, and restores at the next: subscriptions, waiting pulls, and deliveries it holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.wire_frames import Carried, Claim
from remuda.model.operations.commands import Pull, SetCredit, Settle, Subscribe, Unsubscribe
from remuda.model.settlement import Outcome

if TYPE_CHECKING:
    from remuda.broker.embedded.delivering.inbox import Inbox
    from remuda.core.effects import Dispatch

_HELD: Final = 20_000
_BACK: Final = frozenset({Outcome.NACK, Outcome.RETRY, Outcome.RELEASE})
"""Answers after which a message may be back in its queue."""


class Held:
    """A delivery that a guest holds."""

    __slots__ = ("consumer", "deadline", "left", "pulled", "queue", "runs")

    def __init__(self, dispatch: Dispatch, pulled: bool) -> None:
        self.queue = dispatch.queue
        self.consumer = dispatch.consumer
        self.runs = dispatch.runs
        self.deadline = dispatch.deadline
        self.left = dispatch.count
        self.pulled = pulled


class OpenState:
    """Updated with every request and answer. `clock` is the host's."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.subscriptions: dict[int, tuple[Subscribe, Inbox]] = {}
        self.pulls: dict[int, tuple[Pull, Inbox, float]] = {}
        """Pull requests that wait, each with the time until which it does."""
        self.held: dict[int, Held] = {}
        self._many = _HELD
        """How many there may be before those are dropped whose time is up."""
        self.watched: dict[int, tuple[Future[None], int, int]] = {}
        """Batches whose outcome is awaited, by request: first offset and count."""
        self.gone: dict[int, int] = {}
        """Deliveries that a new host could not restore, and how many messages of each were back in the queue."""

    # Deliveries

    def hold(self, found: Carried, *, pulled: bool) -> None:
        if found.lease is not None:
            self.held[found.lease] = Held(found, pulled)
            if len(self.held) > self._many:
                now = self._clock()
                self.held = {lease: held for lease, held in self.held.items() if held.deadline > now}
                self._many = max(_HELD, 2 * len(self.held))

    def expected(self, command: Settle) -> int:
        """How many messages an answer should settle."""
        held = self.held.get(command.lease)
        if command.runs is not None:
            return sum(count for _, count in command.runs)
        return held.left if held is not None else 0

    def settled(self, command: Settle, count: int) -> None:
        held = self.held.get(command.lease)
        if held is not None:
            held.left -= count
            if command.runs is None or held.left <= 0:
                self.held.pop(command.lease, None)

    def claims(self) -> list[Claim]:
        """What to reclaim from a new host."""
        return [Claim(held.queue, lease, held.consumer, held.runs, held.pulled) for lease, held in self.held.items()]

    def reclaimed(self, claims: list[Claim], counts: list[int]) -> None:
        """Drop deliveries of which nothing is in flight any more: they were answered, or their time was up."""
        now = self._clock()
        for claim, count in zip(claims, counts, strict=True):
            held = self.held.get(claim.lease)
            if count <= 0 and held is not None:
                if held.deadline > now:
                    self.gone[claim.lease] = -count
                self.held.pop(claim.lease, None)

    def settled_before(self, command: Settle, expected: int) -> int:
        """How many messages an answer had settled that was sent again and settled none: the last host may have stored
        it, and only its reply was lost."""
        back = self.gone.get(command.lease)
        if back is None:
            return 0
        if not back or command.settlement.outcome in _BACK:
            return expected
        # Messages that are back in the queue will be delivered again: they were not settled.
        return max(expected - back, 0) if command.runs is None else 0

    # Subscriptions and pulls

    def set_credit(self, command: SetCredit) -> None:
        for tag, (subscribed, inbox) in list(self.subscriptions.items()):
            if (subscribed.queue, subscribed.consumer) == (command.queue, command.consumer):
                self.subscriptions[tag] = (msgspec.structs.replace(subscribed, credit=command.credit), inbox)

    def unsubscribed(self, command: Unsubscribe, give_back: Callable[[Dispatch], None]) -> None:
        for tag, (subscribed, inbox) in list(self.subscriptions.items()):
            if (subscribed.queue, subscribed.consumer) == (command.queue, command.consumer):
                del self.subscriptions[tag]
                if command.keep:
                    inbox.divert(give_back)
                inbox.close()
        if command.keep:
            for held in self.held.values():
                held.pulled |= (held.queue, held.consumer) == (command.queue, command.consumer)

    def close_inbox(self, tag: int, failure: Exception | None) -> None:
        pull = self.pulls.pop(tag, None)
        subscription = self.subscriptions.pop(tag, None)
        inbox = pull[1] if pull is not None else subscription[1] if subscription is not None else None
        if inbox is not None:
            inbox.close(failure)

    # Batches whose outcome is awaited

    def confirmed(self, number: int, why: wire_frames.Error | None) -> None:
        watched = self.watched.pop(number, None)
        if watched is not None:
            with contextlib.suppress(InvalidStateError):
                if why is None:
                    watched[0].set_result(None)
                else:
                    watched[0].set_exception(wire_frames.raised(why))

    def end(self, failure: Exception | None, unknown: Exception) -> None:
        """Nothing more will come: close the inboxes, with the failure if there is one, and raise `unknown` to those
        that wait for an outcome."""
        watched, self.watched = self.watched, {}
        for outcome, _, _ in watched.values():
            with contextlib.suppress(InvalidStateError):
                outcome.set_exception(unknown)
        for _, inbox in list(self.subscriptions.values()):
            inbox.close(failure)
        for _, inbox, _ in list(self.pulls.values()):
            inbox.close(failure)
