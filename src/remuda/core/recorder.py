"""Turns decisions into effects: numbers every record, checks every move, applies it, and keeps it for the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from remuda.core.effects import Confirmation, Dispatch, Effects
from remuda.core.queues.queue import Queue
from remuda.core.queues.ready import ReadyRun
from remuda.model.life import MOVES, PARKED, check_move, outcome
from remuda.model.messages import Column, Messages
from remuda.model.queues.notices import Notice, NoticeKind
from remuda.model.queues.options import CommitWhen
from remuda.model.records import Appended, Event, Events, ExchangeChange, QueueChange, Record, SpoolTaken
from remuda.model.state import State

BLOCK_BITS: Final = 14

_ENDS: Final = frozenset({State.COMPLETED, State.KICKED, State.SUCCESS})
_FETCHED: Final = State.FETCHED
_SUCCESS: Final = State.SUCCESS
_COMPLETED: Final = State.COMPLETED


class _Watch:
    __slots__ = ("left", "moved", "reason")

    def __init__(self, left: int) -> None:
        self.left = left
        self.reason: str | None = None
        self.moved = False


class Recorder:
    """Writes all of the core's records. `now` never goes back while the process lives, whatever the clock does."""

    def __init__(self) -> None:
        self.now = 0
        self.saved_at = 0
        """When the checkpoint was made from which this process began."""
        self.next_offset = 0
        self.next_position = 0
        self.wants_notices = False
        self.late_answers = 0
        self.last_settled: dict[int, int] = {}
        """When a message of each block of offsets last came in or came to its end, for retention."""
        self.unkept: list[Record] = []
        """Records since the last drain."""
        self._dispatches: list[Dispatch] = []
        self._confirmations: list[Confirmation] = []
        self._notices: list[Notice] = []
        self._closed: list[int] = []
        self.durable = False
        """Whether what happened since the last drain must be kept before it is confirmed."""
        self._parks = False
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
        others = bool(self._dispatches or self._confirmations or self._notices or self._closed)
        effects = Effects(
            self.unkept, self._dispatches, self._confirmations, self._notices, self._closed, self.durable, self._parks,
            others,
        )  # fmt: skip
        self.unkept = []
        # Lists of their own, since these effects may be held for a while.
        self._dispatches, self._confirmations, self._notices, self._closed = [], [], [], []
        self.durable = self._parks = False
        return effects

    def fresh(self, offset: int) -> tuple[Messages, int] | None:
        """A message that was appended since the last drain, as a row of its batch."""
        for record in reversed(self.unkept):
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
        if self.rows:
            self._close_rows()
        self.unkept.append(record)
        block, settled = first >> BLOCK_BITS, self.last_settled
        if count > 1:
            self.note_block(first, count, self.now)
        elif self.now > settled.get(block, 0):
            settled[block] = self.now
        return record

    def change(self, change: QueueChange | ExchangeChange | SpoolTaken) -> None:
        self._close_rows()
        self.unkept.append(change)
        self.durable = True

    def event(
        self,
        queue: Queue,
        source: State,
        event: Event,
        lease: int | None = None,
        lifted: Sequence[ReadyRun] | None = None,
    ) -> None:
        """A move of some messages from the state `source`."""
        state = event.state
        if (source, state) not in MOVES:
            check_move(source, state)
        position = self.next_position
        self.next_position = position + 1
        self.rows.append(event)
        if state is not _FETCHED and queue.persistent:
            self.durable = True
        queue.evolve(event, self.now, position if lease is None else lease, lifted)
        if state in PARKED:
            self._parks = True
        elif state in _ENDS:
            self.note_block(event.first, event.count, self.now)
        if queue.watched:
            self._settle_watches(queue, event)

    def completed(self, queue: Queue, first: int, count: int, consumer: str | None) -> None:
        """Messages in flight are acknowledged: two moves, SUCCESS and COMPLETED, at once."""
        name, now = queue.name, self.now
        self.next_position += 2
        self.rows.append(Event(name, _SUCCESS, first, count, consumer))
        done = Event(name, _COMPLETED, first, count)
        self.rows.append(done)
        if queue.persistent:
            self.durable = True
        queue.complete(first, count)
        self.note_block(first, count, now)
        if queue.watched:
            self._settle_watches(queue, done)

    def stay(self, queue: Queue, event: Event) -> None:
        """Record what does not change the state of messages: a further confirmation, or the end of a wait."""
        queue.evolve(event, self.now, self.next_position)
        self.next_position += 1
        self.rows.append(event)
        self.touch(queue)

    def touch(self, queue: Queue) -> None:
        """A change of a persistent queue must be stored before anyone learns of it. Not a fetch, which may repeat."""
        if queue.persistent:
            self.durable = True

    def send(self, dispatch: Dispatch) -> None:
        self._dispatches.append(dispatch)

    def claim(self, tag: int) -> Dispatch | None:
        """Take out the delivery for a pull request that was served at once."""
        dispatches = self._dispatches
        for at, dispatch in enumerate(dispatches):
            if dispatch.tag == tag:
                del dispatches[at]
                return dispatch
        return None

    def close(self, tag: int) -> None:
        """A subscription or a pull ends with its queue."""
        self._closed.append(tag)

    def notice(
        self, kind: NoticeKind, queue: Queue, *, first: int = 0, count: int = 0, consumer: str | None = None,
        detail: str | None = None,
    ) -> None:  # fmt: skip
        if self.wants_notices:
            self._notices.append(Notice(kind, queue.name, self.now, first, count, consumer, detail))

    def note_end(self, event: Event, time: int) -> None:
        if event.state in _ENDS:
            self.note_block(event.first, event.count, time)

    def note_block(self, first: int, count: int, time: int) -> None:
        settled, block = self.last_settled, first >> BLOCK_BITS
        if count == 1:
            if time > settled.get(block, 0):
                settled[block] = time
            return
        last = (first + count - 1) >> BLOCK_BITS
        while block <= last:
            if time > settled.get(block, 0):
                settled[block] = time
            block += 1

    @property
    def newest(self) -> int:
        """The newest time on record when this process began, as far as it is known."""
        return max(self.saved_at, max(self.last_settled.values(), default=0))

    def settled_since(self, time: int) -> list[tuple[int, int]]:
        """Runs of offsets in which something came in or was settled since `time`; the other blocks are forgotten."""
        self.last_settled = {block: at for block, at in self.last_settled.items() if at >= time}
        return [(block << BLOCK_BITS, 1 << BLOCK_BITS) for block in sorted(self.last_settled)]

    def go_on(self, before: Recorder) -> None:
        """Take over what is in no log. Watches are made again, under numbers that none had before."""
        self.wants_notices, self.late_answers = before.wants_notices, before.late_answers
        self._next_watch = before._next_watch

    # Producers that wait

    def watch(self, *, held: bool = False) -> int:
        """The number of a new watch, which is empty until `watch_messages` adds to it. One that is `held` is not over
        before `release_watch`, though all that was added so far may have had its outcome."""
        number = self._next_watch
        self._next_watch += 1
        self._watches[number] = _Watch(int(held))
        return number

    def release_watch(self, number: int) -> None:
        self._note_outcome(number, None)

    def watch_messages(self, number: int, queue: Queue, first: int, count: int) -> None:
        self._watches[number].left += count
        for offset in range(first, first + count):
            queue.watched[offset] = number

    def fail_watch(self, number: int, reason: str) -> None:
        """Fail a watch: one of its messages had ended without success before it was watched."""
        if self._watches.pop(number, None) is not None:
            self._confirmations.append(Confirmation(number, reason))

    def _settle_watches(self, queue: Queue, event: Event) -> None:
        match event.state:
            case State.FETCHED if queue.options.commit_when is CommitWhen.SENT:
                reason = None
            case State.COMPLETED | State.KICKED | State.SUCCESS:
                reason = None
            case state if state in PARKED:
                reason = outcome(event)
            case _:
                return
        for number in self.unwatch(queue, event.first, event.count).values():
            self._note_outcome(number, reason, moved=event.to is not None)

    def unwatch(self, queue: Queue, first: int, count: int) -> dict[int, int]:
        """Stop watching these messages. Returns the watches that they were under, by offset."""
        if not queue.watched:
            return {}
        return {
            offset: number
            for offset in range(first, first + count)
            if (number := queue.watched.pop(offset, None)) is not None
        }

    def follow(self, queue: Queue, offset: int, number: int, *, lives: bool) -> None:
        """A watched message was moved to another queue: its producer waits for what becomes of it there."""
        if lives and offset not in queue.watched:
            queue.watched[offset] = number
        else:
            self._note_outcome(number, None)

    def _note_outcome(self, number: int, reason: str | None, *, moved: bool = False) -> None:
        watch = self._watches.get(number)
        if watch is None:
            return
        watch.left -= 1
        if watch.reason is None and reason is not None:
            watch.reason, watch.moved = reason, moved
        if not watch.left:
            del self._watches[number]
            self._confirmations.append(Confirmation(number, watch.reason, watch.moved))

    def _close_rows(self, after: int = 0) -> None:
        """Make a record of the rows so far; `after` events have been numbered since."""
        if self.rows:
            first = self.next_position - after - len(self.rows)
            self.unkept.append(Events(first, self.now, self.rows))
            self.rows = []
