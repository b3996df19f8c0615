"""The dashboard's pages: Services → Messaging."""

from __future__ import annotations

import base64
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from remuda.bus.publishing.command_line import PublishLine, publish_line
from remuda.bus.publishing.readable import readable
from remuda.index.language import read_states as asked_states
from remuda.index.query import Query
from remuda.model.errors import InvalidOption, RemudaError
from remuda.model.life import PARKED
from remuda.model.message import Message
from remuda.model.message_row import MessageRow
from remuda.model.operations.filters import MessageFilter
from remuda.model.operations.verbs import VERBS, Verb
from remuda.model.queues.options import QueueOptions, as_written
from remuda.model.values.urls import parse_url
from remuda.server.http.api import api_types
from remuda.server.http.api.api import choice
from remuda.server.http.api.problems import Problem
from remuda.server.http.edited import Line, differences, is_resent
from remuda.server.http.pages import render
from remuda.server.http.pages.charts import conversation_diagram, depth_points, heat_map, sparkline
from remuda.server.http.pages.pageset import Form, PageSet, error_page, in_thread
from remuda.server.http.pages.render import HERE, page
from remuda.server.http.pages.waterfall import LINES, attempts, bars
from remuda.server.http.security.masks import masked
from remuda.server.http.service import MessagingService
from remuda.server.http.service_values import QueueSummary

T = TypeVar("T")
_log = logging.getLogger("remuda.server")

ROWS: Final = 50
_USUAL: Final = as_written(QueueOptions())
_CHANGES: Final = 20
_SORTS: Final[dict[str, Callable[[QueueSummary], tuple[Any, ...]]]] = {
    "trouble": lambda queue: (not queue.bad, queue.internal),
    "name": lambda queue: (queue.internal,),
    "waiting": lambda queue: (-queue.waiting,),
    "oldest": lambda queue: (queue.oldest or float("inf"),),
    "in-flight": lambda queue: (-queue.in_flight,),
    "delayed": lambda queue: (-queue.delayed,),
    "dead": lambda queue: (-queue.parked,),
    "published": lambda queue: (-queue.published_per_second,),
    "done": lambda queue: (-queue.done_per_second,),
    "failed": lambda queue: (-queue.failed_per_second,),
    "consumers": lambda queue: (queue.consumers, -queue.size),
}
"""The orders of the overview; queues that are equal are by name."""
LISTED_VERBS: Final = ("reprocess", "pause", "resume")
_FLAGS: Final = ("ordered", "fair")
_RATES: Final = ("rate", "rate_per_key")
CLEAR_WARNING: Final = (
    "This may produce unexpected results, e.g. partial email delivery, failed conversions not being retried etc."
)


class Pages(PageSet):
    """Queues, messages, dead letters, the live tail and latency."""

    # Reading

    async def overview(self, request: Request) -> Response:
        return page(request, "overview.html", **await in_thread(self._overview, request))

    def _overview(self, request: Request) -> dict[str, Any]:
        words = request.query_params
        filter_, sort = words.get("filter", ""), words.get("sort", "trouble")
        sort = sort if sort in _SORTS else "trouble"
        queues = self._service.queues()
        totals = _totals(queues)
        chosen = [queue for queue in queues if _listed(queue, filter_)]
        watch = self._service.watch
        loud = {alarm.queue for alarm in watch.alarms}
        chosen.sort(key=_SORTS[sort])  # they are by name already
        if sort == "trouble":
            chosen.sort(key=lambda queue: queue.name not in loud)
        pages_ = max(1, -(-len(chosen) // ROWS))
        at = min(max(_whole(words.get("page"), 1), 1), pages_)
        shown = chosen[(at - 1) * ROWS : at * ROWS]
        sparks = {queue.name: sparkline(self._service.history(queue.name)) for queue in shown}
        return {
            "queues": shown, "totals": totals, "filter": filter_, "sort": sort, "at": at, "pages": pages_,
            "alarms": len(watch.alarms), "loud": sorted(loud), "found": len(chosen), "sparks": sparks,
            "all": len(queues), "listed": [queue for queue in chosen if not queue.internal],
        }  # fmt: skip

    async def queue(self, request: Request) -> Response:
        values = await in_thread(self._queue, request.path_params["name"])
        if render.is_live(request):
            return page(request, "queue.html", **values)
        names = await in_thread(self._service.queue_names)
        others = [name for name in names if name != request.path_params["name"]][:500]
        changes = await in_thread(self._service.changes, request.path_params["name"], _CHANGES)
        options = {name: value for name, value in values["detail"].options.items() if name != "type"}
        changed = {name: value for name, value in options.items() if value != _USUAL[name]}
        return page(
            request,
            "queue.html",
            **values,
            changes=changes,
            changed=changed,
            usual={name: value for name, value in options.items() if name not in changed},
            settings=self._service.settings(request.path_params["name"]),
            others=others,
            warning=CLEAR_WARNING,
        )

    def _queue(self, name: str) -> dict[str, Any]:
        detail = self._service.queue(name)
        map_ = heat_map(self._service.latency(name), int(time.time() * 1e6))
        recent = self._service.search(Query(queue=name, limit=8))
        return {"detail": detail, "queue": detail.summary, "map": map_, "recent": recent.messages}

    async def queue_data(self, request: Request) -> Response:
        samples = await in_thread(self._service.history, request.path_params["name"])
        return Response(msgspec.json.encode(depth_points(samples)), media_type="application/json")

    async def messages(self, request: Request) -> Response:
        words = request.query_params
        states, moved = asked_states(",".join(words.getlist("state")).split(","))
        wanted = Query(
            queue=words.get("queue") or None,
            topic=words.get("topic") or None,
            states=states,
            moved=moved,
            since=_moment("since", words.get("since")),
            until=_moment("until", words.get("until")),
            object=words.get("object") or None,
            key=words.get("key") or None,
            text=words.get("text") or "",
            cursor=words.get("cursor") or None,
            limit=ROWS,
        )
        found = await in_thread(self._find, wanted)
        asked = {name: words.get(name, "") for name in ("queue", "topic", "since", "until", "object", "key", "text")}
        return page(
            request, "messages.html", found=found, asked=asked, states=states,
            letters=[*(state.value for state in sorted(states)), *(["moved"] if moved else [])],
        )  # fmt: skip

    def _find(self, query: Query) -> Any:
        self._service.refresh()
        return self._service.search(query)

    async def message(self, request: Request) -> Response:
        life = await in_thread(self._service.life, request.path_params["id"])
        document = life.document
        tree = await in_thread(self._conversation, document["message"]["id"], life.parent)
        original = await in_thread(self._service.original, document["offset"])
        lines = attempts(life.timeline)
        again = await in_thread(self._again, original)
        return page(
            request, "message.html", life=life, document=document, message=document["message"], tree=tree,
            body=await in_thread(readable, original.body, original.mime_type), again=again,
            bars=bars(lines[:LINES], document["created"], self._service.bus.now()), left_out=max(0, len(lines) - LINES),
            diagram=conversation_diagram(tree) if tree else None,
            edited=await in_thread(self._edited, original, life.parent),
            parked=[view["queue"] for view in document["queues"] if view["state"] in PARKED and not view["movedTo"]],
        )  # fmt: skip

    def _edited(self, message: Message, parent: str | None) -> list[Line] | None:
        """What differs from the message of which this one is an edition; None if it is none."""
        if parent is None:
            return None
        try:
            before = self._service.original(parent)
        except RemudaError:  # it came from elsewhere, or was collected
            return None
        return differences(before, message) if is_resent(before, message) else None

    def _again(self, message: Message) -> PublishLine | None:
        """The command that publishes it again; none for what only this process holds."""
        place = parse_url(self._service.bus.url)
        if not (place.is_directory or place.is_network):
            return None
        target = os.path.abspath(place.path) if place.is_directory else str(place)
        shown = masked(message.headers)
        hidden = frozenset(name for name, value in message.headers.items() if shown[name] != value)
        return publish_line(message, target, hidden)

    def _conversation(self, id: str, parent: str | None) -> list[tuple[int, MessageRow]]:
        """What caused what, as rows with their depth, starting from the first known cause."""
        window = self._service.window
        top, seen = id, {id}
        while parent is not None and parent not in seen and len(seen) < 50:
            offset = window.offset_of(parent)
            brief = None if offset is None else window.brief(offset)
            if brief is None:
                break
            seen.add(parent)
            top, parent = parent, brief.parent
        rows: list[tuple[int, MessageRow]] = []
        self._branch(top, 0, rows, set())
        return rows if len(rows) > 1 else []

    def _branch(self, id: str, depth: int, rows: list[tuple[int, MessageRow]], seen: set[str]) -> None:
        if id in seen or len(rows) > 200 or depth > 20:
            return
        seen.add(id)
        window = self._service.window
        offset = window.offset_of(id)
        row = None if offset is None else window.row(offset)
        if row is None:
            return
        rows.append((depth, row))
        for child in window.children(id):
            brief = window.brief(child)
            if brief is not None:
                self._branch(brief.id, depth + 1, rows, seen)

    async def edit(self, request: Request) -> Response:
        id = request.path_params["id"]
        document = await in_thread(self._service.life, id)
        original = await in_thread(self._service.original, id)
        queue = request.query_params.get("queue", "")
        try:
            text, encoding = original.body.decode(), "text"
        except UnicodeDecodeError:
            text, encoding = base64.b64encode(original.body).decode(), "base64"
        return page(
            request, "edit.html", message=original, id=id, queue=queue, text=text, encoding=encoding,
            headers="\n".join(f"{name}: {value}" for name, value in masked(original.headers).items()),
            views=document.document["queues"],
        )  # fmt: skip

    async def dead(self, request: Request) -> Response:
        words = request.query_params
        queues = [queue for queue in await in_thread(self._service.queues) if queue.parked]
        queues.sort(key=lambda queue: (-queue.parked, queue.name))
        name = words.get("queue") or (queues[0].name if len(queues) == 1 else None)
        values: dict[str, Any] = {"queues": queues[:200], "name": name, "reason": words.get("reason", ""), "key": ""}
        if name is not None:
            values |= await in_thread(self._dead, name, words.get("reason") or None, words.get("group") or None)
        names = await in_thread(self._service.queue_names)
        others = [other for other in names if other != name][:500]
        return page(request, "dead.html", **values, others=others)

    def _dead(self, name: str, reason: str | None, key: str | None) -> dict[str, Any]:
        self._service.refresh()
        groups = self._service.groups(name)
        chosen = MessageFilter(reason=reason)
        group = None
        if key:
            group = next((one for one in groups if one.key == key), None)
            chosen = choice(PARKED, reason, offsets=group.offsets if group else [])
        letters = self._service.parked(name, chosen, 2 * ROWS)
        return {
            "groups": groups[:100], "letters": letters, "group": group, "key": key or "",
            "total": self._service.queue(name).summary.parked, "grouped": sum(one.count for one in groups),
        }  # fmt: skip

    async def tail(self, request: Request) -> Response:
        words = request.query_params
        asked = {name: words.get(name, "") for name in ("kind", "queue", "topic", "state")}
        return page(request, "tail.html", asked=asked)

    async def latency(self, request: Request) -> Response:
        queue = request.query_params.get("queue") or None
        map_ = heat_map(await in_thread(self._service.latency, queue), int(time.time() * 1e6))
        names = (await in_thread(self._service.queue_names))[:1000]
        return page(request, "latency.html", map=map_, queue=queue or "", names=names)

    async def publish(self, request: Request) -> Response:
        topic, queue = (request.query_params.get(name, "") for name in ("topic", "queue"))
        return page(request, "publish.html", topic=topic, queue=queue, body='{"hello": "world"}')

    async def login(self, request: Request) -> Response:
        return page(request, "login.html", wrong=None)

    # Acting

    async def act(self, request: Request) -> Response:
        """A button on a queue's page or among dead letters."""
        form = await self.form(request)
        name, who = request.path_params["name"], request.state.user.name
        back = f"/queues/{quote(name, safe='')}"
        service = self._service
        action = form.get("action") or ""
        if action == "configure":
            await in_thread(service.configure, name, _changes(form), who)
            return self.say(request, "The options were changed.", back)
        if action == "send_again":
            again = await in_thread(service.send_again, name, _whole(form.get("time"), 0), who)
            return self.say(request, f"{again.words}.", back)
        verb = VERBS.get(action)
        if verb is None:
            raise Problem(400, "Unknown action", f"there is no action {action[:40]!r}; nothing was done")
        if verb.name == "clear" and form.get("confirm") != name:
            raise Problem(400, "Not confirmed", f"type {name!r} to confirm; nothing was cleared")
        said = await self._operate(verb, [name], who, await self._values(verb, name, form))
        if verb.name == "forget":
            said += " The queue's page can send them again, as long as the log has them."
        return self.say(request, said, form.get("back") or back)

    async def act_on_listed(self, request: Request) -> Response:
        """A button for all queues that the overview lists."""
        form = await self.form(request)
        filter_, action = form.get("filter") or "", form.get("action") or ""
        if action not in LISTED_VERBS:
            raise Problem(400, "Unknown action", f"there is no action {action[:40]!r} for all; nothing was done")
        verb = VERBS[action]
        listed = [queue for queue in self._service.queues() if _listed(queue, filter_) and not queue.internal]
        queues = [queue.name for queue in listed if queue.parked or not verb.counts]
        if not queues:
            raise Problem(409, "Nothing to do", "none of these queues has dead letters any more; nothing was done")
        values = {one.name: choice(PARKED, None) for one in verb.parameters if one.type is MessageFilter}
        said = await self._operate(verb, queues, request.state.user.name, values)
        return self.say(request, said, f"/{render.query(filter=filter_)}")

    async def _operate(self, verb: Verb, queues: list[str], who: str, values: dict[str, Any]) -> str:
        count = await in_thread(self._service.operate, verb, queues, who, values)
        return f"{await in_thread(self._service.done, verb, queues, values, count)}."

    async def _values(self, verb: Verb, queue: str, form: Form) -> dict[str, Any]:
        """What a form asks for, by the names of the verb's parameters."""
        values: dict[str, Any] = {}
        for one in verb.parameters:
            value: Any = form.get(one.name) or None
            if one.type is MessageFilter:
                value = None if form.get("waiting") == "yes" else await self._choice(queue, form)
            elif one.type is bool:
                value = value is not None
            elif one.type is int:
                value = _moment(one.name, value)
            if value is not None or one.required:
                values[one.name] = "" if value is None else value
        return values

    async def _choice(self, queue: str, form: Form) -> MessageFilter:
        """The dead letters that a form chooses."""
        match form.get("scope"):
            case "selection":
                offsets = [_whole(value, -1) for value in form.all("offset")]
                if not offsets:
                    raise Problem(400, "Nothing selected", "select at least one message first; nothing was done")
                return choice(PARKED, None, offsets=offsets)
            case "group":
                group = await in_thread(self._service.group, queue, form.get("group") or "")
                return choice(PARKED, None, offsets=group.offsets)
            case "match":
                return choice(PARKED, form.get("reason"))
            case "all" | None:
                return choice(PARKED, None)
            case other:
                raise Problem(400, "Unknown choice", f"there is no choice {str(other)[:40]!r}; nothing was done")

    async def send_edited(self, request: Request) -> Response:
        form = await self.form(request)
        id, who = request.path_params["id"], request.state.user.name
        body = _form_body(form)

        sent = await self._service.resend(
            id, who, queue=form.get("queue") or None, topic=form.get("topic") or None, body=body,
            headers=_form_headers(form), mime_type=form.get("mime_type") or None, forget=form.get("forget") == "1",
        )  # fmt: skip
        return self.say(request, f"Sent again as {sent}.", f"/messages/{quote(sent, safe='')}")

    async def send_test(self, request: Request) -> Response:
        form = await self.form(request)
        message = api_types.NewMessage(
            topic=form.get("topic") or "",
            text=None,
            mime_type=form.get("mime_type") or None,
            object=form.get("object") or None,
            key=form.get("key") or None,
            headers=_form_headers(form),
            delay=form.get("delay") or None,
            topics=_topics(form),
            timestamp=_moment("timestamp", form.get("timestamp")),
            priority="high" if form.get("high") == "1" else 0,
        )
        who = request.state.user.name
        columns = api_types.columns_of([message], who, self._service.bus.now())
        columns = msgspec.structs.replace(
            columns, bodies=[_form_body(form)], mime_type=message.mime_type or "application/json"
        )
        receipt = await self._service.publish(columns, form.get("queue") or None)
        for refusal in receipt.refusals.values():
            raise refusal
        return self.say(request, f"Published as {receipt.id}.", f"/messages/{quote(receipt.id, safe='')}")

    async def log_in(self, request: Request) -> Response:
        form = await self.form(request)
        try:
            answer: Response = await request.state.guard.login(
                request, form.get("name") or "", form.get("password") or ""
            )
        except Problem as problem:
            return page(request, "login.html", problem.status, wrong=problem.detail)
        return answer

    async def log_out(self, request: Request) -> Response:
        await self.form(request)
        answer: Response = request.state.guard.logout(request)
        return answer


def routes(service: MessagingService) -> list[BaseRoute]:
    pages_ = Pages(service)
    guarded = pages_.guarded
    return [
        Mount("/static", StaticFiles(directory=HERE / "static")),
        Route("/", guarded(pages_.overview)),
        Route("/queues", guarded(pages_.act_on_listed), methods=["POST"]),
        Route("/data/queues/{name:path}", guarded(pages_.queue_data)),
        Route("/queues/{name:path}", guarded(pages_.queue), methods=["GET"]),
        Route("/queues/{name:path}", guarded(pages_.act), methods=["POST"]),
        Route("/messages", guarded(pages_.messages)),
        Route("/messages/{id:path}/edit", guarded(pages_.edit), methods=["GET"]),
        Route("/messages/{id:path}/edit", guarded(pages_.send_edited), methods=["POST"]),
        Route("/messages/{id:path}", guarded(pages_.message)),
        Route("/dead", guarded(pages_.dead)),
        Route("/tail", guarded(pages_.tail)),
        Route("/latency", guarded(pages_.latency)),
        Route("/publish", guarded(pages_.publish), methods=["GET"]),
        Route("/publish", guarded(pages_.send_test), methods=["POST"]),
        Route("/login", guarded(pages_.login), methods=["GET"]),
        Route("/login", guarded(pages_.log_in), methods=["POST"]),
        Route("/logout", guarded(pages_.log_out), methods=["POST"]),
    ]


async def failed(request: Request, error: Exception) -> Response:
    _log.error("a request for %s failed", request.url.path, exc_info=error)
    if request.url.path.startswith(f"{request.scope.get('root_path', '')}/api/"):
        return Problem(500, "Error", "the server failed unexpectedly; see its log").response()
    return error_page(request, 500, "The server failed unexpectedly; see its log.")


def _listed(queue: QueueSummary, filter_: str) -> bool:
    return filter_.casefold() in queue.name.casefold()


def _totals(queues: list[QueueSummary]) -> dict[str, float]:
    return {
        "waiting": sum(queue.waiting for queue in queues),
        "delayed": sum(queue.delayed for queue in queues),
        "in_flight": sum(queue.in_flight for queue in queues),
        "parked": sum(queue.parked for queue in queues),
        "published": sum(queue.published_per_second for queue in queues),
        "done": sum(queue.done_per_second for queue in queues),
        "failed": sum(queue.failed_per_second for queue in queues),
    }


def _form_body(form: Form) -> bytes:
    text = (form.get("body") or "").replace("\r\n", "\n")
    if form.get("encoding") == "base64":
        try:
            return base64.b64decode(text, validate=False)
        except ValueError:
            raise InvalidOption("the body is not base64; nothing was sent") from None
    return text.encode("utf-8", "surrogatepass")


def _topics(form: Form) -> list[str] | None:
    """All topics of a message, where there are further ones."""
    further = [topic.strip() for topic in (form.get("topics") or "").split(",") if topic.strip()]
    return list(dict.fromkeys([form.get("topic") or "", *further])) if further else None


def _form_headers(form: Form) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in (form.get("headers") or "").splitlines():
        if not line.strip():
            continue
        name, separator, value = line.partition(":")
        if not separator or not name.strip():
            raise InvalidOption(f"a header is written as name: value, not {line[:60]!r}; nothing was sent")
        headers[name.strip()] = value.strip()
    return headers


def _changes(form: Form) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in form.names() - {"csrf", "action"}:
        value = form.get(name) or ""
        if name in _FLAGS and value in ("yes", "no"):
            changes[name] = value == "yes"
        elif name in _RATES:
            changes[name] = value or None
        else:
            changes[name] = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else value
    if not changes:
        raise InvalidOption("no option was given; nothing was changed")
    return changes


def _moment(name: str, text: str | None) -> int | None:
    if not text:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(f"{name} must be a time like 2026-05-31T14:00, not {text[:40]!r}") from None
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1e6)


def _whole(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else default
