"""Publishes messages: by topic through an exchange, to a queue by name, or to a delay queue first."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from itertools import repeat
from typing import Final

import msgspec

from remuda.amqp.client.confirms import Outgoing
from remuda.amqp.codec.properties import with_headers
from remuda.broker.embedded.delivering.notices import NoticeBoard
from remuda.broker.options import BrokerOptions
from remuda.broker.rabbitmq.publishing import codec
from remuda.broker.rabbitmq.publishing.confirmed_sender import Sender, Sent
from remuda.broker.rabbitmq.publishing.delays import exchange_of, level_for
from remuda.broker.rabbitmq.record_sinks import NoRecords, RecordSink
from remuda.broker.rabbitmq.shared_state.definitions_journal import Definitions
from remuda.broker.rabbitmq.shared_state.message_ids import Ids, number_of, runs_of
from remuda.broker.rabbitmq.shared_state.rabbit_topology import CHANNELS, TOPICS, RabbitTopology, routing_keys
from remuda.core.routing import PatternTrie
from remuda.model.errors import (
    BrokerClosed,
    MessageTooLarge,
    NotFound,
    QueueFull,
    QueueNotAccepting,
    Refused,
    RemudaError,
)
from remuda.model.messages import Column, Messages, cell, fold
from remuda.model.operations.commands import Publish
from remuda.model.operations.results import Differences, Receipt
from remuda.model.queues.notices import Notice, NoticeKind
from remuda.model.queues.options import Status
from remuda.model.records import Appended
from remuda.model.state import State
from remuda.model.topic_types import TopicTypes
from remuda.model.topics import check_topic, root

Routes = Sequence[tuple[str, ...]]
"""The queues of each message of a batch."""
ACCEPTING: Final = frozenset({Status.RUNNING, Status.ONLY_PUBLISH, Status.NOT_INITIALIZED})
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
"""Seconds before a message is sent again that RabbitMQ could not take."""
_AT_ONCE: Final = 5_000
"""A message that is due within this many microseconds is not delayed."""


class Publishing:
    """Turns a command into AMQP messages, and RabbitMQ's answers into a receipt."""

    def __init__(
        self,
        sender: Sender,
        topology: RabbitTopology,
        definitions: Definitions,
        ids: Ids,
        options: BrokerOptions,
        clock: Callable[[], int],
        records: RecordSink,
        notices: NoticeBoard,
        background: Callable[[Callable[[], None]], None],
    ) -> None:
        self.sender = sender
        self.topology = topology
        self.definitions = definitions
        self.records = records
        self.notices = notices
        self.background = background
        self.clock = clock
        self._ids = ids
        self._options = options
        self._types = TopicTypes(options.infer_types) if options.infer_types else None
        self.counts: dict[str, dict[State, int]] = {}
        """By queue, how many messages entered each state, as far as this process saw it."""
        self._open: set[Future[Receipt]] = set()
        self._trie: PatternTrie | None = None
        self._limited: frozenset[str] | None = None

    def defined(self) -> None:
        """The definitions changed: drop what was derived from them."""
        self._trie = self._limited = None

    def needed(self, command: Publish) -> list[str]:
        """The queues that must exist before the messages are sent. Raises for invalid topics."""
        if not command.messages.bodies:
            return []
        if command.queue is not None:
            return [command.queue]
        names: dict[str, None] = {}
        if command.unbound is not None:
            names[command.unbound] = None
        fallback = self._options.default_queue
        for topics in self._topics(command.messages):
            for topic in topics:
                if command.unbound is not None:
                    check_topic(topic)
                elif fallback is not None and root(topic) not in self.definitions.queues:
                    names[fallback] = None
                else:
                    check_topic(topic)
                    names[root(topic)] = None
        return list(names)

    def missing(self, command: Publish) -> bool:
        """Whether something must be created in RabbitMQ first."""
        messages = command.messages
        return (
            messages.due is not None
            or messages.expires is not None
            or not all(map(self.topology.knows, self.needed(command)))
        )

    def prepare(self, command: Publish, routes: Routes | None = None) -> None:
        """Create what the messages need beside their queues: delay queues, and dead-letter queues if some expire."""
        messages, now = command.messages, self.clock()
        if messages.due is not None:
            for due in set(messages.due if isinstance(messages.due, list) else [messages.due]):
                if due is not None and due - now > _AT_ONCE:
                    self.topology.make_level(level_for(due - now))
        if messages.expires is not None:
            rows = [self.queues_of(command, row) for row in range(len(messages))] if routes is None else routes
            for queue in {name for names in rows for name in names}:
                definition = self.definitions.queues.get(queue)
                if definition is not None:
                    self.topology.make_parking(queue, definition)

    def submit(
        self, command: Publish, differs: dict[str, Differences] | None = None, routes: Routes | None = None
    ) -> Future[Receipt]:
        """Send; with `routes`, each message to the queues that are given for it. Never waits; `prepare` must be called
        before."""
        now = self.clock()
        messages = self.stamped(command.messages, now)
        publication = Publication(self, command, messages, now, differs or {}, routes)
        self._open.add(publication.future)
        publication.future.add_done_callback(self._open.discard)
        publication.start()
        return publication.future

    def fail_rest(self) -> None:
        """Fail what is not confirmed: the broker is closed."""
        for future in list(self._open):
            with contextlib.suppress(InvalidStateError):  # it was answered in this moment
                future.set_exception(BrokerClosed("the broker was closed before the messages were confirmed"))

    def queues_of(self, command: Publish, row: int) -> tuple[str, ...]:
        """The queues that a message goes to, as far as this process knows."""
        if command.queue is not None:
            return (command.queue,)
        topics = command.messages.topics_of(row)
        found: dict[str, None] = {}
        if command.unbound is None:
            for topic in topics:
                name = root(topic)
                if name not in self.definitions.queues and self._options.default_queue is not None:
                    name = self._options.default_queue
                found[name] = None
        for topic in topics:
            found.update(self.channels.find(topic))
        if not found and command.unbound is not None:
            return (command.unbound,)
        return tuple(found)

    @property
    def channels(self) -> PatternTrie:
        trie = self._trie
        if trie is None:
            trie = PatternTrie()
            for name, definition in list(self.definitions.queues.items()):
                for key in routing_keys(definition.options):
                    trie.add(key, name)
            self._trie = trie
        return trie

    @property
    def limited(self) -> frozenset[str]:
        """Queues that may refuse a message before RabbitMQ sees it."""
        names = self._limited
        if names is None:
            names = self._limited = frozenset(
                name
                for name, definition in list(self.definitions.queues.items())
                if definition.status not in ACCEPTING or definition.options.message_size_limit
            )
        return names

    def objection(self, queues: tuple[str, ...], size: int) -> Refused | None:
        """Why a queue refuses a body of this size; None if it does not."""
        for name in queues:
            definition = self.definitions.queues.get(name)
            if definition is None:
                continue
            if definition.status not in ACCEPTING:
                return QueueNotAccepting(
                    f"queue {name!r} is {definition.status.value} and takes no messages; the message was not stored. "
                    "Set its status to running or only-publish to go on"
                )
            limit = definition.options.message_size_limit
            if limit and size > limit:
                return MessageTooLarge(
                    f"a body of {size} bytes is over the message_size_limit of {limit} of queue {name!r}; the message "
                    "was not stored"
                )
        return None

    def outgoing(self, command: Publish, row: int, properties: bytes, body: bytes, now: int) -> list[Outgoing]:
        """The AMQP messages to send for one message."""
        messages = command.messages
        if (exchange := self.delay_exchange(messages, row, now)) is not None:
            return [Outgoing(exchange, queue, properties, body) for queue in self.queues_of(command, row)]
        if command.queue is not None:
            return [Outgoing("", command.queue, properties, body)]
        topics = messages.topics_of(row)
        if command.unbound is not None:
            return [Outgoing(CHANNELS, topics[0], _with_more(properties, topics), body)]
        fallback = self._options.default_queue
        if fallback is None or all(root(topic) in self.definitions.queues for topic in topics):
            return [Outgoing(TOPICS, topics[0], _with_more(properties, topics), body)]
        out = [Outgoing("", fallback, properties, body)]
        by_topic = [topic for topic in topics if root(topic) in self.definitions.queues or self.channels.find(topic)]
        if by_topic:
            out.append(Outgoing(TOPICS, by_topic[0], _with_more(properties, tuple(by_topic)), body))
        return out

    def delay_exchange(self, messages: Messages, row: int, now: int) -> str | None:
        """The exchange of the delay queue for a message that is not due yet."""
        due = cell(messages.due, row)
        return exchange_of(self.topology.level_made(due - now)) if due is not None and due - now > _AT_ONCE else None

    def record(self, messages: Messages, queues: Column[tuple[str, ...]], now: int) -> None:
        """Count messages that were stored, log them, and post notices."""
        for names in queues if isinstance(queues, list) else [queues]:
            for name in names:
                counts = self.counts.setdefault(name, {})
                counts[State.QUEUED] = counts.get(State.QUEUED, 0) + (1 if isinstance(queues, list) else len(messages))
        if not isinstance(self.records, NoRecords):
            self.records.append([Appended(number_of(messages.id(0)), now, messages, queues)])
        if self.notices.wanted:
            by_queue: dict[str, list[int]] = {}
            for row in range(len(messages)):
                for name in cell(queues, row):
                    by_queue.setdefault(name, []).append(number_of(messages.id(row)))
            self.notices.post(
                Notice(NoticeKind.PRODUCED, name, now, first, count)
                for name, numbers in by_queue.items()
                for first, count in runs_of(numbers)
            )

    def stamped(self, messages: Messages, now: int) -> Messages:
        """The messages with ids for those that have none, and the time."""
        if self._types is not None:
            messages = self._types.inferred(messages)
        ids: range | list[str] | None = messages.ids
        if ids is None:
            ids = self._ids.take(len(messages), now)
        elif isinstance(ids, list) and not all(ids):
            fresh = iter(self._ids.take(ids.count(""), now))
            ids = [one or str(next(fresh)) for one in ids]
        return msgspec.structs.replace(messages, ids=ids, created=now)

    def _topics(self, messages: Messages) -> list[tuple[str, ...]]:
        if not isinstance(messages.topics, list) and not isinstance(messages.name, list):
            return [messages.topics or (messages.name,)]
        return list({messages.topics_of(row): None for row in range(len(messages))})


def _with_more(properties: bytes, topics: tuple[str, ...]) -> bytes:
    """Add further topics as BCC: a queue gets one copy, however many of them match, and RabbitMQ removes the header."""
    return properties if len(topics) == 1 else with_headers(properties, {"BCC": list(topics[1:])})


class Publication:
    """One batch that is being published."""

    def __init__(
        self, parent: Publishing, command: Publish, messages: Messages, now: int, differs: dict[str, Differences],
        routes: Routes | None,
    ) -> None:  # fmt: skip
        self.future: Future[Receipt] = Future()
        self._parent = parent
        self._command = msgspec.structs.replace(command, messages=messages)
        self._messages = messages
        self._now = now
        self._differs = differs
        self._refusals: dict[int, Refused] = {}
        self._partly: dict[int, Refused] = {}
        self._unroutable: set[int] = set()
        self._rows: Sequence[int] = []
        self._again: list[tuple[int, Outgoing]] = []
        """What RabbitMQ could not take just now, for example because a node of its cluster is away."""
        self._pause = _FIRST_PAUSE
        self._deadline = time.monotonic() + parent.sender.patience
        self._routes = None if routes is None else list(routes)
        """The queues of each row, without those that refused it."""

    def start(self) -> None:
        if not self._messages.bodies:
            self.future.set_result(Receipt(0, [], {}))
            return
        out = self._first_round()
        if self._routes is not None:
            self._unroutable.update(row for row, names in enumerate(self._routes) if not names)
        self._send(out, self._answered)

    def _first_round(self) -> list[Outgoing]:
        parent, command, messages = self._parent, self._command, self._messages
        properties = codec.encode(messages, self._now)
        bodies = messages.bodies
        topics, name = messages.topics, messages.name
        by_topic = self._routes is None and command.unbound is not None
        plain = by_topic and command.queue is None and not topics and type(name) is str
        if messages.due is None and not parent.limited and (plain or command.queue is not None):
            exchange, key = ("", command.queue) if command.queue is not None else (CHANNELS, name)
            if max(map(len, bodies)) <= codec.MAX_BODY:
                self._rows = range(len(bodies))
                return list(map(Outgoing._make, zip(repeat(exchange), repeat(key), properties, bodies)))
        out: list[Outgoing] = []
        rows: list[int] = []
        for row, body in enumerate(bodies):
            refused: Refused | None = None
            if len(body) > codec.MAX_BODY:
                refused = MessageTooLarge(
                    f"a body of {len(body)} bytes is over the {codec.MAX_BODY} that RabbitMQ takes; the message was "
                    "not stored. Store it elsewhere and publish where it is"
                )
            elif parent.limited:
                refused = parent.objection(self._queues_of(row), len(body))
            if refused is not None:
                self._refusals[row] = refused
                continue
            sent = self._outgoing(row, properties[row], body)
            out += sent
            rows += [row] * len(sent)
        self._rows = rows
        return out

    def _queues_of(self, row: int) -> tuple[str, ...]:
        return self._parent.queues_of(self._command, row) if self._routes is None else self._routes[row]

    def _outgoing(self, row: int, properties: bytes, body: bytes) -> list[Outgoing]:
        if self._routes is None:
            return self._parent.outgoing(self._command, row, properties, body, self._now)
        exchange = self._parent.delay_exchange(self._messages, row, self._now) or ""
        return [Outgoing(exchange, queue, properties, body) for queue in self._routes[row]]

    def _send(self, out: list[Outgoing], then: Callable[[Sent], None]) -> None:
        def done(sent: Future[Sent]) -> None:
            try:
                then(sent.result())
            except BaseException as error:
                with contextlib.suppress(InvalidStateError):
                    self.future.set_exception(error)

        self._parent.sender.submit(out).add_done_callback(done)

    def _answered(self, sent: Sent) -> None:
        self._refuse(sent)
        if not sent.returned:
            self._finish()
            return
        places = sorted(sent.returned)
        rows = [self._rows[place] for place in places]
        returned = [sent.messages[place] for place in places]
        out = [self._to_unbound(message) for message in returned]
        if out != returned:
            self._rows = rows
            self._send(out, self._answered)
        else:
            self._parent.background(lambda: self._make_again(rows, out))

    def _to_unbound(self, message: Outgoing) -> Outgoing:
        """A message that no channel takes goes to the queue `unbound`, if there is one."""
        unbound = self._command.unbound
        if unbound is None or message.exchange != CHANNELS:
            return message
        return message._replace(exchange="", routing_key=unbound)

    def _make_again(self, rows: list[int], out: list[Outgoing]) -> None:
        """A queue is gone: create it again, and send to it once more."""
        parent, command = self._parent, self._command
        try:
            parent.topology.forget_levels()
            parent.prepare(command, self._routes)
            for name in self._needed(rows):
                parent.topology.remake(name)
            self._rows = rows
            self._send(out, self._second_answer)
        except BaseException as error:
            with contextlib.suppress(InvalidStateError):
                self.future.set_exception(error)

    def _needed(self, rows: Sequence[int]) -> Iterable[str]:
        if self._routes is None:
            return self._parent.needed(self._command)
        return {name for row in rows for name in self._routes[row]}

    def _second_answer(self, sent: Sent) -> None:
        self._refuse(sent)
        for place in sent.returned:
            row = self._rows[place]
            if not self._without(row, sent.messages[place].routing_key):
                self._unroutable.add(row)
        self._finish()

    def _without(self, row: int, queue: str) -> bool:
        """Take out a queue that refused a message. Returns whether it has other queues left."""
        if self._routes is None:
            return False
        self._routes[row] = tuple(name for name in self._routes[row] if name != queue)
        return bool(self._routes[row])

    def _refuse(self, sent: Sent) -> None:
        for place in sent.nacked:
            row = self._rows[place]
            refused = self._full(row)
            if not isinstance(refused, QueueFull) and time.monotonic() + self._pause < self._deadline:
                self._again.append((row, sent.messages[place]))
                continue
            if self._without(row, sent.messages[place].routing_key):
                self._partly[row] = refused
            else:
                self._partly.pop(row, None)
                self._refusals[row] = refused

    def _full(self, row: int) -> Refused:
        queues = self._queues_of(row)
        limited = [
            (name, limit)
            for name in queues
            if (known := self._parent.definitions.queues.get(name)) is not None
            for limit in ("message_limit", "byte_limit")
            if getattr(known.options, limit)
        ]
        if limited:
            name, limit = limited[0]
            return QueueFull(
                f"queue {name!r} holds as many messages as its {limit} allows; it did not store the message"
                + (", others of its queues may have" if len(queues) > 1 else "")
                + ". Consume, or make a queue with limit_exceeded=delete-oldest"
            )
        return Refused(
            f"RabbitMQ refused the message for {', '.join(queues)}: a queue cannot take it now. Publish it again later"
        )

    def _try_again(self) -> None:
        """Send what could not be taken once more, after a pause."""
        again, self._again = self._again, []
        self._rows = [row for row, _ in again]

        def send() -> None:
            try:
                self._send([message for _, message in again], self._answered)
            except RemudaError as error:
                with contextlib.suppress(InvalidStateError):
                    self.future.set_exception(error)

        timer = threading.Timer(self._pause, send)
        timer.daemon = True
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        timer.start()

    def _finish(self) -> None:
        if self._again:
            self._try_again()
            return
        messages, refusals = self._messages, self._refusals
        assert messages.ids is not None
        taken = [row for row in range(len(messages)) if row not in refusals] if refusals else range(len(messages))
        if self._unroutable and self._command.queue is not None:
            self.future.set_exception(
                NotFound(f"queue {self._command.queue!r} no longer exists in RabbitMQ; the message was not stored")
            )
            return
        first = number_of(messages.id(taken[0])) if taken else 0
        self._record(taken)
        self.future.set_result(
            Receipt(
                first,
                messages.ids,
                refusals,
                differs=self._differs,
                unroutable=tuple(sorted(self._unroutable - refusals.keys())),
                partly_refused=self._partly,
            )
        )

    def _record(self, taken: Sequence[int]) -> None:
        parent, messages = self._parent, self._messages
        if not taken:
            return
        kept = messages if len(taken) == len(messages) else messages.take(taken)
        if self._routes is not None:
            parent.record(kept, fold([self._routes[row] for row in taken]), self._now)
            return
        command = msgspec.structs.replace(self._command, messages=kept)
        alike = type(kept.name) is not list and type(kept.topics) is not list
        rows = range(1 if alike else len(kept))
        parent.record(kept, fold([parent.queues_of(command, row) for row in rows]), self._now)
