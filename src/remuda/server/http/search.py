"""Search: what a searcher promises, and the plain one that looks through recent messages without an index."""

from __future__ import annotations

import base64
import re
from typing import Final, Protocol

from remuda.model.errors import InvalidOption
from remuda.model.state import State
from remuda.model.topics import has_prefix
from remuda.server.http.recent import EXCERPT, Brief, Copy, Recent
from remuda.server.http.values import MessageRow, Page, Query

MAX_PAGE: Final = 500
_WORD: Final = re.compile(r"\w+")


class Searcher(Protocol):
    """Finds messages, the newest first, by keyset: a page begins after the last row of the one before."""

    def search(self, query: Query) -> Page: ...


class RecentSearcher:
    """Looks through the messages that are remembered. Says so where there are older ones."""

    def __init__(self, recent: Recent) -> None:
        self._recent = recent

    def search(self, query: Query) -> Page:
        below = None if query.cursor is None else read_cursor(query.cursor)
        rows: list[MessageRow] = []
        more = False
        for brief, queue, copy in self._recent.newest(query.queue, None if below is None else below[0]):
            if below is not None and (brief.offset, queue) == below:
                continue
            if below is not None and brief.offset == below[0] and queue < below[1]:
                continue
            if not _fits(query, brief, queue, copy):
                continue
            if len(rows) == query.limit:
                more = True
                break
            rows.append(row_of(brief, queue, copy))
        following = make_cursor(rows[-1].offset, rows[-1].queue) if more else None
        return Page(rows, following, None if more else self._note(query))

    def _note(self, query: Query) -> str | None:
        notes = []
        if not self._recent.complete:
            notes.append(f"Messages before offset {self._recent.first} are not listed; a search index finds them.")
        if query.text:
            notes.append(f"Without a search index, words are looked for in the first {EXCERPT} bytes of each body.")
        return " ".join(notes) or None


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
    """The beginning of a body on one line; of what is no text, its size."""
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
        raise InvalidOption(f"cursor {text[:60]!r} was not given by this API; leave it out to begin anew") from None


def _fits(query: Query, brief: Brief, queue: str, copy: Copy) -> bool:
    return (
        (query.queue is None or queue == query.queue)
        and (not query.states or copy.state in query.states)
        and (query.topic is None or has_prefix(brief.topic.casefold(), query.topic.casefold()))
        and (query.since is None or brief.created >= query.since)
        and (query.until is None or brief.created < query.until)
        and (query.object is None or brief.object == query.object)
        and (query.key is None or brief.key == query.key)
        and (query.text is None or _holds(brief, query.text))
    )


def _holds(brief: Brief, text: str) -> bool:
    if text.isascii() and brief.excerpt.isascii():  # a quick look first, since most bodies do not hold the words
        lowered = brief.excerpt.lower()
        if not all(word.encode() in lowered for word in _WORD.findall(text.lower())):
            return False
    held = set(_WORD.findall(brief.excerpt.decode("utf-8", "replace").casefold()))
    return all(word in held for word in _WORD.findall(text.casefold()))
