"""Stores the engine's decisions: under one lock, in groups, in order; consumers and producers learn of them afterwards.

A full disk stalls the broker until there is room; any other error of the log stops it for good.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Final

from remuda.broker.embedded import stalls
from remuda.broker.embedded.attempts import Survey
from remuda.broker.embedded.clock import Clock, steady_clock
from remuda.broker.embedded.commit import GroupCommit
from remuda.broker.embedded.committer import Committer
from remuda.broker.embedded.engine import Engine
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.embedded.inside import CalledFromInside, is_refusal
from remuda.broker.embedded.mutex import Mutex
from remuda.broker.embedded.notices import NoticeBoard
from remuda.broker.embedded.recipients import Recipients
from remuda.broker.embedded.submission import Submission
from remuda.broker.embedded.timer import Timer
from remuda.broker.embedded.workers import claim_worker
from remuda.broker.options import BrokerOptions, Sync
from remuda.core.core import Core
from remuda.core.effects import Dispatch, Effects
from remuda.core.ready import NEVER
from remuda.log.disk import Disk
from remuda.log.log import time_of
from remuda.log.tail import passes
from remuda.model.durations import MILLISECOND
from remuda.model.errors import BrokerClosed, StorageError
from remuda.model.records import Appended, Events, Record
from remuda.model.texts import BROKER_CLOSED
from remuda.native import tail

_log = logging.getLogger("remuda.broker")
DEFERMENT: Final = 20 * MILLISECOND
"""How long a record that no caller waits for may stay unwritten."""
PROBE: Final = 200 * MILLISECOND
"""How often to try whether a full disk has room again."""
FENCED: Final = 0.25
"""Seconds for which a check that the directory is still ours holds good."""
SMALL_RECORD: Final = 4096


class Durability(Submission):
    """One engine and its log, for any number of threads."""

    _timer: Timer

    def __init__(
        self,
        disk: Disk,
        options: BrokerOptions | None = None,
        extensions: Extensions | None = None,
        clock: Clock | None = None,
        *,
        volatile: bool = False,
        survey: Survey | None = None,
    ) -> None:
        self.options = options or BrokerOptions()
        self.extensions = extensions or Extensions()
        self.clock = clock or steady_clock()
        self._claim = claim_worker(self.options.worker)
        try:
            self.engine = Engine(disk, self.options, self.extensions, self._claim.number, self.clock(), survey)
        except BaseException:
            self._claim.release()
            raise
        if not self.engine.report.clean:
            _log.warning("%s", self.engine.report.describe())
        self.lock = Mutex()
        self.notices = NoticeBoard()
        self._closed = False
        self._closed_text = BROKER_CLOSED
        self._ticket = 0
        self._must_sync = False
        self._syncs = self.options.sync is Sync.ALWAYS and not volatile
        self._gathers = volatile and self.extensions.synchronizer is None
        self._deferred = 0
        self._sync_by = NEVER
        self._outbox = []
        self._replicates = self.extensions.synchronizer is not None
        self._unreplicated: list[Record] = []
        self._recipients = Recipients(self.notices)
        self.fence = None
        self._fence_until = 0.0
        self._committer: Committer | None = None
        self._waiting = set()
        self.trouble: StorageError | None = None
        """Why some commands cannot be stored at present, as when the disk is nearly full."""
        self._stalled = None
        self._group = GroupCommit(self._write)
        log = self.engine.log
        # Without C, these have no fast paths of their own.
        self._hold = log.gather if tail is None else log.hold_single
        self._pend_single = log.hold_single
        self._write_single = log.append_now if tail is None else log.write_single
        self._sync_single = log.sync_single
        self._wakes = self.engine.core.registry.wakes

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def failure(self) -> BaseException | None:
        """Why the broker stopped, if it did."""
        return self._group.failure

    # Access to the queues

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Core]:
        if self.lock.owned():
            self._check_caller()
        with self.lock:
            if self._closed:
                raise BrokerClosed(self._closed_text)
            yield self.engine.core

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """For changes of the queues, under the lock: stops the broker if one is cut short."""
        try:
            yield
        except BaseException as error:
            if is_refusal(error):
                raise
            # Any other error, such as Ctrl-C in the middle of a move, may leave the queues half changed: nothing more
            # may be written from them, and the log has the truth.
            try:
                self._give_up(error)
            except BaseException:
                self._give_up(error)  # Ctrl-C once more
            raise

    def _check_caller(self) -> None:
        if self.lock.owned() or threading.get_ident() in self._waiting:
            raise CalledFromInside

    # Waiting

    def kept(self, ticket: int) -> Future[None]:
        """As `wait`, for coroutines: a thread waits for them."""
        if self._committer is None:
            with self.lock:
                if self._closed:
                    raise BrokerClosed(self._closed_text)
                self._committer = self._committer or Committer(self.wait, lambda: self.reached)
        return self._committer.kept(ticket)

    @property
    def last_ticket(self) -> int:
        """Once this ticket is stored, everything that happened so far is."""
        return self._ticket

    @property
    def reached(self) -> int:
        """The ticket up to which everything is stored."""
        return self._group.reached

    def sync(self) -> None:
        """Write and sync everything so far."""
        with self.lock:
            self._must_sync = True
            self._ticket += 1
            ticket = self._ticket
        self.wait(ticket)

    def flush(self) -> None:
        """Write everything so far to the log, for its readers."""
        with self._asking():
            self._ticket += 1
            ticket = self._ticket
        try:
            self.wait(ticket)
        except StorageError as error:
            # What cannot be stored at present has not happened yet; the rest can be read all the same.
            if not error.passing:
                raise

    # Trouble

    def _note_trouble(self, error: StorageError) -> None:
        """A command was refused because it could not be stored; the timer tries whether that is over."""
        if self.trouble is None:
            _log.error("a command was refused because it could not be stored: %s", error)
        self.trouble = error
        self._timer.nudge(self.clock() + PROBE)

    def _stall(self, error: StorageError) -> None:
        """Nothing can be stored at present. Commands are refused until what waits is written."""
        if self._stalled is None:
            _log.error("nothing can be written, and commands are refused until it can: %s", error)
        self._stalled = self.trouble = error
        self._timer.nudge(self.clock() + PROBE)

    def _go_on(self) -> None:
        _log.info("the broker continues: everything that was waiting is written")
        self._stalled = None

    def _probe(self) -> None:
        """Try whether there is room for what is due, and whether commands that were refused would be accepted again."""
        log = self.engine.log
        try:
            log.reserve(SMALL_RECORD, use_spare=True)
        except StorageError as error:
            if error.passing:
                self._stall(error)
            else:
                self._fail(error)
            raise
        if self._stalled is not None:
            self._go_on()
        if self.trouble is not None:
            with contextlib.suppress(StorageError):
                log.reserve(SMALL_RECORD)
                self.trouble = None

    def _give_up(self, error: BaseException) -> None:
        # First of all: another Ctrl-C may land between any two lines.
        self.engine.log.abandon(error)
        self._fail(error)
        _log.error("%r interrupted a change of the queues; open the broker again to go on from its log", error)

    def abandon(self, error: BaseException) -> None:
        """Stop the broker: what it stores from now on would be lost."""
        with self.lock:
            if self.failure is None:
                self.engine.log.abandon(error)
                self._fail(error)
                _log.error("the broker stops: %s", error)

    def _fail(self, error: BaseException) -> None:
        """Nothing can be stored any more: raise that to all that wait."""
        self._group.fail(error)
        self._recipients.release_all(self._group.stopped())

    def check_fence(self) -> None:
        """Stop if the directory is no longer ours, even while nothing is written."""
        if self.fence is not None and not self._closed:
            try:
                self._ask_fence()
            except BaseException as error:
                self._fail(error)
                raise

    def _ask_fence(self) -> None:
        now = monotonic()
        if self.fence is not None and now > self._fence_until:
            self.fence()
            self._fence_until = now + FENCED

    # Writing

    def _keep_somehow(self, record: Appended | Events, durable: bool) -> int:
        log, ticket = self.engine.log, self._ticket
        try:
            if self._gathers:
                if log.gather(record):
                    if not self._deferred:
                        self._defer(record)
                    self._deferred = ticket
                    return 0
            elif not (self._outbox or self._must_sync or self._group.busy or (durable and self._syncs)):
                if self.fence is not None:
                    self._ask_fence()
                if not self._replicates and log.append_now(record):
                    self._deferred = 0
                    self._group.reached = ticket
                    return 0
            log.append(record)
            return self._keep_with_others(record, durable, ticket)
        except BaseException as error:
            self._pass_or_fail(error)
            return ticket  # the thread that waits for it tries again

    def _defer(self, record: Appended | Events) -> None:
        self._timer.nudge(time_of(record) + DEFERMENT)

    def _look_ahead(self) -> None:
        """Wake the timer earlier if something is due sooner than planned."""
        wakes = self._wakes
        if wakes and wakes[0][0] < self._timer.planned:
            self._timer.nudge(self.engine.core.next_wake())

    def _keep_with_others(self, record: Appended | Events, durable: bool, ticket: int) -> int:
        if self._try_alone(durable):
            return 0
        self._must_sync = self._must_sync or (durable and self._syncs)
        if self._replicates:
            self._unreplicated.append(record)
        return ticket

    def _keep_later(self, record: Events, durable: bool) -> None:
        """As `_keep`, but the record is written together with the next one."""
        self._ticket += 1
        log = self.engine.log
        if not (self._gathers and log.gather(record)):
            log.append(record)
        if durable and self._syncs:
            self._sync_soon()
        if self._replicates:
            self._unreplicated.append(record)
        self._deferred = self._ticket

    def _sync_soon(self) -> None:
        """Sync within `DEFERMENT`: nothing was promised, so it may go with a sync that is due anyway."""
        if self._sync_by == NEVER:
            self._sync_by = self.clock() + DEFERMENT

    def _keep_and_serve(self, record: Appended, durable: bool, served: Sequence[tuple[Dispatch, Events]]) -> int:
        """Store a message and its deliveries, and hand these to the pulls that waited for it."""
        self._ticket += 1
        dispatches = [dispatch for dispatch, _ in served]
        if self._write_singly([record, *(fetched for _, fetched in served)], durable):
            dispatches = [dispatch for dispatch in dispatches if not self._recipients.hand_out(dispatch)]
            if dispatches:
                self._ticket += 1
        else:
            self._must_sync = self._must_sync or (durable and self._syncs)
            if self._replicates:
                self._unreplicated += [record, *(fetched for _, fetched in served)]
        self._look_ahead()
        if not dispatches:
            return 0
        self._outbox.append(Effects([], dispatches, [], [], []))
        return self._ticket

    def _record(self, *, defer: bool = False) -> int:
        """Append what the core decided to the log. The effects count once everything up to the returned ticket is
        stored; 0 if they already do.

        Deferred effects are reported when they are written, and synced a little later: no more was promised.
        """
        effects = self.engine.record()
        if not effects.records and not effects.concerns_others:
            return 0
        self._ticket += 1
        if not (defer or effects.concerns_others) and self._try_alone(effects.durable):
            self._timer.nudge(self.engine.core.next_wake())
            return 0
        if effects.durable and self._syncs:
            if defer and not effects.confirmations:
                self._sync_soon()
            else:
                self._must_sync = True
        self._outbox.append(effects)
        if self._replicates:
            self._unreplicated += effects.records
        self._timer.nudge(self.engine.core.next_wake())
        return self._ticket

    def _is_alone(self, durable: bool) -> bool:
        """Whether a record can be written at once: no other thread writes, and nothing must be synced or reported."""
        return not (
            self._must_sync
            or (durable and self._syncs)
            or self._outbox
            or self._group.busy
            or self._group.failure is not None
            or self._replicates
        )

    def _write_singly(self, records: Sequence[Appended | Events], durable: bool) -> bool:
        """Write a few records at once; False if some are still pending afterwards."""
        log = self.engine.log
        if self._is_alone(durable):
            try:
                if self.fence is not None:
                    self._ask_fence()
                for record in records:
                    if not log.append_now(record):
                        break
                else:
                    self._deferred = 0
                    self._group.reached = self._ticket
                    return True
            except BaseException as error:
                self._pass_or_fail(error)
        for record in records:
            if not log.has(record):
                log.append(record)
        return self._try_alone(durable)

    def _try_alone(self, durable: bool) -> bool:
        """Write what is pending at once, if possible."""
        if not self._is_alone(durable):
            return False
        try:
            if self.fence is not None:
                self._ask_fence()
            if not self.engine.log.write_now():
                return False
        except BaseException as error:
            self._pass_or_fail(error)
            return False  # the thread that waits for it tries again
        self._deferred = 0
        self._group.reached = self._ticket
        return True

    def _pass_or_fail(self, error: BaseException) -> None:
        if not passes(error):
            self._fail(error)
            raise error

    def _write(self) -> int:
        """Write everything recorded so far, then pass on its effects, in order. One thread at a time gets here."""
        try:
            return self._write_all()
        except BaseException as error:
            if not (isinstance(error, StorageError) and error.passing) or self._closed:
                # What was taken from the log to be written may be lost: nothing after it may be written.
                self.engine.log.abandon(error)
                self._fail(error)
            raise

    def _sync_failed(self, error: BaseException) -> None:
        # As in `_write` and `_write_all`.
        if isinstance(error, StorageError) and error.passing and not self._closed:
            with self.lock:
                self._must_sync = True
                self._stall(error)
            raise stalls.unconfirmed(error) from error
        self.engine.log.abandon(error)
        self._fail(error)
        raise error

    def _write_all(self) -> int:
        with self.lock:
            batch = self.engine.take()
            ticket = self._ticket
            outbox, self._outbox = self._outbox, []
            records, self._unreplicated = self._unreplicated, []
            must_sync, self._must_sync = self._must_sync, False
            self._sync_by = NEVER if must_sync else self._sync_by
            self._deferred = 0
        try:
            if self.fence is not None:
                self._ask_fence()
            batch.write(final=self._closed)
            if must_sync:
                batch.sync(final=self._closed)
            if records and self.extensions.synchronizer is not None:
                self.extensions.synchronizer.replicate(records)
        except StorageError as error:
            if self._closed or not error.passing:
                raise
            with self.lock:
                self.engine.log.take_back(batch)
                self._outbox[:0] = outbox
                self._unreplicated[:0] = records
                self._must_sync = self._must_sync or must_sync
                self._stall(error)
            raise stalls.unconfirmed(error) from error
        if self._stalled is not None:
            self._go_on()
        for effects in outbox:
            self._recipients.let_out(effects)
        return ticket
