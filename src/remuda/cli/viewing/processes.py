"""`remuda workers` and `remuda running`: the processes that run handlers, and what they run now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli.commands.operations import AsJson, Directory, Who

if TYPE_CHECKING:
    from remuda.broker.port import Broker
    from remuda.model.operations.worker_orders import Worker

_WORKERS = ("worker", "app", "host", "state", "running", "since", "last sign", "version", "queues")
_QUEUES = 5
"""How many of a worker's queues are named in the table."""
_RUNNING = ("message", "queue", "handler", "worker", "attempt", "for", "timeout", "progress")


def workers(
    directory: Directory,
    pause: Annotated[
        str | None, typer.Option(metavar="WORKER", help="Have this worker take no more messages; 'all' for every one.")
    ] = None,
    resume: Annotated[str | None, typer.Option(metavar="WORKER", help="Have it take messages again.")] = None,
    stop: Annotated[str | None, typer.Option(metavar="WORKER", help="Have it finish what it runs, and end.")] = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """List the processes that run handlers, or tell one of them to pause, to resume or to stop."""
    from remuda.cli import output

    orders = {"pause": pause, "resume": resume, "stop": stop}
    given = {order: worker for order, worker in orders.items() if worker is not None}
    with _broker(directory) as broker:
        found = [] if broker is None else broker.workers()
        if given:
            for order, asked in given.items():
                _order(broker, found, order, asked, who, as_json)
            return
    if as_json:
        output.json(found)
        return
    output.table(_WORKERS, map(_worker_row, found), empty="no worker runs; to start one: remuda run APP")


def running(directory: Directory, as_json: AsJson = False) -> None:
    """List what handlers run now, since when and where, the oldest first."""
    from remuda.cli import output

    with _broker(directory) as broker:
        found = [] if broker is None else broker.workers()
    calls = sorted(((one, call) for one in found for call in one.running), key=lambda pair: pair[1].since)
    if as_json:
        import msgspec

        output.json([{"worker": one.id, "host": one.host, **msgspec.to_builtins(call)} for one, call in calls])
        return
    from time import time_ns

    from remuda.model.values.durations import text

    now = time_ns() // 1000
    rows = []
    for one, call in calls:
        progress = "" if call.progress is None else f"{call.progress.done:g}"
        if call.progress is not None and call.progress.total:
            progress = f"{call.progress.done / call.progress.total:.0%}"
        note = call.progress.note if call.progress is not None else ""
        rows.append(
            (
                call.id, call.queue, call.handler, one.id, call.attempt, output.span(max(now - call.since, 0)),
                "" if call.timeout is None else text(call.timeout), f"{progress} {note}".strip(),
            )
        )  # fmt: skip
    output.table(_RUNNING, rows, right=("attempt", "for"), empty="no handler runs")


@contextmanager
def _broker(target: str) -> Iterator[Broker | None]:
    """The broker that workers tell of themselves; None for a directory that no process has open."""
    from remuda.broker.opening import open_broker
    from remuda.broker.shared.directory.host_lock import is_held
    from remuda.cli.target import is_elsewhere, is_rabbitmq, place_of
    from remuda.model.errors import Unsupported

    place = place_of(target)
    if is_rabbitmq(place):
        raise Unsupported(
            "on RabbitMQ a worker is known to its own process only; see its dashboard (remuda run APP --dashboard), or "
            "RabbitMQ's list of consumers",
            "workers",
        )
    if not is_elsewhere(place):
        from pathlib import Path

        if not is_held(Path(place)):
            yield None
            return
    with open_broker(place) as broker:
        yield broker


def _order(broker: Broker | None, found: list[Worker], order: str, asked: str, who: str | None, as_json: bool) -> None:
    from remuda.cli import output
    from remuda.cli.commands.operations import login_name
    from remuda.model.errors import NotFound
    from remuda.model.operations.worker_orders import order_text

    chosen = [one for one in found if asked == "all" or asked in (one.id, str(one.process))]
    if broker is None or not chosen:
        known = ", ".join(one.id for one in found) or "none runs"
        raise NotFound(f"there is no worker {asked!r}; nothing was done. The workers: {known}")
    if asked != "all" and len(chosen) > 1:
        raise NotFound(
            f"{len(chosen)} workers have process {asked}, on different hosts; nothing was done. Name one by its id: "
            f"{', '.join(one.id for one in chosen)}"
        )
    for one in chosen:
        broker.order_worker(one.id, order, who=who or login_name())
        output.done(f"worker {one.id} {order_text(order)}", as_json, worker=one.id, order=order)


def _worker_row(one: Worker) -> tuple[object, ...]:
    from remuda.cli import output

    own = [queue for queue in one.queues if not queue.name.startswith("remuda.")]
    shown = ", ".join(f"{queue.name} {queue.busy}/{queue.size}" for queue in own[:_QUEUES])
    shown += f" and {len(own) - _QUEUES} more" if len(own) > _QUEUES else ""
    state = "silent" if one.silent else {"open": "working"}.get(one.intake, str(one.intake))
    return (
        one.id, one.name, one.host, state, f"{one.busy}/{one.size}", output.clock(one.since), output.clock(one.told),
        one.version, shown,
    )  # fmt: skip
