"""What can be asked of a search index, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from remuda.index.copies import MOVED
from remuda.index.text import MAX_WORD, text_of, words
from remuda.model.errors import InvalidOption
from remuda.model.message_row import MessageRow
from remuda.model.state import State
from remuda.model.topics import TopicPrefix
from remuda.model.values.texts import shown

MAX_LIMIT: Final = 5_000
_MAX_WORDS: Final = 64
_LARGEST: Final = (1 << 63) - 1


class Word(NamedTuple):
    """A word that a body must hold, or the beginning of one."""

    text: str
    prefix: bool = False


class Cursor(NamedTuple):
    """The last hit of a page: the next one goes on behind it."""

    offset: int
    queue: str

    @classmethod
    def parse(cls, text: str) -> Cursor:
        offset, colon, queue = text.partition(":")
        if not colon or not offset.isascii() or not offset.isdigit() or int(offset) > _LARGEST:
            raise InvalidOption(f"cursor: {text[:40]!r} is not a cursor; pass the one of the previous page, unchanged")
        return cls(int(offset), queue)

    def __str__(self) -> str:
        return f"{self.offset}:{self.queue}"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """All that is given must hold. The newest message comes first; its copies in several queues by the queue's name."""

    queue: str | None = None
    """The queue's exact name; the empty string for messages that went to no queue."""
    topic: str | None = None
    """A topic prefix; see `TopicPrefix`."""
    states: frozenset[State] = frozenset()
    """Any of these states; empty for all. A copy that moved on to another queue does not count as dead."""
    moved: bool = False
    """Also copies that moved on to another queue, beside those in `states`."""
    since: int | None = None
    """Created at this time (microseconds) or later."""
    until: int | None = None
    """Created before this time."""
    object: str | None = None
    key: str | None = None
    text: str = ""
    """Words that the body must hold, all of them, in any order; `appl*` is any word that begins so."""
    offsets: tuple[int, ...] | None = None
    """Only messages at these offsets."""
    limit: int = 50
    cursor: str | None = None

    def __post_init__(self) -> None:
        for name in ("queue", "topic", "object", "key", "cursor"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidOption(f"{name} must be a string, not {value!r}")
            _check_unicode(name, value or "")
        if not isinstance(self.text, str):
            raise InvalidOption(f"text must be a string, not {self.text!r}")
        _check_unicode("text", self.text)
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or abs(value) > _LARGEST):
                raise InvalidOption(f"{name} must be a time in microseconds since 1970, not {value!r}")
        if self.offsets is not None:
            msgspec.structs.force_setattr(self, "offsets", _offsets(self.offsets))
        if type(self.limit) is not int or not 1 <= self.limit <= MAX_LIMIT:
            raise InvalidOption(f"limit must be a number from 1 to {MAX_LIMIT}, not {self.limit!r}")
        msgspec.structs.force_setattr(self, "states", _states(self.states))
        if not isinstance(self.moved, bool):
            raise InvalidOption(f"moved must be true or false, not {shown(self.moved)}")
        if self.cursor is not None:
            Cursor.parse(self.cursor)
        self.words()

    def words(self) -> list[Word]:
        """The words of the text, each once."""
        found: dict[Word, None] = {}
        for part in self.text.split():
            parts = words(part)
            for at, text in enumerate(parts):
                if len(text) > MAX_WORD:
                    raise InvalidOption(f"text: {text[:40]!r}… is longer than {MAX_WORD} characters; write {text[:8]}*")
                found[Word(text, part.endswith("*") and at == len(parts) - 1)] = None
        if self.text.strip() and not found:
            raise InvalidOption(f"text: there is no word in {self.text[:40]!r}; a word is made of letters and digits")
        if len(found) > _MAX_WORDS:
            raise InvalidOption(f"text: {len(found)} words are too many; at most {_MAX_WORDS} can be searched at once")
        return list(found)

    def fits(self, row: MessageRow, body: bytes = b"") -> bool:
        """Whether a message is among those that are asked for, whatever page it is on. `body` is needed for words."""
        prefix = self.topic_prefix
        return (
            (self.queue is None or self.queue == (row.queue or ""))
            and self.fits_state(row.state, row.moved_to)
            and (prefix is None or any(map(prefix.covers, row.topics)))
            and (self.since is None or row.created >= self.since)
            and (self.until is None or row.created < self.until)
            and (self.object is None or row.object == self.object)
            and (self.key is None or row.key == self.key)
            and (self.offsets is None or row.offset in self.offsets)
            and (not self.text.strip() or self._holds(set(words(text_of(body, row.mime_type)))))
        )

    def fits_state(self, state: State, moved_to: str | None) -> bool:
        if moved_to is not None:
            return self.moved or not self.states
        return state in self.states or not (self.states or self.moved)

    def _holds(self, held: set[str]) -> bool:
        return all(
            word.text in held or (word.prefix and any(one.startswith(word.text) for one in held))
            for word in self.words()
        )

    @property
    def kept_states(self) -> list[str]:
        """What an index keeps as the state of the copies that are asked for; empty for all."""
        return sorted(state.value for state in self.states) + ([MOVED] if self.moved else [])

    @property
    def topic_prefix(self) -> TopicPrefix | None:
        return None if self.topic is None else TopicPrefix.parse(self.topic)

    @property
    def after(self) -> Cursor | None:
        return None if self.cursor is None else Cursor.parse(self.cursor)


class Page(msgspec.Struct, frozen=True, rename="camel"):
    """Some messages, the newest first."""

    messages: list[MessageRow]
    next: str | None = None
    """The cursor with which the next page goes on; None if there is nothing more."""
    note: str | None = None
    """What the reader should know, such as how far back the search went."""
    behind: int | None = None
    """How many messages the search index does not contain yet; None if no index was used."""

    @classmethod
    def of(cls, rows: list[MessageRow], limit: int) -> Page:
        """The first `limit` of rows, of which there is one more when there is another page."""
        if len(rows) <= limit:
            return cls(rows)
        last = rows[limit - 1]
        return cls(rows[:limit], str(Cursor(last.offset, last.queue or "")))


def _offsets(given: Iterable[int]) -> tuple[int, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidOption(f"offsets must be a list of offsets, not {shown(given)}")
    found = tuple(given)
    if len(found) > MAX_LIMIT or any(type(offset) is not int or not 0 <= offset <= _LARGEST for offset in found):
        raise InvalidOption(f"offsets must be at most {MAX_LIMIT} whole numbers, not {shown(given)}")
    return found


def _states(given: Iterable[State]) -> frozenset[State]:
    if isinstance(given, str):
        raise InvalidOption(f"states must be a set of states, not the string {given!r}")
    try:
        return frozenset(map(State, given))
    except (TypeError, ValueError):
        letters = ", ".join(f"{state.value} ({state.name.lower()})" for state in State)
        raise InvalidOption(f"states must be some of {letters}; not {given!r}") from None


def _check_unicode(name: str, text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidOption(f"{name}: {text[:40]!r} is not valid text; a surrogate has no partner") from None
