"""Ends the waits of pulls before their time, as when workers are to stop: so none has to look from time to time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remuda.broker.embedded.delivering.inbox import Inbox


class Waits:
    """Pulls that wait. Once they are to end, each returns what it has, now and later, until they may go on."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._inboxes: set[Inbox] = set()
        self.over = False

    def end(self) -> None:
        with self._guard:
            self.over = True
            for inbox in self._inboxes:
                inbox.interrupt()

    def go_on(self) -> None:
        with self._guard:
            self.over = False

    @contextmanager
    def waiting(self, inbox: Inbox) -> Iterator[None]:
        """While a pull waits for its delivery."""
        with self._guard:
            self._inboxes.add(inbox)
            if self.over:
                inbox.interrupt()
        try:
            yield
        finally:
            with self._guard:
                self._inboxes.discard(inbox)
                inbox.interrupted = False
