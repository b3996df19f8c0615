"""A pool of threads: each pulls messages, calls the handler, and settles them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from remuda.bus.broker_api import Delivery, Outcome
from remuda.bus.execution.active_delivery import ActiveDelivery, CallInHand
from remuda.bus.execution.cancelling import INTERRUPTED
from remuda.bus.execution.plain_run import plain_handler, run_plainly
from remuda.bus.execution.watchdog import GRACE, WatchedThread
from remuda.bus.execution.worker_pool import ThreadPool, run_until_stopped
from remuda.bus.handlers.call import HandlerCall
from remuda.bus.handlers.context import tell_to_stop
from remuda.bus.handlers.exceptions import HandlerTimeout
from remuda.bus.handlers.result import CallResult
from remuda.model.values.durations import SECOND, text

T = TypeVar("T")


class ThreadWorkerPool(ThreadPool["ThreadWorker"]):
    """As many threads as the queue's concurrency. One that is abandoned is replaced."""

    def make(self) -> ThreadWorker:
        return ThreadWorker(self)

    def start(self) -> None:
        for _ in range(self.processor.settings.threads):
            super().start()


class ThreadWorker:
    """One thread of a pool."""

    def __init__(self, pool: ThreadWorkerPool) -> None:
        self._pool = pool
        self._processor = pool.processor
        self._prefetch = pool.processor.prefetch()
        self._active: ActiveDelivery[Delivery] | None = None
        self._watched = WatchedThread(f"a handler of {pool.processor.queue}", self._attend, self._abandon)
        self.thread = threading.Thread(target=self._run, name=f"remuda-{pool.processor.queue}", daemon=True)

    def give_up(self) -> None:
        """Interrupt the call and give its messages back: the pool has stopped and waits no longer."""
        self._watched.give_up()
        self._settle_for(CallResult(Outcome.RELEASE, "stopped before it finished"))

    def cancel(self, offset: int, result: CallResult) -> bool:
        """Cancel a message that it has; the watchdog interrupts its call."""
        return (active := self._active) is not None and active.cancel(offset, result)

    def calls(self) -> list[CallInHand]:
        """What runs now."""
        call = None if (active := self._active) is None else active.call()
        return [] if call is None else [call]

    def _run(self) -> None:
        self._pool.watchdog.add(self._watched)
        try:
            run_until_stopped(self._processor, self._pool.stopping, self._step)
        finally:
            self._pool.watchdog.remove(self._watched)

    def _step(self) -> bool:
        if self._processor.paused:
            self._processor.wait_until_resumed()
            return not self._watched.abandoned
        delivery = self._processor.take(self._prefetch.count)
        self._processor.answered()
        if delivery is not None:
            self._prefetch.begin()
            if pause := self._prefetch.end(delivery, lost=not self._handle(delivery)):
                time.sleep(pause)
        return not self._watched.abandoned

    def _handle(self, delivery: Delivery) -> bool:
        """Run the handlers for a delivery and settle it; False if it was settled elsewhere."""
        active = self._active = ActiveDelivery(delivery)
        self._pool.watchdog.begin(self._watched)
        stopping, timeout = self._pool.stopping, self._processor.settings.timeout
        try:
            dispatcher = self._processor.dispatcher
            attempts = dispatcher.attempts(delivery)
            plain = plain_handler(dispatcher, attempts) if timeout is None else None
            if plain is not None:
                while active.waiting and not stopping.is_set():
                    # Once, unless a call was interrupted just when it had ended.
                    self._guarded(partial(run_plainly, active, dispatcher, plain, attempts, stopping))
                    active.note_lost(INTERRUPTED)
            else:
                self._run_calls(active, timeout)
            state = active.close()
            if state is None:
                return False
            self._processor.settle(delivery, state.finished, state.waiting, stopping)
            return True
        finally:
            self._active = None
            self._watched.busy = 0

    def _run_calls(self, active: ActiveDelivery[Delivery], timeout: int | None) -> None:
        stopping = self._pool.stopping
        for rows, call in self._processor.dispatcher.calls(active.delivery):
            if stopping.is_set() or not active.begin(rows):
                break
            if isinstance(call, CallResult):
                active.ended = call
            else:
                active.ended = self._call(active, rows, call, timeout)

    def _call(
        self, active: ActiveDelivery[Delivery], rows: list[int], call: HandlerCall, timeout: int | None
    ) -> CallResult:
        result = self._guarded(call.run, timeout) or CallResult(Outcome.NACK)
        if not self._watched.interrupted:
            return result
        # Whatever the handler made of the interrupt, it was cancelled or timed out.
        if timeout is None or not active.cancelled.keys().isdisjoint(rows):
            return INTERRUPTED
        return CallResult(Outcome.NACK, f"timed out after {text(timeout)}", result.detail, error_type="HandlerTimeout")

    def _guarded(self, run: Callable[[], T], timeout: int | None = None) -> T | None:
        """Call a function that may be interrupted; None if it was outside the handler."""
        result = None
        try:
            try:
                self._watched.begin(None if timeout is None else timeout / SECOND)
                result = run()
            finally:
                self._watched.end()
        except HandlerTimeout:
            # It came outside the handler. There is only one per call, so nothing interrupts this.
            self._watched.end()
        return result

    def _attend(self, now: float) -> None:
        """Called by the watchdog while a call runs: give back rows that wait too long, and renew the lease."""
        active = self._active
        if active is None:
            return
        if active.cancelled:
            self._end_cancelled(active)
        if rows := active.give_back(now):
            active.delivery.release(rows)
        if active.must_renew(now, self._processor.clock):
            active.renewed(now, self._processor.renew(active.delivery))

    def _end_cancelled(self, active: ActiveDelivery[Delivery]) -> None:
        """Tell a cancelled call to stop, then interrupt it."""
        call = active.call()
        row = next((row for row in active.cancelled if call is not None and row in call.rows), None)
        if call is not None and row is not None:
            told = tell_to_stop(active.delivery, call.rows[0])
            self._watched.cancel(partial(active.runs, row), GRACE if told else 0)

    def _abandon(self) -> None:
        """Called by the watchdog: settle the call that does not end, give back the rest, and start another thread."""
        timeout = text(self._processor.settings.timeout or 0)
        try:
            self._settle_for(CallResult(Outcome.NACK, f"timed out after {timeout} and ignores the interrupt"))
        finally:
            self._pool.replace(self)

    def _settle_for(self, running: CallResult) -> None:
        """Settle for the worker, which is still in a call. When that ends, the worker finds the delivery closed."""
        active = self._active
        state = active.close() if active is not None else None
        if active is None or state is None:
            return
        finished = [*state.finished, *active.charged(state.running, running)] if state.running else state.finished
        self._processor.settle(active.delivery, finished, state.waiting, self._pool.stopping)
