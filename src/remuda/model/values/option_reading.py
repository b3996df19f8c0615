"""How options and settings are read, whatever they belong to and wherever they stand.

What a value must be is said by the type of its field: an enum, a flag, a whole number, `Span` for a duration, `Name`
for the name of a queue, or `Read` for anything else. Errors say what is wrong, where it stands, what is
allowed, and which name was probably meant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.values.durations import SECOND, micros
from remuda.model.values.texts import near, read_count, read_flag, read_name, shown

E = TypeVar("E", bound=Enum)


class Read(msgspec.Struct, frozen=True):
    """A field's own reader, which is called with its name and the value."""

    read: Callable[[str, Any], Any]


class _Span(msgspec.Struct, frozen=True):
    """Marks a field as a duration."""


Span = Annotated[int, _Span()]
"""A duration in microseconds."""


def _queue_or_none(name: str, value: Any) -> str | None:
    return None if value is None or (type(value) is str and not value) else read_name(name, value)


Name = Annotated[str | None, Read(_queue_or_none)]
"""The name of a queue, or none."""


# Names


def unknown(what: str, name: Any, known: Collection[str], where: str = "") -> InvalidOption:
    """The error for a name that does not exist: which was probably meant, or which there are."""
    close = near(name, known) if isinstance(name, str) else None
    hint = f"did you mean {close!r}?" if close else f"the {what.split()[-1]}s are {', '.join(known)}"
    return InvalidOption(f"{where}{': ' if where else ''}unknown {what} {shown(name)}; {hint}")


def check_keywords(where: str, given: Iterable[str], known: Collection[str], what: str = "option") -> None:
    """Refuse keywords that a function does not take: with a `TypeError`, as Python does."""
    for name in given:
        if name not in known:
            raise TypeError(str(unknown(what, name, known, where)))


# Values


def read_enum(name: str, value: Any, wanted: type[E]) -> E:
    """The member that `value` names, or an error that lists them."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return wanted(value.replace("_", "-") if type(value) is str else value)
    choices = ", ".join(member.value for member in wanted)
    raise InvalidOption(f"{name} must be one of {choices}; not {shown(value)}")


def read_duration(name: str, value: Any, unit: int = SECOND) -> int:
    """A duration (a bare number counts in `unit`), or an error that names the option."""
    try:
        return micros(value, unit)
    except InvalidOption as error:
        raise InvalidOption(f"{name}: {error}") from None


def whole(value: Any, least: int, most: int) -> int:
    """A whole number from a number or a text; the error does not name it."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or (isinstance(value, float) and value != number):
        raise InvalidOption(f"must be a whole number, not {shown(value)}")
    if number < least:
        raise InvalidOption(f"must be at least {least}, not {shown(value)}")
    if number > most:
        raise InvalidOption(f"must be at most {most}, not {shown(value)}")
    return number


# Fields


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """The types of a struct's fields, with what is said about them."""
    return get_type_hints(kind, include_extras=True)


def is_span(kind: type, name: str) -> bool:
    """Whether a field is a duration."""
    return any(isinstance(extra, _Span) for extra in get_args(hints_of(kind)[name])[1:])


def read_field(kind: type, what: str, name: Any, value: Any, unit: int = SECOND, where: str = "") -> Any:
    """One value of a struct of options, converted to the type of its field."""
    hints = hints_of(kind)
    if not isinstance(name, str) or name not in hints:
        raise unknown(what, name, sorted(hints), where)
    hint = hints[name]
    if get_origin(hint) is Annotated:
        for extra in get_args(hint)[1:]:
            if isinstance(extra, _Span):
                return read_duration(name, value, unit)
            if isinstance(extra, Read):
                return extra.read(name, value)
    if hint is bool:
        return read_flag(name, value)
    if hint is int:
        return read_count(name, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return read_enum(name, value, hint)
    raise AssertionError(f"nothing reads the option {name}")
