"""`remuda run --workers N`: several processes that share the work, restarted when they die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Final

_POLL: Final = 0.05
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_STEADY: Final = 30.0
"""Seconds after which a start counts as successful."""
_SUPERVISOR: Final = "REMUDA_SUPERVISOR"
_NUMBER: Final = "REMUDA_WORKER"
_WATCH: Final = 1.0
_AT_ONCE: Final = 3
"""The number of signals at which workers are killed, since a frozen one reacts to nothing else."""


def end_with_supervisor() -> str:
    """In a worker: stop gracefully if the supervisor disappears, for example by kill -9 or because its terminal was
    closed. Otherwise nothing would ever stop this process, and its successors would run beside it.

    Returns the worker's name, such as `worker 2`; empty if nobody supervises this process.
    """
    supervisor, number = os.environ.pop(_SUPERVISOR, None), os.environ.pop(_NUMBER, "")
    if supervisor is None:
        return ""
    threading.Thread(target=_watch, args=(int(supervisor),), name="remuda-supervisor", daemon=True).start()
    return f"worker {number}"


def _watch(supervisor: int) -> None:
    while os.getppid() == supervisor:
        time.sleep(_WATCH)
    os.kill(os.getpid(), signal.SIGTERM)


class _Worker:
    """A numbered worker and its current process."""

    def __init__(self, number: int, arguments: Sequence[str]) -> None:
        self.number = number
        self._arguments = arguments
        self._pause = _FIRST_PAUSE
        self._again_at = 0.0
        self._since = 0.0
        self.done = False
        self.process: subprocess.Popen[bytes] | None = None
        self._start()

    def _start(self) -> None:
        # In a session of its own, so that Ctrl-C reaches only this process, and the worker is asked to stop only once.
        command = [sys.executable, "-m", "remuda.cli", *self._arguments]
        environment = {**os.environ, _SUPERVISOR: str(os.getpid()), _NUMBER: str(self.number)}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True)
        self._since = time.monotonic()

    def restart_if_ended(self) -> None:
        now = time.monotonic()
        if self.process is None:
            if now >= self._again_at:
                self._start_again(now)
            return
        code = self.process.poll()
        if code is None or self.done:
            return
        if code == 0:
            self.done = True
            return
        if now - self._since > _STEADY:
            self._pause = _FIRST_PAUSE
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        print(f"worker {self.number} ended {how}; restarting it in {self._pause:g}s", file=sys.stderr, flush=True)
        self.process, self._again_at = None, now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _start_again(self, now: float) -> None:
        try:
            self._start()
        except OSError as error:  # for example for lack of memory
            print(f"worker {self.number} cannot be started: {error}; trying again", file=sys.stderr, flush=True)
            self._again_at = now + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None


def run_workers(arguments: Sequence[str], count: int) -> None:
    """Run `remuda` with these arguments in several processes, until a signal arrives or all have exited cleanly.

    A stop that was forced by a second signal ends with 130 or 143.
    """
    asked: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, receive)
    workers = [_Worker(number, arguments) for number in range(1, count + 1)]
    try:
        while not asked and not all(worker.done for worker in workers):
            for worker in workers:
                worker.restart_if_ended()
            time.sleep(_POLL)
    finally:
        _stop(workers, asked)
    if len(asked) > 1:  # as a process that a signal ended is reported by a shell
        raise SystemExit(128 + asked[-1])


def _stop(workers: Sequence[_Worker], asked: Sequence[int]) -> None:
    """Ask all workers to stop, and wait. A second signal to this process is passed on, and a third kills them."""
    for worker in workers:
        worker.signal(signal.SIGTERM)
    passed_on = max(len(asked), 1)
    while any(worker.runs for worker in workers):
        if len(asked) > passed_on:
            passed_on = len(asked)
            for worker in workers:
                worker.signal(signal.SIGTERM if passed_on < _AT_ONCE else signal.SIGKILL)
        time.sleep(0.02)
