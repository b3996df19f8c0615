"""Dead letters by exception and place: a thousand failures of one kind are one line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from remuda.server.http.values import Group

_EXCEPTION: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Timeout|[A-Z]\w+))(?:: |$)")
_VARYING: Final = re.compile(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|\d+")


class Failure(NamedTuple):
    """One dead letter, as far as grouping needs it."""

    offset: int
    reason: str
    place: str
    time: int


def exception_of(reason: str) -> str:
    """The kind of a failure: the exception's name, or the reason without its numbers and quoted words."""
    found = _EXCEPTION.match(reason)
    return found[1] if found else (_VARYING.sub("…", reason)[:80] or "no reason given")


def grouped(failures: Iterable[Failure]) -> list[Group]:
    """Groups, the largest first, then by name."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        groups.setdefault((exception_of(failure.reason), failure.place), []).append(failure)
    made = [
        Group(
            key=key_of(exception, place),
            exception=exception,
            place=place,
            sample=max(members, key=lambda member: member.time).reason,
            count=len(members),
            first=min(member.time for member in members),
            last=max(member.time for member in members),
            offsets=[member.offset for member in members],
        )
        for (exception, place), members in groups.items()
    ]
    return sorted(made, key=lambda group: (-group.count, group.exception, group.place))


def key_of(exception: str, place: str) -> str:
    """A short name for a group, the same in every process."""
    return hashlib.sha256(f"{exception}\0{place}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
