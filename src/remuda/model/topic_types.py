"""What a topic says of its message: which object it is about, and that object's key (T3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from remuda.model.cap_headers import CALLBACK
from remuda.model.errors import InvalidOption
from remuda.model.messages import Column, Messages, cell, fold
from remuda.model.topics import MAX_TOPIC_BYTES, root
from remuda.model.values.texts import shown

Type = tuple[str | None, str | None]
"""An object and its key."""
_NAMES: Final = {"{object}": r"(?P<object>[^.]+)", "{key}": r"(?P<key>[^.]+)", "*": "[^.]+"}
_OWN: Final = ("remuda.", "remuda-")
_KNOWN: Final = 4096


def read_patterns(name: str, value: Any) -> tuple[str, ...]:
    """Patterns as people write them: `{object}.*.{key}`; raises `InvalidOption`."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray | memoryview):
        raise InvalidOption(f"{name} must be a list of patterns like '{{object}}.*.{{key}}', not {shown(value)}")
    patterns = tuple(given)
    for pattern in patterns:
        _expression(name, pattern)
    return patterns


def _expression(name: str, pattern: Any) -> re.Pattern[str]:
    words = pattern.split(".") if isinstance(pattern, str) and len(pattern) <= MAX_TOPIC_BYTES else []
    rest = words[-1:] == ["#"]
    named = [word for word in words if word in ("{object}", "{key}")]
    odd = any(not word or ("{" in word and word not in named) or word == "#" for word in words[: len(words) - rest])
    if not named or odd or len(set(named)) < len(named):
        raise InvalidOption(
            f"{name}: {shown(pattern)} is no pattern of topics; write words with {{object}} or {{key}} once, * for any "
            "word, and # at the end for any rest, such as '{object}.*.{key}'"
        )
    parts = [_NAMES.get(word) or re.escape(word) for word in words[: len(words) - rest]]
    return re.compile(r"\.".join(parts) + (r"(?:\..+)?" if rest else ""), re.DOTALL)


class TopicTypes:
    """Gives messages that name neither object nor key what the first pattern that fits their topic says."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._expressions = [_expression("infer_types", pattern) for pattern in patterns]
        self._known: dict[str, Type | None] = {}

    def of(self, topic: str) -> Type | None:
        """None for a topic that no pattern fits, and for those of Remuda's own."""
        if topic in self._known:
            return self._known[topic]
        found = None if topic.startswith(_OWN) else self._find(topic)
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[topic] = found
        return found

    def _find(self, topic: str) -> Type | None:
        for expression in self._expressions:
            match = expression.fullmatch(topic)
            if match is not None:
                named = match.groupdict()
                return named.get("object") or root(topic), named.get("key")
        return None

    def _found(self, messages: Messages, row: int) -> Type | None:
        # A question is no news of an object: who asks twice wants two answers.
        headers: Mapping[str, str] = cell(messages.headers, row)
        return None if CALLBACK in headers else self.of(cell(messages.name, row))

    def inferred(self, messages: Messages) -> Messages:
        """The same messages, those without object and key with what their topics say."""
        shared = not isinstance(messages.headers, list)
        if isinstance(messages.name, str) and messages.object is None and messages.key is None and shared:
            found = self._found(messages, 0)
            return messages if found is None else msgspec.structs.replace(messages, object=found[0], key=found[1])
        if isinstance(messages.object, str) or isinstance(messages.key, str):
            return messages  # all of them name theirs
        objects: Column[str | None] = messages.object
        keys: Column[str | None] = messages.key
        pairs: list[Type] = []
        for row in range(len(messages.bodies)):
            own: Type = cell(objects, row), cell(keys, row)
            found = self._found(messages, row) if own == (None, None) else None
            pairs.append(found or own)
        return msgspec.structs.replace(
            messages, object=fold([about for about, _ in pairs]), key=fold([key for _, key in pairs])
        )
