"""Everything the API and the pages need of a bus and its broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from remuda.broker.delivery import AsyncDelivery
from remuda.broker.port import AsyncBroker, Broker
from remuda.bus.broker_api import EmbeddedBroker
from remuda.bus.bus import Bus
from remuda.bus.forgotten import SentAgain, send_again, together
from remuda.bus.publishing import headers as names
from remuda.bus.publishing import tracking
from remuda.bus.publishing.message_checks import check_headers, check_target
from remuda.bus.settings.in_words import in_words
from remuda.bus.verbs import carry_out, outcome_text, queues_like
from remuda.history.failure_kinds import kind_of
from remuda.history.history import History
from remuda.index.messages import listed
from remuda.index.port import MESSAGE_COLUMNS
from remuda.index.query import Page, Query
from remuda.log.sealed.queue_changes import forgotten
from remuda.model.errors import (
    BrokerClosed,
    InvalidMessage,
    InvalidOption,
    NotAllowed,
    NotFound,
    RemudaError,
)
from remuda.model.life import PARKED
from remuda.model.life import Life as Copy
from remuda.model.message import CORRELATION, Message, read_priority
from remuda.model.message_row import MessageRow, excerpt
from remuda.model.messages import Messages
from remuda.model.operations.filters import MessageFilter
from remuda.model.operations.results import QueueInfo, Receipt
from remuda.model.operations.verbs import VERBS, Verb
from remuda.model.queues.options import QueueOptions, as_written, written
from remuda.model.queues.system_queues import SYSTEM_QUEUES, UNROUTED, is_own
from remuda.model.records import Event, QueueChange, change_words
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State
from remuda.model.values.durations import SECOND, Duration, micros
from remuda.model.values.number_runs import merged
from remuda.model.values.option_reading import read_duration
from remuda.model.values.urls import parse_url
from remuda.server.alerts.rules import FILE, Watch, rules_of
from remuda.server.http.api.log_entries import event_entries, message_entries, numbered_from
from remuda.server.http.grouping import Failure, grouped
from remuda.server.http.rates import Sample
from remuda.server.http.reconnecting import ReconnectingBroker, Unavailable
from remuda.server.http.search.recent_messages import WINDOW, RecentMessages
from remuda.server.http.search.searching import IndexPlace, Searcher, rows_at, search
from remuda.server.http.security.masks import masked, unmasked
from remuda.server.http.service_values import (
    Change,
    Group,
    MessageLife,
    QueueDetail,
    QueueSummary,
)
from remuda.server.http.timeline import timeline

_audit = logging.getLogger("remuda.audit")

PARKED_LISTED: Final = 10_000
_MANY: Final = 100
"""A batch of more messages is published in a thread, beside the other requests; fewer do not wait for one."""
_NEAR: Final = 1000
"""Offsets that are no farther apart than this are read in one go."""

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
        self,
        bus: Bus,
        *,
        searcher: Searcher | None = None,
        index: str | None = None,
        rules: str | None = None,
        window: int = WINDOW,
    ) -> None:
        self.bus = bus
        self.broker = ReconnectingBroker(bus, window)
        self._given_searcher = searcher
        self._index = IndexPlace(bus.url, index)
        self.watch = Watch(() if rules is None else rules_of(Path(rules)), _rules_file(bus.url, rules))
        self.broker.each_second = self._judge
        self._summaries: tuple[dict[str, QueueInfo], list[QueueSummary]] | None = None

    @property
    def window(self) -> RecentMessages:
        return self.broker.window

    def refresh(self) -> None:
        """Read the log up to its end, so that the answer shows what was just done."""
        self.broker.refresh()

    def close(self) -> None:
        """Stop following. The bus stays as it is."""
        self.broker.close()
        self._index.close()

    def begin(self) -> None:
        """Follow the broker from now on if there are rules of alarms; otherwise the first request begins."""
        if self.watch.has_work():
            with contextlib.suppress(RemudaError):
                self.broker.open()

    def judge(self) -> None:
        """Look whether queues break the rules of alarms."""
        if self.watch.has_work():
            self.watch.judge(self.queues(), self.broker.history.dead_since, self.bus.now())

    def _judge(self, broker: Broker, history: History) -> None:
        if self.watch.has_work():
            self.watch.judge(map(self._summary, broker.queues()), history.dead_since, self.bus.now())

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
            options=as_written(info.options),
            consumers=info.consumers,
            entered={state.value: count for state, count in sorted(info.counts.items())},
            late_answers=info.late_answers,
            oldest=self._oldest(name) if info.size else None,
            flow=self.broker.ask(lambda broker: broker.flow(name)) if info.options.has_flow else None,
        )

    def settings(self, queue: str) -> list[tuple[str, str, str]]:
        """The settings of the handlers that this process has for a queue, each with where it was set."""
        bus, own = self.bus, queue.removeprefix(self.bus.prefix)
        options = [handler.options for handler in bus.handlers if handler.queue == queue]
        found = bus.settings.of_queue(own, options[0]) if options else []
        return [(name, in_words(name, value), source) for name, value, source in found]

    def _oldest(self, queue: str) -> int | None:
        """When the oldest unsettled message of a queue was published, as far as the broker or the window knows."""
        found = self.window.oldest_live(queue)
        offsets = [] if found is None else [found]
        if isinstance(self.broker.open(), EmbeddedBroker):  # RabbitMQ shows messages only by delivering them
            with contextlib.suppress(NotAllowed):
                offsets += [first for first, _ in self.broker.ask(lambda broker: broker.waiting(queue))]
        for batch in self._batches_at([min(offsets)] if offsets else [], ("created",)):
            for created in batch.column("created").cast(pa.int64()).to_pylist():
                return int(created)
        return None

    def changes(self, queue: str, limit: int) -> list[Change]:
        """What operators did to a queue, the newest first."""
        with self.broker.log() as reader:
            found = list(together(reader.changes(queue)))[-limit:]
        return [Change(one.time, one.action, change_words(one), one.who or "") for one in reversed(found)]

    def send_again(self, queue: str, time: int | None, who: str) -> SentAgain:
        """Publish again what was forgotten in a queue, at a time or last."""
        _audit.info("%s sends again what was forgotten in %s", who, queue)
        return self.broker.ask(lambda broker: send_again(broker, queue, time, who))

    def history(self, queue: str) -> list[Sample]:
        return self.broker.rates.history(queue)

    def create_queue(self, name: str, options: Mapping[str, Any], who: str) -> bool:
        declared = self.broker.ask(lambda broker: broker.create_queue(name, dict(options)))
        if declared.created:
            _audit.info("%s created queue %s", who, name)
        elif declared.differs:
            differs = declared.differs.items()
            asked = ", ".join(f"{option} is {written(option, stands)}" for option, (_, stands) in differs)
            raise InvalidOption(f"queue {name!r} exists with other options: {asked}; nothing was changed")
        return declared.created

    def configure(self, name: str, changes: Mapping[str, Any], who: str) -> dict[str, Any]:
        for option in changes.keys() - set(QueueOptions.__struct_fields__):
            QueueOptions.parse({option: None})  # raises an error that says what is wrong with the name
        _audit.info("%s configures queue %s: %s", who, name, dict(changes))
        return as_written(self.broker.ask(lambda broker: broker.configure_queue(name, who=who, **changes)))

    def remove_queue(self, name: str, who: str) -> None:
        if name in SYSTEM_QUEUES:
            raise InvalidOption(f"queue {name!r} is the bus's own and cannot be removed")
        _audit.info("%s removes queue %s", who, name)
        self.broker.ask(lambda broker: broker.remove_queue(name, who=who))
        self.broker.forget(name)

    def queues_like(self, name: str) -> list[str]:
        """The queue of this name, or those that a name with * means."""
        return self.broker.ask(lambda broker: queues_like(broker, name))

    def operate(self, verb: Verb, queues: Sequence[str], who: str, values: Mapping[str, Any]) -> int | None:
        """Carry out a verb on these queues; returns how many messages it took."""
        asked = "".join(f", {name} {_described(value)}" for name, value in values.items())
        _audit.info("%s: %s %s%s", who, verb.name, ", ".join(queues), asked)
        return self.broker.ask(lambda broker: carry_out(broker, verb, queues, who, values))

    def done(self, verb: Verb, queues: Sequence[str], values: Mapping[str, Any], count: int | None) -> str:
        """What a verb did, for people."""
        return self.broker.ask(lambda broker: outcome_text(broker, verb, queues, values, count))

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
            consumers=self.broker.consumers(info),
            published_per_second=round(published, 2),
            done_per_second=round(done, 2),
            failed_per_second=round(failed, 2),
            internal=is_own(info.name),
            oldest=self.broker.oldest(info),
        )

    # Messages that ended without success

    def groups(self, queue: str) -> list[Group]:
        """Dead letters of a queue by exception and place."""
        parked = self.broker.ask(lambda broker: broker.parked(queue, MessageFilter(), PARKED_LISTED))
        kinds = self.broker.history.kinds_of(queue, (one.offset for one in parked))
        return grouped(
            [
                Failure(one.offset, one.reason, kinds.get(one.offset) or kind_of(one.reason, ""), one.time)
                for one in parked
            ]
        )

    def group(self, queue: str, key: str) -> Group:
        for group in self.groups(queue):
            if group.key == key:
                return group
        raise NotFound(f"queue {queue!r} has no dead letters of group {key!r} any more")

    def parked(self, queue: str, chosen: MessageFilter, limit: int) -> list[MessageRow]:
        """Dead letters, the newest first, however long ago they ended."""
        found = self.broker.ask(lambda broker: broker.parked(queue, chosen, limit))
        offsets = [one.offset for one in found]
        known = {row.offset: row for row in self.window.rows(offsets, queue)}
        known |= self._older_rows(queue, [offset for offset in offsets if offset not in known])
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
        rows = rows_at(self._index, self.end()[0], queue, offsets)
        life = Copy(State.DEAD, 0)
        for batch in self._batches_at([offset for offset in offsets if offset not in rows], MESSAGE_COLUMNS[1:-2]):
            for offset, created, id, name, topics, about, key, timestamp, mime_type in zip(
                *listed(batch, MESSAGE_COLUMNS[:-2]).values(), strict=True
            ):
                rows[offset] = MessageRow.of(
                    offset, created, id, name, tuple(topics or ()), about, key, timestamp, mime_type, 0, queue, life
                )
        return rows

    # Messages

    def search(self, query: Query) -> Page:
        searcher = self._given_searcher
        if searcher is not None:
            return searcher.search(query)
        if query.queue is not None:
            self.broker.ask(lambda broker: broker.queue(query.queue or ""))
        page = self.broker.ask(lambda broker: search(self._index, self.window, broker, self.end()[0], query))
        return msgspec.structs.replace(page, messages=self._with_excerpts(page.messages))

    def _with_excerpts(self, rows: list[MessageRow]) -> list[MessageRow]:
        """The newest messages with the beginnings of their bodies. Others may be spread over the whole log; pages ask
        for theirs afterwards."""
        first = max(self.window.first, rows[0].offset - _NEAR) if rows else 0
        found = self.excerpts(row.offset for row in rows if row.offset >= first)
        return [msgspec.structs.replace(row, excerpt=found.get(row.offset, "")) for row in rows]

    def life(self, message: str | int) -> MessageLife:
        """One message's whole life, with what it caused and what caused it."""
        known = message if isinstance(message, int) else self.window.offset_of(message)
        document = self.broker.ask(lambda broker: broker.message(message if known is None else known))
        self.refresh()
        found = document.message
        plain: dict[str, Any] = msgspec.to_builtins(document, builtin_types=(bytes,))
        plain |= {"state": document.state.value, **document.flags}
        plain["message"] = {
            **{name: value for name, value in plain["message"].items() if name != "body"},
            "headers": masked(found.headers),
            "priority": int(found.priority),
            "size": len(found.body),
            **shown_body(found.body),
        }
        caused = self.window.rows(self.window.children(found.id))[::-1]
        return MessageLife(
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

    def original(self, message: str | int) -> Message:
        """A message as it was published, with its secrets, to be sent again."""
        return self.broker.ask(lambda broker: broker.message(message)).message

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

    async def publish(self, messages: Messages, queue: str | None, timeout: Duration | None = None) -> Receipt:
        """Publish a batch; the receipt says which messages were refused, and why."""
        _check(messages)
        if self.bus.stack.layers and queue is None:
            return Receipt(0, await asyncio.to_thread(self.bus.publish_messages, list(messages)), {}, ())

        unbound = None if queue is not None else UNROUTED
        if len(messages) > _MANY:

            def publish_all(broker: Broker) -> Receipt:
                if queue is not None:
                    broker.queue(queue)
                return broker.publish(messages, queue=queue, unbound=unbound, timeout=timeout, raise_refusals=False)

            return await asyncio.to_thread(self.broker.ask, publish_all)

        async def publish(broker: AsyncBroker) -> Receipt:
            if queue is not None:
                await broker.queue(queue)
            return await broker.publish(messages, queue=queue, unbound=unbound, timeout=timeout, raise_refusals=False)

        return await self.broker.ask_async(publish)

    async def resend(
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
        document = await asyncio.to_thread(self.broker.ask, lambda broker: broker.message(message))
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
        receipt = await self.publish(Messages.of([edited]), queue)
        for refusal in receipt.refusals.values():
            raise refusal
        if forget and queue is not None:
            chosen = {"chosen": chosen_offsets([document.offset])}
            await asyncio.to_thread(self.operate, VERBS["forget"], [queue], who, chosen)
        return receipt.id

    def cancel(self, message: str, who: str) -> tuple[int, str]:
        """Cancel a message, as `bus.cancel`; returns how many end by it, and what it is now."""
        _audit.info("%s: cancel %s", who, message)
        id = tracking.check_id(message)
        cancelled = self.broker.ask(lambda broker: tracking.cancel(broker, id, who, self.bus._running.cancel))
        return cancelled, tracking.status_of(self.broker.ask(lambda broker: broker.message(id))).word

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
        return self.window.latency(queue)

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


def _rules_file(url: Any, given: str | None) -> Path | None:
    """The file of rules that was named, or that of the directory."""
    place = parse_url(url)
    return Path(given) if given is not None else Path(place.path) / FILE if place.is_directory else None


def _check(messages: Messages) -> None:
    topics = messages.name if isinstance(messages.name, list) else [messages.name]
    for topic in set(topics):
        check_target("topic", topic)
    headers = messages.headers if isinstance(messages.headers, list) else [messages.headers]
    for one in headers:
        check_headers(one)


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
    return MessageFilter(states=states, offsets=tuple(merged((offset, 1) for offset in offsets)))


def shown_body(body: bytes) -> dict[str, Any]:
    """A body for programs: as text if it is text, otherwise in base64."""
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": msgspec.to_builtins(body)}


def _described(value: Any) -> str:
    if not isinstance(value, MessageFilter):
        return str(value)
    words = {name: found for name in ("reason", "since", "until") if (found := getattr(value, name))}
    if value.offsets is not None:
        words["messages"] = sum(count for _, count in value.offsets)
    return " ".join(["".join(sorted(value.taken)), *(f"{name} {found}" for name, found in words.items())])


def priority_of(value: int | str) -> int:
    """A priority by number or name."""
    try:
        return read_priority(value)
    except InvalidMessage as error:
        raise InvalidOption(str(error).removesuffix("; nothing was stored")) from None


def seconds(name: str, value: Duration) -> float:
    return read_duration(name, value) / SECOND
