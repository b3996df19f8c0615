"""The progress of running queries, each micro-batch reported once."""

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


class QueryProgress(msgspec.Struct, frozen=True):
    """What a query did since its last report."""

    query: str
    batch: int
    """The number of its last micro-batch."""
    rows: int
    rate: float
    """Rows per second of work."""
    lag: int
    """How many numbers of the log lay behind that batch."""


class Watch:
    """Passes what queries have done to `report`."""

    def __init__(self, report: Callable[[QueryProgress], None]) -> None:
        self._report = report
        self._reported: dict[str, int] = {}
        """The last batch of each run that was reported."""
        self._lock = threading.Lock()

    def look(self, queries: Iterable[StreamingQuery]) -> None:
        with self._lock:
            for query in queries:
                run = str(query.runId)
                done = [one for one in query.recentProgress if _is_new(one, self._reported.get(run, -1))]
                if done:
                    self._reported[run] = done[-1]["batchId"]
                    self._report(summary(done))

    @contextlib.contextmanager
    def over(self, spark: SparkSession, seconds: float = 1.0) -> Iterator[None]:
        """Report on all queries that run meanwhile."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(seconds):
                try:
                    self.look(spark.streams.active)
                except PySparkException:
                    pass  # a query may end, and its session too, while it is looked at: the last look is the caller's
                except Exception:
                    # One report that fails must not end the others.
                    _log.warning("the progress of a query could not be shown", exc_info=True)

        thread = threading.Thread(target=follow, name="remuda-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def summary(done: Sequence[Mapping[str, Any]]) -> QueryProgress:
    """Micro-batches that followed each other, as one."""
    last = done[-1]
    reached, end = (_numbers(last["sources"][0][name]) for name in ("endOffset", "latestOffset"))
    # Over Spark Connect the sum is left empty.
    rows = sum(source["numInputRows"] for one in done for source in one["sources"])
    seconds = sum(one["batchDuration"] for one in done) / 1000
    return QueryProgress(
        query=last["name"],
        batch=last["batchId"],
        rows=rows,
        rate=round(rows / seconds, 1) if seconds else 0.0,
        lag=sum(max(end.get(key, number) - number, 0) for key, number in reached.items()),
    )


def _is_new(progress: Mapping[str, Any], last: int) -> bool:
    # A query that waits reports the batch that it has not begun.
    return bool(progress["batchId"] > last and "addBatch" in progress["durationMs"])


def _numbers(offset: str | None) -> dict[str, int]:
    """The numbers in a source's offset. File sources report none for their end, and other sources more than numbers."""
    found = json.loads(offset) if offset else None
    return {name: found[name] for name in ("offset", "position") if name in found} if isinstance(found, dict) else {}
