"""Filters for messages of a queue: by state, reason, time or offset."""

from __future__ import annotations

import msgspec

from remuda.model.state import PARKED, State


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects messages of one queue by state, by the reason and time of that state, or by offset."""

    states: frozenset[State] = PARKED
    reason: str | None = None
    """Part of the reason's text."""
    since: int = 0
    until: int | None = None
    offsets: tuple[tuple[int, int], ...] | None = None
    """Runs of `(first offset, count)`."""
