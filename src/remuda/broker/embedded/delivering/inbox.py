"""Deliveries on their way to one consumer, taken by a thread or by a coroutine."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from remuda.core.effects import Dispatch

Wake = Callable[[], None]


class Inbox:
    """First in, first out. Closing it wakes all that wait; closing it with a failure makes them raise."""

    __slots__ = ("_elsewhere", "_failure", "_guard", "_items", "_wakes", "closed", "interrupted", "lasting", "reached")

    def __init__(self) -> None:
        self._items: deque[Dispatch] = deque()
        self._guard = threading.Lock()
        self._wakes: deque[Wake] = deque()
        self._elsewhere: Callable[[Dispatch], None] | None = None
        self._failure: Exception | None = None
        self.closed = False
        self.lasting = False
        """Whether it is a subscription's, to which more than one delivery comes."""
        self.reached = False
        """Whether a delivery ever came."""
        self.interrupted = False
        """Whether nobody is to wait here now."""

    def put(self, dispatch: Dispatch) -> None:
        if not self.offer(dispatch):
            assert self._elsewhere is not None
            self._elsewhere(dispatch)

    def offer(self, dispatch: Dispatch) -> bool:
        """As `put`; returns False and does nothing if the inbox is diverted."""
        with self._guard:
            if self._elsewhere is not None:
                return False
            self._items.append(dispatch)
            self.reached = True
            if self._wakes:
                self._wakes.popleft()()
            return True

    def close(self, failure: Exception | None = None) -> None:
        with self._guard:
            self.closed = True
            self._failure = self._failure or failure
            while self._wakes:
                self._wakes.popleft()()

    def interrupt(self) -> None:
        """End the wait of whoever waits here, or is about to."""
        with self._guard:
            self.interrupted = True
            while self._wakes:
                self._wakes.popleft()()

    def put_back(self, dispatch: Dispatch) -> None:
        """Make a delivery that was taken but not used the first again."""
        with self._guard:
            self._items.appendleft(dispatch)

    def divert(self, elsewhere: Callable[[Dispatch], None]) -> None:
        """Pass what is here, and what still arrives, to `elsewhere`: the consumer is gone."""
        with self._guard:
            self._elsewhere = elsewhere
            items, self._items = self._items, deque()
        for dispatch in items:
            elsewhere(dispatch)

    def get(self, timeout: float | None) -> Dispatch | None:
        """The next delivery; None when the time is up or the inbox is closed."""
        with self._guard:
            if self._items or self.closed or self.interrupted or timeout == 0:
                return self._take()
        deadline = None if timeout is None else time.monotonic() + timeout
        gate = threading.Lock()
        gate.acquire()
        wake = gate.release
        try:
            while True:
                dispatch, waits = self.poll(wake)
                if not waits:
                    return dispatch
                if deadline is None:
                    gate.acquire()
                elif not gate.acquire(timeout=min(max(deadline - time.monotonic(), 0), threading.TIMEOUT_MAX)):
                    break
        except BaseException:
            self.retire(wake)
            raise
        with self._guard:
            if wake in self._wakes:
                self._wakes.remove(wake)
            return self._take()

    def poll(self, wake: Wake) -> tuple[Dispatch | None, bool]:
        """The next delivery, and whether the caller must wait for it: then `wake` is called when one arrives."""
        with self._guard:
            if self._items or self.closed or self.interrupted:
                return self._take(), False
            self._wakes.append(wake)
            return None, True

    def retire(self, wake: Wake) -> None:
        """Stop waiting. A waiter that gives up just as it is woken passes the wake-up on."""
        with self._guard:
            if wake in self._wakes:
                self._wakes.remove(wake)
            elif self._items and self._wakes:
                self._wakes.popleft()()

    def _take(self) -> Dispatch | None:
        if self.closed:
            self._items.clear()
            if self._failure is not None:
                raise self._failure
            return None
        return self._items.popleft() if self._items else None
