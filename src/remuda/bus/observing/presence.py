"""A running bus tells its broker what it works on, and obeys what an operator orders."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remuda.bus.broker_api import Broker, Clock
from remuda.model.errors import BrokerClosed, RemudaError
from remuda.model.operations.worker_orders import INTERVAL, LISTED, Cancellation, Intake, Worker, WorkerOrder

if TYPE_CHECKING:
    from remuda.bus.execution.runner import Runner

_log = logging.getLogger("remuda.bus")
_GOODBYE: Final = 1.0
"""Seconds that the end of the process may take longer to say goodbye."""


class Presence:
    """Tells of one runner on a thread of its own, from its start until it has stopped."""

    def __init__(self, runner: Runner, broker: Broker, clock: Clock, stop: Callable[[], None]) -> None:
        self._runner = runner
        self._broker = broker
        self._clock = clock
        self._stop = stop
        self._since = clock()
        self._id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._intake = Intake.OPEN
        self._changed = threading.Event()
        self._over = False
        self._cancelled: set[tuple[str, int]] = set()
        self._thread = threading.Thread(target=self._run, name="remuda-presence", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stopping(self) -> None:
        """The runner takes nothing more."""
        self._intake = Intake.STOPPING
        self._changed.set()

    def close(self) -> None:
        """The runner has stopped."""
        self._over = True
        self._changed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_GOODBYE)

    def _run(self) -> None:
        while not self._over:
            try:
                orders = self._broker.tell_worker(self.worker())
                self._obey(orders.order)
                self._cancel(orders.cancel)
            except BrokerClosed:
                return
            except RemudaError as error:
                _log.debug("the broker does not hear of this worker at present: %s", error)
            except Exception:
                _log.exception("telling the broker of this worker failed; it works on")
            self._changed.wait(INTERVAL)
            self._changed.clear()
        try:
            self._broker.worker_left(self._id)
        except RemudaError as error:
            _log.debug("the broker does not hear that this worker has ended: %s", error)

    def _cancel(self, all_wanted: Sequence[Cancellation]) -> None:
        """The broker names a message until it has ended; its handler is interrupted once."""
        self._cancelled.intersection_update((wanted.queue, wanted.offset) for wanted in all_wanted)
        for wanted in all_wanted:
            message = wanted.queue, wanted.offset
            if message not in self._cancelled and self._runner.cancel(*message, wanted.who):
                self._cancelled.add(message)
                _log.info("%s cancels message %d of %s", wanted.who, wanted.offset, wanted.queue)

    def _obey(self, order: WorkerOrder | None) -> None:
        if order is None or self._intake is Intake.STOPPING:
            return
        _log.info("an operator asks this worker to %s", order)
        match order:
            case WorkerOrder.PAUSE | WorkerOrder.RESUME:
                paused = order is WorkerOrder.PAUSE
                self._runner.pause(paused)
                self._intake = Intake.PAUSED if paused else Intake.OPEN
            case WorkerOrder.STOP:
                self._intake = Intake.STOPPING
                self._stop()
        self._changed.set()

    def worker(self) -> Worker:
        """This worker as it is now."""
        from remuda import __version__

        queues, running = self._runner.at_work()
        return Worker(
            id=self._id, name=started_as(sys.argv), process=os.getpid(), host=socket.gethostname(),
            version=__version__, since=self._since, intake=self._intake, queues=tuple(queues),
            running=tuple(sorted(running, key=lambda call: call.since)[:LISTED]), trouble=self._runner.trouble,
        )  # fmt: skip


def started_as(arguments: Sequence[str]) -> str:
    """What was started: the application that `remuda run` runs, else the program."""
    program = Path(arguments[0]).name if arguments else ""
    if len(arguments) > 2 and arguments[1] == "run":
        apps = [argument for argument in arguments[2:] if not argument.startswith("-")]
        return apps[0] if apps else program
    return program
