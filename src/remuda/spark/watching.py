"""What queries do while they run, each micro-batch told once."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_log: Final = logging.getLogger("remuda.spark")


class Told(msgspec.Struct, frozen=True):
    """What became of a query since it was last told of."""

    query: str
    batch: int
    """The last one."""
    rows: int
    rate: float
    """Rows per second of work."""
    lag: int
    """How many numbers of the log lay behind that batch."""


class Watch:
    def __init__(self, tell: Callable[[Told], None]) -> None:
        self._tell = tell
        self._told: dict[str, int] = {}
        self._lock = threading.Lock()

    def look(self, queries: Iterable[StreamingQuery]) -> None:
        with self._lock:
            for query in queries:
                run = str(query.runId)
                done = [one for one in query.recentProgress if _is_news(one, self._told.get(run, -1))]
                if done:
                    self._told[run] = done[-1]["batchId"]
                    self._tell(summary(done))

    @contextlib.contextmanager
    def over(self, spark: SparkSession, seconds: float = 1.0) -> Iterator[None]:
        """Tell of all queries that run meanwhile."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(seconds):
                try:
                    self.look(spark.streams.active)
                except PySparkException:
                    pass  # a query may end, and its session too, while it is looked at: the last look is the caller's
                except Exception:
                    # What cannot be told once must not end the telling.
                    _log.warning("the progress of a query cannot be told", exc_info=True)

        thread = threading.Thread(target=follow, name="remuda-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def summary(done: Sequence[Mapping[str, Any]]) -> Told:
    """Micro-batches that followed each other, as one."""
    last = done[-1]
    reached, end = (_numbers(last["sources"][0][name]) for name in ("endOffset", "latestOffset"))
    # Over Spark Connect the sum is left empty.
    rows = sum(source["numInputRows"] for one in done for source in one["sources"])
    seconds = sum(one["batchDuration"] for one in done) / 1000
    return Told(
        query=last["name"],
        batch=last["batchId"],
        rows=rows,
        rate=round(rows / seconds, 1) if seconds else 0.0,
        lag=sum(max(end.get(key, number) - number, 0) for key, number in reached.items()),
    )


def _is_news(progress: Mapping[str, Any], told: int) -> bool:
    # A query that waits tells of the batch that it has not begun.
    return bool(progress["batchId"] > told and "addBatch" in progress["durationMs"])


def _numbers(offset: str | None) -> dict[str, int]:
    """The numbers of a place. Sources of files tell none of their end, and others tell more than numbers."""
    told = json.loads(offset) if offset else None
    return {name: told[name] for name in ("offset", "position") if name in told} if isinstance(told, dict) else {}
