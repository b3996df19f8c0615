"""Celery: a worker on kombu's broker in memory."""

from __future__ import annotations

from typing import Final

from celery import Celery
from celery.contrib.testing.worker import start_worker

from benchmarks.bus import work
from benchmarks.bus.side import SHORTEST_POLL, Setup

_POOLS: Final = {"asyncio": "threads", "threads": "threads", "processes": "prefork"}


class CelerySide:
    def __init__(self, setup: Setup) -> None:
        pool = _POOLS[setup.executor]
        app = Celery("bench", broker="memory://")
        app.conf.update(
            task_ignore_result=True,
            worker_hijack_root_logger=False,
            broker_transport_options={"polling_interval": SHORTEST_POLL},
        )
        self._task = app.task(work.handle)
        # Kept, since the worker stops when this is gone.
        self._worker = start_worker(
            app, pool=pool, concurrency=setup.workers, perform_ping_check=False, loglevel="ERROR"
        )
        self._worker.__enter__()
        coroutines = ", since it has no coroutines" if setup.executor == "asyncio" else ""
        self.description = (
            f"{setup.workers} workers in its {pool} pool{coroutines}; memory://: not durable, nothing outlives the "
            "process; acknowledged before the handler, as by default; results ignored; no batches; it polls every ms "
            "where its default is 1 s"
        )

    def publish(self, body: str) -> None:
        self._task.delay(body)

    def publish_many(self, bodies: list[str]) -> None:
        for body in bodies:
            self._task.delay(body)
