"""Alarms by rule: for programs and on a page."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from remuda.server.alerts.rules import Alarm
from remuda.server.http.api.operations import Call, Operation
from remuda.server.http.pages.pageset import PageSet, in_thread
from remuda.server.http.pages.render import page
from remuda.server.http.service import MessagingService


class Alarms(msgspec.Struct, frozen=True):
    """The rules, and what breaks them now."""

    rules: list[str]
    alarms: list[Alarm]
    trouble: str | None = None
    """Why the rules' file, as it is now, is not followed."""


def listed(service: MessagingService) -> Alarms:
    watch = service.watch
    service.judge()
    alarms = sorted(watch.alarms, key=lambda one: (one.since, one.queue, one.rule))
    return Alarms([rule.line for rule in watch.rules], alarms, watch.trouble)


def operations() -> list[Operation]:
    return [Operation("GET", "/api/v1/alarms", _alarms, "Rules of alarms, and what breaks them now", Alarms)]


async def _alarms(call: Call) -> Alarms:
    return await call.run(listed, call.service)


class AlarmPages(PageSet):
    """One page: alarms, and below the rules."""

    async def alarms(self, request: Request) -> Response:
        found = await in_thread(listed, self._service)
        return page(request, "alarms.html", found=found)


def routes(service: MessagingService) -> list[BaseRoute]:
    pages = AlarmPages(service)
    return [
        Route("/alarms", pages.guarded(pages.alarms)),
    ]
