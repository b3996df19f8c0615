"""One queue's processing: its dispatcher, and settling the messages that were handled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from remuda.bus.broker_api import BaseDelivery, Broker, Clock, Outcome, settlement
from remuda.bus.execution.active_delivery import FinishedCalls
from remuda.bus.execution.failure_policy import FailurePolicy, Fate, Threshold
from remuda.bus.execution.prefetch import AdaptivePrefetch, ArrivalRate
from remuda.bus.execution.settling import PendingSettlement
from remuda.bus.handlers.dispatcher import Dispatcher
from remuda.bus.handlers.result import DONE
from remuda.bus.publishing.reply import Reply
from remuda.model.durations import SECOND
from remuda.model.message import Message
from remuda.model.messages import cell

SendReply = Callable[[Message, Reply], None]

_MOST: Final = 256
_LOST: Final = 60 * SECOND
"""How long to wait before renewing again a lease that is lost, for example because the queue was removed."""


class QueueProcessor:
    """Shared by the workers of one queue."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        broker: Broker,
        send_reply: SendReply,
        on_threshold: Threshold | None,
        clock: Clock,
    ) -> None:
        self.dispatcher = dispatcher
        self.queue = dispatcher.queue
        self.settings = dispatcher.settings
        self.broker = broker
        self.clock = clock
        self.trouble: str | None = None
        """Why the broker refused the last request, if it did."""
        self.on_result: Callable[[Any], None] | None = None
        """Called with each result; set by tests."""
        self._send_reply = send_reply
        self._failure_policy = FailurePolicy(dispatcher.queue, dispatcher.settings, on_threshold, clock)
        self._arrival_rate = ArrivalRate()

    def prefetch(self, most: int = _MOST) -> AdaptivePrefetch:
        """How many messages a new worker takes at once."""
        careful = 1 if not self.settings.retry.max_retries or self.dispatcher.gate is not None else None
        fixed = self.settings.batch if self.dispatcher.takes_lists else careful
        return AdaptivePrefetch(fixed, most, self._arrival_rate)

    def renew(self, delivery: BaseDelivery[Any]) -> int:
        """Renew a lease, and return for how long: the queue's `acknowledge_timeout`, which may change at any time."""
        if not self.broker.renew(delivery):  # type: ignore[arg-type]
            return _LOST
        return self.broker.queue(self.queue).options.acknowledge_timeout

    def pending(
        self, delivery: BaseDelivery[Any], finished: FinishedCalls, released: Sequence[int] = ()
    ) -> PendingSettlement:
        """How to settle finished calls, and rows that were not begun."""
        fates: dict[Fate, list[int]] = {}
        replies: list[tuple[int, Reply]] = []
        consumer = delivery.consumer
        done: list[int] = []
        attempts: list[int] | None = None
        for rows, result in finished:
            if self.on_result is not None:
                self.on_result(result)
            if result is DONE:
                done += rows
                continue
            if result.replies:
                replies += [(rows[at], reply) for at, reply in zip(result.rows, result.replies, strict=True)]
            if result.outcome is Outcome.ACK:
                done += rows
                continue
            if attempts is None:
                attempts = delivery.attempts
            for row in rows:
                fate = self._failure_policy.decide(result, delivery.messages.id(row), attempts[row], consumer)
                fates.setdefault(fate, []).append(row)
                reply = self._failure_policy.failure_reply(cell(delivery.messages.headers, row), result, fate)
                if reply is not None:
                    replies.append((row, reply))
        if done:
            fates[settlement(Outcome.ACK, consumer=consumer), None] = done
        if released:
            fates[settlement(Outcome.RELEASE, "not begun", consumer=consumer), None] = list(released)
        return PendingSettlement(self, delivery, replies, fates, self._send_reply)

    def settle(
        self,
        delivery: BaseDelivery[Any],
        finished: FinishedCalls,
        released: Sequence[int] = (),
        stopping: threading.Event | None = None,
    ) -> None:
        """Settle a delivery in this thread."""
        self.pending(delivery, finished, released).apply(stopping or threading.Event())
