"""Queries as people type them: `queue:orders topic:fruit.* state:dead since:2h sour apple`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from remuda.index.query import Query
from remuda.model.errors import InvalidOption
from remuda.model.operations import filters
from remuda.model.state import State

MOVED: Final = "moved"
FIELDS: Final = ("queue", "topic", "state", "since", "until", "object", "key", "text")
STATE_NAMES: Final = (*filters.STATE_NAMES, MOVED)


def parse_query(
    parts: Iterable[str], times: Callable[[str, str], int], *, limit: int = 50, cursor: str | None = None
) -> Query:
    """The query that `field:value` terms and plain words make together. `times` parses a time, given its text and the
    name of its field."""
    fields: dict[str, str] = {}
    states: set[str] = set()
    words: list[str] = []
    for part in parts:
        name, colon, value = part.partition(":")
        if colon and name in FIELDS and name not in ("state", "text"):
            if fields.setdefault(name, value) != value:
                raise InvalidOption(f"{name} is given twice: {fields[name]!r} and {value!r}; give one of them")
        elif colon and name == "state":
            states.update(text.strip().lower() for text in value.split(","))
        elif colon and name == "text":
            words.append(value)
        elif colon and name.isidentifier():
            raise InvalidOption(
                f"there is no field {name!r}; the fields are {', '.join(FIELDS)}. "
                f"To look for these words write text:{part}"
            )
        else:
            words.append(part)
    given: dict[str, Any] = {name: fields[name] for name in ("queue", "topic", "object", "key") if name in fields}
    given |= {name: times(fields[name], name) for name in ("since", "until") if name in fields}
    chosen, moved = read_states(states)
    return Query(**given, states=chosen, moved=moved, text=" ".join(words), limit=limit, cursor=cursor)


def read_states(names: Iterable[str]) -> tuple[frozenset[State], bool]:
    """States by name or letter, and whether `moved` is among them. Letters may stand together: `EIN`."""
    asked = {name.strip().lower() for name in names} - {""}
    return frozenset(state for name in asked - {MOVED} for state in filters.read_states(name)), MOVED in asked
