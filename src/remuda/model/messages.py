"""A batch of messages as columns.

A column is a `list` with one value per message, or one value that all messages share. A thousand messages
under one name then cost one name, and the work per message is the body alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from remuda.model.errors import InvalidMessage
from remuda.model.message import NO_HEADERS, Message, Priority

T = TypeVar("T")
Column: TypeAlias = T | list[T]

MAX_ID_BYTES: Final = 255
_LONG: Final = frozenset({list, range})
"""Types of a column that has a value for each message."""


def cell(column: Column[T], row: int) -> T:
    """The value of one row."""
    return column[row] if isinstance(column, list) else column


def pick(column: Column[T], rows: Sequence[int]) -> Column[T]:
    """The column of some rows only."""
    return [column[row] for row in rows] if isinstance(column, list) else column


def cut(column: Column[T], start: int, stop: int) -> Column[T]:
    return column[start:stop] if isinstance(column, list) else column


def fold(values: list[T]) -> Column[T]:
    """A column of these values, as one value where all are equal."""
    return values[0] if values and values.count(values[0]) == len(values) else values


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages side by side. `ids` is a `range` of snowflakes or the callers' own texts; None until assigned."""

    bodies: list[bytes]
    name: Column[str]
    ids: range | list[str] | None = None
    topics: Column[tuple[str, ...]] = ()
    object: Column[str | None] = None
    key: Column[str | None] = None
    timestamp: Column[int | None] = None
    mime_type: Column[str] = "application/octet-stream"
    headers: Column[Mapping[str, str]] = NO_HEADERS
    priority: Column[Priority] = Priority.NORMAL
    created: Column[int] = 0
    expires: Column[int | None] = None
    due: Column[int | None] = None

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Messages:
        """Columns from message objects."""
        rows = list(messages)
        if not rows:
            return cls(bodies=[], name="")
        if len(rows) == 1:
            return cls._of_one(rows[0])
        ids = [row.id for row in rows]
        return cls(
            bodies=[row.body for row in rows],
            ids=ids if any(ids) else None,
            **{name: fold([getattr(row, name) for row in rows]) for name in _SHARED},
        )

    @classmethod
    def _of_one(cls, message: Message) -> Messages:
        return cls(
            bodies=[message.body],
            name=message.name,
            ids=[message.id] if message.id else None,
            topics=message.topics,
            object=message.object,
            key=message.key,
            timestamp=message.timestamp,
            mime_type=message.mime_type,
            headers=message.headers,
            priority=message.priority,
            created=message.created,
            expires=message.expires,
            due=message.due,
        )

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[Message]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, row: int) -> Message:
        if not -len(self.bodies) <= row < len(self.bodies):
            raise IndexError(f"row {row} of a batch of {len(self.bodies)} messages")
        # By position, since this is called for every message that a handler gets: after body, name and id, the fields
        # of a message and the columns of a batch stand in the same order.
        bodies, name, _, *rest = msgspec.structs.astuple(self)
        values = [column[row] if type(column) is list else column for column in rest]
        return Message(cell(name, row), bodies[row], self.id(row), *values)

    def id(self, row: int) -> str:
        return "" if self.ids is None else str(self.ids[row])

    def topics_of(self, row: int) -> tuple[str, ...]:
        """The topics of one message: its name, unless it lists others."""
        return cell(self.topics, row) or (cell(self.name, row),)

    def take(self, rows: Sequence[int]) -> Messages:
        """Some of the messages, in the order given."""
        ids = None if self.ids is None else [self.id(row) for row in rows]
        columns = {name: pick(cast(Any, getattr(self, name)), rows) for name in _SHARED}
        return Messages(bodies=[self.bodies[row] for row in rows], ids=ids, **columns)

    def slice(self, start: int, stop: int) -> Messages:
        """Neighbouring messages."""
        if start == 0 and stop >= len(self):
            return self
        columns = {name: cut(cast(Any, getattr(self, name)), start, stop) for name in _SHARED}
        ids = None if self.ids is None else self.ids[start:stop]
        return Messages(bodies=self.bodies[start:stop], ids=ids, **columns)

    def check(self) -> None:
        """Raise `InvalidMessage` for columns of differing lengths and values that cannot be stored."""
        count = len(self.bodies)
        if not set(map(type, self.bodies)) <= {bytes}:
            wrong = next(body for body in self.bodies if type(body) is not bytes)
            raise InvalidMessage(
                f"a body must be bytes, not {type(wrong).__name__}; encode it first. Nothing of the batch was stored"
            )
        columns = msgspec.structs.astuple(self)[1:]
        if _LONG.isdisjoint(map(type, columns)):
            return
        for name, column in zip(self.__struct_fields__[1:], columns, strict=True):
            if type(column) in _LONG and len(column) != count:
                raise InvalidMessage(f"column {name!r} has {len(column)} values for {count} bodies; nothing was stored")
        if isinstance(self.ids, list):
            for own in self.ids:
                _check_id(own)


def _check_id(own: str) -> None:
    if not isinstance(own, str):
        raise InvalidMessage(f"an id must be a text, not {own!r}; nothing was stored")
    size = len(own.encode("utf-8", "surrogatepass"))
    if size > MAX_ID_BYTES:
        raise InvalidMessage(
            f"id {own[:40]!r}… has {size} bytes, at most {MAX_ID_BYTES} are allowed; nothing was stored"
        )


_SHARED: Final = tuple(name for name in Messages.__struct_fields__ if name not in {"bodies", "ids"})
