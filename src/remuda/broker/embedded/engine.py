"""Core and log as one: commands go to the core, its records to the log, and bodies come back from either.

No threads and no clock, so that a simulation can drive it step by step on a simulated disk.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from remuda.broker.embedded.clock_set_back import wait_again
from remuda.broker.embedded.delivering.attempts import FILE as ATTEMPTS_FILE
from remuda.broker.embedded.delivering.attempts import AttemptMarks, FindFormerGuests, first_known
from remuda.broker.embedded.delivering.caches import TailCache
from remuda.broker.embedded.delivering.stores import store_of
from remuda.broker.embedded.extensions import Extensions, MessageStore
from remuda.broker.options import BrokerOptions
from remuda.collector import resting_collector
from remuda.core.compacter import Compacter
from remuda.core.core import Core
from remuda.core.effects import Dispatch, Effects
from remuda.core.extensions import MessageFacts
from remuda.core.operating import Begun
from remuda.core.queues.notes import runs_of
from remuda.core.recovery import snapshot
from remuda.core.recovery.reloading import Left
from remuda.core.recovery.snapshot import FrozenCore
from remuda.log.disk import Disk
from remuda.log.log import Log
from remuda.log.repair.recovery import Recovery, RecoveryReport
from remuda.log.state.checkpoint import Mark
from remuda.log.tail.record_scan import Damage
from remuda.log.tail.writer import LogOptions, WriteBatch
from remuda.model.document import Document, document
from remuda.model.errors import DiskFull, InvalidMessage, RemudaError
from remuda.model.ids import Snowflakes
from remuda.model.life import PARKED
from remuda.model.message import Message
from remuda.model.messages import Messages, cell
from remuda.model.operations.commands import Settle
from remuda.model.queues.options import Persistence
from remuda.model.records import REMOVED, Appended, Event, Events, QueueChange
from remuda.model.topic_types import TopicTypes
from remuda.model.values.number_runs import Run, merged
from remuda.native.attributes import mypyc_attr

MAX_BATCH_BYTES: Final = 1 << 30
_PER_BATCH: Final = 512
_PER_MESSAGE: Final = 192
"""Generous guesses of the bytes that a message takes in the log beside its body."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Engine:
    """One log, and the queues rebuilt from it."""

    def __init__(
        self,
        disk: Disk,
        options: BrokerOptions,
        extensions: Extensions,
        worker: int,
        now: int,
        survey: FindFormerGuests | None = None,
    ) -> None:
        self.options = options
        self.extensions = extensions
        self._snowflakes = Snowflakes(worker)
        self._stores: dict[str, MessageStore] = {}
        self._recent = TailCache()
        self.core = self._new_core()
        self.log, recovery = Log.open(disk, LogOptions(segment_bytes=options.segment_bytes), readable=snapshot.readable)
        try:
            self._replay(recovery)
            self.report: RecoveryReport = recovery.report
            self.report.found = dict(self.core.found)
            self.report.damages += self._missing(self.log.uncovered())
            self.attempts = AttemptMarks(disk.path(ATTEMPTS_FILE))
            survivors = None if survey is None else survey()
            self.begun: Begun = self.attempts.runs
            if survivors is not None and survivors.marks:
                self.begun = first_known((self.attempts, *survivors.marks))
            self.survivors = frozenset() if survivors is None else survivors.alive
            self.unclaimed = bool(self.survivors)
            """Whether deliveries in flight wait for guests that survived the last host to reclaim them."""
            waits_again = wait_again(self.core, self.log, now)
            self.core.resume(now, self.begun, keep=self.unclaimed)
            self.record()
            self.commit(sync=True)
            if waits_again:  # which is on no record, so that the next start would find another order
                with contextlib.suppress(DiskFull):
                    self.checkpoint()
        except BaseException:
            self.log.close()
            raise

    def _new_core(self) -> Core:
        options, extensions = self.options, self.extensions
        return Core(
            self._snowflakes,
            auto_queue_creation=options.auto_queue_creation,
            default_queue=options.default_queue,
            default_options=options.queue_defaults,
            compacter=Compacter(options.compact, options.compact_objects),
            types=TopicTypes(options.infer_types) if options.infer_types else None,
            strategy_for=extensions.strategy_for,
            handler_for=extensions.handler_for,
            facts_of=self._facts,
            message_of=self._message,
        )

    def _replay(self, recovery: Recovery) -> None:
        with resting_collector():
            if recovery.snapshot is not None:
                snapshot.load(self.core, recovery.snapshot)
            for record in recovery.records:
                self.core.replay(record)
        self.core.recorder.next_offset = self.log.next_offset
        self.core.recorder.next_position = self.log.next_position

    def begin_again(self, now: int, left: Left) -> RecoveryReport:
        """After an error that may have left the queues half changed: rebuild them from the log. Everything that was
        decided before must be in it. Consumers go on with what they hold, whose records follow with the next ones."""
        old = self.core
        self._recent, self._stores = TailCache(), {}
        self.log, recovery = self.log.opened_again(snapshot.readable)
        self.core = self._new_core()
        self._replay(recovery)
        left.claimed_later = self.unclaimed
        self.core.go_on(old, now, left)
        self.report.damages += recovery.report.damages
        return recovery.report

    def make_room(self, messages: Messages) -> None:
        """Refuse a batch that the disk has no room for, before anything changes."""
        bodies = messages.bodies
        size = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        size += _PER_BATCH + _PER_MESSAGE * len(bodies)
        if size > MAX_BATCH_BYTES:
            raise InvalidMessage(
                f"a batch of {size} bytes is over the limit of {MAX_BATCH_BYTES}; nothing was stored. "
                "Publish it in parts"
            )
        if size > self.log.room:
            self.log.reserve(size)

    def make_room_for_answer(self, command: Settle) -> None:
        """As `make_room`, for the events of an answer: two rows for each run, with the reason."""
        queue, settlement = self.core.queues.get(command.queue), command.settlement
        lease = queue.leases.get(command.lease) if queue is not None else None
        runs = command.runs if command.runs is not None else lease.runs if lease is not None else []
        text = len(command.queue)
        if settlement.reason is not None:
            text += len(settlement.reason)
        if settlement.detail is not None:
            text += len(settlement.detail)
        if settlement.consumer is not None:
            text += len(settlement.consumer)
        size = 4096 + 2 * (len(runs) or 1) * (64 + 4 * text)
        if size > self.log.room:
            self.log.reserve(size, use_spare=True)

    def decided(self) -> Effects:
        """Everything that followed from commands since the last time. In memory it is done; its records are yet to be
        appended to the log."""
        effects = self.core.recorder.drain()
        for record in effects.records:
            if type(record) is Appended:
                self._cache(record)
            elif type(record) is QueueChange and record.action == REMOVED:
                self._stores.pop(record.queue, None)
        if effects.parks:
            for record in effects.records:
                if type(record) is Events:
                    for event in record.rows:
                        if event.state in PARKED:
                            self._discard(event)
        return effects

    def record(self) -> Effects:
        """Append what the core decided to the log. It does not count before the next commit."""
        effects = self.decided()
        for record in effects.records:
            self.log.append(record)
        return effects

    def take(self) -> WriteBatch:
        """Take what is to be written next; one batch at a time."""
        return self.log.take()

    def commit(self, *, sync: bool) -> None:
        """Write what was recorded, in this thread."""
        batch = self.take()
        batch.write()
        if sync:
            batch.sync()

    def held(self, dispatch: Dispatch) -> Messages | None:
        """The messages of a delivery, if they are in memory."""
        store = self._stores.get(dispatch.queue)
        held = None if store is None else store.take(dispatch.runs)
        return self._recent.take(dispatch.runs) if held is None else held

    def recent(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        """These messages, if they are among the newest."""
        return self._recent.take(runs)

    def checkpoint(self) -> None:
        """Make the next start begin at this point of the log. Nothing may change meanwhile."""
        mark, frozen = self.freeze()
        try:
            self.commit(sync=True)
            self.log.write_checkpoint(mark, frozen.encode())
        finally:
            frozen.thaw()

    def freeze(self) -> tuple[Mark, FrozenCore]:
        """The state and its place in the log, for a checkpoint. Takes a moment, however much is live; the caller thaws
        the state."""
        return self.log.mark(), FrozenCore(self.core)

    def document(self, offset: int) -> Document | None:
        """A message with its life in each of its queues."""
        found = self.log.record_of(offset)
        if found is None:
            return None
        message, queues = found
        return document(offset, message, queues, self.log.events_of(offset))

    def close(self) -> None:
        self.log.close()

    def _cache(self, record: Appended) -> None:
        """Keep new messages in memory for consumers that follow close behind."""
        self._recent.put(record.first, record.messages)
        if type(record.queues) is tuple:
            for name in record.queues:
                (self._stores.get(name) or self._store_of(name)).put(record.first, record.messages)
            return
        for row, names in enumerate(record.queues):
            for name in names:
                self._store_of(name).put(record.first + row, record.messages.slice(row, row + 1))

    def _store_of(self, name: str) -> MessageStore:
        store = self._stores.get(name)
        if store is None:
            queue = self.core.queues.get(name)
            options = queue.options if queue is not None else self.core.registry.default_options
            store = self._stores[name] = store_of(self.extensions.store_for, name, options)
        return store

    def _missing(self, gaps: list[range]) -> tuple[Damage, ...]:
        """Messages that queues hold but no file has: the files were removed."""
        if not gaps:
            return ()
        known = [damage.messages for damage in self.report.damages if damage.messages]
        starts = [gap.start for gap in gaps]
        lost: set[Run] = set()
        for queue in self.core.queues.values():
            if queue.options.persistence is Persistence.MEMORY:
                continue
            for first, count in (*queue.live(), *runs_of([queue.notes.table])):
                for gap in gaps[max(bisect_right(starts, first) - 1, 0) :]:
                    if gap.start >= first + count:
                        break
                    start, stop = max(first, gap.start), min(first + count, gap.stop)
                    if start < stop and not any(one.start <= start and stop <= one.stop for one in known):
                        lost.add((start, stop - start))
        return tuple(
            Damage(f"sealed/messages-*{first:020d}*.parquet", 0, 0, messages=range(first, first + count))
            for first, count in merged(lost)
        )

    def _facts(self, offset: int) -> MessageFacts | None:
        one = [(offset, 1)]
        held = self._recent.take(one)
        if held is None:
            # A whole queue is often looked up, one after the other: the log keeps what it has read around each.
            try:
                held = self.log.fetch(one).messages
            except RemudaError:  # an unreadable message keeps its place; reading it raises
                return None
        if not held.bodies:
            return None
        return MessageFacts(held.id(0), len(held.bodies[0]), cell(held.key, 0), cell(held.headers, 0))

    def _message(self, offset: int) -> Message | None:
        held = self._recent.take([(offset, 1)])
        if held is None:
            try:
                held = self.log.fetch([(offset, 1)]).messages
            except RemudaError:
                return None
        return held[0] if held.bodies else None

    def _discard(self, event: Event) -> None:
        store = self._stores.get(event.queue)
        if store is not None:
            store.discard(event.first, event.count)
