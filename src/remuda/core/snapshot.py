"""The core's whole state as bytes, so that a restart begins where the last checkpoint was taken."""

from __future__ import annotations

from array import array
from typing import Final

import msgspec

from remuda.core.core import Core
from remuda.core.queue import Queue
from remuda.core.ranges import MessageRange
from remuda.core.ready import NEVER
from remuda.core.routing import Exchange
from remuda.core.spool import Progress
from remuda.model.options import QueueOptions, Status
from remuda.model.routing import Binding, ExchangeKind
from remuda.model.state import State

_VERSION: Final = b"remuda snapshot 2\n"


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
    arrivals: dict[int, str] = {}
    sizes: dict[int, int] = {}


class _CoreState(msgspec.Struct, array_like=True):
    next_offset: int
    next_position: int
    last_id: int
    queues: list[_QueueState]
    exchanges: dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]
    history: dict[bytes, bytes]
    last_settled: dict[int, int]
    spool: dict[str, Progress] = {}
    producers: dict[str, tuple[int, int, int]] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_CoreState)


def save(core: Core) -> bytes:
    state = _CoreState(
        core.recorder.next_offset,
        core.recorder.next_position,
        core.snowflakes.last,
        [_save_queue(queue) for queue in core.queues.values()],
        {name: (exchange.kind, exchange.bindings) for name, exchange in core.routing.exchanges.items()},
        core.compacter.history,
        core.recorder.last_settled,
        core.spool.taken,
        core.publishing.producers,
    )
    return _VERSION + _encoder.encode(state)


def readable(snapshot: bytes) -> bool:
    """Whether a core can be brought to this state."""
    try:
        _decode(snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return False
    return True


def _decode(snapshot: bytes) -> _CoreState:
    if snapshot.startswith(_VERSION):
        return _decoder.decode(memoryview(snapshot)[len(_VERSION) :])
    return _upgraded(_first_decoder.decode(snapshot))


def load(core: Core, snapshot: bytes) -> None:
    """Bring a fresh core to the saved state."""
    state = _decode(snapshot)
    core.recorder.next_offset = state.next_offset
    core.recorder.next_position = state.next_position
    core.snowflakes.resume(state.last_id)
    core.compacter.history = state.history
    core.recorder.last_settled = state.last_settled
    core.spool.taken = state.spool
    core.publishing.producers = state.producers
    for name, (kind, bindings) in state.exchanges.items():
        core.routing.exchanges[name] = Exchange(kind, bindings)
    for saved in state.queues:
        _load_queue(core.registry.open(saved.name, saved.options, saved.status), saved)


def _save_queue(queue: Queue) -> _QueueState:
    return _QueueState(
        queue.name,
        queue.options,
        queue.status,
        [(priority, front, level.columns()) for priority, front, level in queue.ready.levels() if level.size],
        list(queue.flights),
        list(queue.delayed),
        list(queue.parked),
        queue.attempts,
        queue.id_of,
        queue.topic_counts,
        queue.counts,
        (queue.had_messages, queue.had_consumers),
        sorted(queue.named),
        queue.arrivals,
        queue.sizes,
    )


def _load_queue(queue: Queue, saved: _QueueState) -> None:
    for priority, front, data in saved.ready:
        columns = array("q")
        columns.frombytes(data)
        for at in range(0, len(columns), 3):
            queue.ready.add(priority, front, columns[at], columns[at + 1], columns[at + 2])
    for piece in saved.flights:
        queue.flights.add(piece)
    for piece in saved.parked:
        queue.parked.add(piece)
    for piece in saved.delayed:
        queue.delay(piece)
    queue.attempts = saved.attempts
    for offset, identity in saved.ids.items():
        if queue.parked.holding(offset) is None:
            queue.remember_id(identity, offset)
        else:
            queue.id_of[offset] = identity
    queue.topic_counts = saved.topic_counts
    queue.counts = saved.counts
    queue.had_messages, queue.had_consumers = saved.had
    queue.named = frozenset(saved.named)
    queue.arrivals = saved.arrivals
    for offset, size in saved.sizes.items():
        queue.remember_size(offset, size)


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
