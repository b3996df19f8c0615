"""The thread that handles timeouts, delays and deadlines when they are due."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from remuda.broker.options import Sync
from remuda.core.queues.ready import NEVER
from remuda.log.tail.writer import passes
from remuda.model.values.durations import SECOND

if TYPE_CHECKING:
    from remuda.broker.embedded.runtime import Runtime

_log = logging.getLogger("remuda.broker")
_BREATH: Final = 0.001


class Timer:
    """Sleeps until the core's next wake, or the next sync."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._change = threading.Condition(threading.Lock())
        self.planned = NEVER
        self._stopped = False
        self.thread = threading.Thread(target=self._run, name="remuda-timer", daemon=True)

    def start(self) -> None:
        self.planned = self._runtime.engine.core.next_wake()
        self.thread.start()

    def nudge(self, wake: int) -> None:
        """Something will be due at `wake`."""
        if wake < self.planned:
            with self._change:
                self.planned = min(self.planned, wake)
                self._change.notify()

    def stop(self) -> None:
        with self._change:
            self._stopped = True
            self._change.notify()
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _run(self) -> None:
        interval = self._runtime.options.sync_interval if self._runtime.options.sync is Sync.INTERVAL else 0
        next_sync = self._runtime.clock() + interval if interval else NEVER
        while True:
            with self._change:
                if self._stopped:
                    return
                pause = min(self.planned, next_sync) - self._runtime.clock()
                if pause > 0:
                    self._change.wait(min(pause / 1e6, 3600))
                    continue
                self.planned = NEVER
            self._runtime.restoration.run()
            try:
                if next_sync <= self._runtime.clock():
                    next_sync = self._runtime.clock() + interval  # first, so that one that fails is no hot loop
                    self._runtime.sync()
                wake = self._runtime.tick()
                self.nudge(wake)
                if wake <= self._runtime.clock():
                    # There is more than one slice to do, and taking the lock again at once would keep others out.
                    time.sleep(_BREATH)
            except Exception as error:
                if self._runtime.failure is not None:
                    _log.error("the broker's timer stopped: %s", error)
                    return
                # Errors that pass, such as a full disk, are reported elsewhere: what is due stays due.
                if not passes(error):
                    _log.error("the broker's timer failed and will try again: %s", error)
                    self.planned = self._runtime.clock() + SECOND
