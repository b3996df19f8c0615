"""Runs of workflows: for programs, and on two pages (G4)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from remuda.bus.workflows.history import StepRecord
from remuda.bus.workflows.spans import Span
from remuda.bus.workflows.workflows import STATES, Workflows, WorkflowStatus
from remuda.model.errors import InvalidOption
from remuda.model.operations.worker_orders import Progress
from remuda.server.http.api.operations import Call, Operation, Parameter
from remuda.server.http.api.problems import Problem
from remuda.server.http.pages.pageset import PageSet, in_thread
from remuda.server.http.pages.render import page
from remuda.server.http.pages.waterfall import LINES, bars
from remuda.server.http.search.searching import MAX_PAGE
from remuda.server.http.security.users import Role
from remuda.server.http.service import MessagingService, shown_body

T = TypeVar("T")
_audit = logging.getLogger("remuda.audit")
_ROWS: Final = 100


class Step(msgspec.Struct, frozen=True, rename="camel"):
    """What was recorded of a run, as JSON."""

    number: int
    name: str
    kind: str
    recorded: int
    started: int | None
    attempt: int
    error: str | None
    offset: int
    value: dict[str, Any]


class RunSummary(msgspec.Struct, frozen=True, rename="camel"):
    """How a run stands."""

    id: str
    workflow: str
    version: int | None
    state: str
    reason: str | None
    created: int
    ended: int | None
    queue: str
    steps: int


class WorkflowRuns(msgspec.Struct, frozen=True, rename="camel"):
    """Runs, the newest first."""

    runs: list[RunSummary]


class RunDetail(msgspec.Struct, frozen=True, rename="camel"):
    """A run with all that was recorded of it, and its steps as a tree with their times."""

    run: RunSummary
    steps: list[Step]
    tree: list[Span]
    progress: Progress | None
    """How far it has come by its own account, while it runs."""


class StartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A run to start. With an `id` of your own it is started once, however often this is sent."""

    workflow: str
    body: Any = None
    id: str | None = None
    delay: str | None = None


class Started(msgspec.Struct, frozen=True):
    id: str


class CancelRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`undo` has the undos of its finished steps run."""

    undo: bool = True


class RunCancelled(msgspec.Struct, frozen=True):
    cancelled: bool


class RestartRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From this step on, by its name or number; from the one that failed by default."""

    step: str | int | UnsetType = UNSET


def ask(service: MessagingService, question: Callable[[Workflows], T]) -> T:
    return service.broker.ask(lambda _: question(service.bus.workflows))


def listed(
    service: MessagingService, workflow: str | None, state: str | None, limit: int, *, ended: bool
) -> list[WorkflowStatus]:
    return ask(service, lambda flows: flows.runs(workflow, state=state, limit=limit, ended=ended))


def detail(service: MessagingService, id: str) -> RunDetail:
    status, steps, tree = ask(service, lambda flows: (flows.status(id), flows.steps(id), flows.tree(id)))
    views = ask(service, lambda _: service.bus.status(id).queues.values())
    progress = next((view.progress for view in views if view.progress is not None), None)
    return RunDetail(_summary(status), list(map(_step, steps)), tree, progress)


def cancel(service: MessagingService, id: str, undo: bool, who: str) -> bool:
    _audit.info("%s: cancel workflow %s%s", who, id, "" if undo else " without undo")
    return ask(service, lambda flows: flows.cancel(id, undo=undo, who=who))


def restart(service: MessagingService, id: str, step: str | int | None, who: str) -> None:
    _audit.info("%s: restart workflow %s from %s", who, id, "the step that failed" if step is None else step)
    ask(service, lambda flows: flows.restart(id, step=step, who=who))


def _summary(status: WorkflowStatus) -> RunSummary:
    return RunSummary(
        status.id, status.workflow, status.version, status.state, status.reason, status.created, status.ended,
        status.queue, len(status.steps),
    )  # fmt: skip


def _step(one: StepRecord) -> Step:
    return Step(
        one.number, one.name, one.kind, one.recorded, one.started, one.attempt, one.error, one.offset,
        shown_body(one.body),
    )  # fmt: skip


# For programs

_ASKED: Final = (
    Parameter("workflow", "Only runs of this workflow."),
    Parameter("state", "Only runs in this state.", {"type": "string", "enum": list(STATES)}),
    Parameter("ended", "Also those that are done: yes or no.", {"type": "string", "enum": ["yes", "no"]}),
    Parameter("limit", "The most entries to return.", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}),
)


def operations() -> list[Operation]:
    run, operator = "/api/v1/workflows/{id:path}", Role.OPERATOR
    return [
        Operation(
            "GET", "/api/v1/workflows", _list, "Runs of workflows, the newest first", WorkflowRuns, parameters=_ASKED
        ),
        Operation(
            "POST", "/api/v1/workflows", _start, "Start a run of a workflow", Started, 201, StartRequest,
            role=operator, problems=(404, 409, 422),
        ),
        Operation(
            "POST", f"{run}/cancel", _cancel, "Cancel a run at its next step, and undo what it has done", RunCancelled,
            200, CancelRun, role=operator, problems=(404,), optional=True,
        ),
        Operation(
            "POST", f"{run}/restart", _restart, "Let a run that failed go on, from the step that failed or another",
            RunDetail, 200, RestartRun, role=operator, problems=(404, 409), optional=True,
        ),
        Operation("GET", run, _show, "A run with its steps, and when each began and ended", RunDetail, problems=(404,)),
    ]  # fmt: skip


async def _list(call: Call) -> WorkflowRuns:
    ended, limit = call.text("ended") or "no", call.number("limit", 100, 1, MAX_PAGE)
    if ended not in ("yes", "no"):
        raise InvalidOption(f"ended must be yes or no, not {ended[:40]!r}")
    found = await call.run(listed, call.service, call.text("workflow"), call.text("state"), limit, ended=ended == "yes")
    return WorkflowRuns(list(map(_summary, found)))


async def _start(call: Call) -> Started:
    asked = await call.decoded(StartRequest)
    more: dict[str, Any] = {} if asked.delay is None else {"delay": asked.delay}
    _audit.info("%s: start workflow %s", call.user.name, asked.workflow)
    return Started(
        await call.run(ask, call.service, lambda flows: flows.start(asked.workflow, asked.body, id=asked.id, **more))
    )


async def _show(call: Call) -> RunDetail:
    return await call.run(detail, call.service, call.path("id"))


async def _cancel(call: Call) -> RunCancelled:
    asked = await call.decoded(CancelRun)
    return RunCancelled(await call.run(cancel, call.service, call.path("id"), asked.undo, call.user.name))


async def _restart(call: Call) -> RunDetail:
    asked, id = await call.decoded(RestartRun), call.path("id")
    step = None if isinstance(asked.step, UnsetType) else asked.step
    await call.run(restart, call.service, id, step, call.user.name)
    return await call.run(detail, call.service, id)


# For people


class WorkflowPages(PageSet):
    """Runs by state and name; and one run with its tree, its waterfall and what can be done with it."""

    async def runs(self, request: Request) -> Response:
        return page(request, "workflows.html", **await in_thread(self._runs, request))

    def _runs(self, request: Request) -> dict[str, Any]:
        words = request.query_params
        workflow, state = words.get("workflow", "").strip(), words.get("state", "")
        if state and state not in STATES:
            raise InvalidOption(f"state must be one of {', '.join(STATES)}, not {state[:40]!r}")
        ended = words.get("ended") == "yes"
        found = listed(self._service, workflow or None, state or None, _ROWS + 1, ended=ended)
        return {
            "runs": found[:_ROWS], "more": len(found) > _ROWS, "workflow": workflow, "state": state, "ended": ended,
            "states": STATES,
        }  # fmt: skip

    async def run(self, request: Request) -> Response:
        values = await in_thread(self._run, request.path_params["id"])
        return page(request, "workflow.html", **values)

    def _run(self, id: str) -> dict[str, Any]:
        found = detail(self._service, id)
        now = self._service.bus.now()
        steps = [one for one in found.steps if one.kind in ("step", "sleep", "wait", "publish", "call", "group", "now")]
        return {
            "found": found, "run": found.run, "bars": bars(found.tree[:LINES], found.run.created, now),
            "left_out": max(0, len(found.tree) - LINES), "progress": found.progress, "steps": steps,
        }  # fmt: skip

    async def act(self, request: Request) -> Response:
        form = await self.form(request)
        id, who, action = request.path_params["id"], request.state.user.name, form.get("action")
        back = f"/workflows/{quote(id, safe='')}"
        if action == "restart":
            chosen = form.get("step") or None
            step = int(chosen) if chosen is not None and chosen.isascii() and chosen.isdigit() else chosen
            await in_thread(restart, self._service, id, step, who)
            return self.say(request, "The run goes on.", back)
        if action not in ("cancel", "cancel-without-undo"):
            raise Problem(400, "Unknown action", f"there is no action {(action or '')[:40]!r}; nothing was done")
        told = await in_thread(cancel, self._service, id, action == "cancel", who)
        if not told:
            return self.say(request, "The run had ended, or was cancelled before.", back, "warn")
        return self.say(request, "The run ends at its next step.", back)


def routes(service: MessagingService) -> list[BaseRoute]:
    pages = WorkflowPages(service)
    guarded = pages.guarded
    return [
        Route("/workflows", guarded(pages.runs)),
        Route("/workflows/{id:path}", guarded(pages.run), methods=["GET"]),
        Route("/workflows/{id:path}", guarded(pages.act), methods=["POST"]),
    ]
