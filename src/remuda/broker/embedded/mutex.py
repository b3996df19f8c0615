"""The lock under which queues are changed. In C where that could be built: a thread that comes back to it soon after it
let go does not wait for one that is not running yet (`native/mutex.h`)."""

from __future__ import annotations

from _thread import RLock
from typing import TYPE_CHECKING

from remuda.native import submission

if TYPE_CHECKING or submission is not None:
    Mutex = submission.Mutex
else:

    class Mutex(RLock):
        """Python's own that knows its thread. Nobody takes it twice: whoever has it is refused before."""

        owned = RLock._is_owned

        def locked(self) -> bool:
            if self.owned():
                return True
            free = self.acquire(False)
            if free:
                self.release()
            return not free
