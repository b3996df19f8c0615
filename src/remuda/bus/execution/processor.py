"""What all pools share: keeping at it, and settling what was handled."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from remuda.bus.broker_api import BaseDelivery, Broker, Outcome, Settlement, settlement
from remuda.bus.execution.active_delivery import FinishedCalls
from remuda.bus.execution.failure_policy import FailurePolicy, Judgement, Threshold
from remuda.bus.execution.prefetch import AdaptivePrefetch, ArrivalRate
from remuda.bus.handlers.call_result import Reply
from remuda.bus.handlers.dispatcher import Dispatcher
from remuda.model.errors import BrokerClosed, RemudaError
from remuda.model.message import Message

_log = logging.getLogger("remuda.bus")

POLL: Final = 0.2
"""How long a worker asks for messages, in seconds, before it looks whether to stop."""
PAUSE: Final = 1.0
"""How long a worker waits, in seconds, before it tries again what the broker refused."""


class WorkerPool(Protocol):
    """Everyone who processors on one queue."""

    def start(self) -> None: ...
    def stop(self) -> None:
        """Take in nothing more; give back what has not begun."""
        ...

    def join(self, timeout: float) -> bool:
        """Wait for what has begun; False if it did not end in time."""
        ...

    def abandon(self) -> None:
        """Interrupt what still runs, and give its messages back."""
        ...


class QueueProcessor:
    """One queue's dispatcher, with the means to settle what comes of them."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        broker: Broker,
        send_reply: Callable[[Message, Reply], None],
        on_threshold: Threshold | None,
    ) -> None:
        self.dispatcher = dispatcher
        self.queue = dispatcher.queue
        self.settings = dispatcher.settings
        self.broker = broker
        self.trouble: str | None = None
        """Why the last thing asked of the broker was refused, if it was."""
        self._send_reply = send_reply
        self._failure_policy = FailurePolicy(dispatcher.queue, dispatcher.settings, on_threshold)
        self._arrival_rate = ArrivalRate()

    def prefetch(self) -> AdaptivePrefetch:
        """A new worker's pace."""
        careful = 1 if not self.settings.retry.max_retries else None
        return AdaptivePrefetch(self.settings.batch if self.dispatcher.takes_lists else careful, self._arrival_rate)

    def decide(
        self, delivery: BaseDelivery[Any], finished: FinishedCalls, released: Sequence[int] = ()
    ) -> PendingSettlement:
        """What is to be done about calls that finished, and about rows that were not begun."""
        fates: dict[Judgement, list[int]] = {}
        replies: list[tuple[Message, Reply]] = []
        consumer, attempts = delivery.consumer, delivery.attempts
        done: list[int] = []
        for rows, result in finished:
            replies += [(delivery[row], reply) for row, reply in zip(rows, result.replies, strict=False) if reply]
            if result.outcome is Outcome.ACKNOWLEDGE:
                done += rows
                continue
            for row in rows:
                fate = self._failure_policy.judge(result, delivery.messages.id(row), attempts[row], consumer)
                fates.setdefault(fate, []).append(row)
        if done:
            fates[Judgement(settlement(Outcome.ACKNOWLEDGE, consumer=consumer))] = done
        if released:
            fates[Judgement(settlement(Outcome.RELEASE, "not begun", consumer=consumer))] = list(released)
        return PendingSettlement(self, delivery, replies, fates, self._send_reply)

    def conclude(
        self,
        delivery: BaseDelivery[Any],
        finished: FinishedCalls,
        released: Sequence[int] = (),
        stopping: threading.Event | None = None,
    ) -> None:
        """Do it, for a thread."""
        self.decide(delivery, finished, released).carry_out(stopping or threading.Event())


class PendingSettlement:
    """ReplyListener to send and rows to settle, those with one fate together.

    If the broker refuses, as on a full disk, it is tried again until it takes them or the crew stops: whatever was
    handled is not handled again.
    """

    def __init__(
        self,
        processor: QueueProcessor,
        delivery: BaseDelivery[Any],
        replies: list[tuple[Message, Reply]],
        fates: dict[Judgement, list[int]],
        send_reply: Callable[[Message, Reply], None],
    ) -> None:
        self._processor = processor
        self._delivery = delivery
        self._replies = replies
        self._fates = fates
        self._send_reply = send_reply

    def carry_out(self, stopping: threading.Event) -> None:
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
                if stopping.wait(PAUSE):
                    raise

    async def carry_out_async(self, stopping: threading.Event) -> None:
        while True:
            try:
                if self._replies:
                    await asyncio.to_thread(self._reply)
                await asyncio.gather(*self._settle())
                self._processor.trouble = None
                return
            except BrokerClosed:
                raise
            except RemudaError as error:
                self._complain(error)
                if stopping.is_set():
                    raise
                await asyncio.sleep(PAUSE)

    def _reply(self) -> None:
        while self._replies:
            self._send_reply(*self._replies[0])
            del self._replies[0]

    def _settle(self) -> list[Awaitable[int]]:
        """Gives what the delivery's answers gave: for a coroutine, something to await."""
        whole = len(self._delivery)
        return [
            self._delivery.answer(_with_target(fate), None if len(rows) == whole else rows, wait=False)
            for fate, rows in self._fates.items()
        ]

    def _complain(self, error: RemudaError) -> None:
        if self._processor.trouble != str(error):
            _log.error("%s: what was handled cannot be settled yet: %s", self._processor.queue, error)
        self._processor.trouble = str(error)


def join_all(threads: Iterable[threading.Thread], timeout: float) -> bool:
    """Wait for threads to end, except for this one and those that never started; False if some did not in time."""
    deadline = time.monotonic() + timeout
    others = [thread for thread in threads if thread.ident is not None and thread is not threading.current_thread()]
    for thread in others:
        thread.join(max(deadline - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in others)


def run_until_stopped(processor: QueueProcessor, stopping: threading.Event, step: Callable[[], bool]) -> None:
    """Take steps until there are no more to take or the crew stops. After a failure the next step comes later."""
    while not stopping.is_set():
        try:
            if not step():
                return
        except BrokerClosed:
            return
        except Exception as error:
            report_trouble(processor, error)
            stopping.wait(PAUSE)


def report_trouble(processor: QueueProcessor, error: Exception) -> None:
    processor.trouble = str(error)
    known = isinstance(error, RemudaError)
    _log.error("%s: a worker has to wait: %s", processor.queue, error, exc_info=None if known else error)


def _with_target(fate: Judgement) -> Settlement:
    return fate.settlement if fate.to is None else msgspec.structs.replace(fate.settlement, to=fate.to)
