"""Group commit: whoever waits first writes for all, and while it syncs the next group gathers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from remuda.model.errors import StorageError


class _Place:
    """Where one thread waits for its turn."""

    __slots__ = ("gate", "ticket", "trouble")

    gate: threading.Lock | None
    """Closed until it is done, or ours to lead; only who has to wait has one."""

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.gate = None
        self.trouble: StorageError | None = None

    def open(self) -> None:
        """Let it go on. To do so twice does no harm: it waits here once."""
        if self.gate is not None and self.gate.locked():
            self.gate.release()


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
        self._alone = _Place(0)
        """Of whoever leads where nobody waits along, and does only what is left to do."""
        self._leader: _Place | None = None
        """Who writes now, or is to write next."""
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
                if self._leader is place:
                    if self._company:
                        time.sleep(0)
                    try:
                        reached = self._work()
                    except BaseException as error:
                        failure = error
                        raise
            finally:
                try:
                    self._leave(place, reached, failure)
                except BaseException:  # a signal's handler may raise anything, such as SystemExit
                    # Begun again from where it was. One may come here too, but hardly a third.
                    try:
                        self._leave(place, reached, failure)
                    except BaseException:
                        self._leave(place, reached, failure)
                    raise

    def _take_place(self, place: _Place) -> None:
        """Lead, or wait until it is done or ours to lead."""
        with self._lock:
            if self.reached >= place.ticket:
                return
            if self.failure is not None:
                raise self.stopped()
            if self._leader is None:
                self._leader = place
                self.busy = True
                return
            gate = threading.Lock()
            gate.acquire()
            place.gate = gate
            self._places.append(place)
        gate.acquire()
        if place.trouble is not None:
            raise type(place.trouble)(str(place.trouble)) from place.trouble

    def _leave(self, place: _Place, reached: int, failure: BaseException | None) -> None:
        """Go, and pass on the lead where it was ours. Each step may be taken twice; one assignment passes it on."""
        with self._lock:
            if self._leader is place:
                if reached > self.reached:
                    self.reached = reached
                trouble = failure if isinstance(failure, StorageError) and failure.passing else None
                if trouble is None:
                    self.failure = self.failure or failure
                if trouble is not None or self.failure is not None:
                    self._wake_all(trouble)
                    self._leader = None
                else:
                    self._leader = self._next_leader()
            elif place in self._places:
                self._places.remove(place)
            leader = self._leader
            self.busy = leader is not None
            if leader is not None:
                if leader in self._places:
                    self._places.remove(leader)
                leader.open()

    def _next_leader(self) -> _Place | None:
        """Wake those for whom all is done; the first of the others."""
        self._company = bool(self._places)
        if not self._company:
            return None
        waiting = [place for place in self._places if place.ticket > self.reached]
        for place in self._places:
            if place.ticket <= self.reached:
                place.open()
        self._places = deque(waiting)
        return waiting[0] if waiting else None

    def _wake_all(self, trouble: StorageError | None = None) -> None:
        for place in self._places:
            place.trouble = trouble
            place.open()
        self._places.clear()
