"""Keys that stand in the bodies of messages: read once, when they are published, and kept as a header of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from remuda.model.messages import Column, Messages, cell
from remuda.model.queues.flow_info import body_header


def with_keys(messages: Messages, paths: Iterable[str]) -> Messages:
    """The same messages, with a header for each path that leads to a value in the body."""
    given: Column[Mapping[str, str]] = messages.headers
    headers: list[Mapping[str, str]] = []
    for row, body in enumerate(messages.bodies):
        found_there: Mapping[str, str] = cell(given, row)
        own = {**found_there}
        value = _decoded(body, cell(messages.mime_type, row))
        for path in paths:
            own.pop(body_header(path), None)
            found = _text(_at(value, path.split(".")))
            if found is not None:
                own[body_header(path)] = found
        headers.append(own)
    shared = len(headers) == 1 or headers.count(headers[0]) == len(headers)
    return msgspec.structs.replace(messages, headers=headers[0] if shared else headers)


def _decoded(body: bytes, mime_type: str) -> Any:
    try:
        if "json" in mime_type:
            return msgspec.json.decode(body)
        return msgspec.msgpack.decode(body) if "msgpack" in mime_type else None
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 9 and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value).encode("utf-8", "backslashreplace").decode()
    return None
