"""Dead letters by exception and place: a thousand failures of one kind are one line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from remuda.history.failure_kinds import Kind
from remuda.server.http.service_values import Group


class Failure(NamedTuple):
    """One dead letter, as far as grouping needs it."""

    offset: int
    reason: str
    kind: Kind
    time: int


def grouped(failures: Iterable[Failure]) -> list[Group]:
    """Groups, the largest first, then by name."""
    groups: dict[Kind, list[Failure]] = {}
    for failure in failures:
        groups.setdefault(failure.kind, []).append(failure)
    made = [
        Group(
            key=kind.key,
            exception=kind.exception,
            place=kind.place,
            sample=max(members, key=lambda member: member.time).reason,
            count=len(members),
            first=min(member.time for member in members),
            last=max(member.time for member in members),
            offsets=[member.offset for member in members],
        )
        for kind, members in groups.items()
    ]
    return sorted(made, key=lambda group: (-group.count, group.exception, group.place))
