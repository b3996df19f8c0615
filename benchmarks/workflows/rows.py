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
from benchmarks.workflows.sleeping import MEMORY, RESTART, sleeping
from remuda import Bus, Run, call, gather, group

ONE_STEP: Final = {sync: f"workflows/one-step-{sync}" for sync in ("os", "always")}
STEP_LATENCY: Final = "workflows/step-latency"
GATHER: Final = "workflows/gather"
DBOS: Final = "DBOS on SQLite"
_LONGEST: Final = 300
_STEPS: Final = 10


def one_step(sync: str, effort: Effort) -> Result:
    """Runs of one step: without syncs per second of CPU time, since only that counts then; else per second."""
    count = max(int(5000 * effort.seconds) // 100 * 100, 100)
    rates = [_runs(count, 1, sync) for _ in range(effort.rounds)]
    ours = statistics.median(of_cpu if sync == "os" else of_wall for of_wall, of_cpu in rates)
    settings: dict[str, object] = {
        "count": count, "sync": sync, "threads": 4, "per_second": round(statistics.median(wall for wall, _ in rates)),
        "per_cpu_second": round(statistics.median(cpu for _, cpu in rates)),
    }  # fmt: skip
    others: dict[str, float | None] = {DBOS: None}
    try:
        with scratch() as directory:
            wall, cpu = peers.dbos_one_step(directory, max(count // 20, 50))
            others[DBOS] = cpu if sync == "os" else wall
            settings["DBOS per_cpu_second"] = round(cpu)
    except ImportError:
        settings[DBOS] = "it is not installed: pip install dbos"
    return rate_result(ONE_STEP[sync], ours, others, None, settings)


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
    return latency_result(STEP_LATENCY, round(statistics.median(times), 3), {}, {"count": count, "steps": _STEPS})


def gather_many(effort: Effort) -> Result:
    """Members per second of a gather of ten thousand, until the next message has their results."""
    members = 10_000 if effort.seconds >= 0.3 else 500
    ours = statistics.median(_gather(members) for _ in range(effort.rounds))
    fewer = members // 20
    with scratch() as directory:
        chord = peers.celery_chord(directory, fewer)
    settings = {"members": members, "Celery's members": fewer, "threads": 4}
    return rate_result(GATHER, ours, {"Celery's chord": chord}, None, settings)


def _app(directory: Path, steps: int, sync: str) -> Bus:
    bus = Bus(directory, sync=sync)

    @bus.workflow(name="w", threads=4)
    def flow(run: Run, number: int) -> int:
        for _ in range(steps):
            number = run.step(abs, number)
        return number

    return bus


def _runs(count: int, steps: int, sync: str) -> tuple[float, float]:
    """Runs per second, and per second of CPU time."""
    with scratch() as directory, _app(directory, steps, sync) as bus:
        for first in range(0, count, 100):
            bus.publish_many("workflow.w", list(range(first, first + 100)))
        begin, effort = time.perf_counter(), time.process_time()
        bus.start()
        _until_empty(bus, "workflow.w")
        return count / (time.perf_counter() - begin), count / (time.process_time() - effort)


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
    **{name: partial(one_step, sync) for sync, name in ONE_STEP.items()},
    STEP_LATENCY: step_latency,
    GATHER: gather_many,
    MEMORY: partial(sleeping, what=MEMORY),
    RESTART: partial(sleeping, what=RESTART),
}
