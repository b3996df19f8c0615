"""Search, the newest first: the newest messages in memory, then those of the search index or, without one, those that
the broker knows to wait."""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import msgspec

from remuda.broker.port import Broker
from remuda.bus.broker_api import EmbeddedBroker
from remuda.index.opening import default_place, open_index
from remuda.index.port import IndexUnusable, SearchIndex
from remuda.index.query import MAX_LIMIT, Cursor, Page, Query
from remuda.model.errors import Conflict, NotAllowed, NotFound, RemudaError
from remuda.model.life import WAITING
from remuda.model.message_row import MessageRow
from remuda.model.values.urls import parse_url
from remuda.server.http.search.recent_messages import RecentMessages

MAX_PAGE: Final = 500
_LOOK_AGAIN: Final = 2.0
_LAST_NAME: Final = "\U0010ffff"
_LOOKED_AT: Final = 1000
"""Waiting messages that are looked at for one page; each is read by itself."""


class Searcher(Protocol):
    """Finds messages, the newest first, by keyset: a page begins after the last row of the one before."""

    def search(self, query: Query) -> Page: ...


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

    def usable(self, end: int) -> tuple[SearchIndex, int] | None:
        """The index and the offset it has reached; None without one."""
        index = self.opened()
        reached = None if index is None else index.reached()
        if index is None or reached is None:
            return None
        if reached.offset > end:
            raise Conflict("it belongs to another log; rebuild it: remuda index build")
        return index, reached.offset

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


def search(place: IndexPlace, window: RecentMessages, broker: Broker, end: int, query: Query) -> Page:
    """A page of what is found. The last one says what was not looked at."""
    first, after = window.first, query.after
    index, trouble = _usable(place, end)
    behind = None if index is None else max(end - index[1], 0)
    rows: list[MessageRow] = []
    if after is None or after.offset >= first:
        page = window.index.search(query)
        rows, after = page.messages, Cursor(first, _LAST_NAME)
        if page.next is not None or not first:
            return msgspec.structs.replace(page, note=trouble, behind=behind)
    older = msgspec.structs.replace(query, cursor=str(after), limit=query.limit + 1 - len(rows))
    found: list[MessageRow] | None = None
    if index is not None:
        try:
            found = index[0].search(older).messages
        except IndexUnusable as error:
            trouble, behind = _trouble(error), None
    if index is not None and found is not None:
        rows, note = rows + found, _gap(index[1], first)
    else:
        waiting = _Waiting(broker, older, first)
        rows = rows + list(islice(waiting.rows(), older.limit))
        note = " ".join(filter(None, (trouble, _unseen(first, waiting.stopped))))
    page = Page.of(rows, query.limit)
    return msgspec.structs.replace(page, note=trouble if page.next is not None else note, behind=behind)


def _usable(place: IndexPlace, end: int) -> tuple[tuple[SearchIndex, int] | None, str | None]:
    """The index and the offset it has reached, or why it cannot be used."""
    try:
        return place.usable(end), None
    except RemudaError as error:
        return None, _trouble(error)


def _trouble(error: RemudaError) -> str:
    return f"The search index cannot be used: {error}."


def rows_at(place: IndexPlace, end: int, queue: str, offsets: list[int]) -> dict[int, MessageRow]:
    """What the index knows of these messages of a queue; nothing if it cannot be used."""
    try:
        found = place.usable(end) if offsets else None
        if found is None:
            return {}
        chosen = tuple(offsets[:MAX_LIMIT])
        page = found[0].search(Query(queue=queue, offsets=chosen, limit=len(chosen)))
        return {row.offset: row for row in page.messages}
    except RemudaError:
        return {}


def _gap(reached: int, first: int) -> str | None:
    if first <= reached:
        return None
    return (
        f"Messages {reached} to {first - 1} are not in the search index yet and are not listed; "
        "to keep it up to date: remuda index follow"
    )


def _unseen(first: int, stopped: bool) -> str:
    more = f", and of those the newest {_LOOKED_AT:,}" if stopped else ""
    return (
        f"Of messages before offset {first} only those that wait were looked at{more}; a search index finds the "
        "others. To build one: remuda index build"
    )


class _Waiting:
    """The messages before an offset that wait in queues. RabbitMQ shows them only by delivering them, so not there."""

    def __init__(self, broker: Broker, query: Query, before: int) -> None:
        self._broker = broker
        self._query = query
        self._before = before
        self.stopped = False
        """Whether there were more than are looked at for one page."""

    def rows(self) -> Iterator[MessageRow]:
        query, after = self._query, self._query.after
        if not self._before or ((query.states or query.moved) and not query.states & WAITING):
            return
        looked = 0
        for negative, queue in heapq.merge(*map(self._offsets, self._queues())):
            if after is not None and (negative, queue) <= (-after.offset, after.queue):
                continue
            looked += 1
            if looked > _LOOKED_AT:
                self.stopped = True
                return
            try:
                document = self._broker.message(-negative)
            except NotFound:
                continue  # it was collected or lost meanwhile
            message = document.message
            for view in document.queues:
                if view.queue == queue and view.state in WAITING:
                    row = MessageRow.of(
                        document.offset, document.created, message.id, message.name, message.topics, message.object,
                        message.key, message.timestamp, message.mime_type, len(message.body), queue, view,
                    )  # fmt: skip
                    if query.fits(row, message.body):
                        yield row

    def _queues(self) -> list[str]:
        if not isinstance(self._broker, EmbeddedBroker):
            return []
        if self._query.queue is not None:
            return [self._query.queue]
        return [info.name for info in self._broker.queues() if info.waiting or info.delayed]

    def _offsets(self, queue: str) -> Iterator[tuple[int, str]]:
        """The offsets of the waiting messages, the greatest first, as negative numbers with their queue."""
        try:
            runs = self._broker.waiting(queue)
        except (NotFound, NotAllowed):
            return
        after = self._query.after
        end = self._before if after is None else min(self._before, after.offset + 1)
        for first, count in sorted(runs, reverse=True):
            for offset in range(min(first + count, end) - 1, first - 1, -1):
                yield -offset, queue
