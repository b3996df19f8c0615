"""Sends notices of what happens in queues to handlers (Q19), on a thread of its own: a slow handler delays nothing."""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from remuda.model.errors import InvalidOption
from remuda.model.queues.notices import Notice
from remuda.model.values.texts import shown

_LIMIT: Final = 100_000
_log = logging.getLogger("remuda.notices")

Handler = Callable[[Notice], None]


class NoticeBoard:
    """One buffer of notices for all handlers. When it is full, the oldest are dropped and counted."""

    def __init__(self) -> None:
        self.dropped = 0
        self._handlers: tuple[Handler, ...] = ()
        self._line: deque[Notice] = deque()
        self._ready = threading.Condition(threading.Lock())
        self.thread: threading.Thread | None = None
        self._closed = False
        self._busy = False

    def add(self, handler: Handler) -> None:
        # An object's `__call__` may be a coroutine function, too.
        if not callable(handler) or any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__))):
            raise InvalidOption(f"a notice handler must be a plain function, not {shown(handler)}")
        with self._ready:
            self._handlers = (*self._handlers, handler)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="remuda-notices", daemon=True)
                self.thread.start()

    def remove(self, handler: Handler) -> None:
        with self._ready:
            self._handlers = tuple(other for other in self._handlers if other is not handler)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return self._handlers

    @property
    def wanted(self) -> bool:
        return bool(self._handlers)

    def post(self, notices: Iterable[Notice]) -> None:
        with self._ready:
            self._line.extend(notices)
            while len(self._line) > _LIMIT:
                self._line.popleft()
                self.dropped += 1
            self._ready.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until the handlers have seen everything posted so far."""
        with self._ready:
            return self._ready.wait_for(lambda: not self._line and not self._busy, timeout)

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout=1)

    def _run(self) -> None:
        while True:
            with self._ready:
                self._busy = False
                self._ready.notify_all()
                self._ready.wait_for(lambda: self._line or self._closed)
                if not self._line:
                    return
                notice = self._line.popleft()
                self._busy = True
                handlers = self._handlers
            for handler in handlers:
                try:
                    handler(notice)
                except BaseException:  # also SystemExit: a handler may end itself, but not the others
                    _log.exception("a handler failed on notice '%s' of queue %s", notice.kind, notice.queue)
