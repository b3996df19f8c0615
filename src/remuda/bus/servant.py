"""One process that runs handlers, as its parent sees it."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import connection
from typing import Any, Final

from remuda.bus import child
from remuda.bus.outcome import Outcome
from remuda.model.errors import RemudaError
from remuda.model.message import Message

_START_LIMIT: Final = 60.0
_LOOK: Final = 0.5
"""How often to see whether the process still lives. A hung-up line does not tell, if the handler has forked."""


class CannotStart(RemudaError):
    """A process for handlers does not come up."""


class Crash(Exception):
    """The process is gone, or does not answer any more."""


class Servant:
    """A process with a line for calls and outcomes, and one for what its handlers ask for meanwhile."""

    def __init__(
        self, arguments: tuple[Any, ...], publish: Callable[[Sequence[Message]], list[str]], stopping: threading.Event
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._publish = publish
        self._guard = threading.Lock()
        self._link, link = context.Pipe()
        self._asked, asking = context.Pipe()
        self._process = context.Process(target=child.main, args=(link, asking, *arguments), daemon=True)
        try:
            self._process.start()
            link.close()
            asking.close()
            self._await_ready(stopping)
        except BaseException:
            self.close()
            raise

    def is_alive(self) -> bool:
        with self._guard:
            return self._process.is_alive()

    def send(self, what: list[child.Request] | str) -> bool:
        """Hand over calls, or have them back; False if the process is gone."""
        try:
            self._link.send(what)
        except OSError:
            return False
        return True

    def listen(self, timeout: float) -> Outcome | int | None:
        """The next outcome, or how many calls come back; None if neither comes in time. Handlers are served."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            ready = connection.wait([self._link, self._asked], min(max(left, 0), _LOOK))
            try:
                # Outcomes first: if the process is gone, the last one may still be there.
                if self._link in ready:
                    said: Outcome | int = self._link.recv()
                    return said
                if self._asked in ready:
                    self._serve()
            except (EOFError, OSError):
                raise self._crash() from None
            if not ready:
                if not self.is_alive() and not self._link.poll(0):
                    raise self._crash()
                if left <= 0:
                    return None

    def attend(self) -> None:
        """Do what threads ask for that a handler has left running in the process."""
        with suppress(EOFError, OSError):
            while self._asked.poll(0):
                self._serve()

    def kill(self) -> None:
        """End the process at once, from any thread; whoever listens learns of it."""
        with self._guard:
            if self._process.pid is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process and let go what it needed."""
        self.kill()
        with self._guard:
            if self._process.pid is not None:
                self._process.join()
        self._link.close()
        self._asked.close()

    def _await_ready(self, stopping: threading.Event) -> None:
        deadline = time.monotonic() + _START_LIMIT
        while not self._link.poll(0.05):
            if stopping.is_set() or time.monotonic() > deadline or not self.is_alive():
                raise CannotStart(f"a process for handlers did not start (exit code {self._process.exitcode}){_HINT}")
        try:
            self._link.recv()
        except (EOFError, OSError):
            self._process.join(1)
            raise CannotStart(f"a process for handlers ended with exit code {self._process.exitcode}{_HINT}") from None

    def _serve(self) -> None:
        messages = self._asked.recv()
        answer: Any
        try:
            answer = self._publish(messages)
        except Exception as error:
            answer = _portable(error)
        self._asked.send(answer)

    def _crash(self) -> Crash:
        with self._guard:
            self._process.join(1)
            return Crash(f"the process crashed with exit code {self._process.exitcode}")


_HINT: Final = (
    "; its traceback is on stderr. Handlers must be importable there, and a script must call bus.run() "
    'under if __name__ == "__main__"'
)


def _portable(error: Exception) -> Exception:
    """The error, or its text if it does not survive the way to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RemudaError(f"{type(error).__name__}: {error}")
    return error
