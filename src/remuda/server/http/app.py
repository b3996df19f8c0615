"""The ASGI application: API, health, metrics and dashboard, behind one guard."""

from __future__ import annotations

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
from remuda.server.http import metrics, openapi, pages, surroundings
from remuda.server.http.api import Api, answer_names
from remuda.server.http.endpoints import endpoints
from remuda.server.http.guard import Guard, Identify
from remuda.server.http.operations import routes
from remuda.server.http.pageset import error_page, in_thread
from remuda.server.http.problems import Problem
from remuda.server.http.search import Searcher
from remuda.server.http.service import MessagingService
from remuda.server.http.users import Users

BODY_LIMIT: Final = 16 << 20


class _AnswerConvertor(Convertor[str]):
    regex = "|".join(answer_names())

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("answer", _AnswerConvertor())


def create_app(
    bus: Bus | MessagingService,
    *,
    users: Users | None = None,
    identify: Identify | None = None,
    hosts: Iterable[str] | None = None,
    searcher: Searcher | None = None,
    index: str | None = None,
    lake: str = "lake",
    body_limit: int = BODY_LIMIT,
    streams: int = 64,
) -> Guard:
    """An ASGI application for a bus. Without `users` or `identify` it answers only this machine."""
    service = bus if isinstance(bus, MessagingService) else MessagingService(bus, searcher=searcher, index=index)
    api = Api(streams)
    operations = endpoints(api)
    described = msgspec.json.encode(openapi.document(operations))

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

    all_routes: list[BaseRoute] = [
        Route("/health/live", live),
        Route("/health/ready", ready),
        Route("/metrics", prometheus),
        Route("/api/v1/openapi.json", document),
        *routes(operations, service, body_limit),
        *surroundings.routes(service, api.streams, lake),
        *pages.routes(service),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
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
