"""The API's handlers."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import msgspec
from starlette.responses import Response

from remuda.bus.publishing.waiting import WaitingFilter
from remuda.model.errors import InvalidOption
from remuda.model.filters import MessageFilter
from remuda.model.state import PARKED, State
from remuda.model.topics import has_prefix
from remuda.server.http import schemas
from remuda.server.http.deliveries import Deliveries
from remuda.server.http.idempotency import Idempotency
from remuda.server.http.operations import JSON, NDJSON, Call
from remuda.server.http.problems import Problem, problem_of
from remuda.server.http.search import MAX_PAGE
from remuda.server.http.service import ANSWERS, chosen_offsets, seconds
from remuda.server.http.stream import LogStream, Streams
from remuda.server.http.values import Query, QueueDetail

MAX_BATCH: Final = 100_000
_one = msgspec.json.Decoder(schemas.NewMessage)
_many = msgspec.json.Decoder(list[schemas.NewMessage])
STATE_NAMES: Final = {state.name.lower().replace("_", "-"): state for state in State}


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
            return await call.run(self._publish, call, content, kind, queue, timeout)

        if not keys:
            return _created(await do())
        if len(keys) > 1:
            raise Problem(400, "Invalid key", "give only one Idempotency-Key")
        asked = b"\0".join([kind.encode(), (queue or "").encode(), content])
        return _created(await self.idempotency.once(call.user.name, keys[0], asked, do))

    def _publish(self, call: Call, content: bytes, kind: str, queue: str | None, timeout: float | None) -> bytes:
        given = _read_messages(content, kind)
        if len(given) > MAX_BATCH:
            raise Problem(413, "Request too large", f"a batch has at most {MAX_BATCH} messages; split it")
        if not given:
            return msgspec.json.encode(schemas.Published([], 0))
        messages = schemas.columns_of(given, call.user.name, time.time_ns() // 1000)
        receipt = call.service.publish(messages, queue, call.user.name, timeout)
        if receipt.refusals and len(receipt) == 1:
            raise problem_of(receipt.refusals[0])
        refused = {str(row): str(error) for row, error in receipt.refusals.items()}
        return msgspec.json.encode(schemas.Published(receipt.ids, receipt.accepted, refused))

    async def resend(self, call: Call) -> Any:
        asked = await call.decoded(schemas.ResendRequest)
        body: bytes | None = None
        if bytes(asked.body) or asked.text is not None or asked.base64 is not None:
            body, _ = schemas.body_of(asked.body, asked.text, asked.base64)
        id = await call.run(
            call.service.resend, call.path("id"), call.user.name, queue=asked.queue, topic=asked.topic, body=body,
            headers=asked.headers, mime_type=asked.mime_type, forget=asked.forget,
        )  # fmt: skip
        return schemas.Resent(id)

    # Reading

    async def queues(self, call: Call) -> schemas.QueuePage:
        prefix, cursor, limit = call.text("prefix") or "", call.text("cursor"), call.number("limit", 100, 1, MAX_PAGE)
        queues = await call.run(call.service.queues)
        found = [queue for queue in queues if queue.name.startswith(prefix) and (cursor is None or queue.name > cursor)]
        return schemas.QueuePage(found[:limit], found[limit - 1].name if len(found) > limit else None)

    async def queue(self, call: Call) -> schemas.QueueAnswer:
        return _queue(await call.run(call.service.queue, call.path("name")))

    async def changes(self, call: Call) -> Any:
        name, limit = call.path("name"), call.number("limit", 100, 1, MAX_PAGE)
        await call.run(call.service.queue, name)
        return schemas.Changes(await call.run(call.service.changes, name, limit))

    async def messages(self, call: Call) -> Any:
        query = read_query(call, call.number("limit", 50, 1, MAX_PAGE))
        await call.run(call.service.refresh)
        page = await call.run(call.service.search, query)
        return schemas.MessagePage(page.messages, page.next, page.note)

    async def message(self, call: Call) -> Any:
        life = await call.run(call.service.life, call.path("id"))
        return schemas.LifeAnswer(life.document, life.timeline, life.parent, life.children)

    async def dead(self, call: Call) -> Any:
        return schemas.Groups(await call.run(call.service.groups, call.path("name")))

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

    async def pause(self, call: Call) -> Any:
        asked = await call.decoded(schemas.PauseRequest)
        return await self._status(call, "paused" if asked.refuse else "only-publish")

    async def resume(self, call: Call) -> Any:
        return await self._status(call, "running")

    async def _status(self, call: Call, status: str) -> Any:
        await call.run(call.service.set_status, call.path("name"), status, call.user.name)
        return _queue(await call.run(call.service.queue, call.path("name")))

    async def clear(self, call: Call) -> Any:
        asked = await call.decoded(schemas.ClearRequest)
        chosen = WaitingFilter(asked.topic or None, asked.reason or None, asked.since, asked.until)
        return schemas.Settled(await call.run(call.service.clear, call.path("name"), call.user.name, chosen))

    async def reprocess(self, call: Call) -> Any:
        asked = await call.decoded(schemas.ReprocessRequest)
        chosen = await self._choice(call, asked)
        retries = asked.waiting and not asked.states and asked.offsets is None and asked.group is None
        count = await call.run(call.service.reprocess, call.path("name"), chosen, call.user.name, retries=retries)
        return schemas.Settled(count)

    async def forget(self, call: Call) -> Any:
        chosen = await self._choice(call, await call.decoded(schemas.Choice))
        return schemas.Settled(await call.run(call.service.forget, call.path("name"), chosen, call.user.name))

    async def move(self, call: Call) -> Any:
        asked = await call.decoded(schemas.MoveRequest)
        if asked.waiting and asked.choice != schemas.Choice():
            raise InvalidOption("choice is for messages that ended without success; waiting moves all that wait")
        chosen = None if asked.waiting else await self._choice(call, asked.choice)
        return schemas.Settled(await call.run(call.service.move, call.path("name"), asked.to, chosen, call.user.name))

    async def _choice(self, call: Call, asked: schemas.Choice) -> MessageFilter:
        offsets = asked.offsets
        if asked.group is not None:
            group = await call.run(call.service.group, call.path("name"), asked.group)
            offsets = group.offsets if offsets is None else sorted({*offsets}.intersection(group.offsets))
        return choice(asked.states, asked.reason, asked.since, asked.until, offsets)

    # Taking

    async def pull(self, call: Call) -> Any:
        asked = await call.decoded(schemas.PullRequest)
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
            return schemas.Pulled(None, [])
        if await call.request.is_disconnected():
            await call.service.answer(delivery, "release")
            return Response(status_code=400)
        messages = [
            _pulled(offset, attempt, message)
            for offset, attempt, message in zip(delivery.offsets, delivery.attempts, delivery, strict=True)
        ]
        token = self.deliveries.add(delivery) if delivery.lease is not None else None
        return schemas.Pulled(token, messages, delivery.deadline)

    async def answer(self, call: Call) -> Any:
        name = call.path("answer")
        asked = await call.decoded(schemas.AnswerRequest)
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
        return schemas.Settled(count)

    async def renew(self, call: Call) -> Any:
        delivery = self.deliveries.get(call.path("token"))
        renewed = await call.service.renew(delivery)
        if renewed:
            self.deliveries.renewed(call.path("token"), 3600 * 1_000_000)
        return schemas.Renewed(renewed)

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
        return schemas.LogPage([entry for entry in kept if wanted(entry)], following)

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


def _read_messages(content: bytes, kind: str) -> list[schemas.NewMessage]:
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
    return Query(
        queue=call.text("queue"),
        topic=call.text("topic"),
        states=read_states(call.text("state")),
        since=call.number("since", 0) if call.text("since") else None,
        until=call.number("until", 0) if call.text("until") else None,
        object=call.text("object"),
        key=call.text("key"),
        text=call.text("text"),
        cursor=call.text("cursor"),
        limit=limit,
    )


def read_states(text: str | None) -> frozenset[State]:
    """States by their letters, `EI`, or by their names, `dead,invalid`."""
    text = text or ""
    try:
        return frozenset(map(State, text))
    except ValueError:
        named = [STATE_NAMES.get(name.strip()) for name in text.split(",")]
    if None in named:
        raise InvalidOption(f"states are letters of {''.join(State)}, or names such as dead,invalid, not {text[:40]!r}")
    return frozenset(state for state in named if state is not None)


def choice(
    states: str | None, reason: str | None, since: int | None, until: int | None, offsets: list[int] | None
) -> MessageFilter:
    """A filter for dead letters, from values that were checked."""
    chosen = frozenset(map(State, states)) if states else PARKED
    by_offset = chosen_offsets(offsets, chosen).offsets if offsets is not None else None
    return MessageFilter(states=chosen, reason=reason or None, since=since or 0, until=until, offsets=by_offset)


def _queue(detail: QueueDetail) -> schemas.QueueAnswer:
    return schemas.QueueAnswer(
        detail.summary, detail.options, list(detail.consumers), detail.entered, detail.late_answers, detail.oldest
    )


def _pulled(offset: int, attempt: int, message: Any) -> schemas.PulledMessage:
    text: str | None
    try:
        text, base64 = message.body.decode(), None
    except UnicodeDecodeError:
        text, base64 = None, message.body
    return schemas.PulledMessage(
        offset, message.id, message.name, attempt, message.mime_type, dict(message.headers), message.created,
        message.object, message.key, text, base64,
    )  # fmt: skip


def _wanted(call: Call, events: bool) -> Any:
    queue, topic, states = call.text("queue"), call.text("topic"), read_states(call.text("state"))

    def wanted(entry: dict[str, Any]) -> bool:
        if events:
            return (queue is None or entry["queue"] == queue) and (not states or entry["state"] in states)
        return (queue is None or queue in entry["queues"]) and (
            topic is None or has_prefix(entry["topic"].casefold(), topic.casefold())
        )

    return wanted


def answer_names() -> list[str]:
    return list(ANSWERS)
