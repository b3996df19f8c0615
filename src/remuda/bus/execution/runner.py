"""Runs a bus: a pool of workers per queue, started together, stopped in order (B8, B16)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from remuda.bus.broker_api import Broker, EmbeddedBroker
from remuda.bus.execution.cancelling import cancelled_by
from remuda.bus.execution.processor import QueueProcessor
from remuda.bus.execution.thread_pool import ThreadWorkerPool
from remuda.bus.execution.watchdog import Watchdog
from remuda.bus.execution.worker_pool import WorkerPool
from remuda.bus.handlers.handler import ExecutorKind
from remuda.model.errors import BrokerClosed, InvalidOption, RemudaError
from remuda.model.operations.worker_orders import RunningCall, WorkerQueue
from remuda.model.queues.system_queues import SYSTEM_QUEUES
from remuda.signals import wait_for_event

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger("remuda.bus")
_IDLE_POLL = 0.01
_WORKERS: Final = {
    ExecutorKind.THREADS: ("thread", "threads"),
    ExecutorKind.ASYNCIO: ("coroutine", "coroutines"),
    ExecutorKind.PROCESSES: ("process", "processes"),
}

Publish = Callable[[Any], Any]
"""Publishes the messages of a handler's process, or answers what else it asks."""


class Runner:
    """All worker pools of one bus. With a loop, all coroutines run on it; else each queue has its own."""

    def __init__(
        self,
        processors: Sequence[QueueProcessor],
        broker: Broker,
        publish: Publish,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._broker = broker
        self._processors = processors
        self.loop = loop
        self._watchdog = Watchdog()
        self._pools = [self._pool(processor, publish) for processor in processors]
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self._guard = threading.Lock()
        self._clean = True
        self._failure: Exception | None = None
        self.on_started: Callable[[], None] = lambda: None
        self.running = False
        for processor in processors:
            processor.on_closed = self._broker_closed

    def __repr__(self) -> str:
        queues = ", ".join(processor.queue for processor in self._processors)
        return f"<Runner of {queues}, {'running' if self.running else 'not running'}>"

    def start(self) -> None:
        self._watchdog.start()
        self.running = True
        if isinstance(self._broker, EmbeddedBroker):
            self._broker.when_stopped(self._broker_closed)
        try:
            for pool in self._pools:
                pool.start()
            self.on_started()
        except Exception as error:
            if isinstance(error, BrokerClosed) and self._stopped.is_set():
                return  # a handler has ended the bus by now
            self.stop(0)
            raise
        own = [one for one in self._processors if one.queue not in SYSTEM_QUEUES]
        _log.info("started: %s", ", ".join(f"{one.queue} ({_concurrency(one)})" for one in own) or "no handlers")

    def wait(self) -> None:
        """Wait until `ask_to_stop` or `stop` is called; raises an error if the broker has ended by itself."""
        wait_for_event(self._stopped)
        if self._failure is not None:
            raise self._failure

    def _broker_closed(self, error: Exception) -> None:
        if not self._stopped.is_set():
            self._failure = error
            self._stopped.set()

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """Wait until no message is waiting or being handled; delayed messages do not count.

        False if the time ran out or the runner was asked to stop.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._is_idle():
            if self._stopped.is_set() or (deadline is not None and time.monotonic() > deadline):
                return False
            time.sleep(_IDLE_POLL)
        return True

    @property
    def asked_to_stop(self) -> bool:
        return self._stopped.is_set()

    def ask_to_stop(self) -> None:
        self._stopped.set()

    def stop(self, grace: float) -> bool:
        """Pull nothing more, give running calls `grace` seconds to end, and return the rest to the queues.

        Returns whether all calls ended in time.
        """
        self._stopped.set()
        with self._guard:
            if self._ended.is_set():
                return self._clean
            for pool in self._pools:
                pool.stop()
            deadline = time.monotonic() + grace
            late = [pool for pool in self._pools if not pool.join(max(deadline - time.monotonic(), 0.01))]
            if late:
                _log.warning("some handlers did not end within %g s; their messages go back to the queue", grace)
            for pool in late:
                try:
                    pool.abandon()
                except RemudaError as error:
                    _log.error(
                        "messages could not be returned to their queue: %s; they return when their lease expires", error
                    )
            self._watchdog.stop()
            self.running = False
            self._clean = not late
            self._ended.set()
        return self._clean

    def pause(self, paused: bool) -> None:
        """Take no more messages, or go on; what has begun is not touched."""
        for processor in self._processors:
            processor.pause(paused)

    def at_work(self) -> tuple[list[WorkerQueue], list[RunningCall]]:
        """What every queue's workers do now."""
        queues, running = [], []
        for processor, pool in zip(self._processors, self._pools, strict=True):
            calls = pool.calls()
            size, name = processor.settings.threads, processor.queue
            queues.append(WorkerQueue(name, _executor(processor).value, size, min(len(calls), size)))
            running += [processor.running_call(call) for call in calls]
        return queues, running

    def cancel(self, queue: str, offset: int, who: str) -> bool:
        """Cancel a message that is handled here: it is told to stop, then interrupted, and is dead. False if it is not
        here, or its call has ended."""
        result = cancelled_by(who)
        return any(
            pool.cancel(offset, result)
            for processor, pool in zip(self._processors, self._pools, strict=True)
            if processor.queue == queue
        )

    def works_on(self, queue: str) -> bool:
        return any(processor.queue == queue for processor in self._processors)

    @property
    def trouble(self) -> str | None:
        """What keeps a queue from being processed, if anything does."""
        return next((one.trouble for one in self._processors if one.trouble is not None), None)

    def _is_idle(self) -> bool:
        infos = {info.name: info for info in self._broker.queues()}
        return all(
            info.waiting == 0 and info.in_flight == 0
            for processor in self._processors
            if (info := infos.get(processor.queue)) is not None
        )

    def _pool(self, processor: QueueProcessor, publish: Publish) -> WorkerPool:
        match _executor(processor):
            case ExecutorKind.ASYNCIO:
                from remuda.bus.execution.coroutine_pool import AsyncWorkerPool, SharedLoopPool

                if self.loop is not None:
                    return SharedLoopPool(processor, self._watchdog, self.loop)
                return AsyncWorkerPool(processor, self._watchdog)
            case ExecutorKind.PROCESSES:
                from remuda.bus.execution.processes.pool import ProcessWorkerPool

                return ProcessWorkerPool(processor, publish)
            case _:
                return ThreadWorkerPool(processor, self._watchdog)


def _concurrency(processor: QueueProcessor) -> str:
    """The number of workers in words, such as `4 threads`."""
    one, many = _WORKERS[_executor(processor)]
    count = processor.settings.threads
    return f"{count} {one if count == 1 else many}"


def _executor(processor: QueueProcessor) -> ExecutorKind:
    """The configured executor; by default asyncio for coroutines and threads for plain functions."""
    asked = processor.settings.executor
    coroutine = next((handler for handler in processor.dispatcher.handlers if handler.is_async), None)
    if asked is ExecutorKind.THREADS and coroutine is not None:
        raise InvalidOption(
            f"message.executor.{processor.queue}: {coroutine.id} is a coroutine, which threads cannot interrupt; "
            "leave the executor out, or choose asyncio or processes"
        )
    if asked is not None:
        return asked
    return ExecutorKind.THREADS if coroutine is None else ExecutorKind.ASYNCIO
