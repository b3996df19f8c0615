"""One process that runs handlers, as its parent sees it."""

from __future__ import annotations

import multiprocessing
import pickle
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from remuda.bus.broker_api import BaseDelivery
from remuda.bus.execution.processes import child_main
from remuda.bus.execution.processes.child_connection import ChildConnection
from remuda.bus.execution.processes.shared_progress import SharedProgress
from remuda.bus.handlers.dispatcher import Dispatcher
from remuda.bus.handlers.result import CallResult
from remuda.model.errors import RemudaError

_START_LIMIT: Final = 60.0
_FRESH: Final = 0.05
_LOOK: Final = 0.5
"""How often to see whether the process still lives. A hung-up line does not tell, if the handler has forked."""


class ProcessNotStarted(RemudaError):
    """A process for handlers did not start."""


class ProcessCrashed(Exception):
    """The process has ended, or no longer answers."""


class ChildProcess:
    """A process with three connections: rounds of calls, recalls, and what its handlers publish meanwhile.

    `size` is how many messages a round can have.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        size: int,
        publish: Callable[[Any], Any],
        stopping: threading.Event,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        memory = SharedProgress.memory(context, size)
        self.shared = SharedProgress(memory, size)
        self._publish = publish
        self._guard = threading.Lock()
        self._sending = threading.Lock()
        self._round = 0
        own, link = context.Pipe()
        self._link = ChildConnection(own)
        self._words: deque[tuple[str, int, bytes]] = deque()
        self._answered = 0.0
        recalled, self._recalls = context.Pipe(duplex=False)
        self._asked, asking = context.Pipe()
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._link, selectors.EVENT_READ)
        self._ready.register(self._asked, selectors.EVENT_READ)
        ends = child_main.Pipes(link, recalled, asking)
        self._process = context.Process(target=child_main.main, args=(ends, memory, size, dispatcher), daemon=True)
        try:
            self._process.start()
            ends.close()
            self._await_ready(stopping)
        except BaseException:
            self.close()
            raise

    def is_alive(self) -> bool:
        with self._guard:
            return self._process.is_alive()

    def has_just_answered(self) -> bool:
        """Whether asking the system if the process lives can be spared: that gives up the interpreter."""
        return time.monotonic() - self._answered < _FRESH

    def begin(self, delivery: BaseDelivery[Any], attempts: list[int]) -> bool:
        """Hand over a round of messages, whose progress is then in `shared`; False if the process is gone."""
        self._round += 1
        self.shared.wipe(len(delivery))
        batch = child_main.CallBatch(
            self._round, delivery.messages, attempts, delivery.redelivered, delivery.offsets, delivery.lease
        )
        try:
            self._link.send(_encoded(batch))
        except OSError:
            return False
        return True

    def recall(self) -> None:
        """Let no more calls of this round begin; the process confirms with `CLOSED`."""
        with suppress(OSError), self._sending:
            self._recalls.send(self._round)

    def cancel(self, row: int, result: CallResult) -> None:
        """Let a message of this round end with this result; its handler is told to stop. From any thread."""
        with suppress(OSError), self._sending:
            self._recalls.send(child_main.CancelRow(self._round, row, result))

    def request_stop(self) -> None:
        """Let handlers know that the bus is asked to stop."""
        with suppress(OSError), self._sending:
            self._recalls.send(child_main.STOP)

    def listen(self, timeout: float) -> tuple[str, bytes] | None:
        """What the process sends next about this round; None after `timeout`. Serves its handlers meanwhile."""
        deadline = time.monotonic() + timeout
        while True:
            while self._words:
                word, number, text = self._words.popleft()
                if number == self._round:
                    self._answered = time.monotonic()
                    return word, text
            left = deadline - time.monotonic()
            ready = [key.fileobj for key, _ in self._ready.select(min(max(left, 0), _LOOK))]
            try:
                # Words first: if the process is gone, the last one may still be there.
                if self._link in ready:
                    self._words += map(pickle.loads, self._link.receive())
                elif self._asked in ready:
                    self._serve()
            except (EOFError, OSError):
                raise self._crash() from None
            if not ready and not self.is_alive() and not self._ready.select(0):
                raise self._crash()
            if left <= 0 and not self._words:
                return None

    def attend(self) -> None:
        """Serve threads that a handler has left running in the process."""
        with suppress(EOFError, OSError):
            while any(key.fileobj is self._asked for key, _ in self._ready.select(0)):
                self._serve()

    def kill(self) -> None:
        """End the process at once, from any thread; `listen` then raises `ProcessCrashed`."""
        with self._guard:
            if self._process.pid is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process and release what it needed."""
        self.kill()
        with self._guard:
            if self._process.pid is not None:
                self._process.join()
        self._ready.close()
        for end in (self._link, self._recalls, self._asked):
            end.close()

    def _await_ready(self, stopping: threading.Event) -> None:
        deadline = time.monotonic() + _START_LIMIT
        try:
            while not (self._ready.select(0.05) and self._link.receive()):
                if stopping.is_set() or time.monotonic() > deadline or not self.is_alive():
                    raise ProcessNotStarted(
                        f"a process for handlers did not start (exit code {self._process.exitcode}){_HINT}"
                    )
        except (EOFError, OSError):
            self._process.join(1)
            raise ProcessNotStarted(
                f"a process for handlers finished with exit code {self._process.exitcode}{_HINT}"
            ) from None

    def _serve(self) -> None:
        messages = self._asked.recv()
        answer: Any
        try:
            answer = self._publish(messages)
        except Exception as error:
            answer = _portable(error)
        self._asked.send(answer)

    def _crash(self) -> ProcessCrashed:
        with self._guard:
            self._process.join(1)
            return ProcessCrashed(f"the process crashed with exit code {self._process.exitcode}")


_HINT: Final = (
    "; its traceback is on stderr. Handlers must be importable there, and a script must call bus.run() "
    'under if __name__ == "__main__"'
)


def _encoded(round: child_main.CallBatch) -> bytes:
    try:
        return pickle.dumps(round, pickle.HIGHEST_PROTOCOL)
    except Exception:
        # Headers may be any mapping, as their publisher made them.
        headers = round.messages.headers
        plain: Mapping[str, str] | list[Mapping[str, str]]
        plain = [dict(each) for each in headers] if isinstance(headers, list) else dict(headers)
        messages = msgspec.structs.replace(round.messages, headers=plain)
        return pickle.dumps(msgspec.structs.replace(round, messages=messages), pickle.HIGHEST_PROTOCOL)


def _portable(error: Exception) -> Exception:
    """The error, or its text if it does not survive the way to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RemudaError(f"{type(error).__name__}: {error}")
    return error
