"""A batch of messages as columns.

A column is a `list` with one value per message, or one value that all messages share. A thousand messages
under one name then cost one name, and the work per message is only the body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import astuple

from remuda.model.errors import InvalidMessage
from remuda.model.message import MAX_PRIORITY, NO_HEADERS, Message, read_priority
from remuda.model.values.texts import is_storable, shown
from remuda.native import columns

T = TypeVar("T")
Column: TypeAlias = T | list[T]

MAX_ID_BYTES: Final = 255
_PER_MESSAGE: Final = 48
_PER_TABLE: Final = 240
_PER_HEADER: Final = 150


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
    try:
        return values[0] if values and values.count(values[0]) == len(values) else values
    except Exception:  # what cannot be compared is checked, and refused, row by row
        return values


class Messages(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """A batch of messages. `ids` is a `range` of snowflakes or the callers' own ids; None until assigned."""

    bodies: list[bytes]
    name: Column[str]
    ids: range | list[str] | None = None
    topics: Column[tuple[str, ...]] = ()
    object: Column[str | None] = None
    key: Column[str | None] = None
    timestamp: Column[int | None] = None
    mime_type: Column[str] = "application/octet-stream"
    headers: Column[Mapping[str, str]] = NO_HEADERS
    priority: Column[int] = 0
    created: Column[int] = 0
    expires: Column[int | None] = None
    due: Column[int | None] = None
    wire: Column[bytes | None] = None

    def memory(self) -> int:
        """About how many bytes of memory bodies, headers and properties take. Of what all messages share there is
        one."""
        bodies = self.bodies
        size = _PER_MESSAGE * len(bodies) + (len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies)))
        if self.headers or self.wire:
            tables = self.headers if isinstance(self.headers, list) else [self.headers]
            wires = self.wire if isinstance(self.wire, list) else [self.wire]
            size += _PER_TABLE * len(tables) + _PER_HEADER * sum(map(len, tables))
            size += sum([_PER_MESSAGE + len(wire) for wire in wires if wire is not None])
        return size

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Messages:
        """Columns from message objects."""
        rows = list(messages)
        if not rows:
            return cls(bodies=[], name="")
        if len(rows) == 1:
            return cls.of_one(rows[0])
        ids = [row.id for row in rows]
        return cls(
            bodies=[row.body for row in rows],
            ids=ids if any(map(_is_given, ids)) else None,
            **{name: fold([getattr(row, name) for row in rows]) for name in _SHARED},
        )

    @classmethod
    def of_one(cls, message: Message) -> Messages:
        """Columns of one message."""
        return cls(
            bodies=[message.body],
            name=message.name,
            ids=[message.id] if _is_given(message.id) else None,
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
            wire=message.wire,
        )

    @classmethod
    def of_plain(cls, message: Message) -> Messages | None:
        """As `of_one`, for a message that needs no further checks; None if it does."""
        values = astuple(message)
        if tuple(map(type, values)) != _PLAIN:
            return None
        name, body, own, topics, object, key, timestamp, mime_type, headers, priority, created, *_ = values
        if (
            own
            or topics
            or not 0 <= priority <= MAX_PRIORITY
            or not (name.isascii() and mime_type.isascii())
            or (headers and not _plain_texts(headers))
        ):
            return None
        # By position, since this is called for every message that is published by itself. The caller may go on with its
        # own headers.
        return cls([body], name, None, topics, object, key, timestamp, mime_type, headers.copy(), priority, created)

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[Message]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, row: int) -> Message:
        if not -len(self.bodies) <= row < len(self.bodies):
            raise IndexError(f"row {row} of a batch of {len(self.bodies)} messages")
        # By position, since this is called for every message that a handler gets: after body, name and id, the fields
        # of a message and the columns of a batch are in the same order.
        bodies, name, _, *rest = astuple(self)[:_WIDTH]
        values = [column[row] if type(column) is list else column for column in rest]
        values[_HEADERS] = dict(values[_HEADERS])
        return Message(cell(name, row), bodies[row], self.id(row), *values)

    def rows(self) -> Iterator[Message]:
        """The same as iterating, but shared values are read once. Each message gets its own headers, so that changing
        them changes no other copy."""
        bodies, name, ids, *values = astuple(self)[:_WIDTH]
        lists = [(at, column) for at, column in enumerate(values) if type(column) is list]
        names = name if type(name) is list else None
        shared = None if type(values[_HEADERS]) is list else dict(values[_HEADERS]).copy
        for row, body in enumerate(bodies):
            for at, column in lists:
                values[at] = column[row]
            own = "" if ids is None else str(ids[row])
            values[_HEADERS] = dict(values[_HEADERS]) if shared is None else shared()
            yield Message(name if names is None else names[row], body, own, *values)

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
        """Adjacent messages."""
        bodies, name, ids, *rest = astuple(self)[:_WIDTH]
        if start == 0 and stop >= len(bodies):
            return self
        if ids is not None:
            ids = ids[start:stop]
        if type(name) is list:
            name = name[start:stop]
        rest = [column[start:stop] if type(column) is list else column for column in rest]
        return Messages(bodies[start:stop], name, ids, *rest)

    def checked(self) -> Messages:
        """The same messages with every value checked and converted; `InvalidMessage` names the column and row. Nothing
        that can be changed is shared with those that were given."""
        *values, wire = astuple(self)
        if (
            type(self) is Messages
            and tuple(map(type, values)) == _PLAIN_BATCH
            and (wire is None or type(wire) is bytes)
        ):
            bodies, name, _, topics, _, _, _, mime_type, headers, priority, *_ = values
            if (
                list(map(type, bodies)).count(bytes) == len(bodies) > 0
                and not topics
                and 0 <= priority <= MAX_PRIORITY
                and name.isascii()
                and mime_type.isascii()
                and (not headers or _plain_texts(headers))
            ):
                return msgspec.structs.replace(self, bodies=bodies[:], headers=headers.copy())
        return _check_columns(self)


_WIDTH: Final = len(Messages.__struct_fields__)
"""An application's own kind of batch may have more fields."""
_HEADERS: Final = Messages.__struct_fields__.index("headers") - 3
"""Where they are in a batch behind bodies, name and ids."""
_PLAIN: Final = tuple(map(type, astuple(Message("", b""))))
_PLAIN_BATCH: Final = tuple(map(type, astuple(Messages([], ""))))[:-1]
"""The field types of a message, or of a batch but for `wire`, that sets no more than name, body, headers and priority:
few checks are left for it. One with other types may be valid, too."""

of_plain: Callable[[Message], Messages | None] = Messages.of_plain


def _with_id(messages: Messages, first: int, step: int, now: int) -> Messages:
    return msgspec.structs.replace(messages, ids=range(first, first + step, step), created=now)


with_id = _with_id
"""A batch of one message with its id, as a range of one step, and the time at which it was accepted."""
if columns is not None:
    columns.set_messages(Message, Messages)
    with_id = columns.with_id
    of_plain = columns.of_plain


def _is_given(own: Any) -> bool:
    """Whether a message has an id, be it wrong: nothing is asked of it that only a text must know."""
    return bool(own) if type(own) is str else own is not None


def _plain_texts(headers: Mapping[str, str]) -> bool:
    for name, value in headers.items():
        if type(name) is not str or type(value) is not str or not name.isascii() or not value.isascii():
            return False
    return True


def _check_columns(messages: Messages) -> Messages:
    bodies = messages.bodies
    if not isinstance(bodies, list):
        raise InvalidMessage(f"bodies must be a list of bytes, not {type(bodies).__name__}; nothing was stored")
    kinds = list(map(type, bodies))
    count = len(bodies)
    if kinds.count(bytes) != count:
        row, kind = next((row, kind) for row, kind in enumerate(kinds) if kind is not bytes)
        raise InvalidMessage(
            f"row {row}: a body must be bytes, not {kind.__name__}; encode it first. Nothing of the batch was stored"
        )
    checked: dict[str, Any] = {"ids": _checked_ids(messages.ids, count)}
    for name, read in _READERS.items():
        column = getattr(messages, name)
        if isinstance(column, list):
            if len(column) != count:
                raise InvalidMessage(f"column {name!r} has {len(column)} values for {count} bodies; nothing was stored")
            checked[name] = _checked_column(name, column, read)
        else:
            checked[name] = _checked_cell(name, None, column, read)
    return Messages(bodies=bodies[:], **checked)


def _checked_column(name: str, column: list[Any], read: Callable[[Any], Any]) -> list[Any]:
    known: dict[Any, Any] = {}
    result = []
    for row, value in enumerate(column):
        # Values repeat, and equal ones of the same type read alike.
        key = (type(value), value) if isinstance(value, str | int | bytes | None) else None
        if key is None:
            result.append(_checked_cell(name, row, value, read))
        else:
            if key not in known:
                if len(known) > _MOST_KNOWN:
                    known.clear()
                known[key] = _checked_cell(name, row, value, read)
            result.append(known[key])
    return result


def _checked_cell(name: str, row: int | None, value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except (InvalidMessage, TypeError, ValueError) as error:
        where = "" if row is None else f"row {row}: "
        text = str(error).removesuffix("; nothing was stored")
        raise InvalidMessage(f"{where}{name}: {text}; nothing was stored") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidMessage(f"must be a string, not {shown(value)}")
    if not is_storable(value):
        raise InvalidMessage(f"cannot be stored as UTF-8: {shown(value)}")
    return value if type(value) is str else str.__str__(value)


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _name(value: Any) -> str:
    # A mime type, for example, may be an enum's member.
    return str(_text(value))


def _topics(value: Any) -> tuple[str, ...]:
    if not isinstance(value, tuple):
        raise InvalidMessage(f"must be a tuple of strings, not {shown(value)}")
    return tuple(_text(topic) for topic in value)


def _time(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidMessage(f"must be microseconds since 1970 as a whole number, not {shown(value)}")
    if not -(2**63) <= value < 2**63:
        raise InvalidMessage(f"{shown(value)} microseconds is out of range")
    return int(value)


def _stamp(value: Any) -> int:
    time = _time(value)
    return 0 if time is None else time


def _headers(value: Any) -> Mapping[str, str]:
    if type(value) is dict and _plain_texts(value):
        return value.copy()
    if not isinstance(value, Mapping):
        raise InvalidMessage(f"must map strings to strings, not {shown(value)}")
    return {_text(name): _header_value(name, text) for name, text in value.items()}


def _header_value(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidMessage(f"header {shown(name)} must be a string, not {shown(value)}")
    return _text(value)


def _wire(value: Any) -> bytes | None:
    if value is not None and type(value) is not bytes:
        raise InvalidMessage(f"must be bytes or None, not {shown(value)}")
    return value


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "name": _name,
    "topics": _topics,
    "object": _optional_text,
    "key": _optional_text,
    "timestamp": _time,
    "mime_type": _name,
    "headers": _headers,
    "priority": read_priority,
    "created": _stamp,
    "expires": _time,
    "due": _time,
    "wire": _wire,
}
_MOST_KNOWN: Final = 10_000


def _checked_ids(ids: Any, count: int) -> range | list[str] | None:
    if ids is None:
        return None
    if not isinstance(ids, list | range):
        raise InvalidMessage(f"ids must be a list of strings, not {shown(ids)}; nothing was stored")
    if len(ids) != count:
        raise InvalidMessage(f"column 'ids' has {len(ids)} values for {count} bodies; nothing was stored")
    if isinstance(ids, list):
        for row, own in enumerate(ids):
            _check_id(row, own)
        # Some may be NumPy's, which the log cannot write.
        return [str.__str__(own) for own in ids] if any(type(own) is not str for own in ids) else ids[:]
    if ids and not (ids.step > 0 and ids[0] >= 0 and ids[-1] < 1 << 63):
        raise InvalidMessage(f"ids {shown(ids)} are not snowflakes; nothing was stored")
    return ids


def _check_id(row: int, own: Any) -> None:
    if not isinstance(own, str):
        raise InvalidMessage(f"row {row}: an id must be a string, not {shown(own)}; nothing was stored")
    if not is_storable(own):
        raise InvalidMessage(f"row {row}: id {shown(own)} cannot be stored as UTF-8; nothing was stored")
    size = len(own.encode())
    if size > MAX_ID_BYTES:
        raise InvalidMessage(
            f"row {row}: id {own[:40]!r}… has {size} bytes, at most {MAX_ID_BYTES} are allowed; nothing was stored"
        )


_SHARED: Final = tuple(name for name in Messages.__struct_fields__ if name not in {"bodies", "ids"})
