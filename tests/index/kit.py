"""A log to be indexed, made by a real broker, and indexes to put it into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from remuda.index import Follower, LogSource, Page, Query, SearchIndex
from remuda.log.disk import DirectoryDisk
from remuda.model.message_row import MessageRow


def source(directory: Path | str) -> LogSource:
    return LogSource(DirectoryDisk(directory, create=False))


def caught_up(index: SearchIndex, directory: Path | str) -> SearchIndex:
    """The index, with all that the log holds now."""
    follower = Follower(index, source(directory))
    follower.catch_up()
    follower.forget_collected()
    index.refresh()
    return index


def every(index: SearchIndex, query: Query, limit: int = 7) -> list[MessageRow]:
    """All hits, page by page."""
    found: list[MessageRow] = []
    cursor: str | None = None
    while True:
        page: Page = index.search(_turned(query, limit, cursor))
        found += page.messages
        cursor = page.next
        if cursor is None:
            return found
        assert len(page.messages) == limit


def ids(hits: Sequence[MessageRow]) -> list[str]:
    return [hit.id for hit in hits]


def _turned(query: Query, limit: int, cursor: str | None) -> Query:
    fields = {name: getattr(query, name) for name in query.__struct_fields__}
    return Query(**{**fields, "limit": limit, "cursor": cursor})
