"""Checks of strings, names, counts and flags that come from outside, and how errors show such values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Any, Final

from remuda.model.errors import InvalidOption
from remuda.native import columns

MAX_NAME_BYTES: Final = 255
BROKER_CLOSED: Final = "the broker is closed; open it again to go on. Everything accepted before is kept"
_SHOWN: Final = 120
_COMPARED: Final = 1000
"""With more names than this, none is searched for that is near a wrong one: there may be a hundred thousand."""
UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Control characters, and those that change how others are shown."""


def shown(value: Any) -> str:
    """A value from outside as an error text shows it: short enough to read, whatever it is."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 4 :]} ({len(text)} characters)"


def safe(text: str, *, lines: bool = False) -> str:
    """A text that is safe to print or to show: control characters are replaced by their codes; so are newlines and
    tabs, unless the text may have several `lines`."""
    shown = UNSAFE.sub(_code, text)
    return shown if lines else shown.replace("\n", "\\n").replace("\t", "\\t")


def _code(character: re.Match[str]) -> str:
    number = ord(character[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"


def no_queue(name: str, known: Collection[str] = ()) -> str:
    """The error text for a queue that does not exist: names a similar one, or says how queues are made."""
    close = nearest(name, known) if len(known) <= _COMPARED else []
    if close:
        return f"there is no queue {name!r}; did you mean {' or '.join(map(repr, close))}?"
    return f"there is no queue {name!r}; the first publish, a subscriber or create_queue makes one"


def nearest(name: str, known: Collection[str], most: int = 3, *, least: float = 0.6) -> list[str]:
    """The names that are most like a wrong one, in upper or lower case; none that is less alike than `least`."""
    lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), lower, n=most, cutoff=least)
    return [lower[one] for one in close]


def near(name: str, known: Collection[str]) -> str | None:
    """The name that was probably meant."""
    return next(iter(nearest(name, known, 1)), None)


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


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 message, 1,000 messages."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


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
