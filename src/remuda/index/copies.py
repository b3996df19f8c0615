"""What an index keeps of a message's copy in one queue, and how changes are applied to it."""

from __future__ import annotations

from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from remuda.model.life import Consumption, Life
from remuda.model.records import Event
from remuda.model.state import State

CONSUMPTIONS: Final = 50
"""Of a message that many consumers had, an index keeps the newest ones."""
MOVED: Final = "M"
"""What an index keeps as the state of a copy that moved on to another queue, which is dead in the log."""
_STATES: Final = {state.value: state for state in State}


class Change(NamedTuple):
    """The newest of the events that concern a copy, and those before it. Neighbouring copies share it."""

    before: Change | None
    event: Event
    time: int
    position: int

    def events(self) -> list[Change]:
        """All of them, in the order of the log."""
        found: list[Change] = []
        change: Change | None = self
        while change is not None:
            found.append(change)
            change = change.before
        return found[::-1]


class Copy(msgspec.Struct):
    """A message's copy in one queue, as an index keeps it."""

    life: Life
    position: int = -1
    """Of the last event that is in it; -1 where there is none."""

    @property
    def state(self) -> str:
        """Its state, where one that moved on to another queue has a state of its own."""
        return self.life.state.value if self.life.moved_to is None else MOVED

    def after(self, change: Change | None) -> Copy:
        """The copy as it is after a change. Events that are in it already do nothing."""
        if change is None or change.position <= self.position:
            return self
        life = self.life.copy()
        for step in change.events():
            if step.position > self.position:
                life.apply(step.event, step.time)
        del life.consumed_by[:-CONSUMPTIONS]
        return Copy(life, change.position)

    @classmethod
    def begun(cls, created: int, queue: str) -> Copy:
        return cls(Life.begun(created, queue))


_NAMES: Final = tuple(name for name in Life.__struct_fields__ if name not in ("state", "detail", "consumed_by"))

_told: Final = attrgetter(*_NAMES)


def pack(copy: Copy) -> bytes:
    """A copy in few bytes."""
    life = copy.life
    consumed = [(one.consumer, one.fetched, one.confirmed) for one in life.consumed_by]
    return msgspec.msgpack.encode([life.state.value, copy.position, consumed, *_told(life)])


def unpack(data: bytes) -> Copy:
    state, position, consumed, *told = msgspec.msgpack.decode(data)
    life = Life(_STATES[state], **dict(zip(_NAMES, told, strict=True)))
    life.consumed_by = [
        Consumption(consumer, fetched, confirmed, None if confirmed is None else confirmed - fetched)
        for consumer, fetched, confirmed in consumed
    ]
    return Copy(life, position)
