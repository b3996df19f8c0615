"""A pool of threads: each pulls messages, calls the handler, and settles them."""

from __future__ import annotations

import threading
import time

from remuda.bus.broker_api import Delivery, Outcome
from remuda.bus.execution.active_delivery import ActiveDelivery
from remuda.bus.execution.plain_run import plain_handler, run_plainly
from remuda.bus.execution.processor import QueueProcessor
from remuda.bus.execution.watchdog import Watchdog, WatchedThread
from remuda.bus.execution.worker_pool import POLL, join_all, run_until_stopped
from remuda.bus.handlers.call import HandlerCall
from remuda.bus.handlers.exceptions import HandlerTimeout
from remuda.bus.handlers.result import CallResult
from remuda.model.durations import SECOND, text


class ThreadWorkerPool:
    """As many threads as the queue's concurrency. One that is abandoned is replaced."""

    def __init__(self, processor: QueueProcessor, watchdog: Watchdog) -> None:
        self.processor = processor
        self.watchdog = watchdog
        self.stopping = threading.Event()
        self._guard = threading.Lock()
        self._workers: list[ThreadWorker] = []

    def start(self) -> None:
        for _ in range(self.processor.settings.threads):
            self._add()

    def replace(self, worker: ThreadWorker) -> None:
        with self._guard:
            self._workers.remove(worker)
        if not self.stopping.is_set():
            self._add()

    def stop(self) -> None:
        self.stopping.set()
        self.processor.dispatcher.stop.set()

    def join(self, timeout: float) -> bool:
        with self._guard:
            workers = list(self._workers)
        return join_all([worker.thread for worker in workers], timeout)

    def abandon(self) -> None:
        with self._guard:
            workers = list(self._workers)
        for worker in workers:
            worker.give_up()

    def _add(self) -> None:
        worker = ThreadWorker(self)
        with self._guard:
            self._workers.append(worker)
        worker.thread.start()


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

    def _run(self) -> None:
        self._pool.watchdog.add(self._watched)
        try:
            run_until_stopped(self._processor, self._pool.stopping, self._step)
        finally:
            self._pool.watchdog.remove(self._watched)

    def _step(self) -> bool:
        delivery = self._processor.broker.pull(self._processor.queue, self._prefetch.count, timeout=POLL)
        if delivery is not None:
            self._prefetch.begin()
            if pause := self._prefetch.end(delivery, lost=not self._handle(delivery)):
                time.sleep(pause)
        return not self._watched.abandoned

    def _handle(self, delivery: Delivery) -> bool:
        """Run the handlers for a delivery and settle it; False if it was settled elsewhere."""
        active = self._active = ActiveDelivery(delivery)
        stopping, timeout = self._pool.stopping, self._processor.settings.timeout
        try:
            if timeout is None:
                # Only a stop whose grace has run out interrupts a call, and its error is then an ordinary result.
                self._watched.begin(None)
            dispatcher, attempts = self._processor.dispatcher, delivery.attempts
            plain = plain_handler(dispatcher, attempts) if timeout is None else None
            if plain is not None:
                run_plainly(active, dispatcher, plain, attempts, stopping)
            else:
                self._run_calls(active, timeout)
            state = active.close()
            if state is None:
                return False
            self._processor.settle(delivery, state.finished, state.waiting, stopping)
            return True
        finally:
            self._active = None

    def _run_calls(self, active: ActiveDelivery[Delivery], timeout: int | None) -> None:
        stopping = self._pool.stopping
        for rows, call in self._processor.dispatcher.calls(active.delivery):
            if stopping.is_set() or not active.begin(rows):
                break
            if isinstance(call, CallResult):
                active.ended = call
            else:
                active.ended = call.run() if timeout is None else self._call(call, timeout)

    def _call(self, call: HandlerCall, timeout: int) -> CallResult:
        result = CallResult(Outcome.NACK)
        try:
            try:
                self._watched.begin(timeout / SECOND)
                result = call.run()
            finally:
                self._watched.end()
        except HandlerTimeout:
            # It came outside the handler. There is only one per call, so nothing interrupts this.
            self._watched.end()
        if self._watched.interrupted:
            # Whatever the handler made of the interrupt, it timed out.
            return CallResult(
                Outcome.NACK, f"timed out after {text(timeout)}", result.detail, error_type="HandlerTimeout"
            )
        return result

    def _attend(self, now: float) -> None:
        """Called by the watchdog while a call runs: give back rows that wait too long, and renew the lease."""
        active = self._active
        if active is None:
            return
        if rows := active.give_back(now):
            active.delivery.release(rows)
        if active.must_renew(now, self._processor.clock):
            active.renewed(now, self._processor.renew(active.delivery))

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
        finished = [*state.finished, (state.running, running)] if state.running else state.finished
        self._processor.settle(active.delivery, finished, state.waiting, self._pool.stopping)
