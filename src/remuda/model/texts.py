"""Checks of strings, names, counts and flags that come from outside, and how errors show such values."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any, Final

from remuda.model.errors import InvalidOption
from remuda.native import columns

MAX_NAME_BYTES: Final = 255
BROKER_CLOSED: Final = "the broker is closed; open it again to go on. Everything accepted before is kept"
_SHOWN: Final = 120
_COMPARED: Final = 1000
"""With more names than this, none is searched for that is near a wrong one: there may be a hundred thousand."""


def shown(value: Any) -> str:
    """A value from outside as an error text shows it: short enough to read, whatever it is."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 4 :]} ({len(text)} characters)"


def no_queue(name: str, known: Collection[str] = ()) -> str:
    """The error text for a queue that does not exist: names a similar one, or says how queues are made."""
    near = difflib.get_close_matches(name, known, n=1) if len(known) <= _COMPARED else []
    hint = f"did you mean {near[0]!r}?" if near else "the first publish, a subscriber or create_queue makes one"
    return f"there is no queue {name!r}; {hint}"


def is_storable(text: str) -> bool:
    """Whether a text can be written as UTF-8: one with a lone surrogate cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_text(name: str, value: Any) -> str:
    """A text, or an error that names the argument."""
    if not isinstance(value, str):
        raise InvalidOption(f"{name} must be a string, not {shown(value)}")
    if not is_storable(value):
        raise InvalidOption(f"{name} cannot be stored as UTF-8: {shown(value)}")
    return str.__str__(value)


def read_optional_text(name: str, value: Any) -> str | None:
    return None if value is None else read_text(name, value)


def _is_plain_name(value: Any) -> bool:
    return type(value) is str and value.isascii() and value.isprintable() and 0 < len(value) <= MAX_NAME_BYTES


is_plain_name = _is_plain_name if columns is None else columns.is_name
"""Whether a name is printable ASCII of a valid length, as most are: then it needs no other check."""


def read_name(what: str, value: Any) -> str:
    """The name of a queue, a consumer or an exchange: 1 to 255 bytes of printable text."""
    if is_plain_name(value):
        return value  # type: ignore[no-any-return]
    if not isinstance(value, str) or not value or not value.isprintable() or not is_storable(value):
        raise InvalidOption(f"{what} must be 1 to {MAX_NAME_BYTES} bytes of printable text, not {shown(value)}")
    if len(value.encode()) > MAX_NAME_BYTES:
        raise InvalidOption(f"{what} {value[:40]!r}… is longer than {MAX_NAME_BYTES} bytes")
    return str.__str__(value)


LARGEST: Final = (1 << 62) - 1


def read_count(name: str, value: Any, least: int = 0, most: int = LARGEST) -> int:
    """A whole number from `least` on, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(f"{name} must be a whole number, {least} or more, not {shown(value)}")
    if value > most:
        raise InvalidOption(f"{name} must be at most {most}, not {shown(value)}")
    return int(value)


def read_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} must be true or false, not {shown(value)}")
    return value
