"""The broker of a bus: opened on first use; a connection attempt is abandoned if the bus is stopped meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from remuda.bus.broker_api import Broker, BrokerKwargs, Clock, open_broker, waits_for_others
from remuda.model.errors import BrokerClosed
from remuda.model.values.urls import parse_url
from remuda.signals import wait_for_event


class OpeningAbandoned(BrokerClosed):
    """The bus was stopped before it was connected to its broker. Nothing was sent."""


class LazyBroker:
    """Opens the broker on first use, and calls `prepare` with it before any caller gets it.

    If opening needs an answer from another process, a server or the host of a directory, it runs on a thread of its
    own: callers then return at once when the bus is stopped, however long the other process stays silent.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        clock: Clock,
        options: BrokerKwargs,
        prepare: Callable[[Broker], None],
    ) -> None:
        self.url = url
        self.clock = clock
        self.broker: Broker | None = None
        self.closed = False
        """Whether it was closed and not used since."""
        self.guard = threading.RLock()
        self.options = options
        self._prepare = prepare
        self._attempt: _Attempt | None = None

    def open(self) -> Broker:
        """The broker, opened if necessary. Callers that come while it is being opened wait for the same attempt."""
        while True:
            with self.guard:
                if self.broker is not None:
                    return self.broker
                attempt, first = self._attempt, self._attempt is None
                if attempt is None:
                    attempt = self._attempt = _Attempt(waits_for_others(self.url))
            if first and attempt.waits_for_others:
                threading.Thread(target=self._run, args=(attempt,), name="remuda-opening", daemon=True).start()
            elif first:
                self._run(attempt)
            wait_for_event(attempt.done)
            if attempt.broker is not None:
                return attempt.broker
            if first or isinstance(attempt.error, Exception):
                assert attempt.error is not None
                raise attempt.error
            # Ctrl-C ended the attempt of another thread, so this one makes its own.

    def abandon(self) -> None:
        """Stop waiting for another process. If it answers later, that broker is closed at once."""
        with self.guard:
            if self._attempt is not None and self._attempt.waits_for_others:
                place = parse_url(self.url)
                error = OpeningAbandoned(f"stopped before it was connected to {place}; nothing was sent")
                self._end(self._attempt, error)

    def close(self) -> None:
        self.abandon()
        if (attempt := self._attempt) is not None:
            attempt.done.wait()
        with self.guard:  # a thread that opens it again waits until it is closed
            self.closed = True
            if self.broker is not None:
                self.broker.close()
                self.broker = None

    def _run(self, attempt: _Attempt) -> None:
        try:
            broker = open_broker(self.url, clock=self.clock, **self.options)
            try:
                self._prepare(broker)
                with self.guard:
                    if self._attempt is not attempt:
                        raise BrokerClosed("the bus was stopped meanwhile")
                    self.broker = attempt.broker = broker
                    self.closed = False
                    self._end(attempt, None)
            except BaseException:
                broker.close()
                raise
        except BaseException as error:
            with self.guard:
                self._end(attempt, error)

    def _end(self, attempt: _Attempt, error: BaseException | None) -> None:
        if self._attempt is attempt:
            self._attempt = None
            attempt.error = error
            attempt.done.set()


class _Attempt:
    """One attempt to open a broker, which ends once: with the broker, or with an error."""

    def __init__(self, waits_for_others: bool) -> None:
        self.waits_for_others = waits_for_others
        self.done = threading.Event()
        self.broker: Broker | None = None
        self.error: BaseException | None = None
