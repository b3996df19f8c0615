"""Runs a bus: a crew per queue, started together, stopped in order (B8, B16)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from remuda.broker.port import Broker
from remuda.bus.coroutines import CoroutineCrew
from remuda.bus.crew import Crew, Work
from remuda.bus.handler import ExecutorKind
from remuda.bus.processes import ProcessCrew, Publish
from remuda.bus.threads import ThreadCrew
from remuda.bus.watchdog import Watchdog
from remuda.model.errors import InvalidOption, RemudaError

_log = logging.getLogger("remuda.bus")
_IDLE_LOOK = 0.01


class Runner:
    """All crews of one bus."""

    def __init__(self, works: Sequence[Work], broker: Broker, publish: Publish) -> None:
        self._broker = broker
        self._works = works
        self._watchdog = Watchdog()
        self._crews = [self._crew(work, publish) for work in works]
        self._stopped = threading.Event()
        self.running = False

    def start(self) -> None:
        self._watchdog.start()
        self.running = True
        try:
            for crew in self._crews:
                crew.start()
        except Exception:
            self.stop(0)
            raise
        for work in self._works:
            _log.info("%s: %d %s", work.queue, work.settings.threads, _executor(work).value)

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
        for crew in self._crews:
            crew.stop()
        deadline = time.monotonic() + grace
        late = [crew for crew in self._crews if not crew.join(max(deadline - time.monotonic(), 0.01))]
        if late:
            _log.warning("some handlers did not end within %g s; their messages go back to the queue", grace)
        for crew in late:
            try:
                crew.abandon()
            except RemudaError as error:
                _log.error("messages could not be given back: %s; they will be when their lease is over", error)
        self._watchdog.stop()
        self.running = False
        return not late

    @property
    def trouble(self) -> str | None:
        """What keeps some queue from being worked on, if anything does."""
        return next((work.trouble for work in self._works if work.trouble is not None), None)

    def _is_idle(self) -> bool:
        infos = {info.name: info for info in self._broker.queues()}
        return all(
            info.waiting == 0 and info.in_flight == 0
            for work in self._works
            if (info := infos.get(work.queue)) is not None
        )

    def _crew(self, work: Work, publish: Publish) -> Crew:
        match _executor(work):
            case ExecutorKind.ASYNCIO:
                return CoroutineCrew(work, self._watchdog)
            case ExecutorKind.PROCESSES:
                return ProcessCrew(work, publish)
            case _:
                return ThreadCrew(work, self._watchdog)


def _executor(work: Work) -> ExecutorKind:
    """The one asked for, else coroutines for coroutines and threads for functions."""
    asked = work.settings.executor
    coroutine = next((handler for handler in work.duties.handlers if handler.is_async), None)
    if asked is ExecutorKind.THREADS and coroutine is not None:
        raise InvalidOption(
            f"message.executor.{work.queue}: {coroutine.id} is a coroutine, which threads cannot interrupt; "
            "leave the executor out, or choose asyncio or processes"
        )
    if asked is not None:
        return asked
    return ExecutorKind.THREADS if coroutine is None else ExecutorKind.ASYNCIO
