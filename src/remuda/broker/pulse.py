"""The thread that lets time pass: timeouts, delays and deadlines happen when they are due, not when someone calls."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from remuda.broker.options import Sync
from remuda.core.lane import NEVER
from remuda.model.durations import SECOND
from remuda.model.errors import RemudaError

if TYPE_CHECKING:
    from remuda.broker.host import Host

_log = logging.getLogger("remuda.broker")


class Pulse:
    """Sleeps until the core's next wake, or the next sync."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._change = threading.Condition(threading.Lock())
        self._planned = NEVER
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="remuda-pulse", daemon=True)

    def start(self) -> None:
        self._planned = self._host.engine.core.next_wake()
        self._thread.start()

    def nudge(self, wake: int) -> None:
        """Something will be due at `wake`."""
        if wake < self._planned:
            with self._change:
                self._planned = min(self._planned, wake)
                self._change.notify()

    def stop(self) -> None:
        with self._change:
            self._stopped = True
            self._change.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        interval = self._host.options.sync_interval if self._host.options.sync is Sync.INTERVAL else 0
        next_sync = self._host.clock() + interval if interval else NEVER
        while True:
            with self._change:
                if self._stopped:
                    return
                pause = min(self._planned, next_sync) - self._host.clock()
                if pause > 0:
                    self._change.wait(min(pause / 1e6, 3600))
                    continue
                self._planned = NEVER
            try:
                if next_sync <= self._host.clock():
                    self._host.sync()
                    next_sync = self._host.clock() + interval
                self.nudge(self._host.tick())
            except RemudaError as error:
                _log.error("the broker's clockwork stopped: %s", error)
                return
            except Exception:
                _log.exception("the broker's clockwork failed and will try again")
                self._planned = self._host.clock() + SECOND
