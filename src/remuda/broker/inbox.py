"""Deliveries on their way to one consumer, taken by a thread or by a coroutine."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from remuda.core.effects import Sending

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Inbox:
    """First in, first out. Closing it wakes everyone who waits."""

    def __init__(self) -> None:
        self._items: deque[Sending] = deque()
        self._ready = threading.Condition(threading.Lock())
        self._waiters: deque[_Waiter] = deque()
        self._waiting = 0
        self._elsewhere: Callable[[Sending], None] | None = None
        self.closed = False

    def put(self, sending: Sending) -> None:
        with self._ready:
            elsewhere = self._elsewhere
            if elsewhere is None:
                self._items.append(sending)
                if self._waiting:
                    self._ready.notify()
                elif self._waiters:
                    _wake(self._waiters.popleft())
        if elsewhere is not None:
            elsewhere(sending)

    def close(self) -> None:
        with self._ready:
            self.closed = True
            self._ready.notify_all()
            while self._waiters:
                _wake(self._waiters.popleft())

    def put_back(self, sending: Sending) -> None:
        """A delivery that was taken but not used comes first again."""
        with self._ready:
            self._items.appendleft(sending)

    def divert(self, elsewhere: Callable[[Sending], None]) -> None:
        """Nobody will come for what is here, or still arrives."""
        with self._ready:
            self._elsewhere = elsewhere
            items, self._items = self._items, deque()
        for sending in items:
            elsewhere(sending)

    def get(self, timeout: float | None) -> Sending | None:
        """The next delivery; None when the time is up or the inbox is closed."""
        with self._ready:
            if not self._items and not self.closed and timeout != 0:
                self._waiting += 1
                try:
                    self._ready.wait_for(lambda: self._items or self.closed, timeout)
                finally:
                    self._waiting -= 1
            return self._items.popleft() if self._items else None

    async def get_async(self, timeout: float | None) -> Sending | None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            with self._ready:
                if self._items:
                    return self._items.popleft()
                if self.closed or (deadline is not None and loop.time() >= deadline):
                    return None
                future: asyncio.Future[None] = loop.create_future()
                waiter = (loop, future)
                self._waiters.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await future
            except TimeoutError:
                pass
            finally:
                self._retire(waiter)

    def _retire(self, waiter: _Waiter) -> None:
        """A waiter that gave up in the moment it was woken passes the wake-up on."""
        with self._ready:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif self._items and self._waiters:
                _wake(self._waiters.popleft())


def _wake(waiter: _Waiter) -> None:
    loop, future = waiter
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(None))
