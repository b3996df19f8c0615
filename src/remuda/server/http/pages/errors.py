"""Failures over all queues, by exception and place: for programs and on a page."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from remuda.model.errors import NotFound
from remuda.model.life import PARKED
from remuda.model.operations.verbs import VERBS
from remuda.model.values.texts import counted
from remuda.server.http.api.operations import Call, Operation
from remuda.server.http.api.problems import Problem
from remuda.server.http.pages.charts import trend_line
from remuda.server.http.pages.pageset import PageSet, in_thread
from remuda.server.http.pages.render import page
from remuda.server.http.security.users import Role
from remuda.server.http.service import MessagingService, chosen_offsets
from remuda.server.http.service_values import Group

_audit = logging.getLogger("remuda.audit")
_LISTED = 200


class ErrorGroup(msgspec.Struct, frozen=True, rename="camel"):
    """Failures with the same exception at the same place, over all queues."""

    key: str
    exception: str
    place: str
    sample: str
    first: int
    last: int
    failures: int
    """Attempts that failed like this in the last thirty days."""
    dead: dict[str, int]
    """Dead letters that it has left, by queue."""
    queues: list[str]
    trend: list[int]
    """Failures in each of the last 24 hours, the newest last."""
    muted_by: str | None = None

    @property
    def left(self) -> int:
        return sum(self.dead.values())


class Errors(msgspec.Struct, frozen=True):
    """Groups with dead letters first, then those seen last."""

    errors: list[ErrorGroup]


class Acted(msgspec.Struct, frozen=True):
    """How many messages were reprocessed or forgotten."""

    count: int


def listed(service: MessagingService) -> list[ErrorGroup]:
    service.refresh()
    found: dict[str, ErrorGroup] = {}
    history = service.broker.history
    muted = history.muted
    for kind in history.failures():
        found[kind.key] = ErrorGroup(
            kind.key, kind.exception, kind.place, kind.sample, kind.first, kind.last, kind.count, {},
            sorted(kind.queues), kind.trend, kind.muted_by,
        )  # fmt: skip
    for queue, groups in _groups(service).items():
        for group in groups:
            known = found.get(group.key) or ErrorGroup(
                group.key, group.exception, group.place, group.sample, group.first, group.last, 0, {}, [], [0] * 24,
                "unknown" if group.key in muted else None,
            )  # fmt: skip
            found[group.key] = msgspec.structs.replace(
                known,
                first=min(known.first, group.first),
                dead={**known.dead, queue: group.count},
                queues=sorted({*known.queues, queue}),
            )
    return sorted(found.values(), key=lambda one: (not one.left, -one.last, one.key))


def _groups(service: MessagingService) -> dict[str, list[Group]]:
    return {queue.name: service.groups(queue.name) for queue in service.queues() if queue.parked}


def act(service: MessagingService, key: str, action: str, who: str) -> int:
    """Reprocess or forget the dead letters of a group, in every queue, or mute it."""
    if action in ("mute", "unmute"):
        if key not in {one.key for one in listed(service)}:
            raise NotFound(f"no failures of group {key!r} are known; nothing was done")
        _audit.info("%s: %s errors %s", who, action, key)
        history = service.broker.history
        history.mute(key, who) if action == "mute" else history.unmute(key)
        return 0
    count, verb = 0, VERBS[action]
    (chosen,) = [one.name for one in verb.parameters]
    for queue, groups in _groups(service).items():
        for group in groups:
            if group.key == key:
                values = {chosen: chosen_offsets(group.offsets, PARKED)}
                count += service.operate(verb, [queue], who, values) or 0
    if not count:
        raise NotFound(f"there are no dead letters of group {key!r} any more; nothing was done")
    return count


# For programs

ACTIONS = {
    "reprocess": "Send the dead letters of a group back to their queues",
    "forget": "Delete the dead letters of a group for good",
    "mute": "List a group apart from the others",
    "unmute": "List a group with the others again",
}


def operations() -> list[Operation]:
    return [
        Operation("GET", "/api/v1/errors", _errors, "Failures over all queues, by exception and place", Errors),
        *(
            Operation(
                "POST", f"/api/v1/errors/{{key}}/{action}", _acting(action), text, Acted, role=Role.OPERATOR,
                problems=(404,),
            )
            for action, text in ACTIONS.items()
        ),
    ]  # fmt: skip


async def _errors(call: Call) -> Errors:
    return Errors(await call.run(listed, call.service))


def _acting(action: str) -> Any:
    async def handler(call: Call) -> Acted:
        return Acted(await call.run(act, call.service, call.path("key"), action, call.user.name))

    handler.__name__ = f"{action}_errors"
    return handler


# For people


class ErrorPages(PageSet):
    """One page: groups of failures, the muted ones below."""

    async def errors(self, request: Request) -> Response:
        found = await in_thread(listed, self._service)
        shown, muted = ([one for one in found if bool(one.muted_by) is is_muted] for is_muted in (False, True))
        return page(
            request, "errors.html", groups=shown[:_LISTED], muted=muted[:_LISTED], total=len(shown),
            left=sum(one.left for one in shown), trends={one.key: trend_line(one.trend) for one in found},
        )  # fmt: skip

    async def act(self, request: Request) -> Response:
        form = await self.form(request)
        key, action = request.path_params["key"], form.get("action") or ""
        if action not in ACTIONS:
            raise Problem(400, "Unknown action", f"there is no action {action[:40]!r}; nothing was done")
        count = await in_thread(act, self._service, key, action, request.state.user.name)
        said = {
            "reprocess": f"{counted(count, 'message')} sent back to their queues.",
            "forget": f"{counted(count, 'dead letter')} forgotten. Their queues' pages can send them again, "
            "as long as the log has them.",
            "mute": "Muted: it is listed below the others.",
            "unmute": "It is listed with the others again.",
        }
        return self.say(request, said[action], "/errors")


def routes(service: MessagingService) -> list[BaseRoute]:
    pages = ErrorPages(service)
    return [
        Route("/errors", pages.guarded(pages.errors)),
        Route("/errors/{key}", pages.guarded(pages.act), methods=["POST"]),
    ]
