"""The one connection to a broker: opened when it is needed, and opened again after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from remuda.broker.port import AsyncBroker, Broker
from remuda.bus.broker_api import EmbeddedBroker
from remuda.bus.bus import Bus
from remuda.history.history import History
from remuda.history.history_store import HistoryUnusable
from remuda.log.eventlog import EventLog
from remuda.model.errors import (
    BrokerClosed,
    DiskFull,
    NotAllowed,
    NotFound,
    RemudaError,
    StorageError,
    TooManyFiles,
    Unsupported,
)
from remuda.model.operations.results import QueueInfo
from remuda.model.state import State
from remuda.model.values.urls import parse_url
from remuda.server.http.rates import Rates
from remuda.server.http.search.recent_messages import PACE, WINDOW, RecentMessages

T = TypeVar("T")
_log = logging.getLogger("remuda.server")

_LOG_POLL: Final = 0.25
_LONGEST_POLL: Final = 2.0
_SAMPLE_EVERY: Final = 1.0
_COUNTED: Final = 20_000
"""Messages and events that the history counts in one go."""


class Unavailable(RemudaError):
    """The broker cannot be reached at the moment; what it accepted before is safe."""


class ReconnectingBroker:
    """A bus's broker, its newest messages and its queues' numbers over time. Safe to use from any thread; nothing is
    opened before the first use."""

    def __init__(self, bus: Bus, window: int = WINDOW) -> None:
        self.bus = bus
        self._size = window
        self._broker: Broker | None = None
        self._newest: RecentMessages | None = None
        self._reader: EventLog | None = None
        self._reading = threading.RLock()
        self._history: History | None = None
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._infos: dict[str, QueueInfo] = {}
        self._workers: Counter[str] = Counter()
        self._oldest: dict[str, int] = {}
        self._created: dict[int, int] = {}
        """When the oldest waiting messages were published, by offset."""
        self.rates = Rates()
        self.each_second: Callable[[Broker, History], None] | None = None
        """Called every second or so while the broker is followed."""
        self.grown = threading.Condition()
        """Notified whenever new entries of the log were read."""

    def ask(self, verb: Callable[[Broker], T]) -> T:
        broker = self.open()
        try:
            return verb(broker)
        except (DiskFull, TooManyFiles):
            raise
        except (BrokerClosed, StorageError) as error:
            self._let_go(broker)
            raise Unavailable(f"the broker does not answer: {error}") from error

    async def ask_async(self, verb: Callable[[AsyncBroker], Awaitable[T]]) -> T:
        """As `ask`, for a coroutine: only opening the broker needs a thread."""
        broker = self._broker
        if broker is None:
            broker = await asyncio.to_thread(self.open)
        try:
            return await verb(broker.aio)
        except (DiskFull, TooManyFiles):
            raise
        except (BrokerClosed, StorageError) as error:
            self._let_go(broker)
            raise Unavailable(f"the broker does not answer: {error}") from error

    def _let_go(self, broker: Broker) -> None:
        """A broker does not answer; the next request opens it again."""
        with self._lock:
            if self._broker is broker:
                self._broker = self._newest = None

    def open(self) -> Broker:
        with self._lock:
            if self._broker is not None:
                return self._broker
            try:
                broker = self.bus.broker
                window = RecentMessages(broker.spectate(), self._size)
                window.catch_up(self._size)
            except (BrokerClosed, StorageError) as error:
                raise Unavailable(f"the broker cannot be opened: {error}") from error
            # One reader for all: a new one would first have to scan the log's files.
            self._broker, self._newest, self._reader = broker, window, broker.spectate().log
            self._stop = threading.Event()
            arguments = (broker, window, self._stop)
            history = self._history = self._open_history(broker)
            with contextlib.suppress(BrokerClosed, StorageError):  # the first page shows it already
                self._note_workers(broker, history)
                self._look_for_oldest(broker, broker.queues())
            self._threads = [
                threading.Thread(target=self._follow, args=arguments, name="remuda-http", daemon=True),
                threading.Thread(
                    target=self._count, args=(broker, history, self._stop), name="remuda-history", daemon=True
                ),
            ]
            for thread in self._threads:
                thread.start()
            return broker

    def _open_history(self, broker: Broker) -> History:
        log, place = broker.spectate().log, parse_url(self.bus.url)
        try:
            return History(log, Path(place.path) if place.is_directory else None)
        except (HistoryUnusable, DiskFull) as error:
            _log.warning("the history is counted in memory: %s", error)
            return History(log, None)

    def _count(self, broker: Broker, history: History, stop: threading.Event) -> None:
        """Count the history on, and note which workers there are."""
        pause = 0.0
        while not stop.wait(pause):
            began = time.monotonic()
            try:
                broker.spectate()
                counted = history.catch_up(_COUNTED)
                self._note_workers(broker, history)
            except (BrokerClosed, StorageError) as error:
                if isinstance(error, BrokerClosed):
                    break
                counted = 0
                _log.warning("the history was not counted on; it is tried again: %s", error)
            except Exception:
                counted = 0
                _log.exception("counting the history failed; it is tried again")
            spent = time.monotonic() - began
            if self.each_second is not None:
                with contextlib.suppress(RemudaError):
                    self.each_second(broker, history)
            pause = max(9 * spent, 0.01 if counted >= _COUNTED else _SAMPLE_EVERY)
        history.close()

    def _note_workers(self, broker: Broker, history: History) -> None:
        with contextlib.suppress(Unsupported):
            workers = broker.workers()
            history.note_workers(workers)
            names = (queue.name for one in workers if not one.silent for queue in one.queues)
            self._workers = Counter(names)

    def consumers(self, info: QueueInfo) -> int:
        """How many consume a queue. A worker whose handlers are all busy waits for no message, and counts too."""
        return max(len(info.consumers) + info.pulls, self._workers[info.name])

    @property
    def history(self) -> History:
        self.open()
        history = self._history
        if history is None:
            raise Unavailable("the broker was closed meanwhile")
        return history

    def _follow(self, broker: Broker, window: RecentMessages, stop: threading.Event) -> None:
        sample_at = pause = 0.0
        while not stop.wait(pause):
            pause = _LOG_POLL
            try:
                began = time.monotonic()
                broker.spectate()  # this makes sure that everything so far is in the log
                grown = window.catch_up()
                # Publishers and handlers come first: in a flood, at most a tenth of the time goes into following it.
                pause = min(max(_LOG_POLL, 9 * (time.monotonic() - began)), _LONGEST_POLL)
                if time.monotonic() >= sample_at:
                    began = time.monotonic()
                    infos = broker.queues()
                    self.rates.sample(infos)
                    self._look_for_oldest(broker, infos)
                    self._infos = {info.name: info for info in infos}
                    # With ten thousand queues a sample takes a while: spend at most a twentieth of the time on it.
                    sample_at = time.monotonic() + max(_SAMPLE_EVERY, 20 * (time.monotonic() - began))
            except (BrokerClosed, StorageError):
                self._let_go(broker)
                return
            except Exception:
                _log.exception("following the log failed; it is tried again")
                sample_at = time.monotonic() + _SAMPLE_EVERY
                continue
            if grown:
                with self.grown:
                    self.grown.notify_all()

    def close(self) -> None:
        """Stop following. The bus stays as it is."""
        with self._lock:
            self._broker = self._newest = None
            threads, self._threads = self._threads, []
            self._stop.set()
        for thread in threads:
            thread.join(5)

    @property
    def window(self) -> RecentMessages:
        self.open()
        window = self._newest
        if window is None:
            raise Unavailable("the broker was closed meanwhile")
        return window

    def refresh(self) -> None:
        """Read the log up to its end, so that the answer shows what was just done."""
        self.ask(lambda broker: broker.spectate())  # this makes sure that everything so far is in the log
        self.window.catch_up(2 * PACE)
        if self.history.is_near(2 * PACE):  # a long way is counted in the background, and no page waits for it
            self.history.catch_up()

    def oldest(self, info: QueueInfo) -> int | None:
        """When the oldest waiting message of a queue was published, as of the last sample."""
        return self._oldest.get(info.name) if info.waiting else None

    def _look_for_oldest(self, broker: Broker, infos: list[QueueInfo]) -> None:
        """The broker knows which messages wait, and the log when they were published. RabbitMQ shows messages only by
        delivering them: there, the newest messages are looked through."""
        first: dict[str, int] = {}
        for info in infos:
            if info.waiting:
                with contextlib.suppress(NotFound, NotAllowed):
                    found = self._first_waiting(broker, info.name)
                    if found is not None:
                        first[info.name] = found
        known, log = self._created, broker.spectate().log
        for offset in set(first.values()) - known.keys():
            for batch in log.message_batches(offset, offset + 1, columns=("offset", "created")):
                for created in batch.column("created").cast(pa.int64()).to_pylist():
                    known[offset] = created
        self._created = {offset: known[offset] for offset in first.values() if offset in known}
        self._oldest = {queue: known[offset] for queue, offset in first.items() if offset in known}

    def _first_waiting(self, broker: Broker, queue: str) -> int | None:
        if isinstance(broker, EmbeddedBroker):
            return min((first for first, _ in broker.waiting(queue)), default=None)
        window = self._newest
        return None if window is None else window.index.oldest(queue, frozenset({State.QUEUED}))

    def snapshot(self) -> dict[str, QueueInfo]:
        self.open()
        if not self._infos or len(self._infos) < 500:
            infos = self.ask(lambda broker: broker.queues())
            self._infos = {info.name: info for info in infos}
        return self._infos

    def forget(self, queue: str) -> None:
        """A queue was removed."""
        self._infos = {name: info for name, info in self._infos.items() if name != queue}

    def infos(self) -> list[QueueInfo]:
        return list(self.snapshot().values())

    @contextmanager
    def log(self) -> Iterator[EventLog]:
        """The log with everything that has happened so far, for one thread at a time."""
        self.ask(lambda broker: broker.spectate())
        with self._reading:
            reader = self._reader
            if reader is None:
                raise Unavailable("the broker was closed meanwhile")
            yield reader
