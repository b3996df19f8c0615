"""The schedules: for programs and on a page."""

from __future__ import annotations

import logging
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from remuda.bus.scheduling.overview import ScheduleState, run_now, schedules
from remuda.server.http.api.api_types import Resent
from remuda.server.http.api.operations import Call, Operation
from remuda.server.http.pages.pageset import PageSet, in_thread
from remuda.server.http.pages.render import page
from remuda.server.http.security.users import Role
from remuda.server.http.service import MessagingService

_audit = logging.getLogger("remuda.audit")


class Schedules(msgspec.Struct, frozen=True, rename="camel"):
    """All schedules by name."""

    schedules: list[ScheduleState]


def listed(service: MessagingService) -> list[ScheduleState]:
    now = service.bus.now()
    return service.broker.ask(lambda broker: schedules(broker, now))


def run(service: MessagingService, name: str, who: str) -> str:
    _audit.info("%s: run schedule %s", who, name)
    now = service.bus.now()
    return service.broker.ask(lambda broker: run_now(broker, name, now, who))


def operations() -> list[Operation]:
    return [
        Operation("GET", "/api/v1/schedules", _schedules, "Periodic messages, with their last and next run", Schedules),
        Operation(
            "POST", "/api/v1/schedules/{name:path}/run", _run, "Run a schedule at once, beside its planned runs",
            Resent, role=Role.OPERATOR, problems=(404, 409),
        ),
    ]  # fmt: skip


async def _schedules(call: Call) -> Schedules:
    return Schedules(await call.run(listed, call.service))


async def _run(call: Call) -> Resent:
    return Resent(await call.run(run, call.service, call.path("name"), call.user.name))


class SchedulePages(PageSet):
    """One page: every schedule with its next and its last run. Pausing is the queue's."""

    async def schedules(self, request: Request) -> Response:
        found = await in_thread(listed, self._service)
        return page(request, "schedules.html", schedules=found)

    async def run(self, request: Request) -> Response:
        await self.form(request)
        name = request.path_params["name"]
        id = await in_thread(run, self._service, name, request.state.user.name)
        return self.say(request, f"{name} runs now.", f"/messages/{quote(id, safe='')}")


def routes(service: MessagingService) -> list[BaseRoute]:
    pages = SchedulePages(service)
    guarded = pages.guarded
    return [
        Route("/schedules", guarded(pages.schedules)),
        Route("/schedules/{name:path}/run", guarded(pages.run), methods=["POST"]),
    ]
