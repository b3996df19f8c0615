"""Group commit: whoever waits first writes for all, and while it syncs the next group gathers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from remuda.model.errors import StorageError


class _Place:
    """Where one thread waits for its turn."""

    __slots__ = ("gate", "leads", "ticket", "trouble")

    gate: threading.Lock
    """Closed until it is done, or ours to lead; only who has to wait has one."""

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.leads = False
        self.trouble: StorageError | None = None


class GroupCommit:
    """Turns many waits into few writes. `work` writes everything up to the ticket it gives back.

    Nobody is woken in vain: whoever has written wakes those for whom it has, and one more, who writes next. An error
    that is `passing` is told to all who wait; whoever comes next tries again. Any other is the end.
    """

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._places: deque[_Place] = deque()
        self.reached = 0
        """The ticket up to which everything is kept. Whoever writes by itself while this is idle says so here."""
        self._company = False
        """Whether others waited along last time: then the next ones are likely to be on their way."""
        self.busy = False
        """Whether somebody writes. Where nobody does, it stays so for whoever holds the lock without which the work
        cannot be taken."""
        self.failure: BaseException | None = None
        """Why nothing can be kept any more: a write failed, or was interrupted half-way."""

    def fail(self, error: BaseException) -> None:
        """Keep nothing more."""
        with self._lock:
            self.failure = self.failure or error
            self._wake_all()

    def stopped(self) -> StorageError:
        """The error of everyone who waits, or comes, after a failure."""
        failure = self.failure
        cause = str(failure) or type(failure).__name__
        error = StorageError(
            f"the broker stopped: {cause}. Whatever was confirmed is kept; fix the cause, then open the broker again"
        )
        error.__cause__ = failure
        return error

    def wait(self, ticket: int) -> None:
        """Return when everything up to `ticket` is kept; raise if it cannot be."""
        while self.reached < ticket:
            place = _Place(ticket)
            reached = 0
            failure: BaseException | None = None
            # An interrupt may land between any two lines: whoever was made the leader passes that on, come what may.
            try:
                self._take_place(place)
                if place.leads:
                    if self._company:
                        time.sleep(0)
                    try:
                        reached = self._work()
                    except BaseException as error:
                        failure = error
                        raise
            finally:
                with self._lock:
                    if place.leads:
                        place.leads = False
                        self.reached = max(self.reached, reached)
                        if isinstance(failure, StorageError) and failure.passing:
                            self.busy = False
                            self._wake_all(failure)
                        else:
                            self.failure = self.failure or failure
                            self._pass_on()
                    elif place in self._places:
                        self._places.remove(place)

    def _take_place(self, place: _Place) -> None:
        """Lead, or wait until it is done or ours to lead."""
        with self._lock:
            if self.reached >= place.ticket:
                return
            if self.failure is not None:
                raise self.stopped()
            if not self.busy:
                self.busy = place.leads = True
                return
            place.gate = threading.Lock()
            place.gate.acquire()
            self._places.append(place)
        place.gate.acquire()
        if place.trouble is not None:
            raise type(place.trouble)(str(place.trouble)) from place.trouble

    def _pass_on(self) -> None:
        """Wake those for whom all is done, and the first of the others, who leads from here on."""
        if self.failure is not None:
            self.busy = False
            self._wake_all()
            return
        if not self._places:
            self.busy = self._company = False
            return
        left: deque[_Place] = deque()
        next_leader = None
        self._company = bool(self._places)
        for place in self._places:
            if place.ticket <= self.reached:
                place.gate.release()
            elif next_leader is None:
                next_leader = place
            else:
                left.append(place)
        self._places = left
        self.busy = next_leader is not None
        if next_leader is not None:
            next_leader.leads = True
            next_leader.gate.release()

    def _wake_all(self, trouble: StorageError | None = None) -> None:
        for place in self._places:
            place.trouble = trouble
            place.gate.release()
        self._places.clear()
