"""One queue's processing: its dispatcher, and settling the messages that were handled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from remuda.bus.broker_api import (
    AsyncDelivery,
    BaseDelivery,
    Broker,
    Clock,
    Delivery,
    EmbeddedBroker,
    Outcome,
    Waits,
    settlement,
)
from remuda.bus.execution.active_delivery import CallInHand, FinishedCalls
from remuda.bus.execution.failure_policy import FailurePolicy, Fate, Threshold
from remuda.bus.execution.prefetch import AdaptivePrefetch, ArrivalRate
from remuda.bus.execution.settling import PULL, Failover, PendingSettlement
from remuda.bus.handlers.dispatcher import Dispatcher
from remuda.bus.handlers.result import DONE
from remuda.bus.observing import progress
from remuda.bus.publishing.result_messages import Reply
from remuda.model.errors import NotFound
from remuda.model.message import Message
from remuda.model.messages import cell
from remuda.model.operations.worker_orders import RunningCall
from remuda.model.values.durations import SECOND

SendReply = Callable[[Message, Reply], None]

_MOST: Final = 256
POLL: Final = 0.2
"""How long a worker waits for messages, in seconds, before it checks whether to stop, where nothing wakes it."""
LONG: Final = 3600.0
"""The same where it is woken."""
_OFTEN: Final = 0.05
_LOOK: Final = 0.2
"""How often a worker looks whether there are enough messages for a batch, and how long it looks for a first one."""
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
        self.troubles: dict[str, str] = {}
        """What keeps its workers from their work at present, and why."""
        self.waits = Waits()
        self.wakes = isinstance(broker, EmbeddedBroker)
        """Whether a pull that waits can be ended before its time."""
        self._may_go = threading.Event()
        self._may_go.set()
        self.on_closed: Callable[[Exception], None] = lambda error: None
        """Called when there is no broker any more."""
        self.on_result: Callable[[Any], None] | None = None
        """Called with each result; set by tests."""
        dispatcher.comes_anew = self._comes_anew
        self._send_reply = send_reply
        self.failure_policy = FailurePolicy(dispatcher.queue, dispatcher.settings, on_threshold, clock)
        self._arrival_rate = ArrivalRate()
        self._since: float | None = None
        """Since when messages wait for others to make a batch."""

    @property
    def paused(self) -> bool:
        """Whether an operator has its workers take no more messages."""
        return not self._may_go.is_set()

    def pause(self, paused: bool) -> None:
        if paused:
            self._may_go.clear()
            self.waits.end()
        else:
            self.waits.go_on()
            self._may_go.set()

    def wait_until_resumed(self) -> None:
        """Return when its workers may take messages again, or are to stop."""
        self._may_go.wait()

    def stop(self) -> None:
        """Wake its workers: they are to stop."""
        self._may_go.set()
        self.waits.end()

    def take(self, count: int, most: float = LONG) -> Delivery | None:
        """Wait for messages. None if there are none yet, or if nobody is to wait any more."""
        if self.settings.batch_wait and not self._fill(count):
            return None
        if self.wakes:
            broker: EmbeddedBroker = self.broker  # type: ignore[assignment]
            # After an error it is soon told that all is well again.
            return broker.pull_while(self.waits, self.queue, count, POLL if self.troubles else most)
        return self.broker.pull(self.queue, count, timeout=POLL)

    def _fill(self, count: int) -> bool:
        """Wait until there are messages for a whole batch, or some have waited long enough for others; False if there
        are none yet."""
        until = time.monotonic() + _LOOK
        while (pause := self._missing(count)) is not None:
            if self.waits.over or (self._since is None and time.monotonic() > until):
                return False
            time.sleep(pause)
        return True

    async def _fill_async(self, count: int) -> bool:
        import asyncio  # which most programs never need

        until = time.monotonic() + _LOOK
        while (pause := self._missing(count)) is not None:
            if self.waits.over or (self._since is None and time.monotonic() > until):
                return False
            await asyncio.sleep(pause)
        return True

    def _missing(self, count: int) -> float | None:
        """How long to wait before looking again whether a batch is full; None once it is, or has waited for enough."""
        wait = (self.settings.batch_wait or 0) / SECOND
        waiting, now = self.broker.queue(self.queue).waiting, time.monotonic()
        since = self._since = None if not waiting else now if self._since is None else self._since
        if waiting >= count or (since is not None and now - since >= wait):
            self._since = None
            return None
        return max(min(wait / 10, _OFTEN), 0.001)

    async def take_async(self, count: int) -> AsyncDelivery | None:
        if self.settings.batch_wait and not await self._fill_async(count):
            return None
        if self.wakes:
            broker: EmbeddedBroker = self.broker  # type: ignore[assignment]
            return await broker.aio.pull_while(self.waits, self.queue, count, POLL if self.troubles else LONG)
        return await self.broker.aio.pull(self.queue, count, timeout=POLL)

    @property
    def trouble(self) -> str | None:
        """Why the queue is not processed, if it is not."""
        return next(iter(self.troubles.values()), None)

    def answered(self) -> None:
        """The broker answers pulls: an idle queue, too, is well again after what refused them has passed."""
        if self.troubles:
            self.troubles.pop(PULL, None)

    def running_call(self, call: CallInHand) -> RunningCall:
        """A call as workers tell of it."""
        delivery, row = call.delivery, call.rows[0]
        messages = delivery.messages
        age = int((time.monotonic() - call.since) * SECOND)
        return RunningCall(
            queue=self.queue, id=messages.id(row), offset=delivery.offsets[row], topic=cell(messages.name, row),
            handler=self.dispatcher.names(delivery[row]), attempt=delivery.attempts[row], since=self.clock() - age,
            timeout=self.settings.timeout, count=len(call.rows),
            progress=progress.latest(self.queue, delivery.offsets[row]),
        )  # fmt: skip

    def prefetch(self, most: int = _MOST) -> AdaptivePrefetch:
        """How many messages a new worker takes at once."""
        careful = 1 if not self.settings.retry.max_retries or self.dispatcher.gate is not None else None
        if self._is_paced():
            careful = 1  # what it took and has not begun would hold a slot that another worker could use
        fixed = self.settings.batch if self.dispatcher.takes_lists else careful
        return AdaptivePrefetch(fixed, most, self._arrival_rate)

    def _is_paced(self) -> bool:
        try:
            return self.broker.queue(self.queue).options.paces
        except NotFound:  # somebody removed it; it is made again by what comes next
            return False

    def _comes_anew(self, offset: int) -> bool:
        """Whether a message that has more attempts than this queue makes was moved here and not tried yet."""
        try:
            views = self.broker.message(offset).queues
        except NotFound:
            return False
        moved = max((view.modified for view in views if view.moved_to == self.queue), default=None)
        fetched = [one.fetched for view in views if view.queue == self.queue for one in view.consumed_by]
        return moved is not None and sum(time >= moved for time in fetched) <= 1

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
        moves: list[Failover] = []
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
            if len(rows) > 1 and any(self.failure_policy.ends(result, attempts[row]) for row in rows):
                # One bad message must not end the others of its list: from now on each is handled alone.
                alone = settlement(Outcome.RELEASE, f"tried one by one: {result.reason}", consumer=consumer)
                fates.setdefault((alone, None), []).extend(rows)
                continue
            for row in rows:
                fate = self.failure_policy.decide(result, delivery.messages.id(row), attempts[row], consumer)
                if fate[1] is not None:
                    moves.append(Failover(row, result, fate))
                    continue
                fates.setdefault(fate, []).append(row)
                reply = self.failure_policy.failure_reply(cell(delivery.messages.headers, row), result, fate)
                if reply is not None:
                    replies.append((row, reply))
        if done:
            fates[settlement(Outcome.ACK, consumer=consumer), None] = done
        if released:
            fates[settlement(Outcome.RELEASE, "not begun", consumer=consumer), None] = list(released)
        return PendingSettlement(self, delivery, replies, fates, self._send_reply, moves)

    def settle(
        self,
        delivery: BaseDelivery[Any],
        finished: FinishedCalls,
        released: Sequence[int] = (),
        stopping: threading.Event | None = None,
    ) -> None:
        """Settle a delivery in this thread."""
        self.pending(delivery, finished, released).apply(stopping or threading.Event())
