"""What the tests of the outbox share."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from remuda import Bus, Message
from remuda.outbox import Outbox
from remuda.outbox.database.connections import sqlite_path


def connect(url: str) -> Any:
    """A connection as an application has it."""
    if url.startswith("sqlite"):
        return sqlite3.connect(sqlite_path(url), timeout=60, check_same_thread=False)
    return psycopg.connect(url)


class App:
    """A bus in memory with an outbox, and a handler that notes what it is given."""

    def __init__(self, url: str, broker: str = "memory://", **options: Any) -> None:
        self.url = url
        self.bus = Bus(broker)
        self.outbox = Outbox(self.bus, url, **options)
        self.outbox.create_tables()
        self.got: list[Any] = []
        self.ids: list[str] = []
        self.guard = threading.Lock()

        @self.bus.subscribe("#", queue="all")
        def note(body: Any, message: Message) -> None:
            with self.guard:
                self.got.append(body)
                self.ids.append(message.id)

    def connect(self) -> Any:
        return connect(self.url)

    def run(self) -> list[Any]:
        """Send and handle all that there is; gives what was handled so far."""
        self.bus.run(until_idle=True)
        return self.got

    def close(self) -> None:
        self.bus.close()


@contextmanager
def app(url: str, **options: Any) -> Iterator[App]:
    made = App(url, **options)
    try:
        yield made
    finally:
        made.close()


def eventually(condition: Callable[[], object], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
