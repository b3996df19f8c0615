"""The broker of a bus: opened on first use, and given up on if the bus is stopped before it is connected."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from remuda.bus.broker_api import Broker, BrokerKwargs, Clock, open_broker, waits_for_others
from remuda.model.errors import BrokerClosed
from remuda.model.urls import parse_url
from remuda.signals import wait_hearing_signals


class OpeningAbandoned(BrokerClosed):
    """The bus was stopped before it was connected to its broker. Nothing was sent."""


class LazyBroker:
    """Opens the broker for whoever needs it first; `prepare` is called with it before anybody else has it.

    If another process has to answer, a server or the host of a directory, the broker is opened on a thread of its own:
    those who wait for it can then leave at once when the bus is stopped, however long the other stays silent.
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
        self._options = options
        self._prepare = prepare
        self._attempt: _Attempt | None = None

    def open(self) -> Broker:
        """The broker, once it is open. Whoever comes while it is being opened waits for the same attempt."""
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
            wait_hearing_signals(attempt.done)
            if attempt.broker is not None:
                return attempt.broker
            if first or isinstance(attempt.error, Exception):
                assert attempt.error is not None
                raise attempt.error
            # Ctrl-C ended somebody else's attempt, so this thread makes its own.

    def abandon(self) -> None:
        """Let nobody wait any longer for another process: if it still answers, the broker is closed at once."""
        with self.guard:
            if self._attempt is not None and self._attempt.waits_for_others:
                place = parse_url(self.url)
                error = OpeningAbandoned(f"stopped before there was a connection to {place}; nothing was sent")
                self._end(self._attempt, error)

    def close(self) -> None:
        self.abandon()
        if (attempt := self._attempt) is not None:
            attempt.done.wait()
        with self.guard:  # whoever opens it again waits until it is closed
            self.closed = True
            if self.broker is not None:
                self.broker.close()
                self.broker = None

    def _run(self, attempt: _Attempt) -> None:
        try:
            broker = open_broker(self.url, clock=self.clock, **self._options)
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
