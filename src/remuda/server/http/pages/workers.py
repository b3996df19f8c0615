"""The workers and what runs now: for programs and on a page."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from remuda.model.operations.worker_orders import RunningCall, Worker, WorkerOrder, order_text
from remuda.server.http.api.operations import Call, Operation
from remuda.server.http.api.problems import Problem
from remuda.server.http.pages.pageset import PageSet, in_thread
from remuda.server.http.pages.render import page
from remuda.server.http.security.users import Role
from remuda.server.http.service import MessagingService

_audit = logging.getLogger("remuda.audit")


class Workers(msgspec.Struct, frozen=True, rename="camel"):
    """The processes that run handlers."""

    workers: list[Worker]


class Runs(msgspec.Struct, frozen=True, rename="camel"):
    """A call that runs, and where."""

    worker: str
    process: int
    host: str
    call: RunningCall


class Running(msgspec.Struct, frozen=True, rename="camel"):
    """What runs now, the oldest first."""

    running: list[Runs]


class Ordered(msgspec.Struct, frozen=True, rename="camel"):
    """What a worker was told to do; it hears it within seconds."""

    worker: str
    order: WorkerOrder


def listed(service: MessagingService) -> list[Worker]:
    return service.broker.ask(lambda broker: broker.workers())


def running(workers: list[Worker]) -> list[Runs]:
    """What these workers run, the oldest first."""
    found = [Runs(worker.id, worker.process, worker.host, call) for worker in workers for call in worker.running]
    return sorted(found, key=lambda one: one.call.since)


def order(service: MessagingService, worker: str, wanted: str, who: str) -> WorkerOrder:
    _audit.info("%s: %s worker %s", who, wanted, worker)
    service.broker.ask(lambda broker: broker.order_worker(worker, wanted, who=who))
    return WorkerOrder(wanted)


# For programs


def operations() -> list[Operation]:
    return [
        Operation("GET", "/api/v1/workers", _workers, "The processes that run handlers", Workers),
        Operation("GET", "/api/v1/running", _running, "What runs now, the oldest first", Running),
        *(
            Operation(
                "POST", f"/api/v1/workers/{{worker}}/{one}", _order(one), text, Ordered,
                role=Role.OPERATOR, problems=(404,),
            )
            for one, text in _ORDERS.items()
        ),
    ]  # fmt: skip


_ORDERS = {
    WorkerOrder.PAUSE: "Have a worker take no more messages; what has begun goes on",
    WorkerOrder.RESUME: "Have a worker take messages again",
    WorkerOrder.STOP: "Have a worker finish what has begun, and end",
}


async def _workers(call: Call) -> Workers:
    return Workers(await call.run(listed, call.service))


async def _running(call: Call) -> Running:
    return Running(running(await call.run(listed, call.service)))


def _order(wanted: WorkerOrder) -> Any:
    async def handler(call: Call) -> Ordered:
        worker = call.path("worker")
        return Ordered(worker, await call.run(order, call.service, worker, wanted, call.user.name))

    handler.__name__ = f"{wanted}_worker"
    return handler


# For people


class WorkerPages(PageSet):
    """One page: the workers, and below what they run."""

    async def workers(self, request: Request) -> Response:
        return page(request, "workers.html", **await in_thread(self._values))

    def _values(self) -> dict[str, Any]:
        workers = listed(self._service)
        return {
            "workers": workers, "running": running(workers), "now": self._service.bus.now(),
            "size": sum(one.size for one in workers), "busy": sum(one.busy for one in workers),
        }  # fmt: skip

    async def act(self, request: Request) -> Response:
        form = await self.form(request)
        worker, wanted = request.path_params["worker"], form.get("order") or ""
        if wanted not in set(WorkerOrder):
            raise Problem(400, "Unknown order", f"there is no order {wanted[:40]!r}; nothing was done")
        await in_thread(order, self._service, worker, wanted, request.state.user.name)
        return self.say(request, f"Worker {worker} {order_text(wanted)}.", "/workers")

    async def cancel(self, request: Request) -> Response:
        """The button beside what runs, and on a message's page."""
        form = await self.form(request)
        id = request.path_params["id"]
        back = "/workers" if form.get("back") == "workers" else f"/messages/{quote(id, safe='')}"
        count, word = await in_thread(self._service.cancel, id, request.state.user.name)
        if not count:
            return self.say(request, f"Message {id} was not cancelled: it is {word}.", back, "warn")
        now = "is being cancelled; its handler is interrupted" if word == "running" else "is cancelled"
        return self.say(request, f"Message {id} {now}.", back)


def routes(service: MessagingService) -> list[BaseRoute]:
    pages = WorkerPages(service)
    guarded = pages.guarded
    return [
        Route("/workers", guarded(pages.workers)),
        Route("/workers/{worker}", guarded(pages.act), methods=["POST"]),
        Route("/messages/{id:path}/cancel", guarded(pages.cancel), methods=["POST"]),
    ]
