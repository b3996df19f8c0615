"""A crew of threads: each takes messages, runs a plain function on them, and settles."""

from __future__ import annotations

import threading
import time

from remuda.broker.delivery import Delivery
from remuda.bus.answers import HandlerTimeout
from remuda.bus.crew import POLL, Work, join_all, keep_at_it
from remuda.bus.hand import Hand
from remuda.bus.invoke import Call
from remuda.bus.outcome import Outcome
from remuda.bus.watchdog import Slot, Watchdog
from remuda.core.effects import Answer
from remuda.model.durations import SECOND, text


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
            self._add()

    def replace(self, worker: _Worker) -> None:
        with self._guard:
            self._workers.remove(worker)
        if not self.stopping.is_set():
            self._add()

    def stop(self) -> None:
        self.stopping.set()

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
        worker = _Worker(self)
        with self._guard:
            self._workers.append(worker)
        worker.thread.start()


class _Worker:
    def __init__(self, crew: ThreadCrew) -> None:
        self._crew = crew
        self._work = crew.work
        self._pace = crew.work.pace()
        self._hand: Hand[Delivery] | None = None
        self._slot = Slot(f"a handler of {crew.work.queue}", self._attend, self._abandon)
        self.thread = threading.Thread(target=self._run, name=f"remuda-{crew.work.queue}", daemon=True)

    def give_up(self) -> None:
        """The crew has stopped, and does not wait any longer."""
        self._slot.give_up()
        self._answer_for(Outcome(Answer.RELEASE, "stopped before it ended"))

    def _run(self) -> None:
        self._crew.watchdog.add(self._slot)
        try:
            keep_at_it(self._work, self._crew.stopping, self._step)
        finally:
            self._crew.watchdog.remove(self._slot)

    def _step(self) -> bool:
        delivery = self._work.broker.pull(self._work.queue, self._pace.count, timeout=POLL)
        if delivery is not None:
            self._pace.begin()
            if pause := self._pace.end(delivery, failed=not self._handle(delivery)):
                time.sleep(pause)
        return not self._slot.abandoned

    def _handle(self, delivery: Delivery) -> bool:
        """Run the handlers for a delivery and settle it; whether all went well."""
        hand = self._hand = Hand(delivery)
        try:
            for rows, call in self._work.duties.calls(delivery):
                if self._crew.stopping.is_set() or not hand.begin(rows):
                    break
                if not hand.end(call if isinstance(call, Outcome) else self._call(call)):
                    return False
            rest = hand.close()
            if rest is None:
                return False
            self._work.conclude(delivery, rest.ended, rest.waiting, self._crew.stopping)
            return all(outcome.answer is Answer.ACKNOWLEDGE for _, outcome in rest.ended)
        finally:
            self._hand = None

    def _call(self, call: Call) -> Outcome:
        timeout = self._work.settings.timeout
        outcome = Outcome(Answer.NEGATIVE)
        try:
            try:
                self._slot.begin(None if timeout is None else timeout / SECOND)
                outcome = call.run()
            finally:
                self._slot.end()
        except HandlerTimeout:
            # It came outside the handler. There is only one for each call, so nothing disturbs this.
            self._slot.end()
        if self._slot.interrupted and timeout is not None and outcome.answer is Answer.NEGATIVE:
            return Outcome(Answer.NEGATIVE, f"timed out after {text(timeout)}", outcome.detail)
        return outcome

    def _attend(self, now: float) -> None:
        """Called by the watchdog while a call runs."""
        hand = self._hand
        if hand is None:
            return
        if rows := hand.give_back(now):
            hand.delivery.release(rows)
        if hand.must_renew(now):
            self._work.broker.renew(hand.delivery)

    def _abandon(self) -> None:
        """Called by the watchdog: answer for the call that does not end, give back the rest, and go on without it."""
        timeout = text(self._work.settings.timeout or 0)
        try:
            self._answer_for(Outcome(Answer.NEGATIVE, f"timed out after {timeout} and ignores the interrupt"))
        finally:
            self._crew.replace(self)

    def _answer_for(self, running: Outcome) -> None:
        """Answer for the worker, which is in a call; its own answer will then come too late."""
        hand = self._hand
        rest = hand.close() if hand is not None else None
        if hand is None or rest is None:
            return
        ended = [*rest.ended, (rest.running, running)] if rest.running else rest.ended
        self._work.conclude(hand.delivery, ended, rest.waiting, self._crew.stopping)
