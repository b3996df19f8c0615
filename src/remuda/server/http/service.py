"""Everything the API and the pages ask of a bus and its broker. No other module here talks to them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from remuda.broker.delivery import AsyncDelivery
from remuda.broker.port import Broker
from remuda.bus.bus import Bus
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.checks import check_headers, check_target
from remuda.bus.publishing.system_queues import SYSTEM_QUEUES, UNROUTED
from remuda.log.eventlog import EventLog
from remuda.model.durations import SECOND, Duration, micros, text
from remuda.model.errors import (
    BrokerClosed,
    DiskFull,
    InvalidMessage,
    InvalidOption,
    NotFound,
    RemudaError,
    StorageError,
    TooManyFiles,
)
from remuda.model.filters import MessageFilter
from remuda.model.message import CORRELATION, Message, read_priority
from remuda.model.messages import Messages, cell
from remuda.model.options import QueueOptions
from remuda.model.results import QueueInfo, Receipt
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import PARKED, State
from remuda.server.http.grouping import Failure, grouped
from remuda.server.http.masks import masked, unmasked
from remuda.server.http.rates import Rates, Sample
from remuda.server.http.recent import PACE, WINDOW, Brief, Recent
from remuda.server.http.search import RecentSearcher, Searcher, excerpt, row_of
from remuda.server.http.values import (
    Group,
    Life,
    MessageRow,
    Page,
    Query,
    QueueDetail,
    QueueSummary,
    TimelineEntry,
)

T = TypeVar("T")
_audit = logging.getLogger("remuda.audit")
_log = logging.getLogger("remuda.server")

PARKED_LISTED: Final = 10_000
_LOG_POLL: Final = 0.25
_SAMPLE_EVERY: Final = 1.0
_MOVED_AT_ONCE: Final = 500
_DURATIONS: Final = frozenset({"acknowledge_timeout", "message_timeout", "delay_between_messages", "put_back_delay"})

ANSWERS: Final = {
    "ack": Outcome.ACK,
    "nack": Outcome.NACK,
    "retry": Outcome.RETRY,
    "release": Outcome.RELEASE,
    "invalid": Outcome.INVALID,
    "not-interested": Outcome.NOT_INTERESTED,
    "dead": Outcome.DEAD,
}


class Unavailable(RemudaError):
    """The broker cannot be reached now; what was accepted before is kept."""


class MessagingService:
    """A bus as people and programs outside see it. Safe to use from any thread; opens nothing before it is used."""

    def __init__(self, bus: Bus, *, searcher: Searcher | None = None, window: int = WINDOW) -> None:
        self.bus = bus
        self._window = window
        self._given_searcher = searcher
        self._broker: Broker | None = None
        self._recent: Recent | None = None
        self._reader: EventLog | None = None
        self._reading = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._infos: dict[str, QueueInfo] = {}
        self.rates = Rates()
        self.grown = threading.Condition()
        """Notified whenever the log was read on."""

    # The broker and its follower

    def _ask(self, verb: Callable[[Broker], T]) -> T:
        broker = self._open()
        try:
            return verb(broker)
        except (DiskFull, TooManyFiles):
            raise
        except (BrokerClosed, StorageError) as error:
            with self._lock:
                if self._broker is broker:
                    self._broker = self._recent = None
            raise Unavailable(f"the broker does not answer: {error}") from error

    def _open(self) -> Broker:
        with self._lock:
            if self._broker is not None:
                return self._broker
            try:
                broker = self.bus.broker
                recent = Recent(broker.spectate(), self._window)
                recent.catch_up(self._window)
            except (BrokerClosed, StorageError) as error:
                raise Unavailable(f"the broker cannot be opened: {error}") from error
            # One reader for all: a new one would have to learn first where things are.
            self._broker, self._recent, self._reader = broker, recent, broker.spectate().log
            self._stop = threading.Event()
            arguments = (broker, recent, self._stop)
            self._thread = threading.Thread(target=self._follow, args=arguments, name="remuda-http", daemon=True)
            self._thread.start()
            return broker

    def _follow(self, broker: Broker, recent: Recent, stop: threading.Event) -> None:
        sample_at = 0.0
        while not stop.wait(_LOG_POLL if sample_at else 0):
            try:
                broker.spectate()  # which has all that happened so far in the log
                grown = recent.catch_up()
                if time.monotonic() >= sample_at:
                    began = time.monotonic()
                    infos = broker.queues()
                    self.rates.sample(infos)
                    self._infos = {info.name: info for info in infos}
                    # With ten thousand queues a sample takes a while: at most a twentieth of the time goes into it.
                    sample_at = time.monotonic() + max(_SAMPLE_EVERY, 20 * (time.monotonic() - began))
            except (BrokerClosed, StorageError):
                with self._lock:
                    if self._broker is broker:
                        self._broker = self._recent = None
                return
            except Exception:
                _log.exception("following the log failed; it is tried again")
                sample_at = time.monotonic() + _SAMPLE_EVERY
                continue
            if grown:
                with self.grown:
                    self.grown.notify_all()

    def close(self) -> None:
        """Stop following. The bus stays as it is."""
        with self._lock:
            self._broker = self._recent = None
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not None:
            thread.join(5)

    @property
    def recent(self) -> Recent:
        self._open()
        recent = self._recent
        if recent is None:
            raise Unavailable("the broker was closed meanwhile")
        return recent

    def refresh(self) -> None:
        """Read the log on now, for an answer that shows what was just done."""
        self._ask(lambda broker: broker.spectate())  # which has all that happened so far in the log
        self.recent.catch_up(2 * PACE)

    # Queues

    def queue_names(self) -> list[str]:
        return sorted(self._snapshot())

    def queues(self) -> list[QueueSummary]:
        """All queues by name, as they were at the last sample, at most a second or so ago."""
        return [self._summary(info) for _, info in sorted(self._snapshot().items())]

    def _snapshot(self) -> dict[str, QueueInfo]:
        self._open()
        if not self._infos or len(self._infos) < 500:
            infos = self._ask(lambda broker: broker.queues())
            self._infos = {info.name: info for info in infos}
        return self._infos

    def queue(self, name: str) -> QueueDetail:
        info = self._ask(lambda broker: broker.queue(name))
        return QueueDetail(
            summary=self._summary(info),
            options=options_of(info.options),
            consumers=info.consumers,
            entered={state.value: count for state, count in sorted(info.counts.items())},
            late_answers=info.late_answers,
            oldest=self.recent.oldest_waiting(name) if info.size else None,
        )

    def history(self, queue: str) -> list[Sample]:
        return self.rates.history(queue)

    def create_queue(self, name: str, options: Mapping[str, Any], who: str) -> bool:
        declared = self._ask(lambda broker: broker.create_queue(name, dict(options)))
        if declared.created:
            _audit.info("%s created queue %s", who, name)
        elif declared.differs:
            asked = ", ".join(f"{option} is {stands!r}" for option, (_, stands) in declared.differs.items())
            raise InvalidOption(f"queue {name!r} exists with other options: {asked}; nothing was changed")
        return declared.created

    def configure(self, name: str, changes: Mapping[str, Any], who: str) -> dict[str, Any]:
        for option in changes.keys() - set(QueueOptions.__struct_fields__):
            QueueOptions.parse({option: None})  # which says what is wrong with the name
        _audit.info("%s configures queue %s: %s", who, name, dict(changes))
        return options_of(self._ask(lambda broker: broker.configure_queue(name, who=who, **changes)))

    def set_status(self, name: str, status: str, who: str) -> None:
        _audit.info("%s sets queue %s to %s", who, name, status)
        self._ask(lambda broker: broker.set_status(name, status, who=who))

    def remove_queue(self, name: str, who: str) -> None:
        if name in SYSTEM_QUEUES:
            raise InvalidOption(f"queue {name!r} is the bus's own and cannot be removed")
        _audit.info("%s removes queue %s", who, name)
        self._ask(lambda broker: broker.remove_queue(name, who=who))
        self._infos.pop(name, None)

    def clear(self, name: str, who: str) -> int:
        _audit.info("%s clears queue %s", who, name)
        return self._ask(lambda broker: broker.clear(name, who=who))

    def _summary(self, info: QueueInfo) -> QueueSummary:
        published, done, failed = self.rates.per_second(info.name)
        return QueueSummary(
            name=info.name,
            status=info.status.value,
            type=info.options.type.value,
            waiting=info.waiting,
            delayed=info.delayed,
            in_flight=info.in_flight,
            dead=info.dead,
            invalid=info.invalid,
            not_interested=info.not_interested,
            consumers=len(info.consumers) + info.pulls,
            published_per_second=round(published, 2),
            done_per_second=round(done, 2),
            failed_per_second=round(failed, 2),
            internal=info.name in SYSTEM_QUEUES,
        )

    # Messages that ended without success

    def reprocess(self, queue: str, chosen: MessageFilter, who: str) -> int:
        _audit.info("%s reprocesses messages of %s: %s", who, queue, _told(chosen))
        return self._ask(lambda broker: broker.reprocess(queue, chosen, who=who))

    def forget(self, queue: str, chosen: MessageFilter, who: str) -> int:
        _audit.info("%s forgets messages of %s: %s", who, queue, _told(chosen))
        return self._ask(lambda broker: broker.forget(queue, chosen, who=who))

    def groups(self, queue: str) -> list[Group]:
        """Dead letters of a queue by exception and place."""
        parked = self._ask(lambda broker: broker.parked(queue, MessageFilter(), PARKED_LISTED))
        recent = self.recent
        failures = []
        for one in parked:
            copy = recent.copy(queue, one.offset)
            failures.append(Failure(one.offset, one.reason, copy.place if copy is not None else "", one.time))
        return grouped(failures)

    def group(self, queue: str, key: str) -> Group:
        for group in self.groups(queue):
            if group.key == key:
                return group
        raise NotFound(f"queue {queue!r} has no dead letters of group {key!r} any more")

    def parked(self, queue: str, chosen: MessageFilter, limit: int) -> list[MessageRow]:
        """Dead letters, the newest first, however long ago they ended."""
        found = self._ask(lambda broker: broker.parked(queue, chosen, limit))
        recent = self.recent
        briefs = {one.offset: recent.brief(one.offset) for one in found}
        older = self._messages_at(offset for offset, brief in briefs.items() if brief is None)
        rows = []
        for one in found:
            brief = briefs[one.offset]
            if brief is None and one.offset in older:
                brief = Brief(one.offset, older[one.offset], (queue,))
            if brief is not None:
                row = row_of(brief, queue, recent.copy(queue, one.offset))
                rows.append(msgspec.structs.replace(row, state=one.state, reason=one.reason, modified=one.time))
        return rows

    def move(self, queue: str, to: str, chosen: MessageFilter | None, who: str, limit: int = 100_000) -> int:
        """Send messages to another queue: dead letters that are chosen, or without a choice all that wait.

        What waits is taken by a pull and goes on there in one step. A dead letter goes as a copy with its id, and is
        forgotten here once the copy is kept: a crash between the two leaves it in both, never in none.
        """
        if to == queue:
            raise InvalidOption(f"messages of {queue!r} are there already; name another queue")
        self._ask(lambda broker: broker.queue(to))
        _audit.info("%s moves messages from %s to %s", who, queue, to)
        if chosen is None:
            return self._ask(lambda broker: _move_waiting(broker, queue, to, who, limit))
        moved = 0
        parked = self._ask(lambda broker: broker.parked(queue, chosen, limit))
        for start in range(0, len(parked), _MOVED_AT_ONCE):
            offsets, messages = [], []
            part = parked[start : start + _MOVED_AT_ONCE]
            known = self._messages_at(one.offset for one in part)
            for one in part:
                message = known.get(one.offset)
                if message is not None:
                    offsets.append(one.offset)
                    headers = {**message.headers, names.USER: message.headers.get(names.USER, who)}
                    messages.append(
                        msgspec.structs.replace(message, created=0, due=None, expires=None, headers=headers)
                    )
            if not messages:
                continue
            receipt = self._publish_to(Messages.of(messages), to)
            gone = [offset for row, offset in enumerate(offsets) if row not in receipt.refusals]
            if gone:
                self._ask(lambda broker, gone=gone: broker.forget(queue, chosen_offsets(gone), who=who))  # type: ignore[misc]
            moved += len(gone)
            if receipt.refusals:
                error = next(iter(receipt.refusals.values()))
                raise InvalidOption(f"{moved} messages were moved, then {to!r} took no more: {error}. The rest stays")
        return moved

    def _publish_to(self, messages: Messages, queue: str) -> Receipt:
        return self._ask(lambda broker: broker.publish(messages, queue=queue, raise_refusals=False))

    # Messages

    def search(self, query: Query) -> Page:
        searcher = self._given_searcher
        if searcher is not None:
            return searcher.search(query)
        if query.queue is not None:
            self._ask(lambda broker: broker.queue(query.queue or ""))
        return RecentSearcher(self.recent).search(query)

    def life(self, message: str | int) -> Life:
        """One message's whole life, with what it caused and what caused it."""
        known = message if isinstance(message, int) else self.recent.offset_of(message)
        document = self._ask(lambda broker: broker.message(message if known is None else known))
        self.refresh()
        found = document.message
        plain: dict[str, Any] = msgspec.to_builtins(document, builtin_types=(bytes,))
        plain["state"] = document.state.value
        plain["message"] = {
            **{name: value for name, value in plain["message"].items() if name != "body"},
            "headers": masked(found.headers),
            "priority": int(found.priority),
            "size": len(found.body),
            **shown_body(found.body),
        }
        caused = []
        for offset in self.recent.children(found.id):
            brief = self.recent.brief(offset)
            if brief is not None:
                queues = sorted(brief.queues) or [""]
                caused += [row_of(brief, queue, self.recent.copy(queue, offset)) for queue in queues]
        return Life(
            plain,
            list(_timeline(document.created, found, document, self._events_of(document.offset))),
            found.headers.get(CORRELATION),
            caused,
        )

    def recent_row(self, offset: int) -> MessageRow | None:
        """A remembered message as a row, of the queue where it stands worst."""
        brief = self.recent.brief(offset)
        if brief is None:
            return None
        copies = [(queue, self.recent.copy(queue, offset)) for queue in sorted(brief.queues)]
        worst = next((found for found in copies if found[1] is not None and found[1].state in PARKED), None)
        queue, copy = worst or (copies[0] if copies else ("", None))
        return row_of(brief, queue, copy)

    def original(self, message: str | int) -> Message:
        """A message as it was published, secrets and all: for sending it again."""
        return self._ask(lambda broker: broker.message(message)).message

    def _messages_at(self, offsets: Iterable[int]) -> dict[int, Message]:
        """Messages of the log by offset; those that were collected are left out."""
        found: dict[int, Message] = {}
        with self._log() as reader:
            for first, count in chosen_offsets(offsets).offsets or ():
                for record in reader.messages(first, first + count):
                    found.update((record.first + row, message) for row, message in enumerate(record.messages))
        return found

    @contextmanager
    def _log(self) -> Iterator[EventLog]:
        """The log with all that happened so far, for one at a time."""
        self._ask(lambda broker: broker.spectate())
        with self._reading:
            reader = self._reader
            if reader is None:
                raise Unavailable("the broker was closed meanwhile")
            yield reader

    def _events_of(self, offset: int) -> list[dict[str, Any]]:
        def may_tell(table: Any, group: int) -> bool:
            firsts, counts = table.statistics(group, "first"), table.statistics(group, "count")
            return firsts is None or counts is None or bool(firsts[0] <= offset < firsts[1] + counts[1])

        found: list[dict[str, Any]] = []
        with self._log() as reader:
            batches = list(reader.event_batches(wanted=may_tell))
        for batch in batches:
            firsts, counts = batch.column("first"), batch.column("count")
            told = pc.and_(pc.less_equal(firsts, offset), pc.greater(pc.add(firsts, counts), offset))
            chosen = batch.filter(told)
            if chosen.num_rows:
                at = chosen.schema.get_field_index("time")
                chosen = chosen.set_column(at, "time", chosen.column(at).cast(pa.int64()))
                at = chosen.schema.get_field_index("due")
                chosen = chosen.set_column(at, "due", chosen.column(at).cast(pa.int64()))
                found += chosen.to_pylist()
        return found

    # Publishing

    def publish(self, messages: Messages, queue: str | None, who: str, timeout: Duration | None = None) -> Receipt:
        """Take in a batch; the receipt says which messages were refused, and why."""
        topics = messages.name if isinstance(messages.name, list) else [messages.name]
        for topic in set(topics):
            check_target("topic", topic)
        headers = messages.headers if isinstance(messages.headers, list) else [messages.headers]
        for one in headers:
            check_headers(one)
        if self.bus.stack.layers and queue is None:
            ids = self.bus.publish_messages(list(messages))
            return Receipt(0, ids, {}, ())
        unbound = None if queue is not None else UNROUTED
        if queue is not None:
            self._ask(lambda broker: broker.queue(queue))
        return self._ask(
            lambda broker: broker.publish(messages, queue=queue, unbound=unbound, timeout=timeout, raise_refusals=False)
        )

    def resend(
        self,
        message: str | int,
        who: str,
        *,
        queue: str | None = None,
        topic: str | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        mime_type: str | None = None,
        forget: bool = False,
    ) -> str:
        """Publish a message again, edited: to one queue, or to all that take its topic. It gets an id of its own and
        names the original as its cause."""
        document = self._ask(lambda broker: broker.message(message))
        original = document.message
        if forget and queue is None:
            raise InvalidOption("to forget the original, name the queue in which it ended")
        sent = dict(original.headers) if headers is None else unmasked(check_headers(headers), original.headers)
        sent |= {CORRELATION: original.id, names.USER: who}
        edited = Message(
            topic or original.name,
            original.body if body is None else body,
            object=original.object,
            key=original.key,
            mime_type=mime_type or original.mime_type,
            headers=sent,
            priority=original.priority,
        )
        _audit.info("%s resends message %s to %s", who, original.id, queue or edited.name)
        receipt = self.publish(Messages.of([edited]), queue, who)
        for refusal in receipt.refusals.values():
            raise refusal
        if forget and queue is not None:
            self.forget(queue, chosen_offsets([document.offset]), who)
        return receipt.id

    # Taking messages

    async def pull(self, queue: str, count: int, consumer: str, wait: float, newest: bool) -> AsyncDelivery | None:
        broker = self._open()
        try:
            return await broker.aio.pull(queue, count, consumer=consumer, timeout=wait, newest=newest)
        except BrokerClosed as error:
            raise Unavailable(f"the broker does not answer: {error}") from error

    async def answer(
        self,
        delivery: AsyncDelivery,
        answer: str,
        *,
        rows: Sequence[int] | None = None,
        after: Duration = 0,
        reason: str | None = None,
        to: str | None = None,
    ) -> int:
        settlement = Settlement(ANSWERS[answer], reason, micros(after) or None, delivery.consumer, to=to)
        return await delivery.answer(settlement, rows)

    async def renew(self, delivery: AsyncDelivery) -> bool:
        return await self._open().aio.renew(delivery)

    # The log

    def end(self) -> tuple[int, int]:
        """The next offset and the next position."""
        with self._log() as reader:
            ends = reader.ends()
            return ends.next_offset, ends.next_position

    def log_messages(self, start: int, limit: int) -> list[dict[str, Any]]:
        """Messages of the log from an offset on, without their bodies' ends."""
        found = []
        with self._log() as reader:
            records = _from(reader.messages, start, limit)
        for record in records:
            for row, message in enumerate(record.messages):
                queues: tuple[str, ...] = cell(record.queues, row)
                found.append(
                    {
                        "offset": record.first + row,
                        "time": message.created,
                        "id": message.id,
                        "topic": message.name,
                        "queues": list(queues),
                        "object": message.object,
                        "key": message.key,
                        "mimeType": message.mime_type,
                        "headers": masked(message.headers),
                        "size": len(message.body),
                        "excerpt": excerpt(message.body, len(message.body)),
                    }
                )
        return found

    def log_events(self, start: int, limit: int) -> list[dict[str, Any]]:
        """Events of the log from a position on."""
        found = []
        with self._log() as reader:
            records = _from(reader.events, start, limit)
        for record in records:
            for row, event in enumerate(record.rows):
                entry = {
                    "position": record.first + row,
                    "time": record.time,
                    "queue": event.queue,
                    "state": event.state.value,
                    "offset": event.first,
                    "count": event.count,
                }
                for name in ("consumer", "attempt", "reason", "due", "who"):
                    if value := getattr(event, name):
                        entry[name] = value
                found.append(entry)
        return found

    def offset_at(self, moment: int, events: bool) -> int:
        with self._log() as reader:
            return reader.position_at(moment) if events else reader.offset_at(moment)

    def latency(self, queue: str | None) -> dict[int, list[int]]:
        return self.recent.latency(queue)

    # Health

    def health(self) -> dict[str, Any]:
        """Live: the broker goes on, if need be by itself. Ready: nothing keeps messages from being taken in."""
        try:
            self._ask(lambda broker: broker.queues() if len(self._infos) < 500 else None)
        except RemudaError as error:
            return {"live": True, "ready": False, "problems": {"broker": str(error)}}
        health = self.bus.health()
        problems = health.get("problems", {})
        broken = bool({"broker", "disk"} & problems.keys())
        return {"live": health["live"], "ready": not broken, **({"problems": problems} if problems else {})}

    def infos(self) -> list[QueueInfo]:
        return list(self._snapshot().values())


def _move_waiting(broker: Broker, queue: str, to: str, who: str, limit: int) -> int:
    moved = 0
    left = min(broker.queue(queue).waiting, limit)
    while left > 0:
        delivery = broker.pull(queue, min(left, _MOVED_AT_ONCE), consumer=f"move by {who}")
        if delivery is None:
            break
        moved += delivery.dead(reason=f"moved to {to} by {who}", to=to)
        left -= len(delivery)
    return moved


def _from(read: Callable[..., Iterator[T]], start: int, limit: int) -> list[T]:
    """Records with numbers from `start` on; where those were collected, from the first one that is left."""
    records = list(read(start, start + limit))
    if not records:
        following = next(iter(read(start)), None)
        if following is not None:
            first: int = following.first  # type: ignore[attr-defined]
            records = list(read(first, first + limit))
    return records


def chosen_offsets(offsets: Iterable[int], states: frozenset[State] = PARKED) -> MessageFilter:
    """These messages, as far as they are parked."""
    runs = []
    for _, block in groupby(enumerate(sorted(set(offsets))), key=lambda item: item[1] - item[0]):
        members = [offset for _, offset in block]
        runs.append((members[0], len(members)))
    return MessageFilter(states=states, offsets=tuple(runs))


def options_of(options: QueueOptions) -> dict[str, Any]:
    """All options as people write them."""
    shown: dict[str, Any] = {}
    for name in options.__struct_fields__:
        value = getattr(options, name)
        if name in _DURATIONS:
            shown[name] = text(value)
        elif isinstance(value, tuple):
            shown[name] = list(value)
        else:
            shown[name] = value.value if hasattr(value, "value") else value
    return shown


def shown_body(body: bytes) -> dict[str, Any]:
    """A body for programs: as text where it is text, else in base64."""
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": msgspec.to_builtins(body)}


def _told(chosen: MessageFilter) -> str:
    words = {name: value for name in ("reason", "since", "until") if (value := getattr(chosen, name))}
    if chosen.offsets is not None:
        words["messages"] = sum(count for _, count in chosen.offsets)
    return ", ".join(f"{name} {value}" for name, value in words.items()) or "all"


def _timeline(
    created: int, message: Message, document: Any, events: Iterable[Mapping[str, Any]]
) -> Iterator[TimelineEntry]:
    yield TimelineEntry(created, "", State.LOGGED, f"Published as {message.name}")
    told = list(events)
    available: dict[str, int] = {}
    fetched: dict[str, int] = {}
    for view in document.queues:
        first = next((event for event in told if event["queue"] == view.queue), None)
        if first is None or first["state"] != State.QUEUED.value:
            due = message.due
            available[view.queue] = max(created, due or 0)
            yield TimelineEntry(created, view.queue, State.QUEUED, "Delayed" if due else "Queued", due=due)
    for event in told:
        queue, state, time_ = event["queue"], State(event["state"]), event["time"]
        waited = took = None
        if state is State.FETCHED:
            waited = max(0, time_ - available[queue]) if queue in available else None
            fetched[queue] = time_
        elif queue in fetched and state is not State.COMPLETED:
            took = time_ - fetched.pop(queue)
        if state in (State.QUEUED, State.RETRY):
            available[queue] = event["due"] or time_
        yield TimelineEntry(
            time=time_,
            queue=queue,
            state=state,
            what=_words(state, event),
            attempt=event["attempt"] or 0,
            consumer=event["consumer"],
            reason=event["reason"],
            detail=event["detail"],
            who=event["who"],
            due=event["due"],
            waited=waited,
            took=took,
        )


def _words(state: State, event: Mapping[str, Any]) -> str:
    match state:
        case State.FETCHED:
            return f"Attempt {event['attempt']} began"
        case State.QUEUED:
            return "Reprocessed" if event["reason"] == "reprocessed" else "Back in the queue"
        case State.SUCCESS:
            return "Confirmed"
        case State.COMPLETED:
            return "Completed"
        case State.RETRY:
            return f"Attempt {event['attempt'] or ''} failed".replace("  ", " ")
        case State.DEAD:
            return "Dead"
        case State.INVALID:
            return "Rejected as invalid"
        case State.NOT_INTERESTED:
            return "Consumer not interested"
        case State.KICKED:
            return "Sent; no answer is awaited"
        case _:
            return state.name.capitalize()


def priority_of(value: int | str) -> int:
    """A priority by number or name."""
    try:
        return read_priority(value)
    except InvalidMessage as error:
        raise InvalidOption(str(error).removesuffix("; nothing was stored")) from None


def seconds(value: Duration) -> float:
    return micros(value) / SECOND
