"""Waiting for the disk on behalf of coroutines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from remuda.model.errors import BrokerClosed
from remuda.model.values.texts import BROKER_CLOSED


class Committer:
    """A thread that waits for the disk: all coroutines that wait share one commit. `reached` gives the ticket up to
    which everything is stored."""

    def __init__(self, wait: Callable[[int], None], reached: Callable[[], int]) -> None:
        self._wait = wait
        self._reached = reached
        self._asked: list[tuple[int, Future[None]]] = []
        self._ready = threading.Condition(threading.Lock())
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="remuda-committer", daemon=True)
        self._thread.start()

    def kept(self, ticket: int) -> Future[None]:
        future: Future[None] = Future()
        with self._ready:
            if self._closed:
                raise BrokerClosed(BROKER_CLOSED)
            self._asked.append((ticket, future))
            self._ready.notify()
        return future

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._asked or self._closed)
                asked, self._asked = self._asked, []
                if not asked:
                    return
            failure: Exception | None = None
            try:
                self._wait(max(ticket for ticket, _ in asked))
            except Exception as error:
                failure = error
            reached = self._reached()
            for ticket, future in asked:
                if not future.set_running_or_notify_cancel():
                    continue
                if failure is None or ticket <= reached:
                    future.set_result(None)
                else:
                    future.set_exception(failure)
