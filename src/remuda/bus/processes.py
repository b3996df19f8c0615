"""A crew of processes: code that can crash the interpreter costs one attempt of one message."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from remuda.broker.delivery import Delivery
from remuda.bus import child
from remuda.bus.crew import POLL, Work, join_all, keep_at_it, tell
from remuda.bus.hand import LINGER, RENEW, Rest
from remuda.bus.outcome import Outcome
from remuda.bus.progress import Limit, Progress
from remuda.bus.servant import CannotStart, Crash, Servant
from remuda.core.effects import Answer
from remuda.model.errors import BrokerClosed, RemudaError
from remuda.model.messages import Messages

_log = logging.getLogger("remuda.bus")
_LONGEST_PAUSE: Final = 30.0
_MOST: Final = 256

Publish = Callable[[Messages], list[str]]


class ProcessCrew:
    """As many processes as the queue's concurrency, each fed by a thread here."""

    def __init__(self, work: Work, publish: Publish) -> None:
        child.check_portable(work.duties)
        self.work = work
        self.publish = publish
        self.stopping = threading.Event()
        self.abandoned = False
        self._feeders = [_Feeder(self) for _ in range(work.settings.threads)]

    def start(self) -> None:
        for feeder in self._feeders:
            feeder.thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self, timeout: float) -> bool:
        return join_all([feeder.thread for feeder in self._feeders], timeout)

    def abandon(self) -> None:
        self.abandoned = True
        for feeder in self._feeders:
            feeder.kill()
        self.join(1.0)


class _Feeder:
    def __init__(self, crew: ProcessCrew) -> None:
        self._crew = crew
        self._work = crew.work
        self._pace = crew.work.pace()
        self._most = crew.work.settings.batch or _MOST
        self._servant: Servant | None = None
        self._failures = 0
        self.thread = threading.Thread(target=self._run, name=f"remuda-{crew.work.queue}", daemon=True)

    def kill(self) -> None:
        """End the process, from any thread."""
        if (servant := self._servant) is not None:
            servant.kill()

    def _run(self) -> None:
        try:
            keep_at_it(self._work, self._crew.stopping, self._step)
        finally:
            self._dismiss()

    def _step(self) -> bool:
        servant = self._hire()
        if servant is None:
            return True
        servant.attend()
        count = min(self._pace.count, self._most)
        delivery = self._work.broker.pull(self._work.queue, count, timeout=POLL)
        if delivery is not None:
            self._pace.begin()
            if pause := self._pace.end(delivery, failed=not self._handle(servant, delivery)):
                time.sleep(pause)
        return True

    def _hire(self) -> Servant | None:
        """A process that is ready; None, after a pause, if there is none to be had."""
        if self._servant is not None and self._servant.is_alive():
            return self._servant
        self._dismiss()
        work, crew = self._work, self._crew
        try:
            self._servant = Servant(work.duties, self._most, crew.publish, crew.stopping)
        except CannotStart as error:
            self._failures += 1
            pause = min(2.0**self._failures, _LONGEST_PAUSE)
            work.trouble = str(error)
            _log.error("%s: %s; next try in %.0f s", work.queue, error, pause)
            crew.stopping.wait(pause)
            return None
        self._failures = 0
        return self._servant

    def _dismiss(self) -> None:
        servant, self._servant = self._servant, None
        if servant is not None:
            servant.close()

    def _handle(self, servant: Servant, delivery: Delivery) -> bool:
        """Have the process work through a delivery, and settle it; whether all went well."""
        progress = Progress(servant.slate, len(delivery))
        limit = Limit(self._work.settings.timeout)
        rest: Rest | None = None
        if servant.begin(delivery.messages, delivery.attempts):
            try:
                self._await(servant, delivery, progress, limit)
            except Crash as crash:
                rest = self._charge(progress, limit, crash)
                self._dismiss()
            except BaseException:
                # The process is at work, and nobody would hear of it.
                self._dismiss()
                raise
        return self._settle(delivery, progress.take() if rest is None else rest)

    def _await(self, servant: Servant, delivery: Delivery, progress: Progress, limit: Limit) -> None:
        """Until the round is over. If it takes long, calls that have not begun come back, and what ended is settled."""
        began = time.monotonic()
        renewal, patience = began + RENEW, began + LINGER
        while True:
            match servant.listen(min(limit.look, renewal, patience) - time.monotonic()):
                case (child.OVER, _):
                    return
                case (child.TOLD, text):
                    progress.hear(text)
                case (child.CLOSED, _):
                    self._settle(delivery, progress.take())
            now = time.monotonic()
            if now >= limit.look and limit.is_broken(progress, now):
                servant.kill()
            if now >= patience:
                patience = float("inf")
                if len(delivery) > 1:
                    servant.recall()
            if now >= renewal:
                renewal = now + RENEW
                self._renew(delivery)

    def _charge(self, progress: Progress, limit: Limit, crash: Crash) -> Rest:
        """How things stand, with the crash as the outcome of the call that ran."""
        rest = progress.take()
        # If none ran yet, the first is charged: a message that cannot even be read must not bring down one process
        # after the other for ever.
        lost = rest.running or rest.waiting[: progress.untouched]
        if self._crew.abandoned:
            outcome = Outcome(Answer.RELEASE, "stopped before it ended")
        else:
            outcome = limit.verdict(progress) or Outcome(Answer.NEGATIVE, str(crash))
        ended = [*rest.ended, (lost, outcome)] if lost else rest.ended
        return Rest(ended, [], [row for row in rest.waiting if row not in lost])

    def _settle(self, delivery: Delivery, rest: Rest) -> bool:
        if rest.ended or rest.waiting:
            self._work.conclude(delivery, rest.ended, rest.waiting, self._crew.stopping)
        return all(outcome.answer is Answer.ACKNOWLEDGE for _, outcome in rest.ended)

    def _renew(self, delivery: Delivery) -> None:
        try:
            self._work.broker.renew(delivery)
        except BrokerClosed:
            raise
        except RemudaError as error:
            tell(self._work, error)
