"""A crew of coroutines: one event loop per queue, so that a coroutine that blocks its loop blocks no other queue."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from remuda.broker.delivery import AsyncDelivery
from remuda.bus.answers import HandlerTimeout
from remuda.bus.crew import PAUSE, POLL, Work, join_all, tell
from remuda.bus.hand import LINGER, RENEW, Ended, Hand
from remuda.bus.invoke import Call, apart
from remuda.bus.outcome import Outcome
from remuda.bus.watchdog import GRACE, Slot, Watchdog
from remuda.core.effects import Answer
from remuda.model.durations import SECOND, text
from remuda.model.errors import BrokerClosed, RemudaError

T = TypeVar("T")

_log = logging.getLogger("remuda.bus")
_BEAT: Final = 0.1
"""How often a loop shows that it is not blocked, in seconds."""


class CoroutineCrew:
    """As many workers as the queue's concurrency, on one loop in a thread of its own. A blocked loop is replaced."""

    def __init__(self, work: Work, watchdog: Watchdog) -> None:
        self.work = work
        self.watchdog = watchdog
        self.stopping = threading.Event()
        self._guard = threading.Lock()
        self._loops: list[_Loop] = []

    def start(self) -> None:
        loop = _Loop(self)
        with self._guard:
            self._loops.append(loop)
        loop.thread.start()

    def replace(self, loop: _Loop) -> None:
        with self._guard:
            self._loops.remove(loop)
        if not self.stopping.is_set():
            self.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self, timeout: float) -> bool:
        with self._guard:
            loops = list(self._loops)
        return join_all([loop.thread for loop in loops], timeout)

    def abandon(self) -> None:
        with self._guard:
            loops = list(self._loops)
        for loop in loops:
            loop.give_up()


class _Loop:
    """A thread with an event loop, and the workers on it."""

    def __init__(self, crew: CoroutineCrew) -> None:
        self._crew = crew
        self._work = crew.work
        self._hands: set[Hand[AsyncDelivery]] = set()
        self._tasks: dict[asyncio.Task[Any], Hand[AsyncDelivery] | None] = {}
        """Workers, and the calls that have tasks of their own with what they belong to."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slot = Slot(f"a coroutine of {crew.work.queue} that blocks its loop", lambda now: None, self._abandon)
        self.thread = threading.Thread(target=self._run, name=f"remuda-{crew.work.queue}", daemon=True)

    def give_up(self) -> None:
        """The crew has stopped, and does not wait any longer."""
        self._slot.give_up()
        stopped = Outcome(Answer.RELEASE, "stopped before it ended")
        apart(self._answer_for_all(stopped))
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _run(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        self._crew.watchdog.add(self._slot)
        try:
            loop.run_until_complete(self._work_all())
        except HandlerTimeout:
            # The interrupt for a blocked loop came when it had just become free.
            self._abandon()
        finally:
            self._crew.watchdog.remove(self._slot)
            _close(loop)

    async def _work_all(self) -> None:
        beat = asyncio.ensure_future(self._beat())
        workers = [self._task(self._worker()) for _ in range(self._work.settings.threads)]
        await asyncio.gather(*workers)
        beat.cancel()
        self._slot.end()

    async def _beat(self) -> None:
        timeout = self._work.settings.timeout
        while timeout is not None:
            self._slot.end()
            self._slot.begin(timeout / SECOND + _BEAT)
            await asyncio.sleep(_BEAT)

    async def _worker(self) -> None:
        work, pace = self._work, self._work.pace()
        while not self._crew.stopping.is_set() and not self._slot.abandoned:
            try:
                delivery = await work.broker.aio.pull(work.queue, pace.count, timeout=POLL)
                if delivery is not None:
                    pace.begin()
                    if pause := pace.end(delivery, failed=not await self._handle(delivery)):
                        await asyncio.sleep(pause)
            except BrokerClosed:
                return
            except Exception as error:
                tell(work, error)
                await asyncio.sleep(PAUSE)

    async def _handle(self, delivery: AsyncDelivery) -> bool:
        """Run the handlers for a delivery and settle it; whether all went well."""
        hand = Hand(delivery)
        self._hands.add(hand)
        keeper = asyncio.ensure_future(self._keep(hand))
        try:
            for rows, call in self._work.duties.calls(delivery):
                if self._crew.stopping.is_set() or not hand.begin(rows):
                    break
                if not hand.end(call if isinstance(call, Outcome) else await self._call(call, hand)):
                    return False
            rest = hand.close()
            if rest is None:
                return False
            await self._conclude(hand, rest.ended, rest.waiting)
            return all(outcome.answer is Answer.ACKNOWLEDGE for _, outcome in rest.ended)
        finally:
            keeper.cancel()
            self._hands.discard(hand)

    async def _call(self, call: Call, hand: Hand[AsyncDelivery]) -> Outcome:
        timeout = self._work.settings.timeout
        if timeout is None:
            return await call.run_async()
        task = self._task(call.run_async(), hand)
        await asyncio.wait({task}, timeout=timeout / SECOND)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE)
            if not task.done():
                _log.error("a handler of %s ignores its timeout; it is left behind and others go on", self._work.queue)
            return self._timed_out()
        outcome = task.result()
        return self._timed_out() if outcome.reason == "timed out" else outcome

    async def _keep(self, hand: Hand[AsyncDelivery]) -> None:
        """While a delivery takes long: what has not begun goes back, the rest stays ours."""
        await asyncio.sleep(LINGER)
        if rows := hand.give_back(time.monotonic()):
            with suppress(RemudaError):
                await hand.delivery.release(rows)
        while True:
            await asyncio.sleep(RENEW)
            with suppress(RemudaError):
                await self._work.broker.aio.renew(hand.delivery)

    async def _conclude(self, hand: Hand[AsyncDelivery], ended: Ended, released: list[int]) -> None:
        await self._work.decide(hand.delivery, ended, released).carry_out_async(self._crew.stopping)

    def _task(self, coroutine: Coroutine[Any, Any, T], hand: Hand[AsyncDelivery] | None = None) -> asyncio.Task[T]:
        task = asyncio.ensure_future(coroutine)
        self._tasks[task] = hand
        task.add_done_callback(self._tasks.pop)
        return task

    def _cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _abandon(self) -> None:
        """The loop is blocked, or gone: answer for its calls, and go on with another. Only the culprit is charged."""
        self._slot.abandoned = True
        assert self._loop is not None
        running = asyncio.current_task(self._loop)
        culprit = self._tasks.get(running) if running is not None else None
        neighbour = Outcome(Answer.RELEASE, "another coroutine blocked its loop")
        try:
            apart(self._answer_for_all(neighbour, culprit))
        finally:
            self._crew.replace(self)

    async def _answer_for_all(self, others: Outcome, culprit: Hand[AsyncDelivery] | None = None) -> None:
        """Answer for every delivery on this loop."""
        for hand in list(self._hands):
            rest = hand.close()
            if rest is None:
                continue
            outcome = self._timed_out(" and blocks its loop") if hand is culprit else others
            ended = [*rest.ended, (rest.running, outcome)] if rest.running else rest.ended
            await self._conclude(hand, ended, rest.waiting)

    def _timed_out(self, how: str = "") -> Outcome:
        return Outcome(Answer.NEGATIVE, f"timed out after {text(self._work.settings.timeout or 0)}{how}")


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """End what is left on a loop; what ignores it is left behind."""
    try:
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=GRACE))
            # What is still there was reported when it was left behind.
            loop.set_exception_handler(lambda loop, context: None)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
