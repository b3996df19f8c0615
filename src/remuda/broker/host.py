"""The engine behind a lock, with the threads that time, group commit and upkeep need.

Every verb returns a `Pending`: what came of it, and what must be kept before it may be told. The faces for threads
and for coroutines differ only in how they wait.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, NamedTuple, TypeVar

from remuda.broker.clock import Clock, steady_clock
from remuda.broker.commit import GroupCommit
from remuda.broker.engine import Engine
from remuda.broker.extensions import Extensions
from remuda.broker.forks import closed_after_fork
from remuda.broker.inbox import Inbox
from remuda.broker.notices import Handler, NoticeBoard
from remuda.broker.options import BrokerOptions, Sync
from remuda.broker.pending import Pending
from remuda.broker.pulse import Pulse
from remuda.broker.turn import Turn
from remuda.broker.upkeep import Upkeep
from remuda.broker.workers import claim_worker
from remuda.core.core import Core
from remuda.core.effects import Answer, Commit, Effects, Sending
from remuda.core.info import QueueInfo
from remuda.core.lane import NEVER
from remuda.core.operators import Parked, Selection
from remuda.core.receipts import Declared, Differences, Receipt
from remuda.core.settling import Verdict
from remuda.log.codec import check as check_storable
from remuda.log.disk import Disk
from remuda.log.reader import Reader
from remuda.model.document import Document
from remuda.model.durations import MILLISECOND
from remuda.model.errors import BrokerClosed, DeliveryFailed, NotFound
from remuda.model.messages import Messages
from remuda.model.options import QueueOptions, Status
from remuda.model.records import REMOVED, Binding, QueueChange, Record, RouterKind, SpoolTaken

T = TypeVar("T")
Options = QueueOptions | Mapping[str, Any] | None

_log = logging.getLogger("remuda.broker")
_DEFERMENT = 20 * MILLISECOND
_CLOSED = "the broker is closed; open it again to go on. Everything accepted before is kept"
_FORKED = (
    "this broker belongs to the process that opened it, and a fork of that process cannot use it; nothing was changed. "
    "Open a broker in the new process, or start the process by spawning"
)


class PullRequest(NamedTuple):
    """A pull that waits: its answer will come to the inbox."""

    queue: str
    number: int
    inbox: Inbox


class Host:
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
        self._turn = Turn(self.lock, self._give_up)
        self.notices = NoticeBoard()
        self._closed = False
        self._closed_text = _CLOSED
        self._ticket = 0
        self._must_sync = False
        self._deferred = 0
        """The ticket of answers that go with whatever is written next."""
        self._outbox: list[Effects] = []
        self._unreplicated: list[Record] = []
        self._inboxes: dict[tuple[str, str], Inbox] = {}
        self._requests: dict[int, Inbox] = {}
        self._on_the_way: set[int] = set()
        """Pull requests that were served, but whose delivery waits for its commit."""
        self._next_request = 0
        self._commits: dict[int, Future[None]] = {}
        self._group = GroupCommit(self._write)
        self._pulse = Pulse(self)
        self.upkeep = Upkeep(self, volatile=volatile)
        self._pulse.start()
        self.upkeep.start()
        closed_after_fork(self)

    # Publishing

    def publish(
        self,
        messages: Messages,
        *,
        queue: str | None = None,
        unbound: str | None = None,
        router: str | None = None,
        options: Options = None,
        spooled: SpoolTaken | None = None,
    ) -> Pending[list[Receipt]]:
        messages.check()
        check_storable(messages)
        with self._turn:
            core = self._core()
            self.engine.make_room(messages)
            if router is not None:
                receipts = core.route(router, messages, self.clock())
            else:
                now = self.clock()
                receipts = [core.publish(messages, now, queue=queue, unbound=unbound, options=options, spooled=spooled)]
            commit = self._watch(receipts)
            return Pending(receipts, self._record(), commit)

    def skip_spooled(self, spooled: SpoolTaken) -> Pending[None]:
        return self._do(lambda core, now: core.skip_spooled(spooled, now))

    # Consuming

    def subscribe(self, queue: str, consumer: str, batch: int, options: Options) -> Pending[tuple[Inbox, Differences]]:
        with self._turn:
            inbox = Inbox()
            key = (queue, consumer)
            taken = self._inboxes.get(key)
            self._inboxes[key] = inbox
            try:
                differs = self._core().subscribe(queue, consumer, self.clock(), batch=batch, options=options)
            except BaseException:
                del self._inboxes[key]
                if taken is not None:
                    self._inboxes[key] = taken
                raise
            return Pending((inbox, differs), self._record())

    def unsubscribe(self, queue: str, consumer: str) -> Pending[None]:
        with self._turn:
            inbox = self._inboxes.pop((queue, consumer), None)
            if inbox is not None:
                inbox.close()
            if not self._closed:
                self.engine.core.unsubscribe(queue, consumer, self.clock())
                return Pending(None, self._record())
            return Pending(None, 0)

    def pull(
        self, queue: str, consumer: str, *, count: int, newest: bool, clear_after: str, wait: int
    ) -> Pending[Sending | PullRequest | None]:
        """What is there at once; else, if it shall wait, the request under which it will come."""
        with self._turn:
            core = self._core()
            self._next_request += 1
            request = self._next_request
            core.pull(
                queue, consumer, self.clock(), count=count, newest=newest, wait=wait,
                clear_after=clear_after, request=request,
            )  # fmt: skip
            sendings = core.ledger.claim(request)
            ticket = self._record() or self._deferred
            if sendings or not wait:
                return Pending(sendings[0] if sendings else None, ticket)
            inbox = self._requests[request] = Inbox()
            return Pending(PullRequest(queue, request, inbox), ticket)

    def end_pull(self, asked: PullRequest) -> bool:
        """Whoever asked waits no longer. False if the answer is already on its way and will be in the inbox."""
        with self.lock:
            self.engine.core.withdraw(asked.queue, asked.number)
            if asked.number in self._on_the_way:
                return False
            self._requests.pop(asked.number, None)
            return True

    def refuse_pull(self, asked: PullRequest) -> None:
        """Whoever asked is gone: what was or will be sent to it goes back to the queue."""
        self.end_pull(asked)
        asked.inbox.divert(self.give_back)

    def settle(
        self,
        queue: str,
        lease: int | None,
        verdict: Verdict,
        runs: Sequence[tuple[int, int]] | None,
        to: str | None,
        *,
        wait: bool = True,
    ) -> Pending[int]:
        """Without `wait` the answer goes with whatever is written next, unless others wait for what comes of it."""
        if lease is None:
            return Pending(0, 0)
        with self._turn:
            core = self._core()
            self.engine.log.reserve(self._answer_bytes(core, queue, lease, verdict, runs), use_spare=True)
            now = self.clock()
            settled = core.settle(queue, lease, verdict, now, runs=runs, to=to)
            ticket = self._record()
            if ticket and not wait and not self._outbox[-1].concerns_others:
                self._deferred = ticket
                self._pulse.nudge(now + _DEFERMENT)
                ticket = 0
            return Pending(settled, ticket)

    def track(self, lease: int, runs: int) -> Callable[[int], None]:
        """What is to be told of each message of a delivery that its consumer begins with."""
        return self.engine.begun.track(lease, runs).begin

    def renew(self, queue: str, lease: int | None) -> bool:
        """Give a delivery's holder the whole time once more."""
        if lease is None:
            return False
        with self.lock:
            return self._core().renew(queue, lease, self.clock())

    def give_back(self, sending: Sending) -> None:
        """Nobody is there any more to take this delivery."""
        verdict = Verdict(Answer.RELEASE, "its consumer is gone", consumer=sending.consumer)
        self.settle(sending.queue, sending.lease, verdict, None, None)
        self._pulse.nudge(0)

    def held(self, sending: Sending) -> Messages | None:
        """The messages of a delivery, if they are in memory."""
        with self.lock:
            return self.engine.held(sending)

    def load(self, sending: Sending) -> tuple[Sending, Messages]:
        """The messages of a delivery. Those that the log cannot give back any more end, and are left out."""
        messages = self.held(sending)
        if messages is not None:
            return sending, messages
        fetched = self.engine.log.fetch(sending.runs)
        if fetched.missing:
            _log.error("queue %s: messages at %s cannot be read from the log", sending.queue, fetched.missing)
            with self._turn:
                self._core().lost(sending.queue, fetched.missing, self.clock())
                self._record()
            sending = _without(sending, fetched.offsets)
        return sending, fetched.messages

    # Queues

    def declare(self, name: str, options: Options) -> Pending[Declared]:
        return self._do(lambda core, now: core.declare(name, options, now))

    def configure(self, name: str, changes: Mapping[str, Any], who: str | None) -> Pending[QueueOptions]:
        return self._do(lambda core, now: core.configure(name, changes, now, who))

    def set_status(self, name: str, status: Status, who: str | None) -> Pending[None]:
        return self._do(lambda core, now: core.set_status(name, status, now, who))

    def remove(self, name: str, who: str | None) -> Pending[None]:
        return self._do(lambda core, now: core.remove(name, now, who))

    def clear(self, name: str, lanes: str, who: str | None) -> Pending[int]:
        return self._do(lambda core, now: core.clear(name, now, lanes=lanes, who=who))

    def reprocess(self, name: str, selection: Selection, who: str | None) -> Pending[int]:
        return self._do(lambda core, now: core.reprocess(name, selection, now, who))

    def forget(self, name: str, selection: Selection, who: str | None) -> Pending[int]:
        return self._do(lambda core, now: core.forget(name, selection, now, who))

    def set_router(self, name: str, kind: RouterKind, bindings: Iterable[Binding]) -> Pending[None]:
        return self._do(lambda core, now: core.set_router(name, kind, bindings, now))

    def remove_router(self, name: str) -> Pending[None]:
        return self._do(lambda core, now: core.remove_router(name, now))

    def info(self, name: str) -> QueueInfo:
        with self.lock:
            return self._core().info(name)

    def queues(self) -> list[QueueInfo]:
        with self.lock:
            core = self._core()
            return [core.info(name) for name in core.queues]

    def parked(self, name: str, selection: Selection, limit: int) -> list[Parked]:
        with self.lock:
            return self._core().parked(name, selection, limit)

    def document(self, message: str | int) -> Document:
        """One message's whole life, by its id or its offset."""
        self.flush()
        offset = message if isinstance(message, int) else self.engine.log.find_id(message)
        found = None if offset is None else self.engine.document(offset)
        if found is None:
            raise NotFound(f"there is no message {message!r}; it may have been collected after its retention")
        return found

    def reader(self) -> Reader:
        """The log for spectators, up to what has happened by now."""
        self.flush()
        return Reader(self.engine.log.disk)

    # Notices

    def on_notice(self, handler: Handler) -> None:
        self.notices.add(handler)
        with self.lock:
            self._core().ledger.wants_notices = True

    # Waiting and writing

    def wait(self, ticket: int) -> None:
        """Return when everything up to this ticket is kept."""
        if ticket:
            self._group.wait(ticket)

    def tick(self) -> int:
        """Do what time demands; gives when it next will."""
        with self._turn:
            if self._closed:
                return NEVER
            self.engine.core.tick(self.clock())
            ticket = self._record() or self._deferred
        self.wait(ticket)
        with self.lock:
            return self.engine.core.next_wake()

    def sync(self) -> None:
        """Force to disk what has been written."""
        with self.lock:
            self._must_sync = True
            self._ticket += 1
            ticket = self._ticket
        self.wait(ticket)

    def close(self) -> None:
        """End everything in order and let the directory go. What was confirmed is kept, also after a failed write."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            for inbox in (*self._inboxes.values(), *self._requests.values()):
                inbox.close()
            commits, self._commits = self._commits, {}
        for commit in list(commits.values()):
            _resolve(commit, BrokerClosed("the broker was closed; the message is kept and its fate is not known yet"))
        self._pulse.stop()
        self.upkeep.stop()
        try:
            if not self._group.failed:
                self._settle_down()
        finally:
            self.engine.close()
            self._claim.release()
            self.notices.close()

    def _settle_down(self) -> None:
        """Put back what consumers hold, and make the next start quick."""
        with self._turn:
            now = self.clock()
            for queue in list(self.engine.core.queues.values()):
                for consumer in list(queue.consumers):
                    self.engine.core.unsubscribe(queue.name, consumer, now)
            self._record()
            ticket = self._ticket
        self.wait(ticket)
        with self.lock:
            self.engine.checkpoint()

    def disown(self) -> None:
        """In a fork: this copy must neither write nor keep the directory locked after its owner's end."""
        self.lock = threading.Lock()
        self._turn = Turn(self.lock, self._give_up)
        self._closed, self._closed_text = True, _FORKED
        self.engine.log.disk.unlock()
        self._claim.release()

    def _answer_bytes(
        self, core: Core, queue: str, lease: int, verdict: Verdict, runs: Sequence[tuple[int, int]] | None
    ) -> int:
        """More than the events of an answer can take: two rows for each run, with the reason."""
        held = core.queues[queue].leases.get(lease) if runs is None and queue in core.queues else None
        rows = len(runs) if runs is not None else len(held.runs) if held is not None else 1
        text = len(verdict.reason or "") + len(verdict.detail or "") + len(queue) + len(verdict.consumer or "")
        return 4096 + 2 * rows * (64 + 4 * text)

    def _give_up(self, error: BaseException) -> None:
        _log.error("a change of the queues was cut short by %r; open the broker again to go on from its log", error)
        self.engine.log.abandon(error)
        self._group.fail(error)

    def _core(self) -> Core:
        if self._closed:
            raise BrokerClosed(self._closed_text)
        return self.engine.core

    def _do(self, verb: Callable[[Core, int], T]) -> Pending[T]:
        with self._turn:
            core = self._core()
            self.engine.log.reserve(4096, use_spare=True)
            result = verb(core, self.clock())
            return Pending(result, self._record())

    def _record(self) -> int:
        """Hand on what the core decided. The ticket says how far the log must be kept for it to count."""
        effects = self.engine.record()
        if not effects.records and not effects.sendings and not effects.commits and not effects.notices:
            return 0
        self._ticket += 1
        self._must_sync = self._must_sync or (effects.durable and self.options.sync is Sync.ALWAYS)
        self._outbox.append(effects)
        if effects.sendings:
            self._on_the_way.update(sending.request for sending in effects.sendings if sending.request is not None)
        if self.extensions.synchronizer is not None:
            self._unreplicated += effects.records
        self._pulse.nudge(self.engine.core.next_wake())
        return self._ticket

    def _write(self) -> int:
        """Keep everything recorded so far, then let its effects out, in order. One thread at a time gets here."""
        with self.lock:
            batch = self.engine.take()
            ticket = self._ticket
            outbox, self._outbox = self._outbox, []
            records, self._unreplicated = self._unreplicated, []
            must_sync, self._must_sync = self._must_sync, False
            self._deferred = 0
        batch.write()
        if must_sync:
            batch.sync()
        if records and self.extensions.synchronizer is not None:
            self.extensions.synchronizer.replicate(records)
        for effects in outbox:
            self._let_out(effects)
        return ticket

    def _let_out(self, effects: Effects) -> None:
        for sending in effects.sendings:
            if sending.request is not None:
                with self.lock:
                    self._on_the_way.discard(sending.request)
                    inbox = self._requests.pop(sending.request, None)
            else:
                inbox = self._inboxes.get((sending.queue, sending.consumer))
            if inbox is not None:
                inbox.put(sending)
        for record in effects.records:
            if isinstance(record, QueueChange) and record.action == REMOVED:
                self._dismiss(record.queue)
        for commit in effects.commits:
            self._tell(commit)
        if effects.notices:
            self.notices.post(effects.notices)

    def _dismiss(self, queue: str) -> None:
        """The consumers of a queue that is gone get no more; those of a new one of its name stay."""
        with self.lock:
            standing = self.engine.core.queues.get(queue)
            for key in [key for key in self._inboxes if key[0] == queue]:
                if standing is None or key[1] not in standing.consumers:
                    self._inboxes.pop(key).close()

    def _watch(self, receipts: list[Receipt]) -> Future[None] | None:
        watches = [receipt.watch for receipt in receipts if receipt.watch is not None]
        if not watches:
            return None
        futures = [self._commits.setdefault(watch, Future()) for watch in watches]
        return futures[0] if len(futures) == 1 else _all_of(futures)

    def _tell(self, commit: Commit) -> None:
        future = self._commits.pop(commit.watch, None)
        if future is None:
            return
        if commit.reason is None:
            _resolve(future)
        else:
            text = f"the message was taken in but ended without success: {commit.reason}. It is kept with its reason"
            _resolve(future, DeliveryFailed(text, commit.reason))

    def flush(self) -> None:
        """Have everything that happened so far in the log, for those who read it there."""
        with self.lock:
            self._core()
            self._ticket += 1
            ticket = self._ticket
        self.wait(ticket)


def _resolve(future: Future[None], error: Exception | None = None) -> None:
    """Settle what a producer waits for, unless closing, or the producer itself, was quicker."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _without(sending: Sending, found: Sequence[tuple[int, int]]) -> Sending:
    """The delivery of only those runs that were found."""
    attempt_of = {
        offset: attempt
        for attempt, (first, count) in zip(sending.attempts, sending.runs, strict=True)
        for offset in range(first, first + count)
    }
    runs = [(offset, 1) for first, count in found for offset in range(first, first + count)]
    return Sending(
        sending.queue, sending.consumer, sending.lease, runs, [attempt_of[offset] for offset, _ in runs],
        sending.deadline, sending.remaining, sending.request,
    )  # fmt: skip


def _all_of(futures: list[Future[None]]) -> Future[None]:
    """Done when all are; failed when one is."""
    whole: Future[None] = Future()
    left = len(futures)
    guard = threading.Lock()

    def done(future: Future[None]) -> None:
        nonlocal left
        with guard:
            left -= 1
            if whole.done():
                return
            error = future.exception()
            if error is not None:
                whole.set_exception(error)
            elif not left:
                whole.set_result(None)

    for future in futures:
        future.add_done_callback(done)
    return whole
