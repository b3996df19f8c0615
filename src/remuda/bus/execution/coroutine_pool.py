"""Pools of coroutines: on a loop of their own, so that a blocking handler holds up no other queue, or on the
application's loop, where the objects that it created at startup work."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakSet

from remuda.bus.broker_api import AsyncDelivery, Outcome
from remuda.bus.execution.active_delivery import LINGER, ActiveDelivery, CallInHand, FinishedCalls
from remuda.bus.execution.cancelling import INTERRUPTED
from remuda.bus.execution.processor import POLL, QueueProcessor
from remuda.bus.execution.watchdog import GRACE, Watchdog, WatchedThread
from remuda.bus.execution.worker_pool import PAUSE, ThreadPool, report_trouble
from remuda.bus.handlers.call import HandlerCall
from remuda.bus.handlers.context import tell_to_stop
from remuda.bus.handlers.exceptions import HandlerTimeout
from remuda.bus.handlers.loops import run_on_new_loop
from remuda.bus.handlers.result import CallResult
from remuda.model.errors import BrokerClosed, RemudaError
from remuda.model.values.durations import SECOND, text

T = TypeVar("T")

_log = logging.getLogger("remuda.bus")
_BEAT: Final = 0.1
"""How often a loop shows that it is not blocked, in seconds."""


class AsyncWorkers:
    """The workers of one queue on one loop."""

    def __init__(self, processor: QueueProcessor, watchdog: Watchdog, stopping: threading.Event, label: str) -> None:
        self.processor = processor
        self.watchdog = watchdog
        self.deliveries: set[ActiveDelivery[AsyncDelivery]] = set()
        self.tasks: dict[asyncio.Task[Any], ActiveDelivery[AsyncDelivery] | None] = {}
        """The tasks of workers, and those of calls with their delivery."""
        self.watched = WatchedThread(label, self._attend, self.abandoned)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._stopping = stopping
        self._crew: set[asyncio.Task[Any]] = set()
        self._replaced: WeakSet[asyncio.Task[Any]] = WeakSet()
        """Workers whose handler ignores its interrupt: they end with it."""

    def abandoned(self) -> None:
        """Called by the watchdog for a loop that stays blocked."""

    async def run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._crew = {self.task(self._worker()) for _ in range(self.processor.settings.threads)}
        while self._crew:
            ended, _ = await asyncio.wait(self._crew, return_when=asyncio.FIRST_COMPLETED)
            self._crew -= ended
            for task in ended:
                task.result()

    def task(
        self, coroutine: Coroutine[Any, Any, T], active: ActiveDelivery[AsyncDelivery] | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.ensure_future(coroutine)
        self.tasks[task] = active
        task.add_done_callback(self.tasks.pop)
        return task

    def cancel(self, offset: int, result: CallResult) -> bool:
        """Cancel a message that it has."""
        for active in list(self.deliveries):
            if active.cancel(offset, result):
                if self.loop is not None and not self.loop.is_closed():
                    self.loop.call_soon_threadsafe(self._end_cancelled, active)
                return True
        return False

    def _end_cancelled(self, active: ActiveDelivery[AsyncDelivery]) -> None:
        """Tell a cancelled call to stop, then interrupt it."""
        call = active.call()
        row = next((row for row in active.cancelled if call is not None and row in call.rows), None)
        if call is None or row is None:
            return
        active.cancel_reached = True
        if tell_to_stop(active.delivery, call.rows[0]):
            asyncio.get_running_loop().call_later(GRACE, self._interrupt, active, row)
        else:
            self._interrupt(active, row)

    def _interrupt(self, active: ActiveDelivery[AsyncDelivery], row: int) -> None:
        # A task that is in a call waits for something in there, so the cancellation reaches its handler.
        if active.runs(row) and active.task is not None and not active.interrupted:
            active.interrupted = active.task.cancel()
            asyncio.get_running_loop().call_later(GRACE, self._abandon_call, active, row)

    def _abandon_call(self, active: ActiveDelivery[AsyncDelivery], row: int) -> None:
        """Settle a call that ignores that it was cancelled, and start another worker."""
        state = active.close() if active.runs(row) else None
        if state is None:
            return
        _log.error(
            "a handler of %s ignores its cancellation; it is abandoned, and the others continue", self.processor.queue
        )
        if active.worker is not None:
            self._replaced.add(active.worker)
        finished = [*state.finished, *active.charged(state.running, INTERRUPTED)]
        self.task(self._settle(active, finished, state.waiting))
        if not self._stopping.is_set():
            self._crew.add(self.task(self._worker()))

    def cancel_tasks(self) -> None:
        for task in list(self.tasks):
            task.cancel()

    def calls(self) -> list[CallInHand]:
        return [call for active in list(self.deliveries) if (call := active.call()) is not None]

    async def settle_all(self, others: CallResult, culprit: ActiveDelivery[AsyncDelivery] | None = None) -> None:
        """Settle every delivery on this loop: running calls as `others`, that of the culprit as timed out."""
        for active in list(self.deliveries):
            state = active.close()
            if state is None:
                continue
            result = self.timed_out(" and blocks its loop") if active is culprit else others
            finished = [*state.finished, *active.charged(state.running, result)] if state.running else state.finished
            await self._settle(active, finished, state.waiting)

    def timed_out(self, how: str = "") -> CallResult:
        reason = f"timed out after {text(self.processor.settings.timeout or 0)}{how}"
        return CallResult(Outcome.NACK, reason, error_type="HandlerTimeout")

    async def _worker(self) -> None:
        processor, prefetch = self.processor, self.processor.prefetch()
        while not self._stopping.is_set() and not self.watched.abandoned and not self._is_replaced():
            try:
                if processor.paused:
                    await asyncio.sleep(POLL)
                    continue
                delivery = await processor.take_async(prefetch.count)
                processor.answered()
                if delivery is not None:
                    prefetch.begin()
                    if pause := prefetch.end(delivery, lost=not await self._handle(delivery)):
                        await asyncio.sleep(pause)
            except BrokerClosed:
                return
            except Exception as error:
                report_trouble(processor, error)
                await asyncio.sleep(PAUSE)

    def _is_replaced(self) -> bool:
        return bool(self._replaced) and asyncio.current_task() in self._replaced

    async def _handle(self, delivery: AsyncDelivery) -> bool:
        """Run the handlers for a delivery and settle it; False if it was settled elsewhere."""
        active = ActiveDelivery(delivery)
        active.worker = asyncio.current_task()
        if not self.deliveries:
            self.begins()
        self.deliveries.add(active)
        self.watchdog.begin(self.watched)
        keeper = asyncio.get_running_loop().call_later(LINGER, self._give_back, active) if len(delivery) > 1 else None
        try:
            for rows, call in self.processor.dispatcher.calls(delivery):
                if self._stopping.is_set() or not active.begin(rows):
                    break
                active.ended = call if isinstance(call, CallResult) else await self._call(call, active)
            state = active.close()
            if state is None:
                return False
            await self._settle(active, state.finished, state.waiting)
            return True
        finally:
            if keeper is not None:
                keeper.cancel()
            self.deliveries.discard(active)
            self.watched.busy = len(self.deliveries)

    def begins(self) -> None:
        """The first delivery came after a while without any."""

    async def _call(self, call: HandlerCall, active: ActiveDelivery[AsyncDelivery]) -> CallResult:
        timeout = self.processor.settings.timeout
        if timeout is None:
            own = active.task = active.worker
            result = await call.run_async()
            if active.interrupted and own is not None:
                own.uncancel()
            return self._taken(active, result)
        task = active.task = self.task(call.run_async(), active)
        await asyncio.wait({task}, timeout=timeout / SECOND)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE)
            if not task.done():
                _log.error(
                    "a handler of %s ignores its timeout; it is abandoned, and the others continue",
                    self.processor.queue,
                )
            return self.timed_out()
        result = task.result()
        return self._taken(active, self.timed_out() if result.reason == "timed out" else result)

    def _taken(self, active: ActiveDelivery[AsyncDelivery], result: CallResult) -> CallResult:
        """The result of a call; of one that was interrupted, that, whatever its handler made of it."""
        interrupted, active.interrupted, active.task = active.interrupted, False, None
        return INTERRUPTED if interrupted else result

    def _give_back(self, active: ActiveDelivery[AsyncDelivery]) -> None:
        """Give back the rows of a slow delivery that have not begun."""
        if rows := active.give_back(time.monotonic()):
            self.task(self._release(active, rows))

    async def _release(self, active: ActiveDelivery[AsyncDelivery], rows: list[int]) -> None:
        with suppress(RemudaError):
            await active.delivery.release(rows)

    def _attend(self, now: float) -> None:
        """Called by the watchdog, from outside the loop, which a handler may block for longer than the lease."""
        for active in list(self.deliveries):
            if active.must_renew(now, self.processor.clock):
                active.renewed(now, self.processor.renew(active.delivery))

    async def _settle(
        self, active: ActiveDelivery[AsyncDelivery], finished: FinishedCalls, released: list[int]
    ) -> None:
        await self.processor.pending(active.delivery, finished, released).apply_async(self._stopping)


class AsyncWorkerPool(ThreadPool["_LoopThread"]):
    """As many workers as the queue's concurrency, on a loop in a thread of its own. A blocked loop is replaced."""

    def make(self) -> _LoopThread:
        return _LoopThread(self)


class _LoopThread(AsyncWorkers):
    """A thread with an event loop, and the workers on it."""

    def __init__(self, pool: AsyncWorkerPool) -> None:
        queue = pool.processor.queue
        super().__init__(pool.processor, pool.watchdog, pool.stopping, f"a coroutine of {queue} that blocks its loop")
        self._pool = pool
        self._loop: asyncio.AbstractEventLoop | None = None
        self._came = asyncio.Event()
        self.thread = threading.Thread(target=self._run_thread, name=f"remuda-{queue}", daemon=True)

    def give_up(self) -> None:
        """Interrupt the calls and give their messages back: the pool has stopped and waits no longer."""
        self.watched.give_up()
        run_on_new_loop(self.settle_all(CallResult(Outcome.RELEASE, "stopped before it ended")))
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.cancel_tasks)

    def _run_thread(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        self._pool.watchdog.add(self.watched)
        try:
            loop.run_until_complete(self._work())
        except HandlerTimeout:
            # The interrupt arrived when the loop had just become free.
            self.abandoned()
        finally:
            self._pool.watchdog.remove(self.watched)
            _close(loop)

    async def _work(self) -> None:
        beat = asyncio.ensure_future(self._beat())
        await self.run()
        beat.cancel()
        self.watched.end()

    def begins(self) -> None:
        self._show_life()  # before a handler can block the loop
        self._came.set()

    def _attend(self, now: float) -> None:
        super()._attend(now)
        for active in list(self.deliveries):
            if active.cancelled and not active.cancel_reached:
                self._cancel_from_outside(active, now)

    def _cancel_from_outside(self, active: ActiveDelivery[AsyncDelivery], now: float) -> None:
        """Interrupt a cancelled call that blocks its loop, so that nothing reaches it there."""
        if active.cancel_by is None:
            active.cancel_by = now + GRACE
        if now < active.cancel_by or self.loop is None:
            return

        def blocks() -> bool:
            running = asyncio.current_task(self.loop)
            return running is not None and running in (active.task, active.worker) and not active.cancel_reached

        self.watched.cancel(blocks, 0)

    async def _beat(self) -> None:
        while self.processor.settings.timeout is not None:
            if self.deliveries:
                self._show_life()
                await asyncio.sleep(_BEAT)
            else:
                self.watched.end()
                self._came.clear()
                await self._came.wait()

    def _show_life(self) -> None:
        timeout = self.processor.settings.timeout
        self.watched.end()
        self.watched.begin(None if timeout is None else timeout / SECOND + _BEAT)

    def abandoned(self) -> None:
        """The loop is blocked or has ended: settle its calls and start another. Only the culprit's attempt counts."""
        self.watched.abandoned = True
        assert self._loop is not None
        running = asyncio.current_task(self._loop)
        culprit = self.tasks.get(running) if running is not None else None
        neighbour = CallResult(Outcome.RELEASE, "another coroutine blocked its loop")
        try:
            run_on_new_loop(self.settle_all(neighbour, culprit))
        finally:
            self._pool.replace(self)


class SharedLoopPool:
    """Workers on a loop that belongs to the application, or is shared by all queues of the bus."""

    def __init__(self, processor: QueueProcessor, watchdog: Watchdog, loop: asyncio.AbstractEventLoop) -> None:
        self.processor = processor
        self.stopping = threading.Event()
        self._watchdog = watchdog
        self._loop = loop
        self._workers = AsyncWorkers(processor, watchdog, self.stopping, f"the workers of {processor.queue}")
        self._ended: Future[None] | None = None

    def start(self) -> None:
        self._watchdog.add(self._workers.watched)
        self._ended = asyncio.run_coroutine_threadsafe(self._workers.run(), self._loop)

    def stop(self) -> None:
        self.stopping.set()
        self.processor.dispatcher.stop.set()
        self.processor.stop()

    def join(self, timeout: float) -> bool:
        if self._ended is None:
            return True
        try:
            self._ended.result(timeout)
        except TimeoutError:
            return False
        except (asyncio.CancelledError, Exception):
            _log.debug("the workers of %s were cancelled", self.processor.queue)
        self._watchdog.remove(self._workers.watched)
        return True

    def cancel(self, offset: int, result: CallResult) -> bool:
        return self._workers.cancel(offset, result)

    def calls(self) -> list[CallInHand]:
        return self._workers.calls()

    def abandon(self) -> None:
        self._watchdog.remove(self._workers.watched)
        run_on_new_loop(self._workers.settle_all(CallResult(Outcome.RELEASE, "stopped before it ended")))
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._workers.cancel_tasks)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks left on a loop, and close it. A task that ignores this is abandoned."""
    try:
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=GRACE))
            # What is left was reported when it was abandoned.
            loop.set_exception_handler(lambda loop, context: None)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
