"""The one connection to a broker: opened when it is needed, and opened again after a failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from remuda.broker.port import Broker
from remuda.bus.bus import Bus
from remuda.log.eventlog import EventLog
from remuda.model.errors import BrokerClosed, DiskFull, RemudaError, StorageError, TooManyFiles
from remuda.model.results import QueueInfo
from remuda.server.http.rates import Rates
from remuda.server.http.recent import PACE, WINDOW, Recent

T = TypeVar("T")
_log = logging.getLogger("remuda.server")

_LOG_POLL: Final = 0.25
_LONGEST_POLL: Final = 2.0
_SAMPLE_EVERY: Final = 1.0


class Unavailable(RemudaError):
    """The broker cannot be reached at the moment; what it accepted before is safe."""


class FollowedBroker:
    """A bus's broker, its recent messages and its queues' numbers over time. Safe to use from any thread; nothing is
    opened before the first use."""

    def __init__(self, bus: Bus, window: int = WINDOW) -> None:
        self.bus = bus
        self._window = window
        self._broker: Broker | None = None
        self._recent: Recent | None = None
        self._reader: EventLog | None = None
        self._reading = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._infos: dict[str, QueueInfo] = {}
        self.rates = Rates()
        self.grown = threading.Condition()
        """Notified whenever new entries of the log were read."""

    def ask(self, verb: Callable[[Broker], T]) -> T:
        broker = self.open()
        try:
            return verb(broker)
        except (DiskFull, TooManyFiles):
            raise
        except (BrokerClosed, StorageError) as error:
            with self._lock:
                if self._broker is broker:
                    self._broker = self._recent = None
            raise Unavailable(f"the broker does not answer: {error}") from error

    def open(self) -> Broker:
        with self._lock:
            if self._broker is not None:
                return self._broker
            try:
                broker = self.bus.broker
                recent = Recent(broker.spectate(), self._window)
                recent.catch_up(self._window)
            except (BrokerClosed, StorageError) as error:
                raise Unavailable(f"the broker cannot be opened: {error}") from error
            # One reader for all: a new one would first have to scan the log's files.
            self._broker, self._recent, self._reader = broker, recent, broker.spectate().log
            self._stop = threading.Event()
            arguments = (broker, recent, self._stop)
            self._thread = threading.Thread(target=self._follow, args=arguments, name="remuda-http", daemon=True)
            self._thread.start()
            return broker

    def _follow(self, broker: Broker, recent: Recent, stop: threading.Event) -> None:
        sample_at = pause = 0.0
        while not stop.wait(pause):
            pause = _LOG_POLL
            try:
                began = time.monotonic()
                broker.spectate()  # this makes sure that everything so far is in the log
                grown = recent.catch_up()
                # Publishers and handlers come first: in a flood, at most a tenth of the time goes into following it.
                pause = min(max(_LOG_POLL, 9 * (time.monotonic() - began)), _LONGEST_POLL)
                if time.monotonic() >= sample_at:
                    began = time.monotonic()
                    infos = broker.queues()
                    self.rates.sample(infos)
                    self._infos = {info.name: info for info in infos}
                    # With ten thousand queues a sample takes a while: spend at most a twentieth of the time on it.
                    sample_at = time.monotonic() + max(_SAMPLE_EVERY, 20 * (time.monotonic() - began))
            except (BrokerClosed, StorageError):
                with self._lock:
                    if self._broker is broker:
                        self._broker = self._recent = None
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
            self._broker = self._recent = None
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not None:
            thread.join(5)

    @property
    def recent(self) -> Recent:
        self.open()
        recent = self._recent
        if recent is None:
            raise Unavailable("the broker was closed meanwhile")
        return recent

    def refresh(self) -> None:
        """Read the log up to its end, so that the answer shows what was just done."""
        self.ask(lambda broker: broker.spectate())  # this makes sure that everything so far is in the log
        self.recent.catch_up(2 * PACE)

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
