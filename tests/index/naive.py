"""What an index must answer, told from the whole log without any index."""

from __future__ import annotations

from pathlib import Path

from remuda.index import Hit, Query
from remuda.index.text import text_of, words
from remuda.log.disk import DirectoryDisk
from remuda.log.reader import Reader
from remuda.model.document import document
from remuda.model.messages import cell
from remuda.model.records import Event, is_moved
from remuda.model.state import State


class Naive:
    """All copies of all messages, gone through one by one."""

    def __init__(self, directory: Path) -> None:
        reader = Reader(DirectoryDisk(directory, create=False))
        events: dict[int, list[tuple[int, Event]]] = {}
        for told in reader.events():
            for event in told.rows:
                for offset in range(event.first, event.first + event.count):
                    events.setdefault(offset, []).append((told.time, event))
        self.copies: list[tuple[Hit, set[str]]] = []
        for record in reader.messages():
            for row, message in enumerate(record.messages):
                offset = record.first + row
                queues: tuple[str, ...] = cell(record.queues, row)
                life = document(offset, message, queues, events.get(offset, []))
                views = [(view.queue, view.state, view.modified, view.attempts, view.reason) for view in life.queues]
                for queue, state, modified, attempts, reason in views or [
                    ("", State.UNCHANGED, message.created, 0, None)
                ]:
                    hit = Hit(
                        offset, queue, message.id, message.name, message.topics or (message.name,), state,
                        message.created, modified, message.object, message.key, message.mime_type, len(message.body),
                        attempts, reason or None,
                    )  # fmt: skip
                    self.copies.append((hit, set(words(text_of(message.body, message.mime_type)))))
        self.copies.sort(key=lambda copy: (-copy[0].offset, copy[0].queue.encode()))

    def search(self, query: Query) -> list[Hit]:
        return [hit for hit, found in self.copies if _fits(query, hit, found)]

    def counts(self) -> dict[str, dict[State, int]]:
        found: dict[str, dict[State, int]] = {}
        for hit, _ in self.copies:
            if is_moved(hit.state, hit.reason):
                continue
            states = found.setdefault(hit.queue, {})
            states[hit.state] = states.get(hit.state, 0) + 1
        return found


def _is_asked(query: Query, hit: Hit) -> bool:
    if is_moved(hit.state, hit.reason):
        return query.moved or not query.states
    return hit.state in query.states or not (query.states or query.moved)


def _fits(query: Query, hit: Hit, found: set[str]) -> bool:
    prefix = query.topic_prefix
    return (
        (query.queue is None or hit.queue == query.queue)
        and (prefix is None or any(map(prefix.covers, hit.topics)))
        and _is_asked(query, hit)
        and (query.since is None or hit.created >= query.since)
        and (query.until is None or hit.created < query.until)
        and (query.object is None or hit.object == query.object)
        and (query.key is None or hit.key == query.key)
        and (query.offsets is None or hit.offset in query.offsets)
        and all(
            any(own.startswith(word.text) for own in found) if word.prefix else word.text in found
            for word in query.words()
        )
    )
