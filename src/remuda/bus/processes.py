"""A crew of processes: code that can crash the interpreter costs one attempt of one message."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from remuda.broker.delivery import Delivery
from remuda.bus import child
from remuda.bus.crew import POLL, Pace, Work, release
from remuda.bus.outcome import Outcome
from remuda.core.effects import Answer
from remuda.model.durations import SECOND, text
from remuda.model.errors import BrokerClosed, RemudaError

_log = logging.getLogger("remuda.bus")
_RENEW = 10.0


class ProcessCrew:
    """As many processes as the queue's concurrency, each fed by a thread here."""

    def __init__(self, work: Work, encoding: str, publish: Callable[..., Any]) -> None:
        child.check_portable(list(work.handlers), work.stack)
        self.work = work
        self.encoding = encoding
        self.publish = publish
        self.stopping = threading.Event()
        self._feeders = [_Feeder(self) for _ in range(work.settings.threads)]

    def start(self) -> None:
        for feeder in self._feeders:
            feeder.thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        for feeder in self._feeders:
            feeder.thread.join(max(deadline - time.monotonic(), 0))
        ended = not any(feeder.thread.is_alive() for feeder in self._feeders)
        for feeder in self._feeders:
            feeder.kill()
        return ended


class _Feeder:
    def __init__(self, crew: ProcessCrew) -> None:
        self._crew = crew
        self._work = crew.work
        self._numbers = {handler.id: number for number, handler in enumerate(crew.work.handlers)}
        self._process: Any = None
        self._link: Connection | None = None
        self.thread = threading.Thread(target=self._run, name=f"remuda-{crew.work.queue}", daemon=True)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
        if self._link is not None:
            self._link.close()
            self._link = None

    def _run(self) -> None:
        pace = Pace(self._work)
        try:
            self._spawn()
            while not self._crew.stopping.is_set():
                delivery = self._work.broker.pull(self._work.queue, pace.count, timeout=POLL)
                if delivery is not None:
                    pace.begin()
                    pace.end(failed=not self._handle(delivery))
        except BrokerClosed:
            pass
        except RemudaError as error:
            _log.error("%s: a worker stops: %s", self._work.queue, error)
        finally:
            self.kill()

    def _spawn(self) -> Connection:
        self.kill()
        context = multiprocessing.get_context("spawn")
        self._link, other = context.Pipe()
        arguments = (other, self._work.queue, list(self._work.handlers), self._work.stack, self._crew.encoding)
        self._process = context.Process(target=child.main, args=arguments, daemon=True)
        self._process.start()
        other.close()
        return self._link

    def _handle(self, delivery: Delivery) -> bool:
        ended: list[tuple[list[int], Outcome]] = []
        waiting: list[tuple[list[int], int]] = []
        for rows, call in self._work.calls(delivery):
            if isinstance(call, Outcome):
                ended.append((rows, call))
            else:
                waiting.append((rows, self._numbers[call.handler.id]))
        attempts = delivery.attempts
        while waiting and not self._crew.stopping.is_set():
            requests: child.Request = [
                (number, [(delivery[row], attempts[row]) for row in rows]) for rows, number in waiting
            ]
            done = self._exchange(delivery, requests)
            ended += [(rows, outcome) for (rows, _), outcome in zip(waiting, done, strict=False)]
            waiting = waiting[len(done) :]
        self._work.conclude(delivery, ended)
        release(delivery, [row for rows, _ in waiting for row in rows])
        return all(outcome.answer is Answer.ACKNOWLEDGE for _, outcome in ended)

    def _exchange(self, delivery: Delivery, requests: child.Request) -> list[Outcome]:
        """Have the child work through the requests. A crash or timeout ends one; those after it are not begun."""
        done: list[Outcome] = []
        link = self._link or self._spawn()
        try:
            link.send(requests)
            while len(done) < len(requests):
                outcome = self._await(delivery, link)
                if outcome is None:
                    timeout = self._work.settings.timeout or 0
                    self._spawn()
                    return [*done, Outcome(Answer.NEGATIVE, f"timed out after {text(timeout)}; its process was killed")]
                done.append(outcome)
            return done
        except (EOFError, OSError):
            code = self._exit_code()
            self._spawn()
            return [*done, Outcome(Answer.NEGATIVE, f"the process crashed with exit code {code}")]

    def _await(self, delivery: Delivery, link: Connection) -> Outcome | None:
        """The next outcome, serving what the handler asks for meanwhile; None when the time is up."""
        timeout = self._work.settings.timeout
        deadline = time.monotonic() + timeout / SECOND if timeout is not None else None
        while True:
            left = _RENEW if deadline is None else min(deadline - time.monotonic(), _RENEW)
            if left <= 0:
                return None
            if not link.poll(left):
                self._work.broker.renew(delivery)
                continue
            verb, content = link.recv()
            if verb == child.OUTCOME:
                assert isinstance(content, Outcome)
                return content
            link.send(self._serve(content))

    def _serve(self, arguments: tuple[Any, ...]) -> Any:
        try:
            return self._crew.publish(*arguments)
        except Exception as error:
            return error

    def _exit_code(self) -> int | None:
        if self._process is None:
            return None
        self._process.join(1)
        code: int | None = self._process.exitcode
        return code
