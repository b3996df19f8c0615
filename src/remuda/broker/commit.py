"""Group commit: whoever waits first writes for all, and while it syncs the next group gathers."""

from __future__ import annotations

import threading
from collections.abc import Callable

from remuda.model.errors import StorageError


class GroupCommit:
    """Turns many waits into few writes. `work` writes everything up to the ticket it gives back."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._followers = 0
        self._done = 0
        self._leading = False
        self._failure: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether nothing can be kept any more: a write failed, or was interrupted half-way."""
        return self._failure is not None

    def fail(self, error: BaseException) -> None:
        """Keep nothing more."""
        with self._lock:
            self._failure = self._failure or error
            self._turn.notify_all()

    def wait(self, ticket: int) -> None:
        """Return when everything up to `ticket` is kept; raise if it cannot be."""
        with self._lock:
            while True:
                if self._done >= ticket:
                    return
                if self._failure is not None:
                    cause = str(self._failure) or type(self._failure).__name__
                    raise StorageError(
                        f"the broker stopped: {cause}. Whatever was confirmed is kept; "
                        "mend the cause, then open the broker again"
                    ) from self._failure
                if not self._leading:
                    self._leading = True
                    break
                self._followers += 1
                self._turn.wait()
                self._followers -= 1
        reached, failure = 0, None
        try:
            reached = self._work()
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._lock:
                self._leading = False
                self._done = max(self._done, reached)
                self._failure = self._failure or failure
                if self._followers:
                    self._turn.notify_all()
        if reached < ticket:
            self.wait(ticket)
