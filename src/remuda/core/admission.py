"""Which messages queues admit: all queues of a message take it or none does, and a refusal changes nothing (Q6, Q7,
Q12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from remuda.core.compacter import Look
from remuda.core.extensions import FactsOf, MessageFacts
from remuda.core.flow.keys import UNKNOWN
from remuda.core.flow.merging import REPLACED, SKIPPED, fates_of
from remuda.core.flow.rules import said
from remuda.core.queues.queue import ACCEPTING, Queue
from remuda.model.errors import Duplicate, MessageTooLarge, QueueFull, QueueNotAccepting, Refused
from remuda.model.messages import Messages, cell
from remuda.model.queues.end_reports import asks
from remuda.model.queues.flow_info import FLOW_CONCURRENCY, FLOW_WEIGHT
from remuda.model.queues.options import PER_TOPIC, LimitExceeded, Singleton
from remuda.model.records import Appended
from remuda.model.state import State

_ANY: Final = 1 << 62

Stretch = tuple[int, int, tuple[str, ...]]
"""Neighbouring rows of a batch: start, stop, and the queues that all of them go to."""

Refusals = dict[int, Refused]
"""Rows of a batch that were refused, with the reason."""


def screen(
    messages: Messages, routes: Sequence[tuple[str, ...]], queues: Mapping[str, Queue], now: int,
    look: Look | None = None,
) -> Refusals:  # fmt: skip
    """The rows that some queue refuses. `routes` has one entry per row, or one for all. What repeats its object's last
    body, as `look` tells, comes into no queue, so that none refuses it."""
    shared = routes[0] if len(routes) == 1 else None
    names = set(shared) if shared is not None else {name for route in routes for name in route}
    tallies = {name: _Tally(queues[name], now) for name in names if queues[name].screens}
    if not tallies and look is None:
        return {}
    refusals: Refusals = {}
    for row in range(len(messages)):
        if look is not None and look.repeats(row):
            continue
        targets = [tallies[name] for name in (shared if shared is not None else routes[row]) if name in tallies]
        refused: Refused | None = None
        for tally in targets:
            refused = tally.objection(messages, row)
            if refused is not None:
                refused.queue = tally.queue.name
                break
        if refused is not None:
            refusals[row] = refused
            continue
        if look is not None:
            look.take(row)
        for tally in targets:
            tally.count(messages, row)
    return refusals


def enter(
    record: Appended, stretches: Sequence[Stretch], queues: Mapping[str, Queue], *, has_bodies: bool = True
) -> None:
    """Apply a record of messages: each enters its queues. For live publishing and for recovery, which reads no bodies,
    alike."""
    messages = record.messages
    priority, expires, due = messages.priority, messages.expires, messages.due
    alike = not isinstance(priority, list) and not isinstance(expires, list) and not isinstance(due, list)
    for start, stop, names in stretches:
        for name in names:
            queue = queues.get(name)
            if queue is None:
                continue
            if queue.keyed is not None:
                _note_keys(queue, messages, record.first, start, stop)
            if messages.headers:
                _note_weights(queue, messages, record.first, start, stop)
            if messages.headers and not queue.reports:
                queue.reports = _wants_reports(messages, start, stop)
            admit = queue.admit_settling if queue.settles else queue.admit
            if alike:
                admit(record.first + start, stop - start, record.created, priority, expires, due)  # type: ignore[arg-type]
            else:
                for row in range(start, stop):
                    admit(
                        record.first + row, 1, record.created, cell(priority, row), cell(expires, row), cell(due, row)
                    )
            if not queue.remembers:
                continue
            if queue.options.byte_limit and has_bodies:
                for row in range(start, stop):
                    queue.remember_size(record.first + row, len(messages.bodies[row]))
            if queue.options.unique_ids:
                for row in range(start, stop):
                    queue.remember_id(messages.id(row), record.first + row)
            if queue.options.confirmations == PER_TOPIC:
                for row in range(start, stop):
                    queue.topic_counts[record.first + row] = len(messages.topics_of(row))


def _note_keys(queue: Queue, messages: Messages, first: int, start: int, stop: int) -> None:
    assert queue.keyed is not None
    numbers = queue.keyed.rules.numbers(messages, start, stop)
    shared = numbers[0] if len(numbers) == 1 else UNKNOWN
    for row in range(start, stop):
        queue.keys.put(first + row, shared or numbers[row - start])
    if queue.options.concurrency_per_key and messages.headers:
        for row in range(start, stop):
            most = said(cell(messages.headers, row), FLOW_CONCURRENCY)
            if most:
                queue.keyed.limit(queue.keys.get(first + row), most)


def _note_weights(queue: Queue, messages: Messages, first: int, start: int, stop: int) -> None:
    headers = messages.headers
    if not isinstance(headers, list) and FLOW_WEIGHT not in headers:
        return
    for row in range(start, stop):
        weight = said(cell(headers, row), FLOW_WEIGHT)
        if weight > 1:
            queue.weights[first + row] = weight


def _wants_reports(messages: Messages, start: int, stop: int) -> bool:
    headers = messages.headers
    return any(map(asks, headers[start:stop])) if isinstance(headers, list) else asks(headers)


def stretches(record: Appended) -> list[Stretch]:
    """Neighbouring rows with the same queues."""
    if not isinstance(record.queues, list):
        return [(0, len(record.messages.bodies), record.queues)]
    found = []
    for names, rows in groupby(enumerate(record.queues), key=lambda item: item[1]):
        indices = [row for row, _ in rows]
        found.append((indices[0], indices[-1] + 1, names))
    return found


def surplus(queue: Queue, now: int, before: int = _ANY) -> tuple[int, int, State, int] | None:
    """The run to evict so that a full queue keeps its limit: first offset, count, state, priority. Messages from offset
    `before` on are evicted last."""
    options = queue.options
    if options.limit_exceeded is not LimitExceeded.DELETE_OLDEST:
        return None
    excess = queue.size - options.message_limit if options.message_limit else 0
    too_many_bytes = queue.bytes - options.byte_limit if options.byte_limit else 0
    if excess <= 0 and too_many_bytes <= 0:
        return None
    queue.join_oldest(now)
    oldest = _oldest(queue, before) or _oldest(queue, _ANY)
    if oldest is None:
        return None
    first, count, state, priority = oldest
    if too_many_bytes > 0:
        excess = max(excess, _covering(queue, first, count, too_many_bytes))
    return first, min(count, excess), state, priority


def _covering(queue: Queue, first: int, count: int, size: int) -> int:
    """How many messages from `first` on hold `size` bytes together; all of them, if they hold less."""
    for taken in range(count):
        size -= queue.sizes.get(first + taken, 0)
        if size <= 0:
            return taken + 1
    return count


def room(queue: Queue) -> int:
    """How many messages may come from another queue."""
    options = queue.options
    if queue.status not in ACCEPTING:
        return 0
    if not options.message_limit:
        return _ANY
    if options.limit_exceeded is LimitExceeded.DELETE_OLDEST:
        return _ANY if queue.flights.size < options.message_limit else 0
    return max(options.message_limit - queue.size, 0)


def byte_room(queue: Queue) -> int:
    """How many bytes may come from another queue."""
    options = queue.options
    if not options.byte_limit or options.limit_exceeded is LimitExceeded.DELETE_OLDEST:
        return _ANY
    return max(options.byte_limit - queue.bytes, 0)


def taken(queue: Queue, first: int, count: int, facts_of: FactsOf) -> list[tuple[int, int, bool]]:
    """Which of these messages a queue takes from another one, by all of its limits: runs in order, each with whether it
    is taken."""
    left, space, options = room(queue), byte_room(queue), queue.options
    if not (left and (space < _ANY or options.message_size_limit or options.unique_ids)):
        fit = min(left, count)
        return [run for run in ((first, fit, True), (first + fit, count - fit, False)) if run[1]]
    runs: list[tuple[int, int, bool]] = []
    ids: set[str] = set()
    for offset in range(first, first + count):
        facts = facts_of(offset)
        fits = left > 0 and (space > 0 if facts is None else facts.size <= space and _suits(queue, offset, facts, ids))
        if fits:
            left -= 1
            if facts is not None:
                space -= facts.size
                ids.add(facts.id)
        if runs and runs[-1][2] is fits:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, fits)
        else:
            runs.append((offset, 1, fits))
    return runs


def objection(queue: Queue, facts: MessageFacts | None) -> Refused:
    """Why a queue does not take a message from another one."""
    options, name = queue.options, queue.name
    if queue.status not in ACCEPTING:
        return QueueNotAccepting(f"queue {name!r} is {queue.status.value} and takes no messages")
    if facts is not None and options.message_size_limit and facts.size > options.message_size_limit:
        return MessageTooLarge(f"the body is over the message_size_limit of {options.message_size_limit} of {name!r}")
    if facts is not None and options.unique_ids and facts.id in queue.offset_of:
        return Duplicate(f"queue {name!r} holds another message with id {facts.id!r}")
    limit = "message_limit" if room(queue) == 0 else "byte_limit"
    return QueueFull(f"queue {name!r} is full by its {limit} of {getattr(options, limit)}")


def _suits(queue: Queue, offset: int, facts: MessageFacts, ids: set[str]) -> bool:
    options = queue.options
    if options.message_size_limit and facts.size > options.message_size_limit:
        return False
    return not options.unique_ids or (facts.id not in ids and queue.offset_of.get(facts.id, offset) == offset)


class _Tally:
    """One queue's room, as a batch fills it row by row."""

    def __init__(self, queue: Queue, now: int) -> None:
        self.queue = queue
        self.size = queue.size
        self.bytes = queue.bytes
        self.fixed = queue.flights.size
        self.ids: set[str] = set()
        self.fates = fates_of(queue, now)

    def count(self, messages: Messages, row: int) -> None:
        word, fates = self._word(messages, row), self.fates
        if word == SKIPPED:
            return
        self.size += not word
        self.bytes += len(messages.bodies[row]) - self._freed(messages, row, word)
        if fates is not None:
            fates.seen[fates.number(messages, row)] = row
        if self.queue.options.unique_ids:
            self.ids.add(messages.id(row))

    def _word(self, messages: Messages, row: int) -> str:
        return "" if self.fates is None else self.fates.word(self.fates.number(messages, row))

    def _freed(self, messages: Messages, row: int, word: str) -> int:
        """The bytes of the waiting message whose place this one takes."""
        fates = self.fates
        if fates is None or word != REPLACED:
            return 0
        number = fates.number(messages, row)
        if number in fates.seen:
            return len(messages.bodies[fates.seen[number]])
        return int(self.queue.sizes.get(fates.waiting(number), 0))

    def objection(self, messages: Messages, row: int) -> Refused | None:
        queue, options = self.queue, self.queue.options
        if queue.status not in ACCEPTING:
            return QueueNotAccepting(
                f"queue {queue.name!r} is {queue.status.value} and takes no messages; the message was not stored. "
                "Set its status to running or only-publish to go on"
            )
        size = len(messages.bodies[row])
        if options.message_size_limit and size > options.message_size_limit:
            return MessageTooLarge(
                f"a body of {size} bytes is over the message_size_limit of {options.message_size_limit} of queue "
                f"{queue.name!r}; the message was not stored"
            )
        if options.unique_ids:
            identity = messages.id(row)
            if identity in self.ids or identity in queue.offset_of:
                return Duplicate(
                    f"queue {queue.name!r} already holds a message with id {identity!r} that is queued or in flight; "
                    "this one was not stored"
                )
        word = self._word(messages, row)
        if word and options.singleton is Singleton.REFUSE:
            return Duplicate(
                f"a message of the same key waits or runs in queue {queue.name!r}, which takes one at a time; "
                "this one was not stored"
            )
        if options.message_limit and self.size >= options.message_limit and not word:
            evicts = options.limit_exceeded is LimitExceeded.DELETE_OLDEST
            if not evicts or self.fixed >= options.message_limit:
                remedy = (
                    "All of them are in flight, so none can be deleted: wait for answers, or raise the limit"
                    if evicts
                    else "Consume, raise the limit, or set limit_exceeded to delete-oldest"
                )
                return QueueFull(
                    f"queue {queue.name!r} holds {min(self.size, options.message_limit)} messages, its message_limit; "
                    f"the message was not stored. {remedy}"
                )
        grows = 0 if word == SKIPPED else size - self._freed(messages, row, word)
        overfull = options.byte_limit and grows > 0 and self.bytes + grows > options.byte_limit
        if overfull and options.limit_exceeded is LimitExceeded.REJECT_NEW:
            return QueueFull(
                f"queue {queue.name!r} holds {self.bytes} bytes of its byte_limit of {options.byte_limit}; "
                "the message was not stored. Consume, raise the limit, or set limit_exceeded to delete-oldest"
            )
        if queue.handler is not None:
            reason = queue.handler.received(queue.name, messages[row])
            if reason is not None:
                return Refused(f"queue {queue.name!r} refused the message: {reason}")
        return None


def _oldest(queue: Queue, before: int) -> tuple[int, int, State, int] | None:
    """The run to evict first: regular messages before those of high priority, and delayed ones last."""
    run = queue.ready.oldest(before)
    if run is not None:
        return run.first, run.count, State.QUEUED, run.priority
    for piece in queue.delayed:
        if piece.first < before:
            return piece.first, min(piece.count, before - piece.first), piece.state, piece.priority
    return None
