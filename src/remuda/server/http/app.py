"""The ASGI application: API, health, metrics and dashboard, behind one guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from remuda.bus.bus import Bus
from remuda.server.http import metrics
from remuda.server.http.api import openapi
from remuda.server.http.api.api import Api, answer_names
from remuda.server.http.api.endpoints import endpoints
from remuda.server.http.api.operations import Operation, routes
from remuda.server.http.api.problems import Problem
from remuda.server.http.pages import (
    alarms,
    errors,
    history,
    new_queue,
    pages,
    schedules,
    system_pages,
    workers,
    workflows,
)
from remuda.server.http.pages.pageset import error_page, in_thread
from remuda.server.http.search.searching import Searcher
from remuda.server.http.security.guard import Guard, Identify
from remuda.server.http.security.users import Users
from remuda.server.http.service import MessagingService

BODY_LIMIT: Final = 16 << 20
_INSIGHT: Final = (workers, schedules, workflows, history, errors, alarms)


class _AnswerConvertor(Convertor[str]):
    regex = "|".join(answer_names())

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("answer", _AnswerConvertor())


def operations(api: Api) -> list[Operation]:
    """All that the API can do."""
    return [*endpoints(api), *(one for part in _INSIGHT for one in part.operations())]


def create_app(
    bus: Bus | MessagingService,
    *,
    users: Users | None = None,
    identify: Identify | None = None,
    hosts: Iterable[str] | None = None,
    searcher: Searcher | None = None,
    index: str | None = None,
    rules: str | None = None,
    lake: str = "lake",
    body_limit: int = BODY_LIMIT,
    streams: int = 64,
) -> Guard:
    """An ASGI application for a bus. Without `users` or `identify` it answers only this machine."""
    service = (
        bus if isinstance(bus, MessagingService) else MessagingService(bus, searcher=searcher, index=index, rules=rules)
    )
    api = Api(streams)
    offered = operations(api)
    described = msgspec.json.encode(openapi.document(offered))

    async def document(request: Request) -> Response:
        return Response(described, media_type="application/json")

    async def live(request: Request) -> Response:
        health = await in_thread(service.health)
        return Response(
            msgspec.json.encode({"live": health["live"]}),
            200 if health["live"] else 503,
            media_type="application/json",
        )

    async def ready(request: Request) -> Response:
        health = await in_thread(service.health)
        if "problems" in health:
            health["problems"] = sorted(health["problems"])  # no login is needed here: the parts, not the reasons
        return Response(msgspec.json.encode(health), 200 if health["ready"] else 503, media_type="application/json")

    async def prometheus(request: Request) -> Response:
        return await in_thread(metrics.response, service)

    all_routes: list[BaseRoute] = [  # looked through in this order: what programs ask for most comes first
        *routes(offered, service, body_limit),
        Route("/health/live", live),
        Route("/health/ready", ready),
        Route("/metrics", prometheus),
        Route("/api/v1/openapi.json", document),
        *(route for part in _INSIGHT for route in part.routes(service)),
        *system_pages.routes(service, api.streams, lake),
        *new_queue.routes(service),
        *pages.routes(service),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        beginning = asyncio.create_task(in_thread(service.begin))  # nobody waits for a broker that is away
        yield
        await asyncio.gather(beginning, return_exceptions=True)
        await in_thread(service.close)

    app: ASGIApp = Starlette(
        routes=all_routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _not_found, 500: pages.failed},
    )
    return Guard(app, users=users, identify=identify, hosts=hosts)


async def _not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if request.url.path.startswith(f"{request.scope.get('root_path', '')}/api/"):
        title = {404: "Not found", 405: "Method not allowed"}.get(status, "Error")
        return Problem(status, title, "there is nothing at this address; see /api/v1/openapi.json").response()
    return error_page(request, status, "There is nothing at this address.")
