"""A worker process of a side: `python -m benchmarks.flow.worker SIDE PLACE DONE KEYS`. A job adds a byte to DONE."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from remuda import Bus

QUEUE = "serial"


def mark(done: str) -> None:
    """A job was done: it lasts however the process ends."""
    handle = os.open(done, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, b".")
    os.close(handle)


def remuda_worker(place: str, done: str) -> None:
    bus = Bus(place)

    @bus.subscribe(QUEUE, queue=QUEUE, ordered=True, threads=1)
    def handle(body: int) -> None:
        mark(done)

    bus.run()


def procrastinate_worker(url: str, done: str) -> None:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="job", queue=QUEUE)
    async def job(number: int) -> None:
        mark(done)

    async def run() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=1)

    asyncio.run(run())


def pgqueuer_worker(url: str, done: str, keys: int) -> None:
    import psycopg
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.qm import QueueManager
    from pgqueuer.queries import Queries

    async def run() -> None:
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        manager = QueueManager(Queries(PsycopgDriver(connection)))

        async def handle(job: object) -> None:
            mark(done)

        for key in range(keys):
            manager.entrypoint(f"job-{key}", concurrency_limit=1)(handle)
        await manager.run(batch_size=10)

    asyncio.run(run())


def main(side: str, place: str, done: str, keys: str) -> None:
    Path(done).touch()
    if side == "remuda":
        remuda_worker(place, done)
    elif side == "procrastinate":
        procrastinate_worker(place, done)
    else:
        pgqueuer_worker(place, done, int(keys))


if __name__ == "__main__":
    main(*sys.argv[1:])
