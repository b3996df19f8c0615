"""Pages on what surrounds the queues: topics, channels and spectators; the outbox and its relays; pipelines."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from remuda.model.errors import RemudaError
from remuda.outbox import Outbox, Status
from remuda.outbox.admin import describe
from remuda.server.http.api.event_stream import Streams
from remuda.server.http.api.problems import Problem
from remuda.server.http.pages.lakeview import LakeView
from remuda.server.http.pages.pageset import PageSet, in_thread
from remuda.server.http.pages.render import page
from remuda.server.http.service import MessagingService
from remuda.server.http.webhooks import Webhook

_audit = logging.getLogger("remuda.audit")
LISTED: Final = 50
_CHANNELS: Final = 200


class SurroundingPages(PageSet):
    """Topics, outbox, pipelines."""

    def __init__(self, service: MessagingService, streams: Streams, lake: str) -> None:
        super().__init__(service)
        self._streams = streams
        self._lake = LakeView(service.bus.url, lake)

    # Topics, channels, spectators

    async def topics(self, request: Request) -> Response:
        filter_ = request.query_params.get("filter", "")
        values = await in_thread(self._topics, filter_)
        return page(request, "topics.html", **values, filter=filter_)

    def _topics(self, filter_: str) -> dict[str, Any]:
        infos = sorted(self._service.broker.infos(), key=lambda info: info.name)
        hooks = self._webhooks()
        handlers: dict[str, list[str]] = {}
        for handler in self._service.bus.handlers:
            handlers.setdefault(handler.queue, []).append(handler.id)
        wanted = filter_.casefold()
        channels: list[dict[str, Any]] = []
        found = 0
        for info in infos:
            topics = [*info.options.patterns, *(f"{topic}.*" for topic in info.options.topics)]
            if not topics or (wanted and not any(wanted in name.casefold() for name in (info.name, *topics))):
                continue
            found += 1
            if len(channels) < _CHANNELS:
                own = {"webhook": hooks.get(info.name), "handlers": handlers.get(info.name, ())}
                channels.append({"queue": info.name, "topics": topics, "info": info, **own})
        with self._service.broker.log() as reader:
            ends = reader.ends()
        routers = self._service.broker.ask(lambda broker: broker.routers())
        spectators = sorted(self._streams.listeners, key=lambda stream: stream.since)
        return {
            "channels": channels, "found": found, "routers": routers, "ends": ends,
            "spectators": spectators, "most": self._streams.limit,
        }  # fmt: skip

    def _webhooks(self) -> dict[str, Webhook]:
        found = {}
        for handler in self._service.bus.handlers:
            owner = getattr(handler.function, "__self__", None)
            if isinstance(owner, Webhook):
                found[handler.queue] = owner
        return found

    # Outbox

    async def outbox(self, request: Request) -> Response:
        status = request.query_params.get("status", Status.FAILED.value)
        if status not in set(Status):
            raise Problem(400, "Unknown status", f"status must be one of {', '.join(Status)}, not {status[:40]!r}")
        values = await in_thread(self._outbox, Status(status))
        return page(request, "outbox.html", **values, listed=status)

    def _outbox(self, status: Status) -> dict[str, Any]:
        outbox = self._service.bus.outbox
        if not isinstance(outbox, Outbox):
            return {"outbox": None}
        values: dict[str, Any] = {"outbox": outbox, "relay": outbox.relay, "trouble": None, "messages": []}
        values |= {"counts": {}, "relays": {}}
        try:
            found = describe(outbox.url, outbox.names)
            if "messages" in found:
                values |= {"counts": found["messages"], "relays": found["relays"]}
                values["messages"] = outbox.messages(status, limit=LISTED)
            elif found["version"] == 0:
                values["trouble"] = "there are no tables yet; create them with remuda db init"
            else:
                values["trouble"] = "the tables are of another version; run remuda db upgrade"
        except Exception as error:  # whatever the database's driver raises
            values["trouble"] = f"{type(error).__name__}: {error}"
        return values

    async def retry(self, request: Request) -> Response:
        form = await self.form(request)
        outbox = self._service.bus.outbox
        if not isinstance(outbox, Outbox):
            raise Problem(404, "No outbox", "the bus has no outbox")
        ids = form.all("id")
        who = request.state.user.name
        if form.get("scope") != "all" and not ids:
            raise Problem(400, "Nothing selected", "select at least one message first")
        _audit.info("%s retries %s of the outbox", who, "all" if form.get("scope") == "all" else len(ids))
        try:
            count = await in_thread(outbox.retry, None if form.get("scope") == "all" else ids)
        except RemudaError:
            raise
        except Exception as error:
            raise Problem(503, "Database unavailable", f"the outbox's database does not answer: {error}") from error
        return self.say(request, f"{count} message{'' if count == 1 else 's'} will be sent again.", "/outbox")

    # Pipelines

    async def pipelines(self, request: Request) -> Response:
        words = request.query_params
        values = await in_thread(self._pipelines, words.get("table") or "", words.get("queue") or "")
        return page(request, "pipelines.html", **values)

    def _pipelines(self, table: str, queue: str) -> dict[str, Any]:
        tables = self._lake.tables()
        metrics = [one.name for one in tables if one.name.startswith("metrics")]
        chosen = table if table in metrics else (metrics[0] if metrics else "")
        queues = self._lake.windows(chosen, None)["queues"] if chosen else []
        return {
            "lake": self._lake, "pipelines": self._lake.pipelines(), "tables": tables, "metrics": metrics,
            "table": chosen, "queue": queue if queue in queues else "", "queues": queues,
        }  # fmt: skip

    async def windows(self, request: Request) -> Response:
        words = request.query_params
        found = await in_thread(self._lake.windows, words.get("table") or "metrics", words.get("queue") or None)
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def excerpts(self, request: Request) -> Response:
        """The beginnings of bodies, for rows that the index found."""
        asked = request.query_params.get("at", "").split(",")[:LISTED]
        offsets = [int(one) for one in asked if one.isascii() and one.isdigit() and len(one) < 19]
        found = await in_thread(self._service.excerpts, offsets)
        return Response(msgspec.json.encode(found), media_type="application/json")


def routes(service: MessagingService, streams: Streams, lake: str) -> list[BaseRoute]:
    pages = SurroundingPages(service, streams, lake)
    guarded = pages.guarded
    return [
        Route("/topics", guarded(pages.topics)),
        Route("/outbox", guarded(pages.outbox), methods=["GET"]),
        Route("/outbox", guarded(pages.retry), methods=["POST"]),
        Route("/pipelines", guarded(pages.pipelines)),
        Route("/data/pipelines", guarded(pages.windows)),
        Route("/data/excerpts", guarded(pages.excerpts)),
    ]
