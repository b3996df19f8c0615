"""The core's whole state as bytes, so that a restart begins where the last checkpoint was taken.

Freezing takes a moment, however much is live: queues keep their messages in blocks, and a frozen block is copied when
it is next changed. So the snapshot can be encoded block by block while the queues go on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from remuda.core.core import Core
from remuda.core.flow.keyed import KeyTimes
from remuda.core.flow.keys import Page
from remuda.core.queues.delayed import Columns
from remuda.core.queues.notes import runs_of
from remuda.core.queues.queue import Queue
from remuda.core.queues.ranges import Block, MessageRange
from remuda.core.queues.ready import NEVER, Chunk
from remuda.core.queues.tables import PagedTable
from remuda.core.recovery.spool import Progress
from remuda.core.routing import Exchange
from remuda.model.queues.options import QueueOptions, Status
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.state import State

_VERSION: Final = b"remuda snapshot 3\n"
_SECOND: Final = b"remuda snapshot 2\n"
_LENGTH: Final = struct.Struct("<I")


class _FlowState(msgspec.Struct, array_like=True):
    """What rates and paused keys have come to."""

    due: float
    keys: list[KeyTimes]
    mosts: list[tuple[int, int]] = []
    """Keys whose messages say how many of them may be in flight."""


class _QueueHead(msgspec.Struct, array_like=True):
    """A queue, and how many parts of each kind follow it."""

    name: str
    options: QueueOptions
    status: Status
    counts: dict[State, int]
    had: tuple[bool, bool]
    named: list[str]
    ready: list[tuple[int, bool, int]]
    """Priority, whether put back to the front, and how many chunks of runs follow."""
    flights: int
    delayed: int
    parked: int
    attempts: int
    ids: int
    topic_counts: int
    arrivals: int
    sizes: int
    last_sent: int = 0
    reports: bool = False
    notes: int = 0
    keys: int = 0
    """Parts with the keys of messages, which come before all others."""
    flow: _FlowState | None = None
    weights: int = 0


class _CoreHead(msgspec.Struct, array_like=True):
    """All that is small, and how many parts follow it."""

    next_offset: int
    next_position: int
    last_id: int
    exchanges: dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]
    last_settled: dict[int, int]
    spool: dict[str, Progress]
    producers: dict[str, dict[int, tuple[int, int]]]
    history: int
    queues: int
    turns: dict[str, int] = {}
    limits: dict[str, float] = {}
    """When the next start is due by each rate that queues share."""
    time: int = 0
    """When it was made, by the clock of then."""


class _FrozenQueue(NamedTuple):
    queue: Queue
    options: QueueOptions
    status: Status
    counts: dict[State, int]
    had: tuple[bool, bool]
    named: frozenset[str]
    ready: list[tuple[int, bool, list[Chunk]]]
    flights: Sequence[Block]
    delayed: Sequence[Block]
    parked: Sequence[Block]
    attempts: Sequence[dict[int, int]]
    ids: Sequence[dict[int, str]]
    topic_counts: Sequence[dict[int, int]]
    arrivals: Sequence[dict[int, str]]
    sizes: Sequence[dict[int, int]]
    last_sent: int
    notes: Sequence[dict[int, bytes]]
    keys: list[list[Page]]
    flow: _FlowState | None
    weights: Sequence[dict[int, int]]


_PAGES: Final = 64
"""Pages of keys in one part."""
_encode = msgspec.msgpack.Encoder().encode
_core_head = msgspec.msgpack.Decoder(_CoreHead).decode
_queue_head = msgspec.msgpack.Decoder(_QueueHead).decode
_ranges_of = msgspec.msgpack.Decoder(list[MessageRange]).decode
_numbers_of = msgspec.msgpack.Decoder(dict[int, int]).decode
_ids_of = msgspec.msgpack.Decoder(dict[int, str]).decode
_notes_of = msgspec.msgpack.Decoder(dict[int, bytes]).decode
_pages_of = msgspec.msgpack.Decoder(list[Page]).decode
_history_of = msgspec.msgpack.Decoder(dict[bytes, bytes]).decode


class FrozenCore:
    """A core's state at one moment. Its maker thaws it when it is no longer needed."""

    def __init__(self, core: Core) -> None:
        recorder = core.recorder
        self._core = core
        self._queues = [_frozen(queue) for queue in core.queues.values()]
        self._history = core.compacter.history.freeze()
        self._head = _CoreHead(
            recorder.next_offset,
            recorder.next_position,
            core.snowflakes.last,
            {name: (exchange.kind, exchange.bindings) for name, exchange in core.routing.exchanges.items()},
            recorder.last_settled.copy(),
            core.spool.taken.copy(),
            {producer: batches.copy() for producer, batches in core.publishing.producers.items()},
            len(self._history),
            len(self._queues),
            {name: exchange.turn for name, exchange in core.routing.exchanges.items() if exchange.turn},
            core.registry.limits.dues(),
            recorder.now or recorder.saved_at,
        )

    def thaw(self) -> None:
        """Let the queues change in place again."""
        self._core.compacter.history.thaw()
        for frozen in self._queues:
            queue = frozen.queue
            for kept in (queue.ready, queue.flights, queue.delayed, queue.parked):
                kept.thaw()
            for table in (queue.attempts, queue.id_of, queue.topic_counts, queue.arrivals, queue.sizes, queue.weights):
                table.thaw()
            queue.notes.table.thaw()

    def live(self) -> Iterator[tuple[int, int]]:
        """Runs of every message that a queue may still need, parked ones and notes included, in no order."""
        for frozen in self._queues:
            yield from runs_of(frozen.notes)
            for _, _, chunks in frozen.ready:
                for chunk in chunks:
                    yield from ((first, count) for first, count, _ in chunk.runs())
            for blocks in (frozen.flights, frozen.delayed, frozen.parked):
                for block in blocks:
                    yield from ((piece.first, piece.count) for piece in block)

    def encode(self) -> Iterator[bytes]:
        """The snapshot in parts, none of them large."""
        yield _VERSION
        yield from _part(_encode(self._head))
        for page in self._history:
            yield from _part(_encode(page))
        for frozen in self._queues:
            yield from _queue_parts(frozen)


def save(core: Core) -> bytes:
    """The snapshot of a core that does not change meanwhile."""
    frozen = FrozenCore(core)
    try:
        return b"".join(frozen.encode())
    finally:
        frozen.thaw()


def readable(snapshot: bytes) -> bool:
    """Whether this snapshot can be loaded."""
    try:
        if snapshot.startswith(_VERSION):
            parts = _parts(snapshot)
            head = _core_head(next(parts))
            for _ in range(head.history):
                next(parts)
            for _ in range(head.queues):
                queue = _queue_head(next(parts))
                left = sum(chunks for _, _, chunks in queue.ready) + queue.flights + queue.delayed + queue.parked
                left += queue.attempts + queue.ids + queue.topic_counts + queue.arrivals + queue.sizes + queue.keys
                left += queue.notes + queue.weights
                for _ in range(left):
                    next(parts)
            return next(parts, None) is None
        _decode_old(snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, StopIteration):
        return False
    return True


def load(core: Core, snapshot: bytes) -> None:
    """Bring a fresh core to the saved state."""
    if not snapshot.startswith(_VERSION):
        _load_old(core, _decode_old(snapshot))
        return
    parts = _parts(snapshot)
    head = _core_head(next(parts))
    _load_head(core, head)
    core.recorder.saved_at = head.time
    for name, turn in head.turns.items():
        core.routing.exchanges[name].turn = turn
    for _ in range(head.history):
        core.compacter.history.update(_history_of(next(parts)))
    for _ in range(head.queues):
        saved = _queue_head(next(parts))
        queue = core.registry.open(saved.name, saved.options, saved.status)
        for _ in range(saved.keys):
            queue.keys.load(_pages_of(next(parts)))
        for priority, front, chunks in saved.ready:
            for _ in range(chunks):
                queue.ready.load(priority, front, bytes(next(parts)))
        for ranges, blocks in ((queue.flights, saved.flights), (queue.parked, saved.parked)):
            for _ in range(blocks):
                for piece in _ranges_of(next(parts)):
                    ranges.add(piece)
        for _ in range(saved.delayed):
            for piece in Columns.decoded(next(parts)):
                queue.delayed.add(piece)
        for _ in range(saved.attempts):
            queue.attempts.update(_numbers_of(next(parts)))
        for _ in range(saved.ids):
            _load_ids(queue, _ids_of(next(parts)))
        for _ in range(saved.topic_counts):
            queue.topic_counts.update(_numbers_of(next(parts)))
        for _ in range(saved.arrivals):
            queue.arrivals.update(_ids_of(next(parts)))
        for _ in range(saved.sizes):
            for offset, size in _numbers_of(next(parts)).items():
                queue.remember_size(offset, size)
        for _ in range(saved.notes):
            queue.notes.load(_notes_of(next(parts)))
        for _ in range(saved.weights):
            queue.weights.update(_numbers_of(next(parts)))
        _load_rest(queue, saved.counts, saved.had, saved.named)
        queue.last_sent, queue.reports = saved.last_sent, saved.reports
        if saved.flow is not None and queue.flow is not None:
            queue.flow.resume(saved.flow.due, saved.flow.keys, saved.flow.mosts, head.time)
    core.registry.limits.resume(head.limits, head.time)


def _frozen(queue: Queue) -> _FrozenQueue:
    return _FrozenQueue(
        queue,
        queue.options,
        queue.status,
        queue.counts.copy(),
        (queue.had_messages, queue.had_consumers),
        queue.named,
        queue.ready.freeze() if queue.ready.size else [],
        queue.flights.freeze() if queue.flights.size else (),
        queue.delayed.freeze() if queue.delayed.size else (),
        queue.parked.freeze() if queue.parked.size else (),
        queue.attempts.freeze() if queue.attempts.size else (),
        queue.id_of.freeze() if queue.id_of.size else (),
        queue.topic_counts.freeze() if queue.topic_counts.size else (),
        queue.arrivals.freeze() if queue.arrivals.size else (),
        queue.sizes.freeze() if queue.sizes.size else (),
        queue.last_sent,
        queue.notes.table.freeze() if len(queue.notes) else (),
        _in_parts(queue.keys.freeze()) if queue.keys.size else [],
        None if queue.flow is None else _FlowState(*queue.flow.state()),
        queue.weights.freeze() if queue.weights.size else (),
    )


def _in_parts(pages: list[Page]) -> list[list[Page]]:
    return [pages[at : at + _PAGES] for at in range(0, len(pages), _PAGES)]


def _queue_parts(frozen: _FrozenQueue) -> Iterator[bytes]:
    head = _QueueHead(
        frozen.queue.name,
        frozen.options,
        frozen.status,
        frozen.counts,
        frozen.had,
        sorted(frozen.named),
        [(priority, front, len(chunks)) for priority, front, chunks in frozen.ready],
        len(frozen.flights),
        len(frozen.delayed),
        len(frozen.parked),
        len(frozen.attempts),
        len(frozen.ids),
        len(frozen.topic_counts),
        len(frozen.arrivals),
        len(frozen.sizes),
        frozen.last_sent,
        frozen.queue.reports,
        len(frozen.notes),
        len(frozen.keys),
        frozen.flow,
        len(frozen.weights),
    )
    yield from _part(_encode(head))
    for keys in frozen.keys:
        yield from _part(_encode(keys))
    for _, _, chunks in frozen.ready:
        for chunk in chunks:
            yield from _part(chunk.columns())
    for blocks in (frozen.flights, frozen.parked):
        for block in blocks:
            yield from _part(_encode(block))
    for block in frozen.delayed:
        assert isinstance(block, Columns)
        yield from _part(block.encoded())
    tables: tuple[Sequence[Any], ...] = (frozen.attempts, frozen.ids, frozen.topic_counts)
    for pages in (*tables, frozen.arrivals, frozen.sizes, frozen.notes, frozen.weights):
        for page in pages:
            yield from _part(_encode(page))


def _part(payload: bytes) -> tuple[bytes, bytes]:
    return _LENGTH.pack(len(payload)), payload


def _parts(snapshot: bytes) -> Iterator[memoryview]:
    view, at = memoryview(snapshot), len(_VERSION)
    while at < len(view):
        if at + _LENGTH.size > len(view):
            raise ValueError("the snapshot ends within a length")
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if at + length > len(view):
            raise ValueError("the snapshot ends within a part")
        yield view[at : at + length]
        at += length


def _load_head(core: Core, state: _CoreHead | _CoreState) -> None:
    core.recorder.next_offset = state.next_offset
    core.recorder.next_position = state.next_position
    core.snowflakes.resume(state.last_id)
    core.recorder.last_settled = state.last_settled
    core.spool.taken = state.spool
    core.publishing.producers = state.producers
    for name, (kind, bindings) in state.exchanges.items():
        core.routing.exchanges[name] = Exchange(kind, bindings)


def _load_ids(queue: Queue, ids: dict[int, str]) -> None:
    for offset, identity in ids.items():
        if queue.parked.holding(offset) is None:
            queue.remember_id(identity, offset)
        else:
            queue.id_of[offset] = identity


def _load_rest(queue: Queue, counts: dict[State, int], had: tuple[bool, bool], named: Iterable[str]) -> None:
    queue.counts = counts
    queue.had_messages, queue.had_consumers = had
    queue.named = frozenset(named)


# The second version: everything in one piece.


class _QueueState(msgspec.Struct, array_like=True):
    name: str
    options: QueueOptions
    status: Status
    ready: list[tuple[int, bool, bytes]]
    """Priority, whether put back to the front, and the runs."""
    flights: list[MessageRange]
    delayed: list[MessageRange]
    parked: list[MessageRange]
    attempts: dict[int, int]
    ids: dict[int, str]
    topic_counts: dict[int, int]
    counts: dict[State, int]
    had: tuple[bool, bool]
    named: list[str] = []


class _CoreState(msgspec.Struct, array_like=True):
    next_offset: int
    next_position: int
    last_id: int
    queues: list[_QueueState]
    exchanges: dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]
    history: dict[bytes, bytes]
    last_settled: dict[int, int]
    spool: dict[str, Progress] = {}
    producers: dict[str, dict[int, tuple[int, int]]] = {}


_second_decoder = msgspec.msgpack.Decoder(_CoreState)


def _decode_old(snapshot: bytes) -> _CoreState:
    if snapshot.startswith(_SECOND):
        return _second_decoder.decode(memoryview(snapshot)[len(_SECOND) :])
    return _upgraded(_first_decoder.decode(snapshot))


def _load_old(core: Core, state: _CoreState) -> None:
    _load_head(core, state)
    core.compacter.history = PagedTable(state.history)
    for saved in state.queues:
        queue = core.registry.open(saved.name, saved.options, saved.status)
        for priority, front, data in saved.ready:
            queue.ready.load(priority, front, data)
        for ranges, pieces in (
            (queue.flights, saved.flights),
            (queue.parked, saved.parked),
            (queue.delayed, saved.delayed),
        ):
            for piece in pieces:
                ranges.add(piece)
        queue.attempts.update(saved.attempts)
        _load_ids(queue, saved.ids)
        queue.topic_counts.update(saved.topic_counts)
        _load_rest(queue, saved.counts, saved.had, saved.named)


# The first version: three lines of waiting messages, and a flag for high priority.


class _FirstRange(msgspec.Struct, array_like=True):
    first: int
    count: int
    state: State
    deadline: int = NEVER
    high: bool = False
    attempt: int = 0
    lease: int = -1
    due: int = 0
    ahead: bool = False
    reason: str | None = None
    time: int = 0


class _FirstQueue(msgspec.Struct, array_like=True):
    name: str
    options: QueueOptions
    status: Status
    lanes: tuple[bytes, bytes, bytes]
    flights: list[_FirstRange]
    delayed: list[_FirstRange]
    parked: list[_FirstRange]
    attempts: dict[int, int]
    ids: dict[int, str]
    topic_counts: dict[int, int]
    counts: dict[State, int]
    had: tuple[bool, bool]


class _FirstCore(msgspec.Struct, array_like=True):
    next_offset: int
    next_position: int
    last_id: int
    queues: list[_FirstQueue]
    routers: dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]
    history: dict[bytes, bytes]
    last_settled: dict[int, int]
    spool: dict[str, Progress] = {}


_first_decoder = msgspec.msgpack.Decoder(_FirstCore)


def _upgraded(old: _FirstCore) -> _CoreState:
    queues = [
        _QueueState(
            queue.name, queue.options, queue.status,
            [(1, False, queue.lanes[0]), (0, True, queue.lanes[1]), (0, False, queue.lanes[2])],
            _ranges(queue.flights), _ranges(queue.delayed), _ranges(queue.parked),
            queue.attempts, queue.ids, queue.topic_counts, queue.counts, queue.had,
        )
        for queue in old.queues
    ]  # fmt: skip
    return _CoreState(
        old.next_offset, old.next_position, old.last_id, queues, old.routers, old.history, old.last_settled, old.spool
    )


def _ranges(old: list[_FirstRange]) -> list[MessageRange]:
    return [
        MessageRange(
            one.first, one.count, one.state, one.deadline, int(one.high), one.attempt, one.lease, one.due, one.ahead,
            one.reason, one.time, redelivered=one.state is State.RETRY or one.attempt > 0,
        )
        for one in old
    ]  # fmt: skip
