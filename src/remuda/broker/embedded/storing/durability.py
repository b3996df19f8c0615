"""Stores the engine's decisions: under one lock, in groups, in order; consumers and producers learn of them afterwards.

A full disk stalls the broker until there is room, and so does a synchronizer that fails; any other error of the disk
stops it for good. After an unexpected error in the broker itself the queues are rebuilt from the log (`restoring`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from time import monotonic
from typing import Final

from remuda.broker.embedded.clock import Clock, steady_clock
from remuda.broker.embedded.delivering.attempts import FindFormerGuests
from remuda.broker.embedded.delivering.effect_dispatcher import EffectDispatcher
from remuda.broker.embedded.delivering.notices import NoticeBoard
from remuda.broker.embedded.engine import Engine
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.embedded.locks.mutex import Mutex
from remuda.broker.embedded.locks.reentrancy import CalledFromInside, is_refusal
from remuda.broker.embedded.restoring import LostAfterError, Restoration, is_ours
from remuda.broker.embedded.storing import storage_errors
from remuda.broker.embedded.storing.committer import Committer
from remuda.broker.embedded.storing.group_commit import GroupCommit
from remuda.broker.embedded.storing.write_progress import (
    AWAITED,
    AWAITING_SYNC,
    CLOSED,
    DEFERRED,
    STALLED,
    STOPPED,
    TORN,
    WRITTEN,
)
from remuda.broker.embedded.submission import Submission
from remuda.broker.embedded.upkeep.timer import Timer
from remuda.broker.embedded.upkeep.worker_numbers import claim_worker
from remuda.broker.options import BrokerOptions, Sync
from remuda.core.core import Core
from remuda.core.effects import Effects
from remuda.core.queues.ready import NEVER
from remuda.core.recovery.reloading import Left
from remuda.log.disk import Disk
from remuda.log.tail.writer import passes
from remuda.model.errors import BrokerClosed, StorageError
from remuda.model.operations.commands import Command
from remuda.model.records import Record
from remuda.model.values.durations import MILLISECOND
from remuda.model.values.texts import BROKER_CLOSED
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
    restoration: Restoration
    """What is done about an unexpected error."""

    def __init__(
        self,
        disk: Disk,
        options: BrokerOptions | None = None,
        extensions: Extensions | None = None,
        clock: Clock | None = None,
        *,
        volatile: bool = False,
        survey: FindFormerGuests | None = None,
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
        self._standing = WRITTEN
        self._closed_text = BROKER_CLOSED
        self._ticket = 0
        self._began_offset = self._began_position = 0
        """Where the log stood when the last command began."""
        self.volatile = volatile
        self.dismissed = False
        """Whether its user has closed it."""
        self.stopped = Future[StorageError]()
        """Has the reason once the broker has stopped for good by itself."""
        self._displaced = False
        """Whether the directory is no longer ours, so that there is nothing to let go."""
        self._syncs = self.options.sync is Sync.ALWAYS and not volatile
        self._replicates = self.extensions.synchronizer is not None
        self._gathers = volatile and not self._replicates
        """Whether records need not be written, or even encoded, before they are read."""
        self._deferred = 0
        """The ticket of records that are written together with the next one."""
        self._sync_by = NEVER
        """When deferred records must be synced, unless another sync comes first."""
        self._outbox: list[Effects] = []
        """What others learn once it is stored."""
        self._unreplicated: list[Record] = []
        self._recipients = EffectDispatcher(self.notices)
        self.fence: Callable[[], None] | None = None
        """Raises if the directory is no longer ours. Called before a write, unless it was called just before."""
        self._fence_until = 0.0
        self._committer: Committer | None = None
        self._waiting = set()
        self.trouble: StorageError | None = None
        """Why some commands cannot be stored at present, as when the disk is nearly full."""
        self._group = GroupCommit(self._write)
        self._write_single = self._single_writer()
        """Appends and writes a small record when nothing is pending; returns 0 and does nothing in any other case."""

    def _single_writer(self) -> Callable[[Record], int]:
        log = self.engine.log
        return log.append_now if tail is None else log.write_single

    @property
    def closed(self) -> bool:
        return self._standing == CLOSED

    @property
    def stalled(self) -> bool:
        """Whether nothing can be delivered at present, as when the disk is full."""
        return self._standing == STALLED

    @property
    def failure(self) -> BaseException | None:
        """Why the broker stopped, if it did."""
        return self._group.failure

    # Access to the queues

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Core]:
        if self.lock.owned():
            self._check_caller()
        with self.whole():
            if self._standing == CLOSED:
                raise self._ended()
            yield self.engine.core

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Under the lock, once the queues are whole."""
        while True:
            with self.lock:
                if self._standing != TORN:
                    yield
                    return
            self._await_restoration()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """For changes of the queues, under the lock, that are no caller's command."""
        self._note_beginning()
        try:
            yield
        except BaseException as error:
            if is_refusal(error):
                raise
            try:
                self._cut_short(error)
            except BaseException:
                self._cut_short(error)  # Ctrl-C once more
            raise

    def _note_beginning(self) -> None:
        recorder = self.engine.core.recorder
        self._began_offset, self._began_position = recorder.next_offset, recorder.next_position

    def _cut_short(self, error: BaseException, command: Command | None = None) -> None:
        """A change of the queues was cut short, which may have left them half changed: nothing more may be written from
        them, and the log has the truth. It is read again after an unexpected error; an interrupt, such as Ctrl-C, may
        land anywhere, also where what others wait for is on its way to the log, and stops the broker."""
        if not is_ours(error) or self._standing > TORN:
            self._give_up(error)
            return
        self._standing = TORN
        self.restoration.begin(error, command, (self._began_offset, self._began_position))
        self._timer.nudge(0)

    def _await_restoration(self) -> None:
        self.restoration.wait()

    def begin_again(self) -> int:
        """Rebuild the queues from the log. While nobody writes, without the lock. Returns the ticket that is stored."""
        with self.lock:
            if self._standing != TORN:
                return 0
            engine, restoration = self.engine, self.restoration
            engine.log.salvage()
            self._replicate(self._unreplicated)
            self._unreplicated = []
            ticket = self._ticket
            outbox, self._outbox = self._outbox, []
            tags = [tag for tag in self._recipients.inboxes if not restoration.forgotten(tag)]
            offset, position = restoration.began
            waiting = self._recipients.waiting(outbox).intersection(tags)
            left = Left(frozenset(tags), waiting, position, restoration.command)
            engine.begin_again(self.clock(), left)
            if engine.log.next_offset < offset or engine.log.next_position < position:
                raise LostAfterError(
                    f"after an error, the log ends at offset {engine.log.next_offset} and position "
                    f"{engine.log.next_position}, but {offset} and {position} were reached before"
                )
            self._write_single = self._single_writer()
            self._standing, self._deferred, self._sync_by = WRITTEN, 0, NEVER
            self._group.reached = ticket
            self._recipients.watch_again(engine.core.publishing.watch_again)
            restoration.over()
            self._took_over()
            self._record()
        for effects in outbox:
            self._recipients.let_out(effects)
        return ticket

    def _took_over(self) -> None:
        """There is a new core on a new log."""
        raise NotImplementedError

    def _ended(self) -> Exception:
        """The error for calls after the end."""
        if self._group.failure is None or self.dismissed:
            return BrokerClosed(self._closed_text)
        return self._group.stopped()

    def refusal(self) -> StorageError:
        return self._refusal()

    def _check_caller(self) -> None:
        if self.lock.owned() or threading.get_ident() in self._waiting:
            raise CalledFromInside

    # Waiting

    def kept(self, ticket: int) -> Future[None]:
        """As `wait`, for coroutines: a thread waits for them."""
        if self._committer is None:
            with self.lock:
                if self._standing == CLOSED:
                    raise self._ended()
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
            self._rise(AWAITING_SYNC)
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

    def _rise(self, standing: int) -> None:
        if standing > self._standing:
            self._standing = standing

    def _stall(self, error: StorageError) -> None:
        """Nothing can be stored at present. Commands are refused until what waits is written."""
        if self._standing < STALLED:
            _log.error("nothing can be written, and commands are refused until it can: %s", error)
        self._rise(STALLED)
        self.trouble = error
        self._timer.nudge(self.clock() + PROBE)

    def _refusal(self) -> StorageError:
        """For commands that come while nothing can be stored."""
        assert self.trouble is not None
        return storage_errors.refusal(self.trouble)

    def _go_on(self, ticket: int) -> None:
        """Everything up to this ticket is written."""
        with self.lock:
            if self._standing == STALLED:
                _log.info("the broker continues: everything that was waiting is written")
                self._standing = WRITTEN if ticket == self._ticket else AWAITING_SYNC

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
        if self._standing == STALLED:
            self._standing = AWAITING_SYNC
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
                self._displaced = True
                self.engine.log.abandon(error)
                self._fail(error)
                _log.error("the broker stops: %s", error)

    def stop_after(self, error: BaseException) -> None:
        """Stop: the queues could not be rebuilt, or errors come too often. What was decided before is written."""
        if is_ours(error):
            with contextlib.suppress(Exception), self.lock:
                self.engine.log.salvage()
        _log.error("the broker stops, and lets its directory go: %s", error)
        with self.lock:
            self.engine.log.abandon(error)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Nothing can be stored any more: raise that to all that wait, and let the directory go."""
        self._rise(STOPPED)
        self._group.fail(error)
        self._recipients.release_all(self._group.stopped())
        with contextlib.suppress(InvalidStateError):
            self.stopped.set_result(self._group.stopped())
        if not self._displaced:
            self.let_go()

    def let_go(self) -> None:
        """Begin to release the directory, so that another process can take over. May be called twice."""
        raise NotImplementedError

    def check_fence(self) -> None:
        """Stop if the directory is no longer ours, even while nothing is written."""
        if self.fence is not None and not self.closed:
            try:
                self._ask_fence()
            except BaseException as error:
                self._fail(error)
                raise

    def _ask_fence(self) -> None:
        now = monotonic()
        if self.fence is not None and now > self._fence_until:
            self._displaced = True
            self.fence()
            self._displaced = False
            self._fence_until = now + FENCED

    # Writing

    def _record(self, *, defer: bool = False) -> int:
        """Take what the core decided to the log, the only way there is. It counts once everything up to the returned
        ticket is stored; 0 if it already does, or if nobody waits for it: what is deferred is written together with the
        next record, or a little later."""
        effects = self.engine.decided()
        others = effects.concerns_others
        if not effects.records and not others:
            return 0
        self._ticket = ticket = self._ticket + 1
        standing = self._to_log(effects.records, defer)
        if effects.durable and self._syncs:
            if defer and not effects.confirmations:
                self._sync_soon()
            else:
                standing = AWAITING_SYNC
        if standing == WRITTEN:
            self._deferred, self._standing, self._group.reached = 0, WRITTEN, ticket
        elif standing == DEFERRED:
            if not self._deferred:
                self._timer.nudge(self.clock() + DEFERMENT)
            self._deferred = ticket
        if others and not ((standing == WRITTEN or self._gathers) and self._hand_out(effects)):
            self._ticket = ticket = self._ticket + (standing == WRITTEN)
            self._outbox.append(effects)
            standing = max(standing, AWAITED)
        if standing > self._standing:
            self._standing = standing
        return ticket if standing > DEFERRED else 0

    def _to_log(self, records: Sequence[Record], defer: bool) -> int:
        """Append records, and write them at once where nobody waits or writes. One that must be synced is written at
        once, too: the thread that waits for it has only to sync."""
        log = self.engine.log
        if self._replicates:
            self._unreplicated += records
        elif self._gathers:
            held = 0
            while held < len(records) and (log.hold_single(records[held]) or log.gather(records[held])):
                held += 1
            if held == len(records):
                return DEFERRED
            records = records[held:]  # large ones are written, or they would pile up
        if defer or self._standing > DEFERRED or self._group.busy or self._replicates:
            for record in records:
                log.append(record)
            return DEFERRED if defer else AWAITED
        try:
            if self.fence is not None and monotonic() > self._fence_until:
                self._ask_fence()
            if len(records) == 1 and self._write_single(records[0]):
                return WRITTEN
        except BaseException as error:
            self._pass_or_fail(error)
            return AWAITED  # it is appended; the thread that waits for it tries again
        for record in records:
            log.append(record)
        try:
            return WRITTEN if log.write_now() else AWAITED
        except BaseException as error:
            self._pass_or_fail(error)
            return AWAITED  # the thread that waits for it tries again

    def _hand_out(self, effects: Effects) -> bool:
        """Make deliveries that count by now, under the lock. False if something is left for a thread without it."""
        if self._standing > DEFERRED or self._group.busy:
            return False  # what others wait for comes first
        if effects.confirmations or effects.notices or effects.closed:
            return False
        effects.dispatches = [one for one in effects.dispatches if not self._recipients.hand_out(one)]
        return not effects.dispatches

    def _sync_soon(self) -> None:
        """Sync within `DEFERMENT`: nothing was promised, so it may go with a sync that is due anyway."""
        if self._sync_by == NEVER:
            self._sync_by = self.clock() + DEFERMENT

    def _pass_or_fail(self, error: BaseException) -> None:
        if not passes(error):
            if not is_ours(error):
                self._fail(error)
            raise error

    def _write(self) -> int:
        """Write everything recorded so far, then pass on its effects, in order. One thread at a time gets here."""
        if self._standing == TORN:  # it is written before the log is read again
            return self.restoration.give_way(self._group.reached)
        try:
            return self._write_all()
        except BaseException as error:
            if is_ours(error) and not self.closed:
                with self.lock:
                    if self._standing < TORN:
                        self._note_beginning()
                        self._cut_short(error)
                    if self._standing == TORN:
                        # What was not written is still pending, and is written before the log is read again.
                        return self._group.reached
            if not (isinstance(error, StorageError) and error.passing) or self.closed:
                # What was taken from the log to be written may be lost: nothing after it may be written.
                self.engine.log.abandon(error)
                self._fail(error)
            raise

    def _replicate(self, records: Sequence[Record]) -> None:
        """Have the synchronizer store them elsewhere too. As long as it refuses that, nothing is confirmed."""
        if records and self.extensions.synchronizer is not None:
            try:
                self.extensions.synchronizer.replicate(records)
            except Exception as error:
                raise storage_errors.NotReplicated(f"the synchronizer failed ({error!r})") from error

    def _write_all(self) -> int:
        with self.lock:
            batch = self.engine.take()
            ticket = self._ticket
            outbox, self._outbox = self._outbox, []
            records, self._unreplicated = self._unreplicated, []
            final = self.closed
            syncs = self._standing >= AWAITING_SYNC
            if self._standing < STALLED:
                self._standing = WRITTEN
            self._sync_by = NEVER if syncs else self._sync_by
            self._deferred = 0
        try:
            if self.fence is not None:
                self._ask_fence()
            batch.write(final=final)
            if syncs:
                batch.sync(final=final)
            self._replicate(records)
        except StorageError as error:
            if self.closed or not error.passing:
                raise
            with self.lock:
                self.engine.log.take_back(batch)
                self._outbox[:0] = outbox
                self._unreplicated[:0] = records
                self._stall(error)
            raise storage_errors.unconfirmed(error) from error
        except Exception as error:
            if is_ours(error) and not self.closed:
                with self.lock:  # what is unwritten of the batch comes first when the log is written again
                    self._outbox[:0] = outbox
                    self._unreplicated[:0] = records
            raise
        if self._standing == STALLED:
            self._go_on(ticket)
        for effects in outbox:
            self._recipients.let_out(effects)
        return ticket
