"""A Celery application as anybody might write it."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER_URL"], backend=os.environ["RESULTS"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    result_expires=600,
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    worker_send_task_events=True,
)


@app.task  # type: ignore[untyped-decorator]
def add(x: int, y: int) -> int:
    return x + y


@app.task  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def flaky(self: object, times: int) -> int:
    done: int = self.request.retries  # type: ignore[attr-defined]
    if done < times:
        raise self.retry(countdown=0.1)  # type: ignore[attr-defined]
    return done
