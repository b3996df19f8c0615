"""A message as the line of a shell that publishes it again."""

from __future__ import annotations

import base64
import shlex
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from remuda.bus.publishing.publish_options import PublishOptions
from remuda.model.errors import RemudaError
from remuda.model.message import Message

_MOST: Final = 64 << 10
"""Bytes of a body for which there is a line."""
_LONGEST: Final = 128 << 10


class PublishLine(NamedTuple):
    """The line, and the names of the headers that it leaves out."""

    text: str
    without: tuple[str, ...]


def publish_line(message: Message, target: str, hidden: frozenset[str] = frozenset()) -> PublishLine | None:
    """A line that publishes the same message under a new id, now; without the `hidden` headers. None if too long.

    It is for bash, zsh and other shells that know `$'…'`: so are texts written with characters that cannot be seen.
    """
    if len(message.body) > _MOST:
        return None
    without = tuple(name for name in message.headers if name in hidden or "=" in name or not name)
    try:
        argument = _argument(message)
        implied = _implied(message, message.body) if argument is None else argument[1]
        options = _options(message, implied, without)
        words = _words(target, message.name, "-" if argument is None else argument[0])
    except (RemudaError, ValueError, OverflowError, OSError):
        return None  # it came from elsewhere, and is not such that it could be published here
    line = " ".join(["remuda", "publish", *options, *words])
    if argument is None:
        line = f"{_printed(message.body)} | {line}"
    return None if len(line) > _LONGEST else PublishLine(line, without)


def quoted(text: str) -> str:
    """A text as one word for the shell; nothing in it is seen as anything else, nor acts on the terminal."""
    if "\0" in text:
        raise ValueError("no word of a shell has the character 0")
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _words(*places: str) -> list[str]:
    """The arguments, in which a leading dash does not make an option."""
    dashes = ["--"] if any(one.startswith("-") and one != "-" for one in places) else []
    return [*dashes, *map(quoted, places)]


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    named = {"\n": "\\n", "\t": "\\t"}.get(character)
    return named or "".join(f"\\{byte:03o}" for byte in character.encode())


def _printed(body: bytes) -> str:
    """The command that writes exactly these bytes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return f"printf %s {base64.b64encode(body).decode()} | base64 -d"
    return f"printf %s {quoted(text)}"


def _implied(message: Message, value: Any) -> Message:
    """The message that a value becomes without any option."""
    (made,) = PublishOptions().message(message.name, value, {}, "json", lambda: 0)
    return made


def _argument(message: Message) -> tuple[str, Message] | None:
    """The body as JSON on the command line, if that gives the same bytes, type and headers; and what it becomes."""
    try:
        text = message.body.decode()
        made = _implied(message, msgspec.json.decode(text))
    except (ValueError, RecursionError):
        return None
    same = made.body == message.body and made.mime_type == message.mime_type
    return (text, made) if same and made.headers.keys() <= message.headers.keys() else None


def _options(message: Message, implied: Message, without: tuple[str, ...]) -> list[str]:
    if not message.mime_type:
        raise ValueError("a message that is published gets a type")
    given = [] if message.mime_type == implied.mime_type else [("mime-type", message.mime_type)]
    for name, value in message.headers.items():
        if name not in without and implied.headers.get(name) != value:
            given.append(("header", f"{name}={value}"))
    given += [(name, value) for name in ("object", "key") if (value := getattr(message, name)) is not None]
    if message.priority:
        given.append(("priority", str(int(message.priority))))
    given += [("topics", topic) for topic in message.topics]
    if message.timestamp is not None:
        given.append(("timestamp", datetime.fromtimestamp(message.timestamp / 1e6, UTC).isoformat()))
    return [f"--{name}={quoted(value)}" for name, value in given]
