"""A crew of threads: each takes messages, runs a plain function on them, and settles."""

from __future__ import annotations

import logging
import threading

from remuda.broker.delivery import Delivery
from remuda.bus.answers import HandlerTimeout
from remuda.bus.crew import POLL, Pace, Work, release
from remuda.bus.invoke import Call
from remuda.bus.outcome import Outcome
from remuda.bus.watchdog import Slot, Watchdog
from remuda.core.effects import Answer
from remuda.model.durations import SECOND, text
from remuda.model.errors import BrokerClosed, RemudaError

_log = logging.getLogger("remuda.bus")


class ThreadCrew:
    """As many threads as the queue's concurrency. One that is left behind is replaced."""

    def __init__(self, work: Work, watchdog: Watchdog) -> None:
        self.work = work
        self.watchdog = watchdog
        self.stopping = threading.Event()
        self._guard = threading.Lock()
        self._workers: list[_Worker] = []

    def start(self) -> None:
        for _ in range(self.work.settings.threads):
            self.add()

    def add(self) -> None:
        worker = _Worker(self)
        with self._guard:
            self._workers.append(worker)
        worker.thread.start()

    def replace(self, worker: _Worker) -> None:
        with self._guard:
            self._workers.remove(worker)
        if not self.stopping.is_set():
            self.add()

    def stop(self) -> None:
        self.stopping.set()

    def join(self, timeout: float) -> bool:
        with self._guard:
            workers = list(self._workers)
        for worker in workers:
            worker.thread.join(timeout)
        return not any(worker.thread.is_alive() for worker in workers)


class _Worker:
    def __init__(self, crew: ThreadCrew) -> None:
        self._crew = crew
        self._work = crew.work
        self._delivery: Delivery | None = None
        self._current: list[int] = []
        self._left: list[int] = []
        self._slot = Slot(f"a handler of {crew.work.queue}", self._renew, self._abandon)
        self.thread = threading.Thread(target=self._run, name=f"remuda-{crew.work.queue}", daemon=True)

    def _run(self) -> None:
        self._crew.watchdog.add(self._slot)
        pace = Pace(self._work)
        try:
            while not self._crew.stopping.is_set() and not self._slot.abandoned:
                delivery = self._work.broker.pull(self._work.queue, pace.count, timeout=POLL)
                if delivery is not None:
                    pace.begin()
                    pace.end(failed=not self._handle(delivery))
        except BrokerClosed:
            return
        except RemudaError as error:
            _log.error("%s: a worker stops: %s", self._work.queue, error)
        finally:
            self._crew.watchdog.remove(self._slot)

    def _handle(self, delivery: Delivery) -> bool:
        """Run the handlers for a delivery and settle it; whether all went well."""
        ended: list[tuple[list[int], Outcome]] = []
        self._delivery = delivery
        self._left = list(range(len(delivery)))
        for rows, call in self._work.calls(delivery):
            if self._crew.stopping.is_set():
                break
            self._current = rows
            self._left = self._left[len(rows) :]
            outcome = call if isinstance(call, Outcome) else self._call(call)
            if self._slot.abandoned:
                # The watchdog has answered for this message and given back the rest; only what went before is ours.
                self._work.conclude(delivery, ended)
                return False
            ended.append((rows, outcome))
            self._current = []
        else:
            self._left = []
        self._delivery = None
        self._work.conclude(delivery, ended)
        release(delivery, self._left)
        return all(outcome.answer is Answer.ACKNOWLEDGE for _, outcome in ended)

    def _call(self, call: Call) -> Outcome:
        timeout = self._work.settings.timeout
        try:
            self._slot.begin(None if timeout is None else timeout / SECOND)
            try:
                outcome = call.run()
            finally:
                self._slot.end()
        except HandlerTimeout:
            outcome = Outcome(Answer.NEGATIVE)
        if self._slot.interrupted and timeout is not None and outcome.answer is Answer.NEGATIVE:
            return Outcome(Answer.NEGATIVE, f"timed out after {text(timeout)}", outcome.detail)
        return outcome

    def _renew(self) -> None:
        delivery = self._delivery
        if delivery is not None:
            self._work.broker.renew(delivery)

    def _abandon(self) -> None:
        """Called by the watchdog: answer for the call that does not end, give back the rest, and go on without it."""
        delivery, timeout = self._delivery, self._work.settings.timeout
        if delivery is not None and timeout is not None:
            reason = f"timed out after {text(timeout)} and ignores the interrupt"
            self._work.conclude(delivery, [(self._current, Outcome(Answer.NEGATIVE, reason))])
            release(delivery, self._left)
        self._crew.replace(self)
