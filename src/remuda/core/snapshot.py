"""The core's whole state as bytes, so that a restart begins where the last checkpoint was taken."""

from __future__ import annotations

from array import array

import msgspec

from remuda.core.core import Core
from remuda.core.lane import Lane
from remuda.core.pieces import Piece, Pieces
from remuda.core.queue import Queue
from remuda.core.routers import Router
from remuda.core.spool import Progress
from remuda.model.options import QueueOptions, Status
from remuda.model.records import Binding, RouterKind
from remuda.model.state import State


class _QueueState(msgspec.Struct, array_like=True):
    name: str
    options: QueueOptions
    status: Status
    lanes: tuple[bytes, bytes, bytes]
    flights: list[Piece]
    delayed: list[Piece]
    parked: list[Piece]
    attempts: dict[int, int]
    ids: dict[int, str]
    topic_counts: dict[int, int]
    counts: dict[State, int]
    had: tuple[bool, bool]


class _CoreState(msgspec.Struct, array_like=True):
    next_offset: int
    next_position: int
    last_id: int
    queues: list[_QueueState]
    routers: dict[str, tuple[RouterKind, tuple[Binding, ...]]]
    history: dict[bytes, bytes]
    last_settled: dict[int, int]
    spool: dict[str, Progress] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_CoreState)


def save(core: Core) -> bytes:
    state = _CoreState(
        core.ledger.next_offset,
        core.ledger.next_position,
        core.snowflakes.last,
        [_save_queue(queue) for queue in core.queues.values()],
        {name: (router.kind, router.bindings) for name, router in core.routers.items()},
        core.compacter.history,
        core.ledger.last_settled,
        core.spool.taken,
    )
    return _encoder.encode(state)


def readable(snapshot: bytes) -> bool:
    """Whether a core can be brought to this state."""
    try:
        _decoder.decode(snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return False
    return True


def load(core: Core, snapshot: bytes) -> None:
    """Bring a fresh core to the saved state."""
    state = _decoder.decode(snapshot)
    core.ledger.next_offset = state.next_offset
    core.ledger.next_position = state.next_position
    core.snowflakes.resume(state.last_id)
    core.compacter.history = state.history
    core.ledger.last_settled = state.last_settled
    core.spool.taken = state.spool
    core.routers = {name: Router(kind, bindings) for name, (kind, bindings) in state.routers.items()}
    for saved in state.queues:
        _load_queue(core.open(saved.name, saved.options, saved.status), saved)


def _save_queue(queue: Queue) -> _QueueState:
    return _QueueState(
        queue.name,
        queue.options,
        queue.status,
        (_save_lane(queue.high), _save_lane(queue.returned), _save_lane(queue.normal)),
        list(queue.flights),
        list(queue.delayed),
        list(queue.parked),
        queue.attempts,
        queue.id_of,
        queue.topic_counts,
        queue.counts,
        (queue.had_messages, queue.had_consumers),
    )


def _load_queue(queue: Queue, saved: _QueueState) -> None:
    for lane, data in zip(queue.lanes(), saved.lanes, strict=True):
        _load_lane(lane, data)
    _load_pieces(queue.flights, saved.flights)
    _load_pieces(queue.parked, saved.parked)
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


def _save_lane(lane: Lane) -> bytes:
    return b"".join(lane.columns())


def _load_lane(lane: Lane, data: bytes) -> None:
    columns = array("q")
    columns.frombytes(data)
    for at in range(0, len(columns), 3):
        lane.append(columns[at], columns[at + 1], columns[at + 2])


def _load_pieces(pieces: Pieces, saved: list[Piece]) -> None:
    for piece in saved:
        pieces.add(piece)
