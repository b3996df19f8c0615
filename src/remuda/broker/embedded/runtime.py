"""The engine behind a lock, with the threads that time, group commit and upkeep need.

There is one way in: a command is submitted and a `Pending` comes back, which says what came of it and what must be
kept before it may be told. The faces for threads and for coroutines differ only in how they wait.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Final

import msgspec

from remuda.broker.embedded.clock import Clock, steady_clock
from remuda.broker.embedded.commit import GroupCommit
from remuda.broker.embedded.engine import Engine
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.embedded.forks import closed_after_fork
from remuda.broker.embedded.inbox import Inbox
from remuda.broker.embedded.notices import Handler, NoticeBoard
from remuda.broker.embedded.pending import Pending
from remuda.broker.embedded.timer import Timer
from remuda.broker.embedded.uninterrupted import Uninterrupted
from remuda.broker.embedded.upkeep import Upkeep
from remuda.broker.embedded.workers import claim_worker
from remuda.broker.options import BrokerOptions, Sync
from remuda.core.core import Core
from remuda.core.effects import Confirmation, Dispatch, Effects
from remuda.core.ready import NEVER
from remuda.log.disk import Disk
from remuda.log.eventlog import EventLog
from remuda.model.commands import (
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
from remuda.model.document import Document
from remuda.model.durations import MILLISECOND
from remuda.model.errors import BrokerClosed, DeliveryFailed, NotFound, RemudaError, StorageError
from remuda.model.filters import MessageFilter
from remuda.model.messages import Messages
from remuda.model.records import Appended, Events, Record
from remuda.model.results import ParkedMessage, QueueInfo, Receipt
from remuda.model.routing import Binding, ExchangeKind
from remuda.model.settlement import Outcome, Settlement

_log = logging.getLogger("remuda.broker")
_DEFERMENT: Final = 20 * MILLISECOND
_SMALL_RECORD: Final = 4096
_PLAIN_ANSWER: Final = 4096 + 2 * (64 + 8 * 255)
"""More than an answer without a reason can take, for each run: names have at most 255 bytes."""
_CLOSED: Final = "the broker is closed; open it again to go on. Everything accepted before is kept"
_FORKED: Final = (
    "this broker belongs to the process that opened it, and a fork of that process cannot use it; nothing was changed. "
    "Open a broker in the new process, or start the process by spawning"
)


class Runtime:
    """Runs one engine for any number of threads."""

    def __init__(
        self,
        disk: Disk,
        options: BrokerOptions | None = None,
        extensions: Extensions | None = None,
        clock: Clock | None = None,
        *,
        volatile: bool = False,
    ) -> None:
        self.options = options or BrokerOptions()
        self.extensions = extensions or Extensions()
        self.clock = clock or steady_clock()
        self._claim = claim_worker(self.options.worker)
        try:
            self.engine = Engine(disk, self.options, self.extensions, self._claim.number, self.clock())
        except BaseException:
            self._claim.release()
            raise
        if not self.engine.report.clean:
            _log.warning("%s", self.engine.report.describe())
        self.lock = threading.Lock()
        self.notices = NoticeBoard()
        self._closed = False
        self._closed_text = _CLOSED
        self._ticket = 0
        self._must_sync = False
        self._syncs = self.options.sync is Sync.ALWAYS and not volatile
        self._deferred = 0
        """The ticket of answers that go with whatever is written next."""
        self._sync_at = NEVER
        """When answers that nobody waits for are to be synced, unless something else is before."""
        self._outbox: list[Effects] = []
        self._unreplicated: list[Record] = []
        self._inboxes: dict[int, Inbox] = {}
        """By tag of the subscription or the pull."""
        self._tags = itertools.count(1)
        self._confirmations: dict[int, Future[None]] = {}
        self._holder: int | None = None
        """The thread that is changing the queues, so that an extension that calls back is refused, not locked out."""
        self._group = GroupCommit(self._write)
        self._timer = Timer(self)
        self.upkeep = Upkeep(self, volatile=volatile)
        self._closing = Uninterrupted(self._close)
        try:
            self._timer.start()
            self.upkeep.start()
            closed_after_fork(self)
        except BaseException:
            # Ctrl-C while it was opened: nobody will have it to close it.
            self._closing.begin()
            raise

    def new_tag(self) -> int:
        """A number for a new subscription or pull."""
        return next(self._tags)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def failure(self) -> BaseException | None:
        """Why the broker stopped, if it did."""
        return self._group.failure

    # The way in

    def submit(self, command: Command, inbox: Inbox | None = None, *, wait: bool = True) -> Pending:
        """Carry out a command. Deliveries of its subscription, or pull, will come to `inbox`.

        Without `wait` an answer goes with whatever is written next, unless others wait for what comes of it.
        """
        self._check_caller()
        with self.lock:
            if self._closed:
                raise BrokerClosed(self._closed_text)
            if self._group.failure is not None:
                raise self._group.stopped()
            self._holder = threading.get_ident()
            try:
                return self._carry_out(command, inbox, wait)
            except RemudaError:
                # The core refuses with its own errors before it changes anything.
                raise
            except BaseException as error:
                # Any other, such as Ctrl-C in the middle of a move, may leave it half changed: nothing more may be
                # written from it, and the log tells what is true.
                self._give_up(error)
                raise
            finally:
                self._holder = None

    def _carry_out(self, command: Command, inbox: Inbox | None, wait: bool) -> Pending:
        engine = self.engine
        core, now = engine.core, self.clock()
        if type(command) is Publish:
            engine.make_room(command.messages)
            done = core.publishing.publish_plainly(command, now)
            if done is not None:
                record, durable, served = done
                receipt = Receipt(record.first, record.messages.ids, {})  # type: ignore[arg-type]
                if served:
                    return Pending(receipt, self._keep_and_serve(record, durable, served))
                return Pending(receipt, self._keep(record, durable))
            receipt = core.apply(command, now)
            confirmed = None
            if receipt.watch is not None:
                confirmed = self._confirmations.setdefault(receipt.watch, Future())
            return Pending(receipt, self._record(), confirmed)
        if type(command) is Settle:
            return self._settle(command, now, wait)
        if type(command) is Pull:
            return self._pull(command, now, inbox)
        engine.log.reserve(_SMALL_RECORD, use_spare=True)
        if inbox is not None and isinstance(command, Subscribe):
            self._inboxes[command.tag] = inbox
            try:
                return Pending(core.apply(command, now), self._record())
            except RemudaError:
                self._inboxes.pop(command.tag, None)
                raise
        if isinstance(command, Unsubscribe):
            if command.keep:
                # What was sent and has not come out yet is to reach the inbox, so that it can be given back.
                return Pending(core.apply(command, now), self._record() or self._ticket)
            self._close_subscription(command)
        return Pending(core.apply(command, now), self._record())

    def _settle(self, command: Settle, now: int, wait: bool) -> Pending:
        core, log = self.engine.core, self.engine.log
        settlement = command.settlement
        if command.runs is None and settlement.outcome is Outcome.ACK:
            queue = core.queues.get(command.queue)
            if queue is not None:
                log.reserve(_PLAIN_ANSWER, use_spare=True)
                record = core.consuming.complete_plainly(queue, command.lease, settlement.consumer, now)
                if record is not None:
                    count = record.rows[0].count
                    if wait:
                        return Pending(count, self._keep(record, queue.persistent))
                    self._keep_later(record, queue.persistent)
                    self._timer.nudge(now + _DEFERMENT)
                    return Pending(count, 0)
        log.reserve(self._answer_bytes(core, command), use_spare=True)
        settled = core.apply(command, now)
        ticket = self._record(defer=not wait)
        if self._sync_at != NEVER:
            self._timer.nudge(self._sync_at)
        if ticket and not wait and not self._outbox[-1].concerns_others:
            self._deferred = ticket
            self._timer.nudge(now + _DEFERMENT)
            ticket = 0
        return Pending(settled, ticket)

    def _pull(self, command: Pull, now: int, inbox: Inbox | None) -> Pending:
        """What is there at once; else None, and the delivery will come to the inbox if the request waits."""
        engine = self.engine
        core = engine.core
        engine.log.reserve(_SMALL_RECORD, use_spare=True)
        if not command.newest and command.clear_after == "none":
            queue = core.queues.get(command.queue)
            done = None
            if queue is not None:
                done = core.consuming.pull_plainly(queue, command.consumer, now, command.count, command.tag)
            if done is not None:
                dispatch, record = done
                return Pending(dispatch, self._keep(record, False), held=engine.held(dispatch))
        if command.wait and inbox is not None:
            self._inboxes[command.tag] = inbox
        try:
            dispatch = core.apply(command, now)
        except RemudaError:
            self._inboxes.pop(command.tag, None)
            raise
        ticket = self._record() or self._deferred
        if dispatch is None:
            return Pending(None, ticket)
        self._inboxes.pop(command.tag, None)
        return Pending(dispatch, ticket, held=engine.held(dispatch))

    def cancel_pull(self, queue: str, tag: int) -> bool:
        """Whoever asked waits no longer. False if the answer is already on its way and will be in the inbox."""
        with self.lock:
            if self._closed:
                return True
            waiting: bool = self.engine.core.apply(CancelPull(queue, tag), self.clock())
            if waiting:
                self._inboxes.pop(tag, None)
            # One whose time was up by the broker's own clock waits no longer either: then its inbox is being closed.
            return waiting

    def give_back(self, dispatch: Dispatch) -> None:
        """Nobody is there any more to take this delivery."""
        if dispatch.lease is None:
            return
        release = Settlement(Outcome.RELEASE, "its consumer is gone", consumer=dispatch.consumer, front=True)
        with contextlib.suppress(BrokerClosed, StorageError):
            self.submit(Settle(dispatch.queue, dispatch.lease, release))
            self._timer.nudge(0)

    def track(self, lease: int, runs: int) -> Callable[[int], None]:
        """What is to be told of each message of a delivery that its consumer begins with."""
        return self.engine.attempts.track(lease, runs).begin

    def hand_over(self, dispatch: Dispatch) -> Dispatch | None:
        """A delivery leaves the inbox. None if it is over; without what has expired meanwhile."""
        if dispatch.lease is None:
            return dispatch
        with self.lock:
            queue = self.engine.core.queues.get(dispatch.queue)
            lease = queue.leases.get(dispatch.lease) if queue is not None else None
            if not dispatch.hand_over:
                now = self.clock()
                if queue is None or lease is None:
                    # Others who got the same may have answered: that is no reason to keep it from this one.
                    return dispatch if queue is not None and dispatch.shared and dispatch.deadline > now else None
                if lease.deadline > now and not queue.options.message_timeout:
                    return dispatch
        pending = self.submit(HandOver(dispatch.queue, dispatch.lease, dispatch.consumer))
        self.wait(pending.ticket)
        runs: list[tuple[int, int]] = pending.result
        if not runs:
            return None
        return dispatch if runs == dispatch.runs else _without(dispatch, runs)

    def held(self, dispatch: Dispatch) -> Messages | None:
        """The messages of a delivery, if they are in memory."""
        with self.lock:
            self._holder = threading.get_ident()
            try:
                return self.engine.held(dispatch)
            finally:
                self._holder = None

    def load(self, dispatch: Dispatch) -> tuple[Dispatch, Messages]:
        """The messages of a delivery. Those that the log cannot give back any more end, and are left out."""
        messages = self.held(dispatch)
        if messages is not None:
            return dispatch, messages
        fetched = self.engine.log.fetch(dispatch.runs)
        if fetched.missing:
            _log.error("queue %s: messages at %s cannot be read from the log", dispatch.queue, fetched.missing)
            self.submit(EndUnreadable(dispatch.queue, tuple(fetched.missing)))
            dispatch = _without(dispatch, fetched.offsets)
        return dispatch, fetched.messages

    # Questions

    def info(self, name: str) -> QueueInfo:
        with self._asking() as core:
            return core.info(name)

    def queues(self) -> list[QueueInfo]:
        with self._asking() as core:
            return [core.info(name) for name in core.queues]

    def parked(self, name: str, chosen: MessageFilter, limit: int) -> list[ParkedMessage]:
        with self._asking() as core:
            return core.parked(name, chosen, limit)

    def waiting(self, name: str) -> list[tuple[int, int]]:
        with self._asking() as core:
            queue = core.registry.queue(name)
            runs = [(first, count) for _, _, level in queue.ready.levels() for first, count, _ in level.runs()]
            return runs + [(piece.first, piece.count) for piece in queue.delayed]

    def exchanges(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        with self._asking() as core:
            return {name: (one.kind, one.bindings) for name, one in core.routing.exchanges.items()}

    def document(self, message: str | int) -> Document:
        """One message's whole life, by its id or its offset."""
        self.flush()
        offset = message if isinstance(message, int) else self.engine.log.find_id(message)
        found = None if offset is None else self.engine.document(offset)
        if found is None:
            raise NotFound(f"there is no message {message!r}; it may have been collected after its retention")
        return found

    def reader(self) -> EventLog:
        """The log for spectators, up to what has happened by now."""
        from remuda.log.reader import Reader

        self.flush()
        return Reader(self.engine.log.disk)

    def on_notice(self, handler: Handler) -> None:
        self.notices.add(handler)
        with self._asking() as core:
            core.recorder.wants_notices = True

    def off_notice(self, handler: Handler) -> None:
        self.notices.remove(handler)
        with self._asking() as core:
            core.recorder.wants_notices = self.notices.wanted

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Core]:
        self._check_caller()
        with self.lock:
            if self._closed:
                raise BrokerClosed(self._closed_text)
            yield self.engine.core

    # Waiting and writing

    def wait(self, ticket: int) -> None:
        """Return when everything up to this ticket is kept."""
        if ticket:
            self._group.wait(ticket)

    def tick(self) -> int:
        """Do what time demands; gives when it next will."""
        with self.lock:
            if self._closed:
                return NEVER
            self.engine.log.reserve(_SMALL_RECORD, use_spare=True)
            self._holder = threading.get_ident()
            try:
                now = self.clock()
                self.engine.core.tick(now)
                ticket = self._record() or self._deferred
                if self._sync_at <= now:
                    self._must_sync = True
                    self._ticket += 1
                    ticket = self._ticket
            except RemudaError:
                raise
            except BaseException as error:
                self._give_up(error)
                raise
            finally:
                self._holder = None
        self.wait(ticket)
        with self.lock:
            return min(self.engine.core.next_wake(), self._sync_at)

    def sync(self) -> None:
        """Force to disk what has been written."""
        with self.lock:
            self._must_sync = True
            self._ticket += 1
            ticket = self._ticket
        self.wait(ticket)

    def flush(self) -> None:
        """Have everything that happened so far in the log, for those who read it there."""
        self._check_caller()
        with self.lock:
            if self._closed:
                raise BrokerClosed(self._closed_text)
            self._ticket += 1
            ticket = self._ticket
        self.wait(ticket)

    def close(self) -> None:
        """End everything in order and let the directory go. What was confirmed is kept, also after a failed write.

        Ctrl-C ends the wait for it, not the work: calling it again waits on.
        """
        if threading.current_thread() in (self._timer.thread, self.upkeep.thread, self.notices.thread):
            self._close()
            return
        self._closing.wait()

    def _close(self) -> None:
        with self.lock:
            if self._closed:
                return
            self._closed = True
        self._release_all(None)
        self._timer.stop()
        self.upkeep.stop()
        try:
            if self._group.failure is None:
                self._settle_down()
        finally:
            self.engine.close()
            self._claim.release()
            self.notices.close()

    def _settle_down(self) -> None:
        """Put back what consumers hold, and make the next start quick."""
        with self.lock:
            now = self.clock()
            core = self.engine.core
            core.registry.closing = True
            self._holder = threading.get_ident()
            try:
                for queue in list(core.queues.values()):
                    for consumer in list(queue.consumers):
                        core.apply(Unsubscribe(queue.name, consumer), now)
                self._record()
            except RemudaError:
                raise
            except BaseException as error:
                self._give_up(error)
                raise
            finally:
                self._holder = None
            ticket = self._ticket
        self.wait(ticket)
        with self.lock:
            self.engine.checkpoint()

    def disown(self) -> None:
        """In a fork: this copy must neither write nor keep the directory locked after its owner's end."""
        self.lock = threading.Lock()
        self._closed, self._closed_text = True, _FORKED
        self.engine.log.disk.unlock()
        self._claim.release()

    # Inside

    def _check_caller(self) -> None:
        if self._holder == threading.get_ident():
            raise RemudaError("an extension cannot call the broker that is calling it; do it from another thread")

    def _close_subscription(self, command: Unsubscribe) -> None:
        queue = self.engine.core.queues.get(command.queue)
        consumer = queue.consumers.get(command.consumer) if queue is not None else None
        inbox = self._inboxes.pop(consumer.tag, None) if consumer is not None else None
        if inbox is not None:
            inbox.close()

    def _answer_bytes(self, core: Core, command: Settle) -> int:
        """More than the events of an answer can take: two rows for each run, with the reason."""
        queue, settlement = core.queues.get(command.queue), command.settlement
        lease = queue.leases.get(command.lease) if queue is not None else None
        runs = command.runs if command.runs is not None else lease.runs if lease is not None else []
        text = len(settlement.reason or "") + len(settlement.detail or "") + len(command.queue)
        return 4096 + 2 * max(len(runs), 1) * (64 + 4 * (text + len(settlement.consumer or "")))

    def _give_up(self, error: BaseException) -> None:
        _log.error("a change of the queues was cut short by %r; open the broker again to go on from its log", error)
        self.engine.log.abandon(error)
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Nothing can be kept any more, and everyone who waits is told so."""
        self._group.fail(error)
        self._release_all(self._group.stopped())

    def _release_all(self, failure: Exception | None) -> None:
        inboxes = list(self._inboxes.values())
        self._inboxes.clear()
        for inbox in inboxes:
            inbox.close(failure)
        confirmations, self._confirmations = self._confirmations, {}
        closed = BrokerClosed("the broker was closed; the message is kept and its fate is not known yet")
        for future in confirmations.values():
            _resolve(future, failure or closed)

    def _keep(self, record: Appended | Events, durable: bool) -> int:
        """As `_record`, for one record that concerns nobody but who caused it."""
        engine = self.engine
        ticket = self._ticket = self._ticket + 1
        syncs = durable and self._syncs
        alone = not (syncs or self._must_sync or self._outbox or self.extensions.synchronizer) and self._group.idle
        try:
            size = engine.log.append_now(record) if alone else 0
            kept = size > 0
            if not size:
                size = engine.log.append(record)
                kept = alone and engine.log.write_now()
        except BaseException as error:
            self._fail(error)
            raise
        if kept:
            self._deferred = 0
            self._group.note(ticket)
            ticket = 0
        else:
            self._must_sync = self._must_sync or syncs
            if self.extensions.synchronizer is not None:
                self._unreplicated.append(record)
        if type(record) is Appended:
            engine.store(record, size)
        soonest = engine.core.registry.soonest
        if soonest < self._timer.planned:
            self._timer.nudge(engine.core.next_wake())
        return ticket

    def _keep_later(self, record: Events, durable: bool) -> None:
        """As `_keep`, with whatever is written next."""
        self._ticket += 1
        self.engine.log.append(record)
        self._must_sync = self._must_sync or (durable and self._syncs)
        if self.extensions.synchronizer is not None:
            self._unreplicated.append(record)
        self._deferred = self._ticket

    def _keep_and_serve(self, record: Appended, durable: bool, served: Sequence[tuple[Dispatch, Events]]) -> int:
        """Keep a message and its deliveries to those who waited for it."""
        engine = self.engine
        records: list[Record] = [record, *(fetched for _, fetched in served)]
        engine.store(record, engine.log.append(record))
        for _, fetched in served:
            engine.log.append(fetched)
        ticket = self._ticket = self._ticket + 1
        self._must_sync = self._must_sync or (durable and self._syncs)
        self._outbox.append(Effects([], [dispatch for dispatch, _ in served], [], [], []))
        if self.extensions.synchronizer is not None:
            self._unreplicated += records
        self._timer.nudge(engine.core.next_wake())
        return ticket

    def _record(self, *, defer: bool = False) -> int:
        """Hand on what the core decided. The ticket says how far the log must be kept for it to count; 0 if it is."""
        effects = self.engine.record()
        if not effects.records and not effects.concerns_others:
            return 0
        self._ticket += 1
        if not defer and self._write_alone(effects):
            return 0
        if effects.durable and self._syncs:
            if defer:
                # Nobody waits for it, so it need not be synced before others hear what comes of it.
                self._sync_at = min(self._sync_at, self.clock() + _DEFERMENT)
            else:
                self._must_sync = True
        self._outbox.append(effects)
        if self.extensions.synchronizer is not None:
            self._unreplicated += effects.records
        self._timer.nudge(self.engine.core.next_wake())
        return self._ticket

    def _write_alone(self, effects: Effects) -> bool:
        """Write at once, if nobody else writes, nothing is to be synced, and nobody else is to be told."""
        if (
            self._must_sync
            or (effects.durable and self._syncs)
            or effects.concerns_others
            or self._outbox
            or not self._group.idle
            or self.extensions.synchronizer is not None
        ):
            return False
        try:
            if not self.engine.log.write_now():
                return False
        except BaseException as error:
            self._fail(error)
            raise
        self._deferred = 0
        self._group.note(self._ticket)
        self._timer.nudge(self.engine.core.next_wake())
        return True

    def _write(self) -> int:
        """Keep everything recorded so far, then let its effects out, in order. One thread at a time gets here."""
        with self.lock:
            batch = self.engine.take()
            ticket = self._ticket
            outbox, self._outbox = self._outbox, []
            records, self._unreplicated = self._unreplicated, []
            must_sync, self._must_sync = self._must_sync, False
            if must_sync:
                self._sync_at = NEVER
            self._deferred = 0
        try:
            batch.write()
            if must_sync:
                batch.sync()
            if records and self.extensions.synchronizer is not None:
                self.extensions.synchronizer.replicate(records)
        except BaseException as error:
            self._fail(error)
            raise
        for effects in outbox:
            self._let_out(effects)
        return ticket

    def _let_out(self, effects: Effects) -> None:
        for dispatch in effects.dispatches:
            inbox = self._inboxes.get(dispatch.tag)
            if inbox is not None:
                inbox.put(dispatch)
        for tag in effects.closed:
            with self.lock:
                inbox = self._inboxes.pop(tag, None)
            if inbox is not None:
                inbox.close()
        for confirmation in effects.confirmations:
            self._confirm(confirmation)
        if effects.notices:
            self.notices.post(effects.notices)

    def forget_pull(self, tag: int) -> None:
        """The answer to a pull was taken."""
        self._inboxes.pop(tag, None)

    def forget_inbox(self, tag: int) -> None:
        """Its consumer left and keeps what it was handed; what still lies there goes back."""
        inbox = self._inboxes.pop(tag, None)
        if inbox is not None:
            inbox.divert(self.give_back)
            inbox.close()

    def _confirm(self, confirmation: Confirmation) -> None:
        future = self._confirmations.pop(confirmation.watch, None)
        if future is None:
            return
        if confirmation.reason is None:
            _resolve(future)
        else:
            text = (
                f"the message was taken in but ended without success: {confirmation.reason}. It is kept with its reason"
            )
            _resolve(future, DeliveryFailed(text, confirmation.reason))


def _resolve(future: Future[None], error: Exception | None = None) -> None:
    """Settle what a producer waits for, unless closing, or the producer itself, was quicker."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _without(dispatch: Dispatch, found: Sequence[tuple[int, int]]) -> Dispatch:
    """The delivery of only those runs that were found."""
    past = {
        offset: (attempt, bool(dispatch.redelivered) and dispatch.redelivered[at])
        for at, (attempt, (first, count)) in enumerate(zip(dispatch.attempts, dispatch.runs, strict=True))
        for offset in range(first, first + count)
    }
    runs = [(offset, 1) for first, count in found for offset in range(first, first + count)]
    return msgspec.structs.replace(
        dispatch,
        runs=runs,
        attempts=[past[offset][0] for offset, _ in runs],
        redelivered=tuple(past[offset][1] for offset, _ in runs),
    )
