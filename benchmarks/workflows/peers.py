"""The same work done by DBOS on SQLite, where it is installed, and by Celery's chord."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any


def dbos_one_step(directory: Path, count: int) -> tuple[float, float]:
    """Workflows of one step per second, and per second of CPU time, one after the other."""
    DBOS: Any = import_module("dbos").DBOS  # noqa: N806 - its own name; it is in no lock, and need not be here

    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{directory / 'dbos.sqlite'}"})

    def plain(number: int) -> int:
        return number

    step = DBOS.step()(plain)

    def one(number: int) -> int:
        found: int = step(number)
        return found

    flow = DBOS.workflow()(one)

    DBOS.launch()
    try:
        flow(0)
        begin, effort = time.perf_counter(), time.process_time()
        for number in range(count):
            flow(number)
        return count / (time.perf_counter() - begin), count / (time.process_time() - effort)
    finally:
        DBOS.destroy()


def celery_chord(directory: Path, members: int) -> float:
    """Members of one chord per second, in four threads; results in files."""
    from celery import Celery, chord
    from celery.contrib.testing.worker import start_worker

    (directory / "results").mkdir()
    app = Celery("bench", broker="memory://", backend=f"file://{directory / 'results'}")
    app.conf.update(
        worker_hijack_root_logger=False,
        broker_transport_options={"polling_interval": 0.001},
        result_chord_join_timeout=300,
    )

    def same(number: int) -> int:
        return number

    def added(numbers: list[int]) -> int:
        return sum(numbers)

    member, total = app.task(same), app.task(added)
    with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, loglevel="ERROR"):
        begin = time.perf_counter()
        found: Any = chord([member.s(number) for number in range(members)])(total.s()).get(timeout=300)
        took = time.perf_counter() - begin
    assert found == sum(range(members))
    return members / took
