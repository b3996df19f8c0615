"""The rows of workflows: runs of one step, what a step adds, and a gather."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.effort import Effort
from benchmarks.results import Result, latency_result, rate_result
from benchmarks.scratch import scratch
from benchmarks.workflows import peers
from remuda import Bus, Run, call, gather, group

_LONGEST: Final = 300
_STEPS: Final = 10


def one_step(sync: str, effort: Effort) -> Result:
    """Runs of one step per second, from the first to the last."""
    count = max(int(5000 * effort.seconds) // 100 * 100, 100)
    ours = statistics.median(_runs(count, 1, sync) for _ in range(effort.rounds))
    others: dict[str, float | None] = {}
    settings: dict[str, object] = {"count": count, "sync": sync, "threads": 4}
    try:
        with scratch() as directory:
            others["DBOS on SQLite"] = peers.dbos_one_step(directory, max(count // 20, 50))
    except ImportError:
        others["DBOS on SQLite"], settings["DBOS on SQLite"] = None, "it is not installed"
    return rate_result(f"workflows/one-step-{sync}", ours, others, None, settings)


def step_latency(effort: Effort) -> Result:
    """What each step adds to a run, as the median over runs of ten steps, one run at a time."""
    count = max(int(300 * effort.seconds), 20)
    times: list[float] = []
    with scratch() as directory, _app(directory, _STEPS, "os") as bus:
        bus.start()
        for number in range(count):
            id = bus.workflows.start("w", number)
            bus.workflows.result(id, timeout="60s")
            steps = [one for one in bus.workflows.steps(id) if one.kind == "step"]
            times += [(after.recorded - before.recorded) / 1000 for before, after in itertools.pairwise(steps)]
    return latency_result(
        "workflows/step-latency", round(statistics.median(times), 3), {}, {"count": count, "steps": _STEPS}
    )


def gather_many(effort: Effort) -> Result:
    """Members per second of a gather of ten thousand, until the next message has their results."""
    members = 10_000 if effort.seconds >= 0.3 else 500
    ours = statistics.median(_gather(members) for _ in range(effort.rounds))
    fewer = members // 20
    with scratch() as directory:
        chord = peers.celery_chord(directory, fewer)
    settings = {"members": members, "Celery's members": fewer, "threads": 4}
    return rate_result("workflows/gather", ours, {"Celery's chord": chord}, None, settings)


def _app(directory: Path, steps: int, sync: str) -> Bus:
    bus = Bus(directory, sync=sync)

    @bus.workflow(name="w", threads=4)
    def flow(run: Run, number: int) -> int:
        for _ in range(steps):
            number = run.step(abs, number)
        return number

    return bus


def _runs(count: int, steps: int, sync: str) -> float:
    with scratch() as directory, _app(directory, steps, sync) as bus:
        for first in range(0, count, 100):
            bus.publish_many("workflow.w", list(range(first, first + 100)))
        begin = time.perf_counter()
        bus.start()
        _until_empty(bus, "workflow.w")
        return count / (time.perf_counter() - begin)


def _gather(members: int) -> float:
    with scratch() as directory, Bus(directory, sync="os") as bus:
        bus.workflows.enable()

        @bus.subscribe("member", queue="member", threads=4)
        def member(number: int) -> int:
            return number

        @bus.subscribe("total", queue="total")
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        bus.start()
        begin = time.perf_counter()
        id = bus.publish(gather(group(*(call("member", number) for number in range(members))), then="total"))
        assert bus.workflows.result(id, timeout=f"{_LONGEST}s") == sum(range(members))
        return members / (time.perf_counter() - begin)


def _until_empty(bus: Bus, queue: str) -> None:
    begin = time.perf_counter()
    while bus.broker.queue(queue).size:
        if time.perf_counter() - begin > _LONGEST:
            raise TimeoutError(f"{bus.broker.queue(queue).size} runs are left after {_LONGEST} s")
        time.sleep(0.002)


WORKFLOW_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    "workflows/one-step-os": partial(one_step, "os"),
    "workflows/one-step-always": partial(one_step, "always"),
    "workflows/step-latency": step_latency,
    "workflows/gather": gather_many,
}
