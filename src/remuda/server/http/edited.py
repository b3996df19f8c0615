"""What was changed in a message that was edited and sent again, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from itertools import islice
from typing import Final, NamedTuple

from remuda.bus.publishing import headers as names
from remuda.bus.publishing.readable import readable
from remuda.model.message import CORRELATION, Message
from remuda.server.http.security.masks import masked

_MOST: Final = 2000
"""Lines of a body that are compared, and of differences that are shown."""
_OWN: Final = (CORRELATION, names.USER)


class Line(NamedTuple):
    sign: str
    """+, - or blank; @ where lines were left out."""
    text: str


def is_resent(before: Message, after: Message) -> bool:
    """Whether a message is the one that caused it once more, rather than an answer to it."""
    about = (before.object, before.key)
    return (
        after.headers.get(CORRELATION) == before.id
        and (after.object, after.key) == about
        and (after.name == before.name or after.body == before.body)
    )


def differences(before: Message, after: Message) -> list[Line]:
    """The lines that differ, with those around them; none if it was sent again as it was."""
    found = unified_diff(list(_lines(before)), list(_lines(after)), n=2, lineterm="")
    return [Line(line[0], "" if line[0] == "@" else line[1:]) for line in islice(found, 2, _MOST)]


def _lines(message: Message) -> Iterator[str]:
    yield f"topic: {message.name}"
    yield f"mime type: {message.mime_type}"
    shown = masked({name: value for name, value in message.headers.items() if name not in _OWN})
    yield from (f"{name}: {value}" for name, value in sorted(shown.items()))
    yield ""
    yield from islice(readable(message.body, message.mime_type).text.splitlines(), _MOST)
