"""Work that Ctrl-C cannot interrupt: signals reach only the main thread, so it is done on another."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Uninterrupted:
    """Does `work` once, on a thread of its own. An interrupt ends only the wait for it, which can be repeated."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._begun = threading.Event()
        self._done = threading.Event()
        self._turn = threading.Lock()
        self._failure: BaseException | None = None

    def begin(self) -> None:
        # An interrupt may land between any two lines here, so it may be begun twice; the second finds the work done.
        while not self._begun.is_set():
            try:
                threading.Thread(target=self._run, name="remuda-closing").start()
            except RuntimeError:  # at the interpreter's end no thread can be started any more
                self._run()
            self._begun.wait()

    def wait(self) -> None:
        """Begin, if not begun yet, and wait for the end. Raises what the work raised, to the first caller."""
        self.begin()
        self._done.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        self._begun.set()
        with self._turn:
            if self._done.is_set():
                return
            try:
                self._work()
            except BaseException as error:
                self._failure = error
            finally:
                self._done.set()
