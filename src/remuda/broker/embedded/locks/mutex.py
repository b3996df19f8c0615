"""The lock under which queues are changed. In C where that could be built: a thread that takes it again soon after
releasing it does not wait for one that is not running yet (`native/mutex.c`)."""

from __future__ import annotations

from _thread import RLock
from typing import TYPE_CHECKING

from remuda.native import mutex

if TYPE_CHECKING or mutex is not None:
    Mutex = mutex.Mutex
else:

    class Mutex(RLock):
        """Python's own lock that knows its owner. It is never taken twice: calls from within a call are refused."""

        owned = RLock._is_owned

        def locked(self) -> bool:
            if self.owned():
                return True
            free = self.acquire(False)
            if free:
                self.release()
            return not free
