"""The same work done by pgqueuer and procrastinate, each as its own documentation shows it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

_BODY = b"x" * 200
_JOB: dict[str, Any] = {"body": "x" * 200}


def pgqueuer_publish(url: str, count: int, each: int, writers: int = 1) -> float:
    """Messages per second into its queue."""
    import psycopg
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.queries import Queries

    async def run() -> float:
        connections = [await psycopg.AsyncConnection.connect(url, autocommit=True) for _ in range(writers)]
        queues = [Queries(PsycopgDriver(connection)) for connection in connections]
        await queues[0].install()

        async def write(queue: Queries) -> None:
            for _ in range(count // each // writers):
                if each == 1:
                    await queue.enqueue("job", _BODY)
                else:
                    await queue.enqueue(["job"] * each, [_BODY] * each, [0] * each)

        begin = time.perf_counter()
        await asyncio.gather(*map(write, queues))
        took = time.perf_counter() - begin
        for connection in connections:
            await connection.close()
        return count / took

    return asyncio.run(run())


def pgqueuer_end_to_end(url: str, count: int, batch: int) -> float:
    """Messages per second from the first insert to the last handled; its worker runs until none is left."""
    import psycopg
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.qm import QueueManager
    from pgqueuer.queries import Queries
    from pgqueuer.types import QueueExecutionMode

    async def run() -> float:
        producer = await psycopg.AsyncConnection.connect(url, autocommit=True)
        consumer = await psycopg.AsyncConnection.connect(url, autocommit=True)
        queue = Queries(PsycopgDriver(producer))
        await queue.install()
        manager = QueueManager(Queries(PsycopgDriver(consumer)))
        done = 0

        @manager.entrypoint("job")
        async def handle(job: object) -> None:
            nonlocal done
            done += 1

        begin = time.perf_counter()
        for _ in range(count // 100):
            await queue.enqueue(["job"] * 100, [_BODY] * 100, [0] * 100)
        await manager.run(batch_size=batch, dequeue_timeout=timedelta(seconds=0.1), mode=QueueExecutionMode.drain)
        took = time.perf_counter() - begin
        assert done == count, (done, count)
        await producer.close()
        await consumer.close()
        return count / took

    return asyncio.run(run())


def procrastinate_publish(url: str, count: int, each: int, writers: int = 1) -> float:
    import procrastinate

    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=url, min_size=writers, max_size=writers + 1)
    )

    @app.task(name="job", queue="jobs")
    async def job(body: str) -> None: ...

    async def run() -> float:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

            async def write() -> None:
                for _ in range(count // each // writers):
                    if each == 1:
                        await job.defer_async(body="x" * 200)
                    else:
                        await job.batch_defer_async(*[_JOB] * each)

            begin = time.perf_counter()
            await asyncio.gather(*[write() for _ in range(writers)])
            return count / (time.perf_counter() - begin)

    return asyncio.run(run())


def procrastinate_end_to_end(url: str, count: int) -> float:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    done = 0

    @app.task(name="job", queue="jobs")
    async def job(body: str) -> None:
        nonlocal done
        done += 1

    async def run() -> float:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            begin = time.perf_counter()
            for _ in range(count // 100):
                await job.batch_defer_async(*[_JOB] * 100)
            await app.run_worker_async(wait=False, concurrency=10, install_signal_handlers=False)
            assert done == count, (done, count)
            return count / (time.perf_counter() - begin)

    return asyncio.run(run())
