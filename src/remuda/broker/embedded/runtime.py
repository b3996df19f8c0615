"""The engine behind a lock, with threads for timeouts, group commit and upkeep.

Every command goes through `submit` and returns a `Pending`: its result, and what must be stored before that counts. The
brokers for threads and for coroutines differ only in how they wait for it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final

import msgspec

from remuda.broker.embedded.clock import Clock
from remuda.broker.embedded.delivering.attempts import FindFormerGuests
from remuda.broker.embedded.delivering.inbox import Inbox
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.embedded.locks.forks import Owned, closed_after_fork
from remuda.broker.embedded.locks.mutex import Mutex
from remuda.broker.embedded.locks.reentrancy import is_refusal
from remuda.broker.embedded.locks.uninterrupted import Uninterrupted
from remuda.broker.embedded.pending import Pending
from remuda.broker.embedded.queries import Queries
from remuda.broker.embedded.restoring import Restoration
from remuda.broker.embedded.storing.durability import PROBE, SMALL_RECORD
from remuda.broker.embedded.storing.write_progress import AWAITING_SYNC, CLOSED, TORN
from remuda.broker.embedded.upkeep.background import Upkeep
from remuda.broker.embedded.upkeep.timer import Timer
from remuda.broker.options import BrokerOptions
from remuda.broker.roster import Roster
from remuda.core.effects import Dispatch
from remuda.core.queues.ready import NEVER
from remuda.log.disk import Disk
from remuda.model.errors import BrokerClosed, Duplicate, Refused, RemudaError, StorageError
from remuda.model.messages import Messages
from remuda.model.operations.commands import (
    CancelPull,
    Command,
    EndUnreadable,
    HandOver,
    Publish,
    Pull,
    Settle,
    Subscribe,
    Unsubscribe,
)
from remuda.model.operations.results import Receipt
from remuda.model.settlement import Outcome, Settlement

_log = logging.getLogger("remuda.broker")
_FORKED: Final = (
    "this broker belongs to the process that opened it, and a fork of that process cannot use it; nothing was changed. "
    "Open a broker in the new process, or start the process by spawning"
)


class Runtime(Queries):
    """Runs one engine for any number of threads."""

    new_tag: Callable[[], int]
    """Gives numbers for new subscriptions and pulls."""

    def __init__(
        self,
        disk: Disk,
        options: BrokerOptions | None = None,
        extensions: Extensions | None = None,
        clock: Clock | None = None,
        *,
        volatile: bool = False,
        survey: FindFormerGuests | None = None,
        tags: Iterator[int] | None = None,
    ) -> None:
        super().__init__(disk, options, extensions, clock, volatile=volatile, survey=survey)
        self.new_tag = (tags or itertools.count(1)).__next__
        self.visitors: set[int] = set()
        """Tags of other processes' subscriptions: closing does not end them, the next host takes them over."""
        self.visited = bool(self.engine.survivors)
        """Whether other processes are served, one of which takes over when this one ends."""
        self._owed: list[Command] = []
        """Commands of consumers that left while nothing could be stored, to be executed later."""
        self.restoration = Restoration(self)
        self.let_go_first: Callable[[], None] | None = None
        """What ends with this broker, and begins to end when it stops for good."""
        self.roster = Roster(self.clock)
        self._timer = Timer(self)
        self.engine.core.registry.on_wake = self._timer.nudge
        self.upkeep = Upkeep(self, volatile=volatile)
        self._closing = Uninterrupted(self._close)
        try:
            self._timer.start()
            self.upkeep.start()
            self._owned = Owned(self.disown)
            closed_after_fork(self._owned)
        except BaseException:
            # Ctrl-C while it was opened: the caller does not get it to close it.
            self._closing.begin()
            raise

    # Executing commands

    def begin(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        return self.submit(command, inbox, wait=wait)

    """The same as `submit`: no other process needs to be waited for."""

    def _refuse(self, command: Command) -> Pending:
        if self._group.failure is not None or self.closed:
            raise self._ended()
        return self._owe(command, self._refusal())

    def _mend(self, command: Command, error: BaseException) -> Pending:
        # As `_changing`.
        if isinstance(error, StorageError):
            self._note_trouble(error)
            return self._owe(command, error)
        if not is_refusal(error):
            self._cut_short(error, command)
        raise error

    def let_go(self) -> None:
        self._closing.begin() if self.let_go_first is None else self.let_go_first()

    def _took_over(self) -> None:
        registry = self.engine.core.registry
        registry.on_wake = self._timer.nudge
        self.upkeep.log_was_opened_again()
        self._timer.nudge(0)

    def _carry_out(self, command: Command, now: int, inbox: Inbox | None, wait: bool) -> Pending:
        recorder = self.engine.core.recorder
        self._began_offset, self._began_position = recorder.next_offset, recorder.next_position
        if type(command) is Publish:
            return self._publish(command, now)
        if type(command) is Pull:
            return self._pull(command, now, inbox)
        if type(command) is Settle:
            return self._settle(command, now, wait)
        return self._change(command, now, inbox)

    def _publish(self, command: Publish, now: int) -> Pending:
        engine = self.engine
        engine.make_room(command.messages)
        core = engine.core
        core.recorder.at(now)
        receipt = core.publishing.publish(command)
        if receipt.repeated is not None:
            receipt = self._found_again(command.messages, receipt)
        confirmed = None
        if receipt.watch is not None:
            stored = core.recorder.next_offset - receipt.first if receipt.repeated is None else receipt.repeated
            confirmed = self._recipients.watch(receipt.watch, receipt.first, stored)
        ticket = self._record()
        if receipt.repeated is not None or (
            receipt.refusals and any(type(one) is Duplicate for one in receipt.refusals.values())
        ):
            ticket = self._ticket  # what was sent first may not be stored yet
        return Pending(receipt, ticket, confirmed)

    def _settle(self, command: Settle, now: int, wait: bool) -> Pending:
        core = self.engine.core
        self.engine.make_room_for_answer(command)
        core.recorder.at(now)
        settled = core.consuming.settle(command)
        ticket = self._record(defer=not wait)
        if not settled and wait:
            ticket = self._ticket  # the answer that made this one late may not be stored yet
        return Pending(settled, ticket)

    def _pull(self, command: Pull, now: int, inbox: Inbox | None) -> Pending:
        """The messages that can be had at once; else None, and if the pull waits, its delivery comes to the inbox."""
        engine = self.engine
        core = engine.core
        if engine.log.room < SMALL_RECORD:
            engine.log.reserve(SMALL_RECORD, use_spare=True)
        if command.wait and inbox is not None:
            self._recipients.inboxes[command.tag] = inbox
        try:
            core.recorder.at(now)
            dispatch = core.consuming.pull(command)
        except RemudaError:
            self.forget_pull(command.tag)
            raise
        ticket = self._record()
        if dispatch is None:
            return Pending(None, ticket or self._deferred)
        if command.wait:
            self._recipients.inboxes.pop(command.tag, None)
        return Pending(dispatch, ticket, None, engine.held(dispatch))

    def _change(self, command: Command, now: int, inbox: Inbox | None) -> Pending:
        """Any other command."""
        core = self.engine.core
        self.engine.log.reserve(SMALL_RECORD, use_spare=True)
        if inbox is not None and isinstance(command, Subscribe):
            inbox.lasting = True
            self._recipients.inboxes[command.tag] = inbox
            try:
                return Pending(core.apply(command, now), self._record())
            except RemudaError:
                self._recipients.inboxes.pop(command.tag, None)
                raise
        if isinstance(command, Unsubscribe):
            if command.keep:
                # Deliveries that are not passed on yet must reach the inbox, so that they can be given back.
                return Pending(core.apply(command, now), self._record() or self._ticket)
            self._close_subscription(command)
        return Pending(core.apply(command, now), self._record())

    remote = False

    def asks(self, dispatch: Dispatch) -> bool:
        """Whether another process must be asked to hand this delivery over."""
        return False

    def _found_again(self, messages: Messages, receipt: Receipt) -> Receipt:
        """The receipt of a batch that was stored before, from the log."""
        runs = [(receipt.first, receipt.repeated or 0)]
        held = self.engine.recent(runs)
        stored = self.engine.log.fetch(runs).messages if held is None else held
        ids = [stored.id(row) for row in range(len(stored.bodies))]
        if len(ids) == len(messages.bodies):
            return msgspec.structs.replace(receipt, given=ids)
        given, refusals, at = [], dict[int, Refused](), 0
        for row, body in enumerate(messages.bodies):
            if at < len(ids) and stored.bodies[at] == body:
                given.append(ids[at])
                at += 1
            else:
                given.append(messages.id(row))
                refusals[row] = Refused("its queue refused it when the batch was first sent; it was not stored")
        return msgspec.structs.replace(receipt, given=given, refusals=refusals)

    def watch(self, first: int, count: int) -> Future[None] | None:
        """The outcome of messages that were stored before, if their queues commit later than on receipt."""
        with self.whole():
            number = self.engine.core.publishing.watch_again(first, count)
            if number is None:
                return None
            confirmed = self._recipients.watch(number, first, count)
            ticket = self._record()
        self.wait(ticket)
        return confirmed

    def release_unclaimed(self) -> None:
        """Put back deliveries that no consumer has reclaimed since the directory was opened."""
        with self.whole():
            if self.closed or not self.engine.unclaimed:
                return
            self.engine.log.reserve(SMALL_RECORD, use_spare=True)
            with self._changing():
                self.engine.core.release_unclaimed(self.clock(), self.engine.begun)
                ticket = self._record()
            self.engine.unclaimed = False
        self.wait(ticket)

    def cancel_pull(self, queue: str, tag: int) -> bool:
        """Stop a pull's wait. False if its delivery is already on the way and will come to the inbox."""
        with self.whole():
            if self.closed or self._group.failure is not None:
                return True
            waiting: bool = self.engine.core.apply(CancelPull(queue, tag), self.clock())
            if waiting:
                self._recipients.inboxes.pop(tag, None)
            # A pull that timed out by the broker's own clock does not wait either: its inbox is being closed then.
            return waiting

    def give_back(self, dispatch: Dispatch) -> None:
        """Put back a delivery whose consumer is gone."""
        if dispatch.lease is None:
            return
        release = Settlement(Outcome.RELEASE, "its consumer is gone", consumer=dispatch.consumer, front=True)
        with contextlib.suppress(BrokerClosed, StorageError):
            # The thread that finds the consumer gone may be the one that writes for all: it cannot wait for itself.
            self.submit_sometime(Settle(dispatch.queue, dispatch.lease, release), wait=False)
            self._timer.nudge(0)

    def submit_sometime(self, command: Command, *, wait: bool = True) -> Pending:
        """As `submit`, for a command that must be executed though nobody waits for it: later, if it cannot be now."""
        try:
            return self.submit(command, wait=wait)
        except StorageError as error:
            if not error.passing:
                raise
            with self.lock:
                self._owed.append(command)
            return Pending(None, 0)

    def _owe(self, command: Command, refusal: StorageError) -> Pending:
        """Execute an `Unsubscribe` later that cannot be stored now: its consumer will not try again. Refuse others."""
        if type(command) is not Unsubscribe or not refusal.passing:
            raise refusal
        self._owed.append(command)
        return Pending(None, 0)

    def leave(self, queue: str, consumer: str) -> None:
        """Remove a consumer whose subscription failed."""
        with contextlib.suppress(RemudaError):
            self.submit(Unsubscribe(queue, consumer))

    def abandon_pull(self, pending: Pending, command: Pull, inbox: Inbox | None) -> None:
        """Put back what a pull got, or will get: its caller is gone, or got an error."""
        found: Dispatch | None = pending.result
        if found is not None and found.lease is not None:
            release = Settlement(Outcome.RELEASE, "it was not handed out", consumer=found.consumer, front=True)
            with contextlib.suppress(BrokerClosed, StorageError):
                self.submit_sometime(Settle(found.queue, found.lease, release))
        elif found is None and inbox is not None:
            self.cancel_pull(command.queue, command.tag)
            inbox.divert(self.give_back)

    def check_stalled(self) -> None:
        """Raise if nothing can be delivered at present, as when the disk is full."""
        if self.stalled:
            raise self._refusal()

    def track(self, lease: int, runs: int) -> Callable[[int], None]:
        """A function that marks a message of a delivery, by its offset, as begun."""
        return self.engine.attempts.track(lease, runs).begin

    def hand_over(self, dispatch: Dispatch, inbox: Inbox) -> Dispatch | None:
        """Hand over a delivery that was taken out of its inbox, without messages that expired meanwhile; None if it is
        over. If that cannot be stored now, or is interrupted, it goes back to the front of the inbox.
        """
        if dispatch.lease is None:
            return dispatch
        if self.stalled:
            inbox.put_back(dispatch)
            raise self._refusal()
        if not dispatch.hand_over:  # it was handed over before its consumer was interrupted, and perhaps settled
            return dispatch if dispatch.deadline > self.clock() else None
        with self.whole():
            queue = self.engine.core.queues.get(dispatch.queue)
            lease = queue.leases.get(dispatch.lease) if queue is not None else None
        try:
            pending = self.submit(HandOver(dispatch.queue, dispatch.lease, dispatch.consumer))
        except BaseException:
            inbox.put_back(dispatch)
            raise
        runs: list[tuple[int, int]] = pending.result
        taken = None if not runs else dispatch if runs == dispatch.runs else dispatch.only(runs)
        if taken is not None and lease is not None:
            taken = msgspec.structs.replace(taken, deadline=lease.deadline)
        try:
            self.wait(pending.ticket)
        except BaseException:
            if taken is not None:
                inbox.put_back(msgspec.structs.replace(taken, hand_over=False))
            raise
        return taken

    def held(self, dispatch: Dispatch) -> Messages | None:
        """The messages of a delivery, if they are in memory."""
        with self.lock:
            return self.engine.held(dispatch)

    def load(self, dispatch: Dispatch) -> tuple[Dispatch, Messages]:
        """The messages of a delivery. Those that cannot be read from the log any more end, and are left out."""
        messages = self.held(dispatch)
        if messages is not None:
            return dispatch, messages
        if self._gathers:
            self.flush()
        fetched = self.engine.log.fetch(dispatch.runs)
        if fetched.missing:
            _log.error("queue %s: messages at %s cannot be read from the log", dispatch.queue, fetched.missing)
            self.submit(EndUnreadable(dispatch.queue, tuple(fetched.missing)))
            dispatch = dispatch.only(fetched.offsets)
        return dispatch, fetched.messages

    def tick(self) -> int:
        """Do what is due. Returns when something will be next."""
        if self.stalled:
            # What could not be written comes first, or it would grow without end.
            self.wait(self._ticket)
        with self.whole():
            if self.closed:
                return NEVER
            self._probe()
            with self._changing():
                self.engine.core.tick(self.clock())
                ticket = self._record() or self._deferred
                if self._sync_by <= self.clock():
                    self._rise(AWAITING_SYNC)
                    ticket = self._ticket = self._ticket + 1
        self.wait(ticket)
        if self._owed:
            self._execute_owed()
        with self.whole():
            wake = min(self.engine.core.next_wake(), self._sync_by)
            return wake if self.trouble is None else min(wake, self.clock() + PROBE)

    def close(self) -> None:
        """End everything in order and release the directory. What was confirmed is kept, even after a failed write.

        Ctrl-C ends the wait, not the work: call this again to wait for its end.
        """
        self.dismissed = True
        self.end()

    def end(self) -> None:
        """As `close`, also where it ends by itself."""
        if threading.current_thread() in (self._timer.thread, self.upkeep.thread, self.notices.thread):
            self._close()
            return
        self._closing.wait()

    def _close(self) -> None:
        with self.lock:
            if self.closed:
                return
            torn = self._standing == TORN
            self._standing = CLOSED
            if torn:  # the log has the truth: what was decided before the error is written, and nothing else
                with contextlib.suppress(Exception):
                    self.engine.log.salvage()
                self.engine.log.abandon(BrokerClosed(self._closed_text))
        self._recipients.release_all(None)
        self._timer.stop()
        self.upkeep.stop()
        with contextlib.ExitStack() as ends:  # all of them, whichever fails
            if self._committer is not None:
                ends.callback(self._committer.close)
            ends.callback(self.notices.close)
            ends.callback(self._claim.release)
            ends.callback(self.engine.close)
            if self._group.failure is None and not torn:
                self._settle_down()

    def _settle_down(self) -> None:
        """Put back what consumers hold, and write a checkpoint for a quick start."""
        with self.lock:
            core, now = self.engine.core, self.clock()
            core.registry.closing = True
            with self._changing():
                for queue in list(core.queues.values()):
                    for name, consumer in list(queue.consumers.items()):
                        if consumer.tag not in self.visitors:
                            core.apply(Unsubscribe(queue.name, name), now)
                self._record()
            ticket = self._ticket
        self.wait(ticket)
        with self.lock:
            self.engine.checkpoint()

    def disown(self) -> None:
        """In a fork: this copy must not write, nor keep the directory locked when its owner has ended."""
        self.lock = Mutex()
        self._standing, self._closed_text = CLOSED, _FORKED
        self.engine.log.disk.unlock()
        self._claim.release()

    # Inboxes and deferred commands

    def _close_subscription(self, command: Unsubscribe) -> None:
        queue = self.engine.core.queues.get(command.queue)
        consumer = queue.consumers.get(command.consumer) if queue is not None else None
        inbox = self._recipients.inboxes.pop(consumer.tag, None) if consumer is not None else None
        if inbox is not None:
            inbox.close()

    def _execute_owed(self) -> None:
        """Execute the commands of consumers that left while nothing could be stored."""
        with self.lock:
            owed, self._owed = self._owed, []
        for command in owed:
            with contextlib.suppress(RemudaError):
                self.wait(self.submit_sometime(command).ticket)

    def forget_pull(self, tag: int) -> None:
        """Drop the inbox of a pull that is over."""
        self._recipients.inboxes.pop(tag, None)

    def forget_inbox(self, tag: int) -> None:
        """A consumer left and keeps its deliveries; those still in its inbox go back to the queue."""
        inbox = self._recipients.inboxes.pop(tag, None)
        if inbox is not None:
            inbox.divert(self.give_back)
            inbox.close()
