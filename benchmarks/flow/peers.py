"""Work that is serial per key, done by peers as their documentation shows it."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path
from typing import Any

from benchmarks.flow.worker import QUEUE, mark


def procrastinate_publish(url: str, count: int, keys: int) -> None:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="job", queue=QUEUE)
    async def job(number: int) -> None: ...

    async def run() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for number in range(count):
                await job.configure(lock=str(number % keys)).defer_async(number=number)

    asyncio.run(run())


def pgqueuer_publish(url: str, count: int, keys: int) -> None:
    import psycopg
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.queries import Queries

    async def run() -> None:
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        queue = Queries(PsycopgDriver(connection))
        await queue.install()
        for first in range(0, count, 100):
            names = [f"job-{number % keys}" for number in range(first, first + 100)]
            await queue.enqueue(names, [b""] * 100, [0] * 100)
        await connection.close()

    asyncio.run(run())


class CeleryRecipe:
    """A lock on a file for each key; a task that finds it taken is retried. Four processes of one worker."""

    def __init__(self, directory: Path, done: Path) -> None:
        from celery import Celery
        from celery.contrib.testing.worker import start_worker

        app = Celery("serial", broker="memory://")
        app.conf.update(
            task_ignore_result=True,
            worker_hijack_root_logger=False,
            broker_transport_options={"polling_interval": 0.001},
        )

        def job(self: Any, key: int) -> None:
            with (directory / f"lock-{key}").open("w") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise self.retry(countdown=0.01) from None
                mark(str(done))

        self._task: Any = app.task(bind=True, max_retries=None)(job)
        self._worker = start_worker(app, pool="prefork", concurrency=4, perform_ping_check=False, loglevel="ERROR")
        self._worker.__enter__()

    def publish(self, count: int, keys: int) -> None:
        for number in range(count):
            self._task.delay(number % keys)

    def close(self) -> None:
        self._worker.__exit__(None, None, None)
