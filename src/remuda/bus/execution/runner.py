"""Runs a bus: a crew per queue, started together, stopped in order (B8, B16)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from remuda.bus.broker_api import Broker
from remuda.bus.execution.coroutines import AsyncWorkerPool
from remuda.bus.execution.processes.pool import ProcessWorkerPool, Publish
from remuda.bus.execution.processor import QueueProcessor, WorkerPool
from remuda.bus.execution.threads import ThreadWorkerPool
from remuda.bus.execution.watchdog import Watchdog
from remuda.bus.handlers.handler import ExecutorKind
from remuda.model.errors import InvalidOption, RemudaError

_log = logging.getLogger("remuda.bus")
_IDLE_LOOK = 0.01


class Runner:
    """All pools of one bus."""

    def __init__(self, processors: Sequence[QueueProcessor], broker: Broker, publish: Publish) -> None:
        self._broker = broker
        self._processors = processors
        self._watchdog = Watchdog()
        self._pools = [self._pool(processor, publish) for processor in processors]
        self._stopped = threading.Event()
        self.running = False

    def start(self) -> None:
        self._watchdog.start()
        self.running = True
        try:
            for pool in self._pools:
                pool.start()
        except Exception:
            self.stop(0)
            raise
        for processor in self._processors:
            _log.info("%s: %d %s", processor.queue, processor.settings.threads, _executor(processor).value)

    def wait(self) -> None:
        """Until someone asks to stop."""
        self._stopped.wait()

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """Until nothing waits and nothing runs. Messages that wait for their time do not count."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._is_idle():
            if self._stopped.is_set() or (deadline is not None and time.monotonic() > deadline):
                return False
            time.sleep(_IDLE_LOOK)
        return True

    def ask_to_stop(self) -> None:
        self._stopped.set()

    def stop(self, grace: float) -> bool:
        """Take in nothing more, let what runs end within `grace` seconds, give back the rest."""
        self._stopped.set()
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
                _log.error("messages could not be given back: %s; they will be when their lease is over", error)
        self._watchdog.stop()
        self.running = False
        return not late

    @property
    def trouble(self) -> str | None:
        """What keeps some queue from being worked on, if anything does."""
        return next((processor.trouble for processor in self._processors if processor.trouble is not None), None)

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
                return AsyncWorkerPool(processor, self._watchdog)
            case ExecutorKind.PROCESSES:
                return ProcessWorkerPool(processor, publish)
            case _:
                return ThreadWorkerPool(processor, self._watchdog)


def _executor(processor: QueueProcessor) -> ExecutorKind:
    """The one asked for, else coroutines for coroutines and threads for functions."""
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
