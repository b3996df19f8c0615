"""The history of queues: for programs and on a page."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from remuda.history.history import SPANS, Percentiles, Point, Totals, WorkerStart, read_span
from remuda.model.values.durations import SECOND
from remuda.server.http.api.operations import Call, Operation, Parameter
from remuda.server.http.pages.pageset import PageSet, in_thread
from remuda.server.http.pages.render import page
from remuda.server.http.service import MessagingService

_LISTED = 200


class HistoryAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What queues did in a span; times are in microseconds."""

    over: str
    queue: str | None
    counted: int
    """Until when the log has been counted."""
    points: list[Point]
    queues: list[Totals]
    """Each queue over the whole span, the busiest first."""
    starts: list[WorkerStart]


def answer(service: MessagingService, over: str, queue: str | None) -> HistoryAnswer:
    service.refresh()
    history = service.broker.history
    totals = history.totals(read_span(over))
    chosen = [one for one in totals if queue is None or one.queue == queue]
    return HistoryAnswer(over, queue, history.reached.time, history.points(over, queue), chosen, history.starts(over))


def operations() -> list[Operation]:
    return [
        Operation(
            "GET", "/api/v1/history", _history, "What queues did: rates, failures, waits and handling times",
            HistoryAnswer,
            parameters=(
                Parameter("over", "How far back.", {"type": "string", "enum": list(SPANS)}),
                Parameter("queue", "Only this queue."),
            ),
            problems=(400,),
        )
    ]  # fmt: skip


async def _history(call: Call) -> HistoryAnswer:
    return await call.run(answer, call.service, call.text("over") or "24h", call.text("queue"))


class HistoryPages(PageSet):
    """One page: charts of all queues or of one, and a table of queues."""

    async def history(self, request: Request) -> Response:
        over, queue = read_span(request.query_params.get("over", "24h")), request.query_params.get("queue") or None
        return page(request, "history.html", **await in_thread(self._values, over, queue))

    def _values(self, over: str, queue: str | None) -> dict[str, Any]:
        found = answer(self._service, over, None)
        handlers: dict[str, list[str]] = {}
        for handler in self._service.bus.handlers:
            handlers.setdefault(handler.queue, []).append(handler.id)
        chosen = [one for one in found.queues if queue in (None, one.queue)]
        return {
            "over": over, "spans": list(SPANS), "queue": queue or "", "found": chosen[:_LISTED],
            "names": sorted({one.queue for one in found.queues})[:1000], "total": len(chosen), "handlers": handlers,
            "counted": found.counted, "now": self._service.bus.now(), "seconds": SPANS[over][0] // SECOND,
            "behind": self._behind(),
        }  # fmt: skip

    def _behind(self) -> int:
        with self._service.broker.log() as log:
            ends = log.ends()
        return max(ends.next_offset - self._service.broker.history.reached.offset, 0)

    async def data(self, request: Request) -> Response:
        over, queue = read_span(request.query_params.get("over", "24h")), request.query_params.get("queue") or None
        found = await in_thread(answer, self._service, over, queue)
        return Response(msgspec.json.encode(lines(found)), media_type="application/json")


def lines(found: HistoryAnswer) -> dict[str, Any]:
    """The points as lines of charts, with rates per second and times in seconds."""
    seconds = SPANS[found.over][1] / SECOND
    points = found.points
    return {
        "times": [point.start / SECOND for point in points],
        "rates": {
            name: [round(getattr(point, name) / seconds, 4) for point in points]
            for name in ("published", "done", "failed")
        },
        "ended": {"dead letters": [point.dead for point in points]},
        "wait": _percentile_lines([point.wait for point in points]),
        "took": _percentile_lines([point.took for point in points]),
        "marks": sorted({one.time / SECOND for one in found.starts}),
    }


def _percentile_lines(values: list[Percentiles]) -> dict[str, list[float | None]]:
    found = {name: [getattr(value, name) for value in values] for name in Percentiles.__struct_fields__}
    return {name: [None if one is None else one / SECOND for one in line] for name, line in found.items()}


def routes(service: MessagingService) -> list[BaseRoute]:
    pages = HistoryPages(service)
    return [
        Route("/history", pages.guarded(pages.history)),
        Route("/data/history", pages.guarded(pages.data)),
    ]
