"""What all crews share: keeping at it, and settling what was handled."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from remuda.broker.delivery import Answers
from remuda.broker.port import Broker
from remuda.bus.duties import Duties
from remuda.bus.hand import Ended
from remuda.bus.judge import Judge, Judgement, Threshold
from remuda.bus.outcome import Reply
from remuda.bus.pace import Arrivals, Pace
from remuda.core.effects import Answer
from remuda.core.settling import Verdict
from remuda.model.errors import BrokerClosed, RemudaError
from remuda.model.message import Message

_log = logging.getLogger("remuda.bus")

POLL: Final = 0.2
"""How long a worker asks for messages, in seconds, before it looks whether to stop."""
PAUSE: Final = 1.0
"""How long a worker waits, in seconds, before it tries again what the broker refused."""


class Crew(Protocol):
    """Everyone who works on one queue."""

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


class Work:
    """One queue's duties, with the means to settle what comes of them."""

    def __init__(
        self,
        duties: Duties,
        broker: Broker,
        send_reply: Callable[[Message, Reply], None],
        on_threshold: Threshold | None,
    ) -> None:
        self.duties = duties
        self.queue = duties.queue
        self.settings = duties.settings
        self.broker = broker
        self.trouble: str | None = None
        """Why the last thing asked of the broker was refused, if it was."""
        self._send_reply = send_reply
        self._judge = Judge(duties.queue, duties.settings, on_threshold)
        self._arrivals = Arrivals()

    def pace(self) -> Pace:
        """A new worker's pace."""
        careful = 1 if not self.settings.retry.max_retries else None
        return Pace(self.settings.batch if self.duties.takes_lists else careful, self._arrivals)

    def decide(self, delivery: Answers[Any], ended: Ended, released: Sequence[int] = ()) -> Conclusion:
        """What is to be done about calls that ended, and about rows that were not begun."""
        fates: dict[Judgement, list[int]] = {}
        replies: list[tuple[Message, Reply]] = []
        consumer, attempts = delivery.consumer, delivery.attempts
        done: list[int] = []
        for rows, outcome in ended:
            replies += [(delivery[row], reply) for row, reply in zip(rows, outcome.replies, strict=False) if reply]
            if outcome.answer is Answer.ACKNOWLEDGE:
                done += rows
                continue
            for row in rows:
                fate = self._judge.judge(outcome, delivery.messages.id(row), attempts[row], consumer)
                fates.setdefault(fate, []).append(row)
        if done:
            fates[Judgement(Verdict(Answer.ACKNOWLEDGE, consumer=consumer))] = done
        if released:
            fates[Judgement(Verdict(Answer.RELEASE, "not begun", consumer=consumer))] = list(released)
        return Conclusion(self, delivery, replies, fates, self._send_reply)

    def conclude(
        self,
        delivery: Answers[Any],
        ended: Ended,
        released: Sequence[int] = (),
        stopping: threading.Event | None = None,
    ) -> None:
        """Do it, for a thread."""
        self.decide(delivery, ended, released).carry_out(stopping or threading.Event())


class Conclusion:
    """Replies to send and rows to settle, those with one fate together.

    If the broker refuses, as on a full disk, it is tried again until it takes them or the crew stops: whatever was
    handled is not handled again.
    """

    def __init__(
        self,
        work: Work,
        delivery: Answers[Any],
        replies: list[tuple[Message, Reply]],
        fates: dict[Judgement, list[int]],
        send_reply: Callable[[Message, Reply], None],
    ) -> None:
        self._work = work
        self._delivery = delivery
        self._replies = replies
        self._fates = fates
        self._send_reply = send_reply

    def carry_out(self, stopping: threading.Event) -> None:
        while True:
            try:
                self._reply()
                self._settle()
                self._work.trouble = None
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
                self._work.trouble = None
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
            self._delivery.answer(fate.verdict, None if len(rows) == whole else rows, fate.to, wait=False)
            for fate, rows in self._fates.items()
        ]

    def _complain(self, error: RemudaError) -> None:
        if self._work.trouble != str(error):
            _log.error("%s: what was handled cannot be settled yet: %s", self._work.queue, error)
        self._work.trouble = str(error)


def join_all(threads: Iterable[threading.Thread], timeout: float) -> bool:
    """Wait for threads to end, except for this one and those that never started; False if some did not in time."""
    deadline = time.monotonic() + timeout
    others = [thread for thread in threads if thread.ident is not None and thread is not threading.current_thread()]
    for thread in others:
        thread.join(max(deadline - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in others)


def keep_at_it(work: Work, stopping: threading.Event, step: Callable[[], bool]) -> None:
    """Take steps until there are no more to take or the crew stops. After a failure the next step comes later."""
    while not stopping.is_set():
        try:
            if not step():
                return
        except BrokerClosed:
            return
        except Exception as error:
            tell(work, error)
            stopping.wait(PAUSE)


def tell(work: Work, error: Exception) -> None:
    work.trouble = str(error)
    known = isinstance(error, RemudaError)
    _log.error("%s: a worker has to wait: %s", work.queue, error, exc_info=None if known else error)
