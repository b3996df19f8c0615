"""Search: the interface of a searcher, and the one that works without an index, on recent messages."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

from remuda.index.query import Query as IndexQuery
from remuda.index.query import Word
from remuda.index.text import words as words_of
from remuda.model.errors import InvalidOption
from remuda.model.records import is_moved
from remuda.model.state import State
from remuda.model.topics import has_prefix
from remuda.server.http.recent import EXCERPT, Brief, Copy, Recent
from remuda.server.http.values import MessageRow, Page, Query

MAX_PAGE: Final = 500


class Searcher(Protocol):
    """Finds messages, the newest first, by keyset: a page begins after the last row of the one before."""

    def search(self, query: Query) -> Page: ...


class RecentSearcher:
    """Searches the messages in memory, and says so if there are older ones."""

    def __init__(self, recent: Recent) -> None:
        self._recent = recent

    def search(self, query: Query) -> Page:
        rows = list(islice(self.found(query), query.limit + 1))
        return page_of(rows, query.limit, self._note(query))

    def found(self, query: Query, floor: int = 0) -> Iterator[MessageRow]:
        """Matching rows behind the query's cursor, the newest first, down to the offset `floor`."""
        below = None if query.cursor is None else read_cursor(query.cursor)
        words = IndexQuery(text=query.text or "").words()
        for brief, queue, copy in self._recent.newest(query.queue, None if below is None else below[0]):
            if brief.offset < floor:
                return
            if below is not None and brief.offset == below[0] and queue <= below[1]:
                continue
            if _fits(query, brief, queue, copy) and _holds(brief.excerpt, words):
                yield row_of(brief, queue, copy)

    def _note(self, query: Query) -> str | None:
        notes = []
        if not self._recent.complete:
            notes.append(f"Messages before offset {self._recent.first} are not listed; a search index finds them.")
        if query.text:
            notes.append(f"Without a search index, words are looked for in the first {EXCERPT} bytes of each body.")
        if notes:
            notes.append("To build one: remuda index build")
        return " ".join(notes) or None


def page_of(rows: list[MessageRow], limit: int, note: str | None, behind: int | None = None) -> Page:
    """A page of `limit` rows; one row more than that means that there is another page."""
    if len(rows) <= limit:
        return Page(rows, None, note, behind)
    return Page(rows[:limit], make_cursor(rows[limit - 1].offset, rows[limit - 1].queue), None, behind)


def row_of(brief: Brief, queue: str, copy: Copy | None) -> MessageRow:
    return MessageRow(
        offset=brief.offset,
        id=brief.id,
        topic=brief.topic,
        queue=queue,
        state=State.LOGGED if copy is None else copy.state,
        created=brief.created,
        modified=brief.created if copy is None else copy.modified,
        attempts=0 if copy is None else copy.attempts,
        reason=None if copy is None else copy.reason,
        object=brief.object,
        key=brief.key,
        mime_type=brief.mime_type,
        size=brief.size,
        excerpt=excerpt(brief.excerpt, brief.size),
    )


def excerpt(body: bytes, size: int, limit: int = 120) -> str:
    """The beginning of a body on one line or, if it is not text, its size."""
    try:
        text = " ".join(body[: limit * 4].decode().split())
    except UnicodeDecodeError as error:
        if error.start < len(body[: limit * 4]) - 4:
            return f"{size} bytes"
        text = " ".join(body[: error.start].decode().split())
    return text if len(text) <= limit and size <= len(body) else text[: limit - 1] + "…"


def make_cursor(offset: int, queue: str) -> str:
    return base64.urlsafe_b64encode(f"{offset}:{queue}".encode()).decode().rstrip("=")


def read_cursor(text: str) -> tuple[int, str]:
    try:
        offset, separator, queue = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition(":")
        if not separator or not offset.isascii() or not offset.isdigit() or len(offset) > 18:
            raise ValueError(text)
        return int(offset), queue
    except ValueError:
        raise InvalidOption(
            f"cursor {text[:60]!r} is not one of this API; leave it out to start from the beginning"
        ) from None


def _fits(query: Query, brief: Brief, queue: str, copy: Copy) -> bool:
    return (
        (query.queue is None or queue == query.queue)
        and (not query.states or (copy.state in query.states and not is_moved(copy.state, copy.reason)))
        and (query.topic is None or has_prefix(brief.topic.casefold(), query.topic.casefold()))
        and (query.since is None or brief.created >= query.since)
        and (query.until is None or brief.created < query.until)
        and (query.object is None or brief.object == query.object)
        and (query.key is None or brief.key == query.key)
    )


def _holds(body: bytes, wanted: list[Word]) -> bool:
    if not wanted:
        return True
    if body.isascii():  # a quick check first, since most bodies do not contain the words
        lowered = body.lower()
        if not all(word.text.encode() in lowered for word in wanted if word.text.isascii()):
            return False
    held = set(words_of(body.decode("utf-8", "replace")))
    return all(word.text in held or (word.prefix and _begins(held, word.text)) for word in wanted)


def _begins(held: set[str], start: str) -> bool:
    return any(word.startswith(start) for word in held)
