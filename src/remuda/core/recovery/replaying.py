"""Recovery: applies the records of the log, and the queues are again what they were."""

from __future__ import annotations

from typing import Final

from remuda.core import admission
from remuda.core.compacter import Compacter
from remuda.core.exchanging import Exchanging
from remuda.core.flow.keys import UNKNOWN, number_of
from remuda.core.publishing import Publishing
from remuda.core.queues.notes import notes_in
from remuda.core.queues.queue import Queue
from remuda.core.recovery.spool import Spool
from remuda.core.registry import Registry, whereabouts
from remuda.model.ids import Snowflakes, time_of
from remuda.model.queues.options import QueueOptions, Status
from remuda.model.records import (
    CONFIGURED,
    CREATED,
    FORGOTTEN,
    KEY_PAUSED,
    REMOVED,
    STATUS,
    Appended,
    Events,
    ExchangeChange,
    QueueChange,
    Record,
    SpoolTaken,
)
from remuda.model.state import State
from remuda.model.values.durations import DAY

_ID_HORIZON: Final = 366 * DAY


class Replaying:
    def __init__(
        self,
        registry: Registry,
        publishing: Publishing,
        exchanging: Exchanging,
        compacter: Compacter,
        snowflakes: Snowflakes,
        spool: Spool,
    ) -> None:
        self._registry = registry
        self._recorder = registry.recorder
        self._publishing = publishing
        self._exchanging = exchanging
        self._compacter = compacter
        self._snowflakes = snowflakes
        self._spool = spool
        self.found: dict[str, int] = {}
        self._arrived: list[tuple[str, int, int]] = []
        """Messages whose ids or sizes their queue's limits need, and whose records do not tell: they came from another
        queue or from parking, or were read without their bodies."""

    def replay(self, record: Record) -> None:
        match record:
            case Appended():
                self._replay_messages(record)
            case Events():
                self._replay_events(record)
            case QueueChange():
                self._replay_change(record)
            case SpoolTaken():
                self._spool.replay(record)
            case ExchangeChange():
                self._exchanging.play(record)

    def learn_facts(self) -> None:
        """After the last record, when messages can be looked up."""
        for name in dict.fromkeys(name for name, _, _ in self._arrived if name in self._registry.queues):
            self._registry.learn_line(self._registry.queues[name])
        for name, first, count in self._arrived:
            if name in self._registry.queues:
                self._registry.learn_facts(self._registry.queues[name], first, count)
        self._arrived.clear()
        for queue in self._registry.queues.values():
            self._registry.charge_unknown(queue)

    def _replay_messages(self, record: Appended) -> None:
        registry, recorder = self._registry, self._recorder
        stretches = admission.stretches(record)
        for start, stop, names in stretches:
            for name in names:
                self._ensure_queue(name, stop - start)
        has_bodies = any(record.messages.bodies)
        admission.enter(record, stretches, registry.queues, has_bodies=has_bodies)
        for start, stop, names in stretches:
            for name in names:
                if not has_bodies and registry.queues[name].options.byte_limit:
                    self._arrived.append((name, record.first + start, stop - start))
        self._compacter.remember(record.messages, record.digest)
        self._publishing.note_producer(record)
        for name, offset, number, at in notes_in(record):
            noted = registry.queues.get(name)
            if noted is None or noted.notes.has(offset, number):
                continue
            if whereabouts(noted, offset, 1) or noted.parked.holding(offset) is not None:
                noted.notes.add(offset, number, at)
                if noted.delayed.holding(offset) is not None:
                    noted.notes.unheard.add(offset)
        self._resume_ids(record)
        recorder.next_offset = max(recorder.next_offset, record.first + len(record))
        recorder.note_block(record.first, len(record), record.created)
        self._spool.replay_messages(record)

    def _replay_events(self, record: Events) -> None:
        recorder = self._recorder
        for position, event in enumerate(record.rows, record.first):
            if event.state is State.QUEUED:
                self._ensure_queue(event.queue, event.count)
            queue = self._registry.queues.get(event.queue)
            if queue is not None:
                queue.evolve(event, record.time, position)
                if queue.notes.unheard:
                    queue.notes.unheard.difference_update(range(event.first, event.first + event.count))
                if queue.reports and event.to in self._registry.queues:
                    self._registry.queues[event.to].reports = True
                if event.state is State.QUEUED and _has_unknown(queue, event.first):
                    self._arrived.append((event.queue, event.first, event.count))
            recorder.note_end(event, record.time)
        recorder.next_position = max(recorder.next_position, record.first + len(record))

    def _ensure_queue(self, name: str, count: int) -> None:
        """Recreate the queue that messages come to if the log has lost its creation."""
        if name not in self._registry.queues:
            self._registry.open(name, self._registry.default_options, Status.NOT_INITIALIZED)
            self.found[name] = 0
        if name in self.found:
            self.found[name] += count

    def _replay_change(self, change: QueueChange) -> None:
        self._registry.replayed_at = change.time
        self._change(change)
        self._registry.replayed_at = 0

    def _change(self, change: QueueChange) -> None:
        registry = self._registry
        queue = registry.queues.get(change.queue)
        if change.action == CREATED and change.options is not None:
            if queue is not None and change.queue in self.found:
                # An earlier start recreated the queue and recorded it then, behind the messages found in it.
                self._apply_options(queue, change.options)
                queue.status = change.status or Status.RUNNING
                registry.changed(queue)
                del self.found[change.queue]
            else:
                opened = registry.open(change.queue, change.options, change.status or Status.RUNNING)
                opened.named = frozenset(change.named)
        elif change.action == CONFIGURED and change.options is not None:
            self._ensure_queue(change.queue, 0)
            self._apply_options(registry.queues[change.queue], change.options)
            if change.queue in self.found:
                registry.queues[change.queue].status = Status.RUNNING
                registry.changed(registry.queues[change.queue])
        elif queue is None:
            return
        elif change.action == STATUS and change.status is not None:
            queue.status = change.status
            registry.changed(queue)
        elif change.action == KEY_PAUSED and queue.keyed is not None:
            queue.keyed.pause(number_of(change.named[0]), change.first)
        elif change.action == FORGOTTEN:
            queue.forget(change.first, change.count)
        elif change.action == REMOVED:
            registry.drop(change.queue)
            self.found.pop(change.queue, None)

    def _apply_options(self, queue: Queue, options: QueueOptions) -> None:
        if self._registry.asks_more(queue, options):
            self._arrived += [(queue.name, first, count) for first, count in sorted(queue.live())]
        self._registry.apply_options(queue, options)

    def _resume_ids(self, record: Appended) -> None:
        """Do not give recorded ids again, even if the clock is behind them. Callers' own ids that look like snowflakes
        are skipped too, unless they are too far in the future to be one."""
        ids = record.messages.ids
        if isinstance(ids, range):
            numbers = [ids[-1]] if ids else []
        else:
            numbers = [int(own) for own in ids or () if len(own) < 20 and own.isascii() and own.isdigit()]
        given = [number for number in numbers if time_of(number) < record.created + _ID_HORIZON]
        if given:
            self._snowflakes.resume(max(given))


def _has_unknown(queue: Queue, offset: int) -> bool:
    """Whether something counts here that is not known of a message."""
    options = queue.options
    if queue.keyed is not None and queue.keys.get(offset) == UNKNOWN:
        return True
    return (options.unique_ids and offset not in queue.id_of) or (options.byte_limit > 0 and offset not in queue.sizes)
