"""Pipelines that follow the log outlive a hiccup: a query that fails is started again, after a pause that grows."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from remuda.model.errors import RemudaError
from remuda.spark.progress import Trouble

_FIRST: Final = 1.0
_LONGEST: Final = 60.0
_LIMIT: Final = 10
"""So many failures without a batch between them end the pipeline."""
_FOR_GOOD: Final = re.compile(r"remuda\.[\w.]*\b(?:Conflict|DataLost|InvalidOption): ")
"""What no later try changes."""
_log: Final = logging.getLogger("remuda.spark")


def keep_running(
    queries: list[StreamingQuery],
    again: Callable[[], list[StreamingQuery]],
    stopped: threading.Event,
    place: Path,
    reason: Callable[[str], str],
) -> list[StreamingQuery]:
    """Follow queries until it is said to stop, or they fail for good; returns those that ran last."""
    failures = 0
    while True:
        seen = [_batches(query) for query in queries]
        while queries and all(query.isActive for query in queries) and not stopped.wait(0.5):
            if any(_batches(query) > was for query, was in zip(queries, seen, strict=True)):
                failures = 0
                place.unlink(missing_ok=True)
        error: Exception | None = next(filter(None, (query.exception() for query in queries)), None)
        if stopped.is_set() or (queries and error is None):
            return queries
        while True:
            failures += 1
            text = reason(str(error))
            ended = failures > _LIMIT or (error is not None and _FOR_GOOD.search(_named(error)) is not None)
            _note(place, Trouble(failures, text, time.time(), ended))
            if ended:
                return queries
            pause = min(_FIRST * 2 ** (failures - 1), _LONGEST)
            _log.warning("a query failed and is started again in %.0f s: %s", pause, text)
            for query in queries:
                query.stop()
            if stopped.wait(pause):
                return []
            try:
                queries = again()
                break
            except (RemudaError, PySparkException) as raised:
                error = raised


def _note(place: Path, trouble: Trouble) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(trouble))
        temporary.replace(place)  # whole, for who reads it meanwhile
    except OSError as error:
        _log.warning("that a query failed cannot be noted in %s: %s", place, error)


def _batches(query: StreamingQuery) -> int:
    """The last micro-batch that was done."""
    done = [one["batchId"] for one in query.recentProgress if "addBatch" in one["durationMs"]]
    return max(done, default=-1)


def _named(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}: {error}"
