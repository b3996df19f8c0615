"""A crew of coroutines: one event loop per queue, so that a coroutine that blocks its loop blocks no other queue."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from remuda.bus.broker_api import AsyncDelivery, Outcome
from remuda.bus.execution.active_delivery import LINGER, RENEW, ActiveDelivery, FinishedCalls
from remuda.bus.execution.processor import PAUSE, POLL, QueueProcessor, join_all, report_trouble
from remuda.bus.execution.watchdog import GRACE, Watchdog, WatchedThread
from remuda.bus.handlers.call import Call, run_on_new_loop
from remuda.bus.handlers.call_result import CallResult
from remuda.bus.handlers.exceptions import HandlerTimeout
from remuda.model.durations import SECOND, text
from remuda.model.errors import BrokerClosed, RemudaError

T = TypeVar("T")

_log = logging.getLogger("remuda.bus")
_BEAT: Final = 0.1
"""How often a loop shows that it is not blocked, in seconds."""


class AsyncWorkerPool:
    """As many workers as the queue's concurrency, on one loop in a thread of its own. A blocked loop is replaced."""

    def __init__(self, processor: QueueProcessor, watchdog: Watchdog) -> None:
        self.processor = processor
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

    def __init__(self, pool: AsyncWorkerPool) -> None:
        self._pool = pool
        self._processor = pool.processor
        self._deliveries: set[ActiveDelivery[AsyncDelivery]] = set()
        self._tasks: dict[asyncio.Task[Any], ActiveDelivery[AsyncDelivery] | None] = {}
        """Workers, and the calls that have tasks of their own with what they belong to."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched = WatchedThread(
            f"a coroutine of {pool.processor.queue} that blocks its loop", lambda now: None, self._abandon
        )
        self.thread = threading.Thread(target=self._run, name=f"remuda-{pool.processor.queue}", daemon=True)

    def give_up(self) -> None:
        """The crew has stopped, and does not wait any longer."""
        self._watched.give_up()
        stopped = CallResult(Outcome.RELEASE, "stopped before it finished")
        run_on_new_loop(self._answer_for_all(stopped))
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _run(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        self._pool.watchdog.add(self._watched)
        try:
            loop.run_until_complete(self._work_all())
        except HandlerTimeout:
            # The interrupt for a blocked loop came when it had just become free.
            self._abandon()
        finally:
            self._pool.watchdog.remove(self._watched)
            _close(loop)

    async def _work_all(self) -> None:
        beat = asyncio.ensure_future(self._beat())
        workers = [self._task(self._worker()) for _ in range(self._processor.settings.threads)]
        await asyncio.gather(*workers)
        beat.cancel()
        self._watched.end()

    async def _beat(self) -> None:
        timeout = self._processor.settings.timeout
        while timeout is not None:
            self._watched.end()
            self._watched.begin(timeout / SECOND + _BEAT)
            await asyncio.sleep(_BEAT)

    async def _worker(self) -> None:
        processor, prefetch = self._processor, self._processor.prefetch()
        while not self._pool.stopping.is_set() and not self._watched.abandoned:
            try:
                delivery = await processor.broker.aio.pull(processor.queue, prefetch.count, timeout=POLL)
                if delivery is not None:
                    prefetch.begin()
                    if pause := prefetch.end(delivery, failed=not await self._handle(delivery)):
                        await asyncio.sleep(pause)
            except BrokerClosed:
                return
            except Exception as error:
                report_trouble(processor, error)
                await asyncio.sleep(PAUSE)

    async def _handle(self, delivery: AsyncDelivery) -> bool:
        """Run the handlers for a delivery and settle it; whether all went well."""
        active = ActiveDelivery(delivery)
        self._deliveries.add(active)
        keeper = asyncio.ensure_future(self._keep(active))
        try:
            for rows, call in self._processor.dispatcher.calls(delivery):
                if self._pool.stopping.is_set() or not active.begin(rows):
                    break
                if not active.end(call if isinstance(call, CallResult) else await self._call(call, active)):
                    return False
            state = active.close()
            if state is None:
                return False
            await self._conclude(active, state.finished, state.waiting)
            return all(result.outcome is Outcome.ACKNOWLEDGE for _, result in state.finished)
        finally:
            keeper.cancel()
            self._deliveries.discard(active)

    async def _call(self, call: Call, active: ActiveDelivery[AsyncDelivery]) -> CallResult:
        timeout = self._processor.settings.timeout
        if timeout is None:
            return await call.run_async()
        task = self._task(call.run_async(), active)
        await asyncio.wait({task}, timeout=timeout / SECOND)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE)
            if not task.done():
                _log.error(
                    "a handler of %s ignores its timeout; it is left behind and others go on", self._processor.queue
                )
            return self._timed_out()
        result = task.result()
        return self._timed_out() if result.reason == "timed out" else result

    async def _keep(self, active: ActiveDelivery[AsyncDelivery]) -> None:
        """While a delivery takes long: what has not begun goes back, the rest stays ours."""
        await asyncio.sleep(LINGER)
        if rows := active.give_back(time.monotonic()):
            with suppress(RemudaError):
                await active.delivery.release(rows)
        while True:
            await asyncio.sleep(RENEW)
            with suppress(RemudaError):
                await self._processor.broker.aio.renew(active.delivery)

    async def _conclude(
        self, active: ActiveDelivery[AsyncDelivery], finished: FinishedCalls, released: list[int]
    ) -> None:
        await self._processor.decide(active.delivery, finished, released).carry_out_async(self._pool.stopping)

    def _task(
        self, coroutine: Coroutine[Any, Any, T], active: ActiveDelivery[AsyncDelivery] | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.ensure_future(coroutine)
        self._tasks[task] = active
        task.add_done_callback(self._tasks.pop)
        return task

    def _cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _abandon(self) -> None:
        """The loop is blocked, or gone: answer for its calls, and go on with another. Only the culprit is charged."""
        self._watched.abandoned = True
        assert self._loop is not None
        running = asyncio.current_task(self._loop)
        culprit = self._tasks.get(running) if running is not None else None
        neighbour = CallResult(Outcome.RELEASE, "another coroutine blocked its loop")
        try:
            run_on_new_loop(self._answer_for_all(neighbour, culprit))
        finally:
            self._pool.replace(self)

    async def _answer_for_all(self, others: CallResult, culprit: ActiveDelivery[AsyncDelivery] | None = None) -> None:
        """Outcome for every delivery on this loop."""
        for active in list(self._deliveries):
            state = active.close()
            if state is None:
                continue
            result = self._timed_out(" and blocks its loop") if active is culprit else others
            finished = [*state.finished, (state.running, result)] if state.running else state.finished
            await self._conclude(active, finished, state.waiting)

    def _timed_out(self, how: str = "") -> CallResult:
        return CallResult(Outcome.NEGATIVE, f"timed out after {text(self._processor.settings.timeout or 0)}{how}")


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
