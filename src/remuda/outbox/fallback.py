"""Keeps what the broker cannot take at present: in the outbox's table, else in the journal (O4)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from remuda.model.errors import InvalidMessage, Refused
from remuda.model.messages import Messages
from remuda.outbox import crash_points
from remuda.outbox.database import rows
from remuda.outbox.journal import Journal

_log = logging.getLogger("remuda.outbox")
_T = TypeVar("_T")

Send = Callable[[Messages], list[str]]
SendRest = Callable[[Messages], dict[int, str]]
"""Sends what was left over, and says why the broker refuses which of it."""

SLOW: Final = 0.05
"""Seconds from which a failure is remembered: one that comes at once costs nothing to meet again."""
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_PARTING: Final = 0.5
"""Seconds that a stop waits for an attempt under way, which may hang on a machine that is away."""


class Away(Exception):
    """It was down a moment ago, and has not been reached since."""


class Way:
    """The broker, or the database. While it is known to be down nobody waits for it."""

    def __init__(self, name: str, check: Callable[[], object]) -> None:
        self.name = name
        self.down: Exception | None = None
        self._check = check

    def use(self, call: Callable[[], _T]) -> _T:
        if self.down is not None:
            raise Away(f"the {self.name} is still away: {self.down}") from self.down
        began = time.monotonic()
        try:
            return call()
        except (Refused, InvalidMessage):
            raise
        except Exception as error:
            if time.monotonic() - began >= SLOW:
                self.down = error
            raise

    def ask(self) -> None:
        """Try to reach it, if it is down; that may take long."""
        if self.down is None:
            return
        try:
            self._check()
        except Exception as error:
            self.down = error
        else:
            self.down = None


class SafetyNet:
    """Keeps messages in the outbox's table if the broker cannot be reached.

    With a journal, they are on this machine's disk before anything else, and a thread of the journal's brings them away
    as soon as it can. Without one, they are lost if the database fails too; `lost` counts them.

    It runs beside the bus, as a companion: what an earlier run left in the journal is delivered before anything new.
    """

    role = "journal"

    def __init__(self, persist: Callable[[Messages], None], send: SendRest, broker: Way, database: Way,
                 journal: Journal | None) -> None:  # fmt: skip
        self._persist = persist
        self._send = send
        self._broker = broker
        self._database = database
        self._journal = journal
        self._drained = journal is None
        self._draining = threading.Lock()
        self._guard = threading.Lock()
        self._own: set[int] = set()
        """Numbers in the journal whose publisher is still at work."""
        self._refused: dict[int, str] = {}
        """Numbers in the journal of what neither the database nor the broker takes at present, and why."""
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self.lost = 0
        self.trouble: str | None = None

    def deliver(self, messages: Messages, send: Send) -> list[str]:
        if self._journal is None:
            return self._deliver(messages, send)
        messages = rows.with_ids(messages).checked()
        goes_on = self._drain_first()
        ids = [messages.id(row) for row in range(len(messages))]
        with self._guard:
            numbers = self._journal.append(messages)
            if goes_on:
                self._own.update(numbers)
            else:
                self._drained = False
        crash_points.point("journaled")
        if not goes_on:
            self._go_on_later()
            return ids
        try:
            ids = self._deliver(messages, send)
        except (Refused, InvalidMessage):
            self._journal.forget(numbers)
            self._own.difference_update(numbers)
            raise
        except BaseException as error:
            # In the journal it is safe, so it counts as published. It is sent before the next message is.
            with self._guard:
                self._own.difference_update(numbers)
                self._drained = False
            self._go_on_later()
            if not isinstance(error, Exception):
                raise
            _log.warning(
                "%d messages stay in the journal %s until the broker or the database works again: %s",
                len(messages), self._journal.path, error,
            )  # fmt: skip
            return ids
        crash_points.point("delivered")
        self._journal.forget(numbers)
        self._own.difference_update(numbers)
        return ids

    def drain(self) -> int:
        """Deliver what an earlier run or failure left in the journal, before anything new."""
        if self._drained or self._journal is None:
            return 0
        with self._draining:
            return self._drain(self._journal)

    def close(self) -> None:
        self.stop()
        if self._journal is not None:
            self._journal.close()
            self._drained = False

    # As a companion of the bus

    def start(self) -> None:
        self._stopping.clear()
        self.drain()
        if not self._drained or self._refused:
            self._go_on_later()

    def stop(self, grace: float = 10.0) -> None:
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(min(grace, _PARTING))

    def is_idle(self) -> bool:
        return self.pump() == 0

    def pump(self) -> int:
        return self.drain()

    def _drain_first(self) -> bool:
        """Whether new messages may go on: nothing older is left, and something that takes them is not known to be
        down."""
        if self._broker.down is not None and self._database.down is not None:
            return False
        if self._drained or self._journal is None:
            return True
        if not self._draining.acquire(blocking=False):
            return False  # whoever drains may be waiting for what is away
        try:
            self._drain(self._journal)
            return self._drained
        finally:
            self._draining.release()

    def _drain(self, journal: Journal) -> int:
        total = 0
        while True:
            with self._guard:
                left = journal.left(without=self._own | self._refused.keys())
                if not left:
                    self._drained, self.trouble = True, self._refusals()
                    break
            numbers = [number for number, _ in left]
            try:
                refused = self._keep(Messages.of(message for _, message in left))
            except Exception as error:
                self.trouble = f"messages stay in the journal until the broker or the database works again: {error}"
                _log.warning("the journal cannot be drained yet: %s", error)
                return total
            self._refused.update((numbers[row], reason) for row, reason in refused.items())
            taken = [number for row, number in enumerate(numbers) if row not in refused]
            journal.forget(taken)
            total += len(taken)
        if total:
            _log.info("%d messages of the journal were delivered", total)
        return total

    def _refusals(self) -> str | None:
        if not self._refused:
            return None
        reason = next(iter(self._refused.values()))
        return f"{len(self._refused)} messages stay in the journal until the database takes them: {reason}"

    def _go_on_later(self) -> None:
        """Have a thread try again what failed, until it succeeds."""
        with self._guard:
            if self._thread is None or not self._thread.is_alive():  # in a fork it is the parent's, and dead
                self._stopping.clear()
                self._thread = threading.Thread(target=self._run, name="remuda-journal", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            self._go_on()
        finally:
            if self._stopping.is_set() and self._journal is not None:
                self._journal.close()  # an attempt under way when the bus was closed may have opened it again

    def _go_on(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.wait(pause):
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._database.ask()
            if self._stopping.is_set():
                return
            if not (self._broker.down is not None and self._database.down is not None):
                with self._draining:
                    if self._refused:
                        self._refused.clear()
                        self._drained = False
                self.drain()
            self._broker.ask()
            with self._guard:
                well = self._broker.down is None and self._database.down is None
                if self._drained and well and not self._refused:
                    self._thread = None
                    return

    def _deliver(self, messages: Messages, send: Send) -> list[str]:
        try:
            return self._broker.use(lambda: send(messages))
        except (Refused, InvalidMessage):
            raise
        except Exception as error:
            messages = rows.with_ids(messages)
            try:
                self._database.use(lambda: self._persist(messages))
            except Exception as second:
                if self._journal is None:
                    self.lost += len(messages)
                    _log.error(
                        "%d messages are lost: the broker failed (%s) and so did the database (%s); a journal would "
                        "have kept them", len(messages), error, second,
                    )  # fmt: skip
                error.add_note(f"the outbox's database failed too: {second}")
                raise error from second
            finally:
                if self._broker.down is not None:
                    self._go_on_later()
            _log.warning("the broker failed, so %d messages are kept in the outbox: %s", len(messages), error)
            return [messages.id(row) for row in range(len(messages))]

    def _keep(self, messages: Messages) -> dict[int, str]:
        """Store left-over messages in the outbox's table; if the database fails, send them to the broker. Returns why
        which of them stay: sent once more, the others would be there twice."""
        try:
            self._database.use(lambda: self._persist(messages))
        except InvalidMessage as error:
            if len(messages) > 1:
                return self._keep_each(messages)
            return self._send_rest(messages, error)
        except Exception as error:
            return self._send_rest(messages, error)
        return {}

    def _keep_each(self, messages: Messages) -> dict[int, str]:
        """The same one by one, where the table cannot hold one of them."""
        stay = {}
        for row in range(len(messages)):
            try:
                for reason in self._keep(messages.slice(row, row + 1)).values():
                    stay[row] = reason
            except Exception as error:
                stay[row] = str(error)
        return stay

    def _send_rest(self, messages: Messages, why: Exception) -> dict[int, str]:
        try:
            return self._broker.use(lambda: self._send(messages))
        except Exception as second:
            second.add_note(f"the outbox's database failed too: {why}")
            raise
