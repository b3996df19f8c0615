"""Turns decisions into effects: numbers every record, checks every move, applies it, and keeps it for the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from remuda.core.effects import Confirmation, Dispatch, Effects
from remuda.core.queue import Queue
from remuda.core.ready import ReadyRun
from remuda.model.messages import Column, Messages
from remuda.model.notices import Notice, NoticeKind
from remuda.model.options import CommitWhen
from remuda.model.records import Appended, Event, Events, ExchangeChange, QueueChange, Record, SpoolTaken
from remuda.model.state import PARKED, State, check_move

BLOCK_BITS: Final = 14

_ENDS: Final = frozenset({State.COMPLETED, State.KICKED, State.SUCCESS})


class _Watch:
    __slots__ = ("left", "reason")

    def __init__(self, left: int) -> None:
        self.left = left
        self.reason: str | None = None


class Recorder:
    """Writes all of the core's records. `now` never goes back while the process lives, whatever the clock does."""

    def __init__(self) -> None:
        self.now = 0
        self.next_offset = 0
        self.next_position = 0
        self.wants_notices = False
        self.late_answers = 0
        self.last_settled: dict[int, int] = {}
        """When a message of each block of offsets last came in or came to its end, for retention."""
        self._effects = Effects([], [], [], [], [])
        self.rows: list[Event] = []
        """Events of the time `now` that are not a record yet."""
        self._watches: dict[int, _Watch] = {}
        self._next_watch = 1

    def at(self, now: int) -> None:
        if now > self.now:
            if self.rows:
                self._close_rows()
            self.now = now

    def drain(self) -> Effects:
        """The effects of all commands since the last drain."""
        if self.rows:
            self._close_rows()
        effects, self._effects = self._effects, Effects([], [], [], [], [])
        return effects

    @property
    def unkept(self) -> list[Record]:
        """Records since the last drain."""
        return self._effects.records

    def fresh(self, offset: int) -> tuple[Messages, int] | None:
        """A message that was appended since the last drain, as a row of its batch."""
        for record in reversed(self._effects.records):
            if type(record) is Appended and record.first <= offset < record.first + len(record):
                return record.messages, offset - record.first
        return None

    # Records

    def append(
        self,
        messages: Messages,
        queues: Column[tuple[str, ...]],
        digest: Column[bytes | None],
        producer: str | None = None,
        sequence: int = 0,
    ) -> Appended:
        first, count = self.next_offset, len(messages.bodies)
        record = Appended(first, self.now, messages, queues, digest, producer, sequence)
        self.next_offset = first + count
        self._close_rows()
        self._effects.records.append(record)
        self.note_block(first, count, self.now)
        return record

    def keep(self, record: Appended | Events, durable: bool) -> None:
        """Keep a record that its maker has numbered and applied."""
        if self.rows:
            self._close_rows(len(record.rows) if type(record) is Events else 0)
        self._effects.records.append(record)
        if durable:
            self._effects.durable = True

    def change(self, change: QueueChange | ExchangeChange | SpoolTaken) -> None:
        self._close_rows()
        self._effects.records.append(change)
        self._effects.durable = True

    def event(
        self,
        queue: Queue,
        source: State,
        event: Event,
        lease: int | None = None,
        lifted: Sequence[ReadyRun] | None = None,
    ) -> None:
        """A move of some messages from the state `source`."""
        check_move(source, event.state)
        position = self.next_position
        self.next_position += 1
        self.rows.append(event)
        if event.state is not State.FETCHED:
            self.touch(queue)
        queue.evolve(event, self.now, position if lease is None else lease, lifted)
        self.note_end(event, self.now)
        if queue.watched:
            self._settle_watches(queue, event)

    def confirm_again(self, queue: Queue, event: Event) -> None:
        """Record a further confirmation of messages that have one already: their state stays."""
        queue.evolve(event, self.now, self.next_position)
        self.next_position += 1
        self.rows.append(event)
        self.touch(queue)

    def touch(self, queue: Queue) -> None:
        """A change of a persistent queue must be stored before anyone learns of it. Not a fetch, which may repeat."""
        if queue.persistent:
            self._effects.durable = True

    def send(self, dispatch: Dispatch) -> None:
        self._effects.dispatches.append(dispatch)

    def claim(self, tag: int) -> Dispatch | None:
        """Take out the delivery for a pull request that was served at once."""
        dispatches = self._effects.dispatches
        for at, dispatch in enumerate(dispatches):
            if dispatch.tag == tag:
                del dispatches[at]
                return dispatch
        return None

    def close(self, tag: int) -> None:
        """A subscription or a pull ends with its queue."""
        self._effects.closed.append(tag)

    def notice(
        self, kind: NoticeKind, queue: Queue, *, first: int = 0, count: int = 0, consumer: str | None = None,
        detail: str | None = None,
    ) -> None:  # fmt: skip
        if self.wants_notices:
            self._effects.notices.append(Notice(kind, queue.name, self.now, first, count, consumer, detail))

    def note_end(self, event: Event, time: int) -> None:
        if event.state in _ENDS:
            self.note_block(event.first, event.count, time)

    def note_block(self, first: int, count: int, time: int) -> None:
        settled, block, last = self.last_settled, first >> BLOCK_BITS, (first + count - 1) >> BLOCK_BITS
        while block <= last:
            if time > settled.get(block, 0):
                settled[block] = time
            block += 1

    def settled_since(self, time: int) -> list[tuple[int, int]]:
        """Runs of offsets in which something came in or was settled since `time`; the other blocks are forgotten."""
        self.last_settled = {block: at for block, at in self.last_settled.items() if at >= time}
        return [(block << BLOCK_BITS, 1 << BLOCK_BITS) for block in sorted(self.last_settled)]

    # Producers that wait

    def watch(self) -> int:
        """The number of a new watch, which is empty until `watch_messages` adds to it."""
        number = self._next_watch
        self._next_watch += 1
        self._watches[number] = _Watch(0)
        return number

    def watch_messages(self, number: int, queue: Queue, first: int, count: int) -> None:
        self._watches[number].left += count
        for offset in range(first, first + count):
            queue.watched[offset] = number

    def fail_watch(self, number: int, reason: str) -> None:
        """Fail a watch: one of its messages had ended without success before it was watched."""
        if self._watches.pop(number, None) is not None:
            self._effects.confirmations.append(Confirmation(number, reason))

    def _settle_watches(self, queue: Queue, event: Event) -> None:
        match event.state:
            case State.FETCHED if queue.options.commit_when is CommitWhen.SENT:
                reason = None
            case State.COMPLETED | State.KICKED | State.SUCCESS:
                reason = None
            case state if state in PARKED:
                reason = event.reason or state.name.lower().replace("_", " ")
            case _:
                return
        for offset in range(event.first, event.first + event.count):
            number = queue.watched.pop(offset, None)
            watch = self._watches.get(number) if number is not None else None
            if number is None or watch is None:
                continue
            watch.left -= 1
            watch.reason = watch.reason or reason
            if not watch.left:
                del self._watches[number]
                self._effects.confirmations.append(Confirmation(number, watch.reason))

    def _close_rows(self, after: int = 0) -> None:
        """Make a record of the rows so far; `after` events have been numbered since."""
        if self.rows:
            first = self.next_position - after - len(self.rows)
            self._effects.records.append(Events(first, self.now, self.rows))
            self.rows = []
