"""What an index must answer, told from the whole log without any index."""

from __future__ import annotations

from pathlib import Path

from remuda.index import Query
from remuda.index.text import text_of, words
from remuda.log.disk import DirectoryDisk
from remuda.log.readers.reader import Reader
from remuda.model.document import QueueView, document
from remuda.model.life import Life
from remuda.model.message_row import MessageRow
from remuda.model.messages import cell
from remuda.model.records import Event
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
        self.copies: list[tuple[MessageRow, set[str]]] = []
        for record in reader.messages():
            for row, message in enumerate(record.messages):
                offset = record.first + row
                queues: tuple[str, ...] = cell(record.queues, row)
                life = document(offset, message, queues, events.get(offset, []))
                lives: list[tuple[str, Life | QueueView]] = [(view.queue, view) for view in life.queues]
                lives = lives or [("", Life.begun(message.created, None))]
                for queue, one in lives:
                    found = MessageRow.of(
                        offset, message.created, message.id, message.name, message.topics, message.object, message.key,
                        message.timestamp, message.mime_type, len(message.body), queue, one,
                    )  # fmt: skip
                    self.copies.append((found, set(words(text_of(message.body, message.mime_type)))))
        self.copies.sort(key=lambda copy: (-copy[0].offset, (copy[0].queue or "").encode()))

    def search(self, query: Query) -> list[MessageRow]:
        return [row for row, found in self.copies if _fits(query, row, found)]

    def counts(self) -> dict[str, dict[State, int]]:
        found: dict[str, dict[State, int]] = {}
        for row, _ in self.copies:
            if row.moved_to is not None:
                continue
            states = found.setdefault(row.queue or "", {})
            states[row.state] = states.get(row.state, 0) + 1
        return found


def _is_asked(query: Query, row: MessageRow) -> bool:
    if row.moved_to is not None:
        return query.moved or not query.states
    return row.state in query.states or not (query.states or query.moved)


def _fits(query: Query, row: MessageRow, found: set[str]) -> bool:
    prefix = query.topic_prefix
    return (
        (query.queue is None or (row.queue or "") == query.queue)
        and (prefix is None or any(map(prefix.covers, row.topics)))
        and _is_asked(query, row)
        and (query.since is None or row.created >= query.since)
        and (query.until is None or row.created < query.until)
        and (query.object is None or row.object == query.object)
        and (query.key is None or row.key == query.key)
        and (query.offsets is None or row.offset in query.offsets)
        and all(
            any(own.startswith(word.text) for own in found) if word.prefix else word.text in found
            for word in query.words()
        )
    )
