"""A crew of processes: code that can crash the interpreter costs one attempt of one message."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from remuda.broker.delivery import Delivery
from remuda.bus import child
from remuda.bus.crew import POLL, Pace, Work, join_all, keep_at_it
from remuda.bus.hand import LINGER, RENEW, Ended
from remuda.bus.outcome import Outcome
from remuda.bus.servant import CannotStart, Crash, Servant
from remuda.core.effects import Answer
from remuda.model.durations import SECOND, text
from remuda.model.message import Message

_log = logging.getLogger("remuda.bus")
_LONGEST_PAUSE: Final = 30.0

_Given = deque[tuple[list[int], child.Request]]
Publish = Callable[[Sequence[Message]], list[str]]


class ProcessCrew:
    """As many processes as the queue's concurrency, each fed by a thread here."""

    def __init__(self, work: Work, encoding: str, publish: Publish) -> None:
        child.check_portable(work.handlers, work.stack)
        self.work = work
        self.encoding = encoding
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
        self._numbers = {handler.id: number for number, handler in enumerate(crew.work.handlers)}
        self._pace = Pace(crew.work)
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
        delivery = self._work.broker.pull(self._work.queue, self._pace.count, timeout=POLL)
        if delivery is not None:
            self._pace.begin()
            self._pace.end(failed=not self._handle(servant, delivery))
        return True

    def _hire(self) -> Servant | None:
        """A process that is ready; None, after a pause, if there is none to be had."""
        if self._servant is not None and self._servant.is_alive():
            return self._servant
        self._dismiss()
        work, crew = self._work, self._crew
        try:
            self._servant = Servant(
                (work.queue, list(work.handlers), work.stack, crew.encoding), crew.publish, crew.stopping
            )
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
        ended: Ended = []
        given: _Given = deque()
        for rows, call in self._work.calls(delivery):
            if isinstance(call, Outcome):
                ended.append((rows, call))
            else:
                given.append((rows, (self._numbers[call.handler.id], call.messages)))
        if servant.send([request for _, request in given]):
            try:
                while given:
                    ended.append((given[0][0], self._await(servant, delivery, given)))
                    given.popleft()
            except Crash as crash:
                self._dismiss()
                ended.append((given.popleft()[0], self._after(crash)))
        released = [row for rows, _ in given for row in rows]
        self._work.conclude(delivery, ended, released, self._crew.stopping)
        return all(outcome.answer is Answer.ACKNOWLEDGE for _, outcome in ended)

    def _await(self, servant: Servant, delivery: Delivery, given: _Given) -> Outcome:
        """The outcome of the call that runs. If it takes long or the crew stops, those behind it come back."""
        timeout = self._work.settings.timeout
        began = time.monotonic()
        deadline = float("inf") if timeout is None else began + timeout / SECOND
        renewal, patience = began + RENEW, began + LINGER
        while True:
            said = servant.listen(min(deadline, renewal, patience) - time.monotonic())
            if isinstance(said, Outcome):
                return said
            if said is not None:
                self._take_back(delivery, given, said)
            now = time.monotonic()
            if now >= deadline:
                raise Crash(f"timed out after {text(timeout or 0)}; its process was killed")
            if now >= patience:
                patience = now + LINGER
                if len(given) > 1:
                    servant.send(child.RECALL)
            if now >= renewal:
                renewal = now + RENEW
                self._work.broker.renew(delivery)

    def _take_back(self, delivery: Delivery, given: _Given, count: int) -> None:
        """The last `count` calls have not begun, and will not here."""
        back = [given.pop()[0] for _ in range(count)]
        if back:
            delivery.release([row for rows in back for row in rows])

    def _after(self, crash: Crash) -> Outcome:
        if self._crew.abandoned:
            return Outcome(Answer.RELEASE, "stopped before it ended")
        return Outcome(Answer.NEGATIVE, str(crash))
