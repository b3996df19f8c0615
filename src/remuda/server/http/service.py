"""Everything the API and the pages need of a bus and its broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from remuda.broker.delivery import AsyncDelivery
from remuda.broker.port import Broker
from remuda.bus.broker_api import reprocess_retries
from remuda.bus.bus import Bus
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.checks import check_headers, check_target
from remuda.bus.publishing.system_queues import SYSTEM_QUEUES, UNROUTED
from remuda.bus.publishing.waiting import WaitingFilter, clear_waiting
from remuda.log.changes import forgotten
from remuda.model.durations import SECOND, Duration, micros, text
from remuda.model.errors import (
    BrokerClosed,
    InvalidMessage,
    InvalidOption,
    NotFound,
    RemudaError,
)
from remuda.model.filters import MessageFilter
from remuda.model.message import CORRELATION, Message, read_priority
from remuda.model.messages import Messages
from remuda.model.options import QueueOptions, read_duration
from remuda.model.records import MOVED, Event, QueueChange, change_words
from remuda.model.results import QueueInfo, Receipt
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import PARKED, State
from remuda.server.http import indexed
from remuda.server.http.entries import event_entries, message_entries, numbered_from
from remuda.server.http.following import FollowedBroker, Unavailable
from remuda.server.http.grouping import Failure, grouped
from remuda.server.http.indexed import IndexPlace, row_of_hit
from remuda.server.http.masks import masked, unmasked
from remuda.server.http.rates import Sample
from remuda.server.http.recent import WINDOW, Recent
from remuda.server.http.search import Searcher, excerpt, row_of
from remuda.server.http.timeline import timeline
from remuda.server.http.values import (
    Change,
    Group,
    Life,
    MessageRow,
    Page,
    Query,
    QueueDetail,
    QueueSummary,
)

_audit = logging.getLogger("remuda.audit")

PARKED_LISTED: Final = 10_000
_MOVED_AT_ONCE: Final = 500
_NEAR: Final = 1000
"""Offsets that are no farther apart than this are read in one go."""
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


class MessagingService:
    """A bus as people and programs outside see it. Safe to use from any thread; nothing is opened before it is used."""

    def __init__(
        self, bus: Bus, *, searcher: Searcher | None = None, index: str | None = None, window: int = WINDOW
    ) -> None:
        self.bus = bus
        self.broker = FollowedBroker(bus, window)
        self._given_searcher = searcher
        self._index = IndexPlace(bus.url, index)
        self._summaries: tuple[dict[str, QueueInfo], list[QueueSummary]] | None = None

    @property
    def recent(self) -> Recent:
        return self.broker.recent

    def refresh(self) -> None:
        """Read the log up to its end, so that the answer shows what was just done."""
        self.broker.refresh()

    def close(self) -> None:
        """Stop following. The bus stays as it is."""
        self.broker.close()
        self._index.close()

    # Queues

    def queue_names(self) -> list[str]:
        return sorted(self.broker.snapshot())

    def queues(self) -> list[QueueSummary]:
        """All queues by name, as of the last sample, which is a second or so old at most."""
        infos = self.broker.snapshot()
        known = self._summaries
        if known is None or known[0] is not infos:
            # With ten thousand queues, building these takes longer than the rest of a page.
            known = self._summaries = infos, [self._summary(info) for _, info in sorted(infos.items())]
        return known[1]

    def queue(self, name: str) -> QueueDetail:
        info = self.broker.ask(lambda broker: broker.queue(name))
        return QueueDetail(
            summary=self._summary(info),
            options=options_of(info.options),
            consumers=info.consumers,
            entered={state.value: count for state, count in sorted(info.counts.items())},
            late_answers=info.late_answers,
            oldest=self.recent.oldest_waiting(name) if info.size else None,
        )

    def changes(self, queue: str, limit: int) -> list[Change]:
        """What operators did to a queue, the newest first."""
        with self.broker.log() as reader:
            found = reader.changes(queue)[-limit:]
        return [Change(one.time, one.action, change_words(one), one.who or "") for one in reversed(found)]

    def history(self, queue: str) -> list[Sample]:
        return self.broker.rates.history(queue)

    def create_queue(self, name: str, options: Mapping[str, Any], who: str) -> bool:
        declared = self.broker.ask(lambda broker: broker.create_queue(name, dict(options)))
        if declared.created:
            _audit.info("%s created queue %s", who, name)
        elif declared.differs:
            differs = declared.differs.items()
            asked = ", ".join(f"{option} is {_as_written(option, stands)}" for option, (_, stands) in differs)
            raise InvalidOption(f"queue {name!r} exists with other options: {asked}; nothing was changed")
        return declared.created

    def configure(self, name: str, changes: Mapping[str, Any], who: str) -> dict[str, Any]:
        for option in changes.keys() - set(QueueOptions.__struct_fields__):
            QueueOptions.parse({option: None})  # raises an error that says what is wrong with the name
        _audit.info("%s configures queue %s: %s", who, name, dict(changes))
        return options_of(self.broker.ask(lambda broker: broker.configure_queue(name, who=who, **changes)))

    def set_status(self, name: str, status: str, who: str) -> None:
        _audit.info("%s sets queue %s to %s", who, name, status)
        self.broker.ask(lambda broker: broker.set_status(name, status, who=who))

    def remove_queue(self, name: str, who: str) -> None:
        if name in SYSTEM_QUEUES:
            raise InvalidOption(f"queue {name!r} is the bus's own and cannot be removed")
        _audit.info("%s removes queue %s", who, name)
        self.broker.ask(lambda broker: broker.remove_queue(name, who=who))
        self.broker.forget(name)

    def clear(self, name: str, who: str, chosen: WaitingFilter | None = None) -> int:
        """End what waits in a queue: all of it, or what is chosen."""
        if chosen is None or chosen == WaitingFilter():
            _audit.info("%s clears queue %s", who, name)
            return self.broker.ask(lambda broker: broker.clear(name, who=who))
        _audit.info("%s clears messages of queue %s: %s", who, name, _described(chosen))
        return self.broker.ask(lambda broker: clear_waiting(broker, name, chosen, who))

    def _summary(self, info: QueueInfo) -> QueueSummary:
        published, done, failed = self.broker.rates.per_second(info.name)
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

    def reprocess(self, queue: str, chosen: MessageFilter, who: str, *, retries: bool = False) -> int:
        """Send dead letters back to their queue; with `retries` also what waits for one, and fits the filter."""
        _audit.info("%s reprocesses messages of %s: %s", who, queue, _described(chosen))
        count = self.broker.ask(lambda broker: broker.reprocess(queue, chosen, who=who))
        if retries:
            count += self.broker.ask(lambda broker: reprocess_retries(broker, queue, chosen, who))
        return count

    def forget(self, queue: str, chosen: MessageFilter, who: str) -> int:
        _audit.info("%s forgets messages of %s: %s", who, queue, _described(chosen))
        return self.broker.ask(lambda broker: broker.forget(queue, chosen, who=who))

    def groups(self, queue: str) -> list[Group]:
        """Dead letters of a queue by exception and place."""
        parked = self.broker.ask(lambda broker: broker.parked(queue, MessageFilter(), PARKED_LISTED))
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
        found = self.broker.ask(lambda broker: broker.parked(queue, chosen, limit))
        recent = self.recent
        known: dict[int, MessageRow] = {}
        older = []
        for one in found:
            brief = recent.brief(one.offset)
            if brief is not None:
                known[one.offset] = row_of(brief, queue, recent.copy(queue, one.offset))
            else:
                older.append(one.offset)
        known |= self._older_rows(queue, older)
        return [
            msgspec.structs.replace(known[one.offset], state=one.state, reason=one.reason, modified=one.time)
            for one in found
            if one.offset in known
        ]

    def _older_rows(self, queue: str, offsets: list[int]) -> dict[int, MessageRow]:
        """Messages that are older than the window, without the beginnings of their bodies. They may be spread over the
        whole log, so the index is asked first."""
        if not offsets:
            return {}
        hits = indexed.hits_at(self._index, self.end()[0], queue, offsets)
        rows = {offset: row_of_hit(hit) for offset, hit in hits.items()}
        columns = ("id", "name", "object", "key", "mime_type")
        for batch in self._batches_at([offset for offset in offsets if offset not in rows], ("created", *columns)):
            times = batch.column("created").cast(pa.int64())
            listed = (column.to_pylist() for column in (batch.column(0), times, *map(batch.column, columns)))
            for offset, created, id, name, about, key, mime_type in zip(*listed, strict=True):
                rows[offset] = MessageRow(
                    offset, id, name, queue, State.LOGGED, created, created, 0, None, about, key, mime_type
                )
        return rows

    def move(self, queue: str, to: str, chosen: MessageFilter | None, who: str, limit: int = 100_000) -> int:
        """Move messages to another queue: the chosen dead letters or, without a choice, everything that waits.

        Waiting messages are pulled and moved in one step. A dead letter is copied with its id, and forgotten here once
        the copy is stored: a crash in between leaves it in both queues, never in none.
        """
        if to == queue:
            raise InvalidOption(f"these messages are in {queue!r} already; name another queue")
        self.broker.ask(lambda broker: broker.queue(to))
        _audit.info("%s moves messages from %s to %s", who, queue, to)
        if chosen is None:
            return self.broker.ask(lambda broker: _move_waiting(broker, queue, to, who, limit))
        moved = 0
        parked = self.broker.ask(lambda broker: broker.parked(queue, chosen, limit))
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
                self.broker.ask(lambda broker, gone=gone: broker.forget(queue, chosen_offsets(gone), who=who))  # type: ignore[misc]
            moved += len(gone)
            if receipt.refusals:
                error = next(iter(receipt.refusals.values()))
                raise InvalidOption(
                    f"{moved} messages were moved, then {to!r} accepted no more: {error}. The others stay in {queue!r}"
                )
        return moved

    def _publish_to(self, messages: Messages, queue: str) -> Receipt:
        return self.broker.ask(lambda broker: broker.publish(messages, queue=queue, raise_refusals=False))

    # Messages

    def search(self, query: Query) -> Page:
        searcher = self._given_searcher
        if searcher is not None:
            return searcher.search(query)
        if query.queue is not None:
            self.broker.ask(lambda broker: broker.queue(query.queue or ""))
        return indexed.search(self._index, self.recent, self.end()[0], query)

    def life(self, message: str | int) -> Life:
        """One message's whole life, with what it caused and what caused it."""
        known = message if isinstance(message, int) else self.recent.offset_of(message)
        document = self.broker.ask(lambda broker: broker.message(message if known is None else known))
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
            list(timeline(document.created, found, document, *self._history_of(document.offset))),
            found.headers.get(CORRELATION),
            caused,
        )

    def excerpts(self, offsets: Iterable[int]) -> dict[int, str]:
        """The beginnings of messages' bodies, without those that were deleted from the log."""
        found = {}
        for batch in self._batches_at(offsets, ("body",)):
            for offset, body in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                found[offset] = excerpt(body, len(body))
        return found

    def recent_row(self, offset: int) -> MessageRow | None:
        """A message of the window as a row, of a queue where it failed if there is one."""
        brief = self.recent.brief(offset)
        if brief is None:
            return None
        copies = [(queue, self.recent.copy(queue, offset)) for queue in sorted(brief.queues)]
        worst = next((found for found in copies if found[1] is not None and found[1].is_parked), None)
        queue, copy = worst or (copies[0] if copies else ("", None))
        return row_of(brief, queue, copy)

    def original(self, message: str | int) -> Message:
        """A message as it was published, with its secrets, to be sent again."""
        return self.broker.ask(lambda broker: broker.message(message)).message

    def _messages_at(self, offsets: Iterable[int]) -> dict[int, Message]:
        """Messages of the log by offset, without those that were deleted."""
        found: dict[int, Message] = {}
        with self.broker.log() as reader:
            for first, count in chosen_offsets(offsets).offsets or ():
                for record in reader.messages(first, first + count):
                    found.update((record.first + row, message) for row, message in enumerate(record.messages))
        return found

    def _batches_at(self, offsets: Iterable[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Columns of messages, the offset first, without those that were deleted from the log."""
        wanted = sorted(set(offsets))
        chosen = pa.array(wanted, pa.int64())
        with self.broker.log() as reader:
            for first, last in _spans(wanted):
                for batch in reader.message_batches(first, last + 1, columns=("offset", *columns)):
                    yield batch.filter(pc.is_in(batch.column(0), value_set=chosen.cast(batch.schema.field(0).type)))

    def _history_of(self, offset: int) -> tuple[list[tuple[int, Event]], list[QueueChange]]:
        """The events of a message, and the changes of queues by which it was forgotten."""
        with self.broker.log() as reader:
            return reader.events_of(offset), forgotten(reader, offset)

    # Publishing

    def publish(self, messages: Messages, queue: str | None, who: str, timeout: Duration | None = None) -> Receipt:
        """Publish a batch; the receipt says which messages were refused, and why."""
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
            self.broker.ask(lambda broker: broker.queue(queue))
        return self.broker.ask(
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
        """Publish a message again, edited, to one queue or to all that receive its topic. It gets its own id and names
        the original as its cause."""
        document = self.broker.ask(lambda broker: broker.message(message))
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
        broker = self.broker.open()
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
        front: bool | None = None,
        counted: bool | None = None,
    ) -> int:
        delay = micros(after) or None
        settlement = Settlement(ANSWERS[answer], reason, delay, delivery.consumer, to=to, front=front, counted=counted)
        return await delivery.answer(settlement, rows)

    async def renew(self, delivery: AsyncDelivery) -> bool:
        return await self.broker.open().aio.renew(delivery)

    # The log

    def end(self) -> tuple[int, int]:
        """The next offset and the next position."""
        with self.broker.log() as reader:
            ends = reader.ends()
            return ends.next_offset, ends.next_position

    def log_messages(self, start: int, limit: int) -> list[dict[str, Any]]:
        """Messages of the log from an offset on, with excerpts of their bodies."""
        with self.broker.log() as reader:
            records = numbered_from(reader.messages, start, limit)
        return [entry for record in records for entry in message_entries(record)]

    def log_events(self, start: int, limit: int) -> list[dict[str, Any]]:
        """Events of the log from a position on."""
        with self.broker.log() as reader:
            records = numbered_from(reader.events, start, limit)
        return [entry for record in records for entry in event_entries(record)]

    def offset_at(self, moment: int, events: bool) -> int:
        with self.broker.log() as reader:
            return reader.position_at(moment) if events else reader.offset_at(moment)

    def latency(self, queue: str | None) -> dict[int, list[int]]:
        return self.recent.latency(queue)

    # Health

    def health(self) -> dict[str, Any]:
        """`live`: the process works, or recovers by itself. `ready`: messages are accepted."""
        try:
            self.broker.snapshot()
        except RemudaError as error:
            return {"live": True, "ready": False, "problems": {"broker": str(error)}}
        health = self.bus.health()
        problems = health.get("problems", {})
        broken = bool({"broker", "disk", "relay"} & problems.keys())
        return {"live": health["live"], "ready": not broken, **({"problems": problems} if problems else {})}


def _move_waiting(broker: Broker, queue: str, to: str, who: str, limit: int) -> int:
    moved = 0
    left = min(broker.queue(queue).waiting, limit)
    while left > 0:
        delivery = broker.pull(queue, min(left, _MOVED_AT_ONCE), consumer=f"move by {who}")
        if delivery is None:
            break
        moved += delivery.dead(reason=f"{MOVED}{to} by {who}", to=to)
        left -= len(delivery)
    return moved


def _spans(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and last of each run of offsets that lie close together."""
    first = last = None
    for offset in offsets:
        if first is None or last is None or offset - last > _NEAR:
            if first is not None and last is not None:
                yield first, last
            first = offset
        last = offset
    if first is not None and last is not None:
        yield first, last


def chosen_offsets(offsets: Iterable[int], states: frozenset[State] = PARKED) -> MessageFilter:
    """A filter for messages with these offsets, as far as they are in these states."""
    runs = []
    for _, block in groupby(enumerate(sorted(set(offsets))), key=lambda item: item[1] - item[0]):
        members = [offset for _, offset in block]
        runs.append((members[0], len(members)))
    return MessageFilter(states=states, offsets=tuple(runs))


def options_of(options: QueueOptions) -> dict[str, Any]:
    """All options as people write them."""
    shown: dict[str, Any] = {}
    for name in options.__struct_fields__:
        shown[name] = _as_written(name, getattr(options, name))
    return shown


def _as_written(option: str, value: Any) -> Any:
    if option in _DURATIONS:
        return text(value)
    if isinstance(value, tuple):
        return list(value)
    return value.value if hasattr(value, "value") else value


def shown_body(body: bytes) -> dict[str, Any]:
    """A body for programs: as text if it is text, otherwise in base64."""
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": msgspec.to_builtins(body)}


def _described(chosen: MessageFilter | WaitingFilter) -> str:
    words = {name: value for name in ("topic", "reason", "since", "until") if (value := getattr(chosen, name, None))}
    if isinstance(chosen, MessageFilter) and chosen.offsets is not None:
        words["messages"] = sum(count for _, count in chosen.offsets)
    return ", ".join(f"{name} {value}" for name, value in words.items()) or "all"


def priority_of(value: int | str) -> int:
    """A priority by number or name."""
    try:
        return read_priority(value)
    except InvalidMessage as error:
        raise InvalidOption(str(error).removesuffix("; nothing was stored")) from None


def seconds(name: str, value: Duration) -> float:
    return read_duration(name, value) / SECOND
