"""Core and log as one: commands go to the core, its records to the log, and bodies come back from either.

No threads and no clock, so that a simulation can drive it step by step on a simulated disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from remuda.broker.embedded.attempts import FILE as ATTEMPTS_FILE
from remuda.broker.embedded.attempts import AttemptMarks, Survey, first_known
from remuda.broker.embedded.extensions import Extensions, MessageStore
from remuda.broker.embedded.recent import RecentMessages
from remuda.broker.options import BrokerOptions
from remuda.collector import resting_collector
from remuda.core import snapshot
from remuda.core.compacter import Compacter
from remuda.core.core import Core
from remuda.core.effects import Dispatch, Effects
from remuda.core.extensions import MessageFacts
from remuda.core.operating import Begun
from remuda.core.snapshot import FrozenCore
from remuda.log.checkpoint import Mark
from remuda.log.disk import Disk
from remuda.log.log import Log
from remuda.log.recovery import RecoveryReport
from remuda.log.tail import Batch, LogOptions
from remuda.log.walk import Damage
from remuda.model.commands import Settle
from remuda.model.document import Document, document
from remuda.model.errors import InvalidMessage, RemudaError
from remuda.model.ids import Snowflakes
from remuda.model.messages import Messages
from remuda.model.options import Persistence
from remuda.model.records import REMOVED, Appended, Event, Events, QueueChange
from remuda.model.runs import Run, merged
from remuda.model.state import PARKED

MAX_BATCH_BYTES: Final = 1 << 30
_PER_BATCH: Final = 512
_PER_MESSAGE: Final = 192
"""Generous guesses of the bytes that a message takes in the log beside its body."""
PER_SINGLE: Final = _PER_BATCH + _PER_MESSAGE


class Engine:
    """One log, and the queues rebuilt from it."""

    def __init__(
        self,
        disk: Disk,
        options: BrokerOptions,
        extensions: Extensions,
        worker: int,
        now: int,
        survey: Survey | None = None,
    ) -> None:
        self.options = options
        self.extensions = extensions
        self.core = Core(
            Snowflakes(worker),
            auto_queue_creation=options.auto_queue_creation,
            default_queue=options.default_queue,
            default_options=options.queue_defaults,
            compacter=Compacter(options.compact, options.compact_objects),
            strategy_for=extensions.strategy_for,
            handler_for=extensions.handler_for,
            facts_of=self._facts,
        )
        self._stores: dict[str, MessageStore] = {}
        self._recent = RecentMessages()
        self.log, recovery = Log.open(disk, LogOptions(segment_bytes=options.segment_bytes), readable=snapshot.readable)
        try:
            with resting_collector():
                if recovery.snapshot is not None:
                    snapshot.load(self.core, recovery.snapshot)
                for record in recovery.records:
                    self.core.replay(record)
            self.report: RecoveryReport = recovery.report
            self.report.found = dict(self.core.found)
            self.report.damages += self._missing(self.log.uncovered())
            self.core.recorder.next_offset = self.log.next_offset
            self.core.recorder.next_position = self.log.next_position
            self.attempts = AttemptMarks(disk.path(ATTEMPTS_FILE))
            survivors = None if survey is None else survey()
            self.begun: Begun = self.attempts.runs
            if survivors is not None and survivors.marks:
                self.begun = first_known((self.attempts, *survivors.marks))
            self.survivors = frozenset() if survivors is None else survivors.alive
            self.unclaimed = bool(self.survivors)
            """Whether deliveries in flight wait for guests that survived the last host to reclaim them."""
            self.core.resume(now, self.begun, keep=self.unclaimed)
            self.record()
            self.commit(sync=True)
        except BaseException:
            self.log.close()
            raise

    def make_room(self, messages: Messages) -> int:
        """Refuse a batch that the disk has no room for, before anything changes. Returns its approximate size."""
        bodies = messages.bodies
        if len(bodies) == 1:
            size = len(bodies[0]) + _PER_BATCH + _PER_MESSAGE
        else:
            size = sum(map(len, bodies)) + _PER_BATCH + _PER_MESSAGE * len(bodies)
        if size > MAX_BATCH_BYTES:
            raise InvalidMessage(
                f"a batch of {size} bytes is over the limit of {MAX_BATCH_BYTES}; nothing was stored. "
                "Publish it in parts"
            )
        if size > self.log.room:
            self.log.reserve(size)
        return size

    def make_room_for_answer(self, command: Settle) -> None:
        """As `make_room`, for the events of an answer: two rows for each run, with the reason."""
        queue, settlement = self.core.queues.get(command.queue), command.settlement
        lease = queue.leases.get(command.lease) if queue is not None else None
        runs = command.runs if command.runs is not None else lease.runs if lease is not None else []
        text = len(settlement.reason or "") + len(settlement.detail or "") + len(command.queue)
        size = 4096 + 2 * max(len(runs), 1) * (64 + 4 * (text + len(settlement.consumer or "")))
        self.log.reserve(size, use_spare=True)

    def record(self) -> Effects:
        """Append what the core decided to the log. It does not count before the next commit."""
        effects = self.core.recorder.drain()
        for record in effects.records:
            size = self.log.append(record)
            if isinstance(record, Appended):
                self.store(record, size)
            elif isinstance(record, Events):
                for event in record.rows:
                    if event.state in PARKED:
                        self._discard(event)
            elif isinstance(record, QueueChange) and record.action == REMOVED:
                self._stores.pop(record.queue, None)
        return effects

    def take(self) -> Batch:
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

    def store(self, record: Appended, size: int) -> None:
        """Keep new messages in memory for consumers that follow close behind."""
        self._recent.put(record.first, record.messages, size)
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
            store = self._stores[name] = self.extensions.store_for(name, options)
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
            for first, count in queue.live():
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
        return MessageFacts(held.id(0), len(held.bodies[0])) if held.bodies else None

    def _discard(self, event: Event) -> None:
        store = self._stores.get(event.queue)
        if store is not None:
            store.discard(event.first, event.count)
