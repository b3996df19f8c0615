"""Group commit: the first thread to wait writes for all, and while it syncs the next group gathers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from remuda.model.errors import BrokerStopped, StorageError

_LAST: Final = 1 << 62
"""A ticket that is never reached."""


class StepsAside(StorageError):
    """A leader stops waiting, so that others can go on. Only it is told."""

    passing = True


class _Place:
    """One thread's place in the line of those that wait."""

    __slots__ = ("gate", "ticket", "trouble")

    gate: threading.Lock | None
    """Locked until the ticket is stored or it is this thread's turn to lead; None for a thread that need not wait."""

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.gate = None
        self.trouble: StorageError | None = None

    def open(self) -> None:
        """Wake the thread. Doing so twice is harmless: it waits here once."""
        if self.gate is not None and self.gate.locked():
            self.gate.release()


class GroupCommit:
    """Turns many waits into few writes. `work` writes everything up to the ticket that it returns.

    The leader, which writes, then wakes only the threads whose tickets are stored, and the next leader. An error that
    is `passing` is raised to all that wait, and the next one to come tries again. Any other error is final.
    """

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._places: deque[_Place] = deque()
        self.reached = 0
        """The ticket up to which everything is stored. A thread that writes by itself while this is idle sets it."""
        self._company = False
        """Whether others waited along with the last leader: then more are likely to come at once."""
        self._alone = _Place(0)
        """The place of a leader that nobody waits along with, and that only syncs what is already written."""
        self._leader: _Place | None = None
        """The one that writes now, or is to write next."""
        self.busy = False
        """Whether there is a leader. While there is none, none can begin to write without the broker's lock, which
        `work` takes first."""
        self.failure: BaseException | None = None
        """Why nothing can be stored any more: a write failed, or was interrupted half-way."""

    def fail(self, error: BaseException) -> None:
        """Store nothing more, and wake all that wait."""
        with self._lock:
            self.failure = self.failure or error
            self._wake_all()

    def stopped(self) -> BrokerStopped:
        """The error for every caller after a failure."""
        failure = self.failure
        cause = str(failure) or type(failure).__name__
        error = BrokerStopped(
            f"the broker stopped: {cause}. Everything confirmed is kept; fix the cause, then open the broker again"
        )
        error.__cause__ = failure
        return error

    def wait(self, ticket: int) -> None:
        """Return when everything up to `ticket` is stored; raise if it cannot be."""
        while self.reached < ticket:
            place = _Place(ticket)
            reached = 0
            failure: BaseException | None = None
            follows = False
            # An interrupt may land between any two lines: one that became the leader passes the lead on in any case.
            try:
                self._take_place(place)
                follows = self._leader is not place
                if not follows:
                    try:
                        reached = self._work()
                    except StepsAside:
                        raise
                    except BaseException as error:
                        failure = error
                        raise
            finally:
                if not follows:
                    try:
                        self._leave(place, reached, failure)
                    except BaseException:  # a signal's handler may raise anything, such as SystemExit
                        # Each step can be repeated. A second interrupt may land here, too, but hardly a third.
                        try:
                            self._leave(place, reached, failure)
                        except BaseException:
                            self._leave(place, reached, failure)
                        raise

    def lead(self, work: Callable[[], int]) -> None:
        """Do other work as the leader, as soon as whoever writes now is done: nobody writes meanwhile. An error stays
        the caller's."""
        place = _Place(_LAST)
        reached = 0
        while self._leader is not place:
            self._take_place(place, ahead=True)
        try:
            reached = work()
        finally:
            self._leave(place, reached, None)

    def _take_place(self, place: _Place, *, ahead: bool = False) -> None:
        """Become the leader, or wait until the ticket is stored or it is our turn to lead."""
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
            if ahead:
                self._places.appendleft(place)
            else:
                self._places.append(place)
        gate.acquire()
        if place.trouble is not None and not ahead:
            raise type(place.trouble)(str(place.trouble)) from place.trouble

    def _leave(self, place: _Place, reached: int, failure: BaseException | None) -> None:
        """Leave, and pass on the lead if it was ours. Each step may be taken twice; one assignment passes it on."""
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
        """Wake those whose tickets are stored; returns the first of the others."""
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
