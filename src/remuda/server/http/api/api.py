"""The API's handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from starlette.responses import Response

from remuda.bus.forgotten import SentAgain
from remuda.index.language import read_states as asked_states
from remuda.index.query import Query
from remuda.model.errors import InvalidOption
from remuda.model.messages import Messages
from remuda.model.operations.filters import MessageFilter, read_states
from remuda.model.operations.results import Receipt
from remuda.model.operations.verbs import Verb
from remuda.model.state import State
from remuda.model.topics import TopicPrefix
from remuda.server.http.api import api_types
from remuda.server.http.api.event_stream import LogStream, Streams
from remuda.server.http.api.held_deliveries import Deliveries
from remuda.server.http.api.idempotency import Idempotency
from remuda.server.http.api.operations import JSON, NDJSON, ApiHandler, Call
from remuda.server.http.api.problems import Problem, problem_of
from remuda.server.http.search.searching import MAX_PAGE
from remuda.server.http.service import ANSWERS, chosen_offsets, seconds
from remuda.server.http.service_values import QueueDetail

MAX_BATCH: Final = 100_000
_SMALL: Final = 64 << 10
_one = msgspec.json.Decoder(api_types.NewMessage)
_many = msgspec.json.Decoder(list[api_types.NewMessage])


class Api:
    """The handlers, and the state that they share."""

    def __init__(self, streams: int = 64) -> None:
        self.deliveries = Deliveries()
        self.idempotency = Idempotency()
        self.streams = Streams(streams)

    # Publishing

    async def publish(self, call: Call) -> Any:
        content = await call.bytes()
        kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        queue, wait = call.text("queue"), call.text("timeout")
        timeout = None if wait is None else min(seconds("timeout", wait), 60.0)
        keys = call.request.headers.getlist("idempotency-key")

        async def do() -> bytes:
            user = call.user.name
            # A large batch is read in a thread, beside the other requests.
            read = (_batch, content, kind, user, call.service.bus.now())
            messages = _batch(*read[1:]) if len(content) < _SMALL else await call.run(*read)
            if messages is None:
                return msgspec.json.encode(api_types.Published([], 0))
            return _published(await call.service.publish(messages, queue, timeout))

        if not keys:
            return _created(await do())
        if len(keys) > 1:
            raise Problem(400, "Invalid key", "give only one Idempotency-Key")
        asked = b"\0".join([kind.encode(), (queue or "").encode(), content])
        return _created(await self.idempotency.once(call.user.name, keys[0], asked, do))

    async def resend(self, call: Call) -> Any:
        asked = await call.decoded(api_types.ResendRequest)
        body: bytes | None = None
        if bytes(asked.body) or asked.text is not None or asked.base64 is not None:
            body, _ = api_types.body_of(asked.body, asked.text, asked.base64)
        id = await call.service.resend(
            call.path("id"), call.user.name, queue=asked.queue, topic=asked.topic, body=body,
            headers=asked.headers, mime_type=asked.mime_type, forget=asked.forget,
        )  # fmt: skip
        return api_types.Resent(id)

    async def cancel(self, call: Call) -> Any:
        return api_types.Cancelled(*await call.run(call.service.cancel, call.path("id"), call.user.name))

    # Reading

    async def queues(self, call: Call) -> api_types.QueuePage:
        prefix, cursor, limit = call.text("prefix") or "", call.text("cursor"), call.number("limit", 100, 1, MAX_PAGE)
        queues = await call.run(call.service.queues)
        found = [queue for queue in queues if queue.name.startswith(prefix) and (cursor is None or queue.name > cursor)]
        return api_types.QueuePage(found[:limit], found[limit - 1].name if len(found) > limit else None)

    async def queue(self, call: Call) -> api_types.QueueAnswer:
        return _queue(await call.run(call.service.queue, call.path("name")))

    async def changes(self, call: Call) -> Any:
        name, limit = call.path("name"), call.number("limit", 100, 1, MAX_PAGE)
        await call.run(call.service.queue, name)
        return api_types.Changes(await call.run(call.service.changes, name, limit))

    async def messages(self, call: Call) -> Any:
        query = read_query(call, call.number("limit", 50, 1, MAX_PAGE))
        await call.run(call.service.refresh)
        page = await call.run(call.service.search, query)
        return api_types.MessagePage(page.messages, page.next, page.note)

    async def message(self, call: Call) -> Any:
        life = await call.run(call.service.life, call.path("id"))
        return api_types.LifeAnswer(life.document, life.timeline, life.parent, life.children)

    async def dead(self, call: Call) -> Any:
        return api_types.Groups(await call.run(call.service.groups, call.path("name")))

    # Queues

    async def create(self, call: Call) -> Any:
        options = await call.decoded(dict[str, Any])
        created = await call.run(call.service.create_queue, call.path("name"), options, call.user.name)
        detail = _queue(await call.run(call.service.queue, call.path("name")))
        return Response(msgspec.json.encode(detail), 201 if created else 200, media_type=JSON)

    async def configure(self, call: Call) -> Any:
        changes = await call.decoded(dict[str, Any])
        await call.run(call.service.configure, call.path("name"), changes, call.user.name)
        return _queue(await call.run(call.service.queue, call.path("name")))

    async def remove(self, call: Call) -> None:
        await call.run(call.service.remove_queue, call.path("name"), call.user.name)

    async def send_again(self, call: Call) -> SentAgain:
        asked = await call.decoded(api_types.SendAgainRequest)
        return await call.run(call.service.send_again, call.path("name"), asked.time, call.user.name)

    def verb(self, verb: Verb, request: Any) -> ApiHandler:
        """The handler of a verb."""

        async def handler(call: Call) -> Any:
            values = {} if request is None else await self._values(call, verb, await call.decoded(request))
            queues = await call.run(call.service.queues_like, call.path("name"))
            count = await call.run(call.service.operate, verb, queues, call.user.name, values)
            if verb.counts:
                return api_types.Settled(count or 0)
            return _queue(await call.run(call.service.queue, queues[0]))

        handler.__name__ = verb.name
        return handler

    async def _values(self, call: Call, verb: Verb, asked: Any) -> dict[str, Any]:
        """What was asked for, by the names of the verb's parameters."""
        values: dict[str, Any] = {}
        for one in verb.parameters:
            value = await self._choice(call, verb, asked) if one.type is MessageFilter else getattr(asked, one.name)
            if one.required or value not in (None, ""):
                values[one.name] = value
        return values

    async def _choice(self, call: Call, verb: Verb, asked: Any) -> MessageFilter | None:
        offsets = asked.offsets
        if asked.group is not None:
            group = await call.run(call.service.group, call.path("name"), asked.group)
            offsets = group.offsets if offsets is None else sorted({*offsets}.intersection(group.offsets))
        if not (asked.states or asked.reason) and asked.since is asked.until is offsets is None:
            return None
        return choice(read_states(asked.states or "") or verb.states, asked.reason, asked.since, asked.until, offsets)

    # Taking

    async def pull(self, call: Call) -> Any:
        asked = await call.decoded(api_types.PullRequest)
        if asked.consumer is not None and not asked.consumer.isprintable():
            raise InvalidOption(f"consumer contains unprintable characters: {asked.consumer!r}")
        self.deliveries.check_room()
        consumer = asked.consumer or f"http-{call.user.name}"
        pulling = asyncio.ensure_future(
            call.service.pull(call.path("name"), asked.count, consumer, asked.wait, asked.newest)
        )
        while not pulling.done():
            await asyncio.wait({pulling}, timeout=1.0)
            if not pulling.done() and await call.request.is_disconnected():
                pulling.cancel()
                await asyncio.gather(pulling, return_exceptions=True)
                return Response(status_code=400)
        delivery = pulling.result()
        if delivery is None:
            return api_types.Pulled(None, [])
        if await call.request.is_disconnected():
            await call.service.answer(delivery, "release")
            return Response(status_code=400)
        messages = [
            _pulled(offset, attempt, message)
            for offset, attempt, message in zip(delivery.offsets, delivery.attempts, delivery, strict=True)
        ]
        token = self.deliveries.add(delivery) if delivery.lease is not None else None
        return api_types.Pulled(token, messages, delivery.deadline)

    async def answer(self, call: Call) -> Any:
        name = call.path("answer")
        asked = await call.decoded(api_types.AnswerRequest)
        delivery = self.deliveries.get(call.path("token"))
        if asked.rows is not None and any(row >= len(delivery) for row in asked.rows):
            raise InvalidOption(f"rows are numbers from 0 to {len(delivery) - 1}")
        if asked.to is not None and name != "dead":
            raise InvalidOption("to is only for dead, which may move a message to another queue")
        if asked.to is not None:
            await call.run(call.service.queue, asked.to)
        if name != "nack" and (asked.front is not None or asked.counted is not None):
            raise InvalidOption("front and counted are only for nack, which returns a message to its queue")
        after = seconds("after", asked.after)
        count = await call.service.answer(
            delivery, name, rows=asked.rows, after=after, reason=asked.reason, to=asked.to,
            front=asked.front, counted=asked.counted,
        )  # fmt: skip
        return api_types.Settled(count)

    async def renew(self, call: Call) -> Any:
        delivery = self.deliveries.get(call.path("token"))
        renewed = await call.service.renew(delivery)
        if renewed:
            self.deliveries.renewed(call.path("token"), 3600 * 1_000_000)
        return api_types.Renewed(renewed)

    # The log

    async def log(self, call: Call) -> Any:
        events, start = await self._start(call)
        limit = call.number("limit", 100, 1, MAX_PAGE)
        read = call.service.log_events if events else call.service.log_messages
        entries = await call.run(read, start, limit)
        wanted = _wanted(call, events)
        name = "position" if events else "offset"
        kept = [entry for entry in entries if start <= entry[name]]
        following = kept[-1][name] + 1 if kept else start
        return api_types.LogPage([entry for entry in kept if wanted(entry)], following)

    async def stream(self, call: Call) -> Any:
        events, start = await self._start(call)
        wanted = _wanted(call, events)
        if call.request.method == "HEAD":
            return Response(media_type="text/event-stream")
        self.streams.enter()
        return LogStream(call.service, self.streams, start, events=events, wanted=wanted, who=call.user.name)

    async def _start(self, call: Call) -> tuple[bool, int]:
        kind = call.text("kind") or "messages"
        if kind not in ("messages", "events"):
            raise InvalidOption(f"kind must be messages or events, not {kind[:40]!r}")
        events = kind == "events"
        last = call.request.headers.get("last-event-id", "")
        if last.isascii() and last.isdigit() and len(last) < 19:
            return events, int(last) + 1
        if call.text("from") is not None:
            return events, call.number("from", 0)
        if call.text("since") is not None:
            return events, await call.run(call.service.offset_at, call.number("since", 0), events)
        return events, (await call.run(call.service.end))[1 if events else 0]


def _created(published: bytes) -> Response:
    return Response(published, 201, media_type=JSON)


def _batch(content: bytes, kind: str, user: str, now: int) -> Messages | None:
    """The messages of a request; None if it has none."""
    given = _read_messages(content, kind)
    if len(given) > MAX_BATCH:
        raise Problem(413, "Request too large", f"a batch has at most {MAX_BATCH} messages; split it")
    return api_types.columns_of(given, user, now) if given else None


def _published(receipt: Receipt) -> bytes:
    if receipt.refusals and len(receipt) == 1:
        raise problem_of(receipt.refusals[0])
    refused = {str(row): str(error) for row, error in receipt.refusals.items()}
    return msgspec.json.encode(api_types.Published(receipt.ids, receipt.accepted, refused))


def _read_messages(content: bytes, kind: str) -> list[api_types.NewMessage]:
    try:
        if kind == NDJSON:
            return _one.decode_lines(content)
        if content.lstrip()[:1] == b"[":
            return _many.decode(content)
        return [_one.decode(content)]
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "Invalid message", f"the request's body is invalid: {error}; nothing was stored") from None


def read_query(call: Call, limit: int) -> Query:
    """The search that an address asks for."""
    states, moved = _asked_states(call)
    return Query(
        queue=call.text("queue"),
        topic=call.text("topic"),
        states=states,
        moved=moved,
        since=call.number("since", 0) if call.text("since") else None,
        until=call.number("until", 0) if call.text("until") else None,
        object=call.text("object"),
        key=call.text("key"),
        text=call.text("text") or "",
        cursor=call.text("cursor"),
        limit=limit,
    )


def _asked_states(call: Call) -> tuple[frozenset[State], bool]:
    return asked_states((call.text("state") or "").split(","))


def choice(
    states: frozenset[State], reason: str | None, since: int | None = None, until: int | None = None,
    offsets: Iterable[int] | None = None,
) -> MessageFilter:  # fmt: skip
    """A filter for messages, from values that were checked."""
    runs = None if offsets is None else chosen_offsets(offsets).offsets
    return MessageFilter(states=states, reason=reason or None, since=since or 0, until=until, offsets=runs)


def _queue(detail: QueueDetail) -> api_types.QueueAnswer:
    return api_types.QueueAnswer(
        detail.summary,
        detail.options,
        list(detail.consumers),
        detail.entered,
        detail.late_answers,
        detail.oldest,
        detail.flow,
    )


def _pulled(offset: int, attempt: int, message: Any) -> api_types.PulledMessage:
    text: str | None
    try:
        text, base64 = message.body.decode(), None
    except UnicodeDecodeError:
        text, base64 = None, message.body
    return api_types.PulledMessage(
        offset, message.id, message.name, list(message.topics or (message.name,)), attempt, message.mime_type,
        dict(message.headers), message.created, message.timestamp, message.object, message.key, text, base64,
    )  # fmt: skip


def _wanted(call: Call, events: bool) -> Any:
    queue, topic = call.text("queue"), call.text("topic")
    states, moved = _asked_states(call)
    asked = Query(states=states, moved=moved)
    prefix = None if topic is None else TopicPrefix.parse(topic)

    def wanted(entry: dict[str, Any]) -> bool:
        if events:
            return (queue is None or entry["queue"] == queue) and asked.fits_state(
                State(entry["state"]), entry.get("movedTo")
            )
        return (queue is None or queue in entry["queues"]) and (
            prefix is None or any(map(prefix.covers, entry["topics"]))
        )

    return wanted


def answer_names() -> list[str]:
    return list(ANSWERS)
