"""A pool of processes: code that can crash the interpreter costs one attempt of one message."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from remuda.bus.broker_api import Delivery, Outcome
from remuda.bus.execution.active_delivery import LINGER, CallInHand, DeliveryState, renewal_interval
from remuda.bus.execution.cancelling import INTERRUPTED, charged
from remuda.bus.execution.processes import child_main
from remuda.bus.execution.processes.batch_tracker import BatchTracker, CallDeadline
from remuda.bus.execution.processes.child_process import ChildProcess, ProcessCrashed, ProcessNotStarted
from remuda.bus.execution.processor import POLL, QueueProcessor
from remuda.bus.execution.settling import START
from remuda.bus.execution.worker_pool import join_all, report_trouble, run_until_stopped
from remuda.bus.handlers.result import CallResult
from remuda.model.errors import BrokerClosed, RemudaError
from remuda.model.messages import Messages

_log = logging.getLogger("remuda.bus")
_LONGEST_PAUSE: Final = 30.0
_LOOK: Final = 0.25
"""How often to see whether a message was cancelled."""
_NANO: Final = 1_000_000_000
_MOST: Final = 1024
"""A turn of the interpreter, which each batch costs where another thread is busy, is worth more messages than this."""

Publish = Callable[[Messages], list[str]]


class ProcessWorkerPool:
    """As many processes as the queue's concurrency, each fed by a thread here."""

    def __init__(self, processor: QueueProcessor, publish: Publish) -> None:
        child_main.check_portable(processor.dispatcher)
        self.processor = processor
        self.publish = publish
        self.stopping = threading.Event()
        self.abandoned = False
        self._workers = [ProcessWorker(self) for _ in range(processor.settings.threads)]

    def start(self) -> None:
        for worker in self._workers:
            worker.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.processor.stop()
        for worker in self._workers:
            worker.request_stop()

    def join(self, timeout: float) -> bool:
        return join_all([worker.thread for worker in self._workers], timeout)

    def abandon(self) -> None:
        self.abandoned = True
        for worker in self._workers:
            worker.kill()
        self.join(1.0)

    def cancel(self, offset: int, result: CallResult) -> bool:
        return any(worker.cancel(offset, result) for worker in self._workers)

    def calls(self) -> list[CallInHand]:
        return [call for worker in self._workers if (call := worker.call()) is not None]


class ProcessWorker:
    """A thread that takes messages and has them handled in a process."""

    def __init__(self, pool: ProcessWorkerPool) -> None:
        self._pool = pool
        self._processor = pool.processor
        self._prefetch = pool.processor.prefetch(_MOST)
        self._child: ChildProcess | None = None
        self._failures = 0
        self._in_hand: tuple[Delivery, BatchTracker] | None = None
        self.thread = threading.Thread(target=self._run, name=f"remuda-{pool.processor.queue}", daemon=True)

    def request_stop(self) -> None:
        """Set the stop token of the handler that runs in the process."""
        if (child := self._child) is not None:
            child.request_stop()

    def kill(self) -> None:
        """End the process, from any thread."""
        if (child := self._child) is not None:
            child.kill()

    def cancel(self, offset: int, result: CallResult) -> bool:
        """Cancel a message that its process has: it is told to stop, and killed if it does not."""
        child, in_hand = self._child, self._in_hand
        if child is None or in_hand is None or offset not in in_hand[0].offsets:
            return False
        delivery, tracker = in_hand
        row = delivery.offsets.index(offset)
        if tracker.has_ended(row):
            return False
        tracker.cancel(row, result)
        if self._in_hand is in_hand:
            child.cancel(row, result)
        return True

    def call(self) -> CallInHand | None:
        """What runs now."""
        in_hand = self._in_hand
        rows = [] if in_hand is None else in_hand[1].running()
        return None if in_hand is None or not rows else CallInHand(in_hand[0], rows, in_hand[1].began / _NANO)

    def _run(self) -> None:
        try:
            run_until_stopped(self._processor, self._pool.stopping, self._step)
        finally:
            self._end_child()

    def _step(self) -> bool:
        if self._processor.paused:
            self._processor.wait_until_resumed()
            return True
        child = self._ready_child()
        if child is None:
            return True
        if not child.has_just_answered():
            child.attend()
        delivery = self._processor.take(self._prefetch.count, POLL)
        self._processor.answered()
        if delivery is not None:
            self._prefetch.begin()
            if pause := self._prefetch.end(delivery, lost=not self._handle(child, delivery)):
                time.sleep(pause)
        return True

    def _ready_child(self) -> ChildProcess | None:
        """A process that is ready; None, after a pause, if none starts."""
        if self._child is not None and (self._child.has_just_answered() or self._child.is_alive()):
            return self._child
        self._end_child()
        processor, pool = self._processor, self._pool
        try:
            self._child = ChildProcess(processor.dispatcher, self._prefetch.most, pool.publish, pool.stopping)
        except ProcessNotStarted as error:
            if pool.stopping.is_set():
                return None
            self._failures += 1
            pause = min(2.0**self._failures, _LONGEST_PAUSE)
            processor.troubles[START] = str(error)
            _log.error("%s: %s; next try in %.0f s", processor.queue, error, pause)
            pool.stopping.wait(pause)
            return None
        self._failures = 0
        processor.troubles.pop(START, None)
        return self._child

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _handle(self, child: ChildProcess, delivery: Delivery) -> bool:
        """Have the process work through a delivery, and settle it; False if the process did not get through."""
        gate = self._processor.dispatcher.gate
        decided = None if gate is None else gate(delivery[0])
        if decided is not None:
            self._settle(delivery, DeliveryState([(list(range(len(delivery))), decided)], [], []))
            return True
        tracker = BatchTracker(child.shared, len(delivery))
        limit = CallDeadline(self._processor.settings.timeout)
        state: DeliveryState | None = None
        if child.begin(delivery, self._processor.dispatcher.attempts(delivery)):
            self._in_hand = delivery, tracker
            try:
                self._await(child, delivery, tracker, limit)
            except ProcessCrashed as crash:
                state = self._charge(tracker, limit, crash)
                self._end_child()
            except BaseException:
                # The process is at work, and nobody would hear of it.
                self._end_child()
                raise
            finally:
                self._in_hand = None
        self._settle(delivery, tracker.take() if state is None else state)
        return state is None

    def _await(self, child: ChildProcess, delivery: Delivery, tracker: BatchTracker, limit: CallDeadline) -> None:
        """Until the batch is over. If it takes long, calls that have not begun come back; what finished is settled."""
        began = time.monotonic()
        lease = delivery.deadline - self._processor.clock()
        renewal, patience = began + renewal_interval(lease), began + LINGER
        while True:
            until = min(limit.look, renewal, patience, tracker.cancel_by, time.monotonic() + _LOOK)
            match child.listen(until - time.monotonic()):
                case (child_main.UNAWARE, row) if int(row) in tracker.cancelled:
                    tracker.cancel_by = 0.0
                case (child_main.OVER, _):
                    return
                case (child_main.TOLD, text):
                    tracker.hear(text)
                case (child_main.CLOSED, _):
                    self._settle(delivery, tracker.take())
            now = time.monotonic()
            if now >= limit.look and limit.is_broken(tracker, now):
                child.kill()
            if tracker.must_kill(now):
                child.kill()
            if now >= patience:
                patience = float("inf")
                if len(delivery) > 1:
                    child.recall()
            if now >= renewal:
                lease = self._renew(delivery, lease)
                renewal = now + renewal_interval(lease)

    def _charge(self, tracker: BatchTracker, limit: CallDeadline, crash: ProcessCrashed) -> DeliveryState:
        """How things stand, with the crash as the result of the call that ran."""
        state = tracker.take()
        # If none ran yet, the first is charged: a message that cannot even be read must not bring down one process
        # after the other for ever.
        lost = state.running or state.waiting[: tracker.untouched]
        if self._pool.abandoned:
            result = CallResult(Outcome.RELEASE, "stopped before it finished")
        elif tracker.killed:
            result = INTERRUPTED
        else:
            result = limit.result_of_kill(tracker) or CallResult(Outcome.NACK, str(crash))
        finished = [*state.finished, *charged(tracker.cancelled, lost, result)] if lost else state.finished
        return DeliveryState(finished, [], [row for row in state.waiting if row not in lost])

    def _settle(self, delivery: Delivery, state: DeliveryState) -> None:
        if state.finished or state.waiting:
            self._processor.settle(delivery, state.finished, state.waiting, self._pool.stopping)

    def _renew(self, delivery: Delivery, lease: int) -> int:
        """Renew the lease; tells how long it is now."""
        try:
            return self._processor.renew(delivery)
        except BrokerClosed:
            raise
        except RemudaError as error:
            report_trouble(self._processor, error)
            return lease
