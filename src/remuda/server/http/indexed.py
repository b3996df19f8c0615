"""Search with an index, beside the directory or at a URL; messages that it does not contain yet are added."""

from __future__ import annotations

import os
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from remuda.index.opening import default_place, open_index
from remuda.index.port import SearchIndex
from remuda.index.query import MAX_LIMIT, Cursor, Hit
from remuda.index.query import Query as IndexQuery
from remuda.model.errors import Conflict, InvalidOption, RemudaError
from remuda.model.records import is_moved
from remuda.model.urls import parse_url
from remuda.server.http.recent import Recent
from remuda.server.http.search import RecentSearcher, excerpt, page_of, read_cursor
from remuda.server.http.values import MessageRow, Page, Query

_LOOK_AGAIN: Final = 2.0
_LAST_NAME: Final = "\U0010ffff"
_ROUNDS: Final = 20
"""The most pages of the index to read for one result page, where states have changed since."""


class IndexPlace:
    """The index of a bus, opened once it exists."""

    def __init__(self, url: str | os.PathLike[str], place: str | None = None) -> None:
        self._place = place
        self._folder: Path | None = None
        if place is None:
            parsed = parse_url(url)
            if parsed.is_directory:
                self._folder = Path(default_place(parsed.path))
        self._index: SearchIndex | None = None
        self._looked = 0.0
        self._lock = threading.Lock()

    def opened(self) -> SearchIndex | None:
        """The index, if there is one. A missing folder is looked for again from time to time."""
        with self._lock:
            if self._index is None and (self._place is not None or self._appeared()):
                self._index = open_index(self._place if self._place is not None else str(self._folder))
            return self._index

    def _appeared(self) -> bool:
        if self._folder is None or time.monotonic() < self._looked:
            return False
        self._looked = time.monotonic() + _LOOK_AGAIN
        return self._folder.is_dir()

    def close(self) -> None:
        with self._lock:
            if self._index is not None:
                self._index.close()
                self._index = None


def search(place: IndexPlace, recent: Recent, end: int, query: Query) -> Page:
    """Search with the index if it can be used, otherwise among recent messages; the page says which."""
    try:
        index = place.opened()
        reached = None if index is None else index.reached()
        if index is None or reached is None:
            return RecentSearcher(recent).search(query)
        if reached.offset > end:
            raise Conflict("it belongs to another log; rebuild it: remuda index build")
        return _Indexed(index, recent, reached.offset, end).search(query)
    except InvalidOption:
        raise
    except RemudaError as error:
        page = RecentSearcher(recent).search(query)
        note = f"The search index cannot be used: {error}. {page.note or 'Recent messages were searched instead.'}"
        return Page(page.messages, page.next, note)


def hits_at(place: IndexPlace, end: int, queue: str, offsets: list[int]) -> dict[int, Hit]:
    """What the index knows of these messages of a queue; nothing if it cannot be used."""
    try:
        index = place.opened()
        reached = None if index is None or not offsets else index.reached()
        if index is None or reached is None or reached.offset > end:
            return {}
        chosen = tuple(offsets[:MAX_LIMIT])
        found = index.search(IndexQuery(queue=queue, offsets=chosen, limit=len(chosen)))
        return {hit.offset: hit for hit in found.hits}
    except RemudaError:
        return {}


class _Indexed:
    def __init__(self, index: SearchIndex, recent: Recent, reached: int, end: int) -> None:
        self._index = index
        self._recent = recent
        self._reached = reached
        self._end = end

    def search(self, query: Query) -> Page:
        wanted = query.limit + 1
        floor = self._floor(query)
        rows = list(islice(RecentSearcher(self._recent).found(query, floor), wanted))
        below = None if query.cursor is None else read_cursor(query.cursor)
        cursor = None if below is None or below[0] >= floor else str(Cursor(*below))
        if cursor is None:
            cursor = str(Cursor(floor, _LAST_NAME))
        for _ in range(_ROUNDS):
            if len(rows) >= wanted or not floor:
                break
            page = self._index.search(_asked(query, cursor, wanted - len(rows)))
            rows += [row for row in map(self._row, page.hits) if _is_asked(query, row)]
            cursor = page.cursor
            if cursor is None:
                break
        return page_of(rows, query.limit, self._note(), self._end - self._reached)

    def _floor(self, query: Query) -> int:
        """The offset from which on messages in memory answer, since their states are current. A search for words leaves
        as much as possible to the index: in memory are only the beginnings of bodies."""
        if query.text or self._recent.first > self._reached:
            return self._reached
        return self._recent.first

    def _note(self) -> str | None:
        if self._recent.first <= self._reached:
            return None
        return (
            f"Messages {self._reached} to {self._recent.first - 1} are not in the search index yet and are not listed; "
            "to keep it up to date: remuda index follow"
        )

    def _row(self, hit: Hit) -> MessageRow:
        row = row_of_hit(hit)
        copy, brief = self._recent.copy(hit.queue, hit.offset), self._recent.brief(hit.offset)
        if copy is not None:
            row = msgspec.structs.replace(
                row, state=copy.state, modified=copy.modified, attempts=copy.attempts, reason=copy.reason
            )
        if brief is not None:
            row = msgspec.structs.replace(row, excerpt=excerpt(brief.excerpt, brief.size))
        return row


def row_of_hit(hit: Hit) -> MessageRow:
    return MessageRow(
        offset=hit.offset,
        id=hit.id,
        topic=hit.name,
        queue=hit.queue,
        state=hit.state,
        created=hit.created,
        modified=hit.modified,
        attempts=hit.attempts,
        reason=hit.reason,
        object=hit.object,
        key=hit.key,
        mime_type=hit.mime_type,
        size=hit.size,
    )


def _is_asked(query: Query, row: MessageRow) -> bool:
    return not query.states or (row.state in query.states and not is_moved(row.state, row.reason))


def _asked(query: Query, cursor: str | None, limit: int) -> IndexQuery:
    return IndexQuery(
        queue=query.queue,
        topic=query.topic,
        states=query.states,
        since=query.since,
        until=query.until,
        object=query.object,
        key=query.key,
        text=query.text or "",
        limit=limit,
        cursor=cursor,
    )
