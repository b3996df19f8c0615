"""The relay: sends committed messages to the broker, in order, and records its progress."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.bus.settings.retry import RetryPolicy
from remuda.jitter import CHANCE
from remuda.model.values.durations import SECOND
from remuda.outbox import crash_points
from remuda.outbox.admin import Administration
from remuda.outbox.database.feeds import Feed, LeaseLost, open_feed
from remuda.outbox.database.rows import messages_of
from remuda.outbox.database.table_names import Names
from remuda.outbox.records import Collected, Row, SchemaMissing, Settled, Status
from remuda.outbox.sending import send

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

_log = logging.getLogger("remuda.outbox")

_GATHER: Final = 0.004
"""Seconds to wait after a batch that was not full, so that more messages gather."""
_AWAKE: Final = 0.25
"""Seconds for which a relay keeps polling after it has found messages: commits in quick succession notify it only
once."""
_IDLE: Final = 1.5
_PATIENCE: Final = 3.0
"""Seconds to wait until nothing is left to send."""
_LONGEST_BACKOFF: Final = 30.0
_PARTING: Final = 0.05

Threshold = Callable[[str, str, str], None]


class RelayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a relay. Durations are in seconds."""

    batch: int = 1000
    lease: float = 15.0
    retry: RetryPolicy
    keep_succeeded: float
    keep_failed: float
    keep_inbox: float
    collect_every: float
    on_threshold: Threshold | None = None


class Relay:
    """One of any number of relays. Runs in a thread of its own between `start` and `stop`."""

    role = "relay"

    def __init__(self, bus: Bus, url: str, names: Names, options: RelayOptions) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.sent = 0
        self.trouble: str | None = None
        self._bus = bus
        self._url = url
        self._names = names
        self._options = options
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._connected = False
        self._blocked: set[str] = set()
        self._renewed = 0.0
        self._collected = time.monotonic()
        self._drained = 0
        """Counts the times at which nothing was left to send."""
        self._guard = threading.Lock()
        self._held_at = 0.0
        """When to read held messages again."""

    def start(self) -> None:
        if self._thread is not None and self._thread.is_alive():  # in a fork it is the parent's, and dead
            return
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="remuda-relay", daemon=True)
        self._thread.start()

    def stop(self, grace: float = 10.0) -> None:
        """Finish the current batch, and release the lanes to other relays."""
        self._stopping.set()
        self._woken.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            # A relay that is still connecting holds no lanes, so there is no need to wait for its database.
            thread.join(max(grace, _PARTING) if self._connected else _PARTING)
            if thread.is_alive() and self._connected:
                _log.warning("the relay did not end in time; another sends its messages when its lease expires")

    def wake(self) -> None:
        """Something was committed in this process."""
        self._woken.set()

    def retry_soon(self) -> None:
        """Held messages were changed; read them again at once."""
        self._held_at = 0.0
        self.wake()

    def is_idle(self) -> bool:
        """Send everything committed before this call; returns whether there was nothing. False if more keeps coming."""
        if self._thread is None or self.trouble is not None:
            return True
        sent, drained, deadline = self.sent, self._drained, time.monotonic() + _PATIENCE
        # The pass that is under way may have begun too early; the one after it has not.
        while self._drained < drained + 2 and self._thread is not None and self.trouble is None:
            if time.monotonic() > deadline:
                return False
            self.wake()
            time.sleep(0.002)
        return self.sent == sent

    def pump(self) -> int:
        """Send everything that can be sent now in this thread, and return the number; for tests and commands."""
        with self._guard:
            feed = open_feed(self._url, self._names, f"{self.name}:pump")
            before = self.sent
            try:
                self._lease(feed)
                while self._turn(feed):
                    pass
            finally:
                _close(feed, release=True)
            return self.sent - before

    def _run(self) -> None:
        backoff = 0.1
        while not self._stopping.is_set():
            feed: Feed | None = None
            try:
                feed = open_feed(self._url, self._names, self.name)
                self._connected = True
                self._work(feed)
                backoff = 0.1
            except Exception as error:
                # The database or the broker failed. Nothing is lost, since nothing was recorded as sent.
                backoff = 0.1 if self.trouble is None else min(backoff * 2, _LONGEST_BACKOFF)
                level = logging.ERROR if isinstance(error, SchemaMissing) else logging.WARNING
                self.trouble = f"{type(error).__name__}: {error}"
                _log.log(level, "the relay failed and tries again in %.1f s: %s", backoff, self.trouble)
                self._stopping.wait(backoff * CHANCE.uniform(0.8, 1.2))
            finally:
                if feed is not None:
                    _close(feed, release=self._stopping.is_set())
                self._connected = False

    def _work(self, feed: Feed) -> None:
        if self._stopping.is_set():
            return
        self._lease(feed)
        busy_until = 0.0
        while True:
            self._woken.clear()
            if self._stopping.is_set():  # after the clear, since a `stop` that comes later sets `_woken`
                return
            try:
                with self._guard:
                    found = self._turn(feed)
                    if not found:
                        self._upkeep(feed)
            except LeaseLost as error:
                _log.warning("%s; its current batch may be sent twice", error)
                self._lease(feed)
                continue
            self.trouble = None
            now = time.monotonic()
            if found:
                busy_until = now + _AWAKE
                if found < self._options.batch:
                    self._stopping.wait(_GATHER)
                continue
            self._drained += 1
            if now < busy_until:
                feed.wait(_GATHER * 2, self._woken)
            else:
                feed.wait(min(_IDLE, self._options.lease / 3), self._woken)

    def _lease(self, feed: Feed) -> None:
        feed.lease(self._options.lease)
        self._renewed = time.monotonic()
        self._blocked = feed.held_keys()

    def _keep_lease(self, feed: Feed) -> None:
        """Renew the lease before sending: a relay that was suspended may have lost its lanes."""
        if time.monotonic() - self._renewed > self._options.lease / 3:
            if not feed.renew(self._options.lease):
                raise LeaseLost(f"the lanes of relay {self.name} have to be shared out again")
            self._renewed = time.monotonic()

    def _upkeep(self, feed: Feed) -> None:
        if time.monotonic() - self._renewed > self._options.lease / 3:
            if feed.renew(self._options.lease):
                self._renewed = time.monotonic()
            else:
                self._lease(feed)
        if time.monotonic() - self._collected > self._options.collect_every:
            self._collected = time.monotonic()
            feed.checkpoint()
            self._lease(feed)
            self.collect()

    def collect(self) -> Collected:
        options = self._options
        with Administration.open(self._url, self._names) as administration:
            removed = administration.collect(options.keep_succeeded, options.keep_inbox)
        _log.info(
            "removed %d expired succeeded, %d failed and %d inbox rows",
            removed.succeeded, removed.failed, removed.inbox,
        )  # fmt: skip
        return removed

    def _turn(self, feed: Feed) -> int:
        """Send one batch of held messages and one of new ones; returns the number of rows processed."""
        return self._send_held(feed) + self._send_new(feed)

    def _send_new(self, feed: Feed) -> int:
        batch = feed.read(self._options.batch)
        if batch is None:
            return 0
        self._keep_lease(feed)
        free = [at for at, row in enumerate(batch.rows) if row.key is None or row.key not in self._blocked]
        rows = [batch.rows[at] for at in free]
        crash_points.point("read")
        refused = send(self._bus, messages_of(rows)) if rows else {}
        crash_points.point("sent")
        held = (
            self._held(batch.rows, {free[number]: reason for number, reason in refused.items()})
            if (refused or len(rows) < len(batch.rows))
            else []
        )
        feed.advance(batch, held)
        crash_points.point("noted")
        if held:
            self._held_at = 0.0
        self.sent += len(batch.rows) - len(held)
        self._report_failed(held)
        return len(batch.rows)

    def _held(self, rows: Sequence[Row], refused: dict[int, str]) -> list[Settled]:
        """The messages that were refused, by their place, and those that must wait because of the same key."""
        held = []
        for at, row in enumerate(rows):
            if at in refused:
                held.append(self._after_refusal(row, 1, refused[at]))
                if row.key is not None and held[-1].status is Status.DELAYED:
                    self._blocked.add(row.key)
            elif row.key is not None and row.key in self._blocked:
                held.append(
                    Settled(row, Status.DELAYED, 0, "waits for an earlier message with the same key", 0.0, None)
                )
        return held

    def _after_refusal(self, row: Row, attempts: int, reason: str) -> Settled:
        """Whether a refused message is tried again, and when."""
        wait = self._options.retry.after(attempts)
        if wait is None:
            return Settled(row, Status.FAILED, attempts, reason, None, self._options.keep_failed)
        return Settled(row, Status.DELAYED, attempts, reason, wait / SECOND, None)

    def _send_held(self, feed: Feed) -> int:
        if not self._blocked and time.monotonic() < self._held_at:
            return 0
        rows = feed.held_due(self._options.batch)
        if not rows:
            wait = feed.next_held()
            self._held_at = time.monotonic() + min(_IDLE if wait is None else max(wait, 0.01), _IDLE)
            if wait is None:
                self._blocked.clear()
                self._held_at = time.monotonic() + 10 * _IDLE
            return 0
        self._keep_lease(feed)
        refused = send(self._bus, messages_of(rows))
        crash_points.point("held sent")
        settled = [
            self._after_refusal(row, row.mark + 1, refused[number])
            if number in refused
            else Settled(row, Status.SUCCEEDED, row.mark + 1, None, None, self._options.keep_succeeded)
            for number, row in enumerate(rows)
        ]
        feed.settle(settled)
        crash_points.point("held noted")
        self.sent += len(rows) - len(refused)
        self._report_failed(settled)
        return len(rows)

    def _report_failed(self, settled: Sequence[Settled]) -> None:
        """Log each message that is given up, and call the threshold callback for it."""
        for one in settled:
            if one.status is not Status.FAILED:
                continue
            _log.error(
                "message %s to %s failed after %d attempts: %s",
                one.row.id,
                one.row.topic,
                one.attempts,
                one.reason,
            )
            if self._options.on_threshold is not None:
                try:
                    self._options.on_threshold(one.row.id, one.row.topic, one.reason or "")
                except Exception:
                    _log.exception("the threshold callback failed; the message stays failed and can be retried")


def _close(feed: Feed, *, release: bool) -> None:
    try:
        if release:
            feed.release()
    except Exception as error:
        _log.warning("the relay's lanes could not be released: %s; others get them when the lease expires", error)
    finally:
        feed.close()
