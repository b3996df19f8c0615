"""Where the lives in a report come from, and how large a session they need."""

from __future__ import annotations

from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from remuda.model.errors import NotFound
from remuda.spark import read
from remuda.spark.pipelines.archive import lifecycle_table
from remuda.spark.source.documents import lives
from remuda.spark.source.losses import Gap, tell_losses
from remuda.spark.source.reading import select
from remuda.spark.source.selection import Selection
from remuda.spark.source.spark_log import open_log, shown
from remuda.spark.source.tables import EVENTS, LIFECYCLE, LIFECYCLE_SCHEMA, MESSAGES

FEW: Final = 50_000
"""The lives of so many messages and events are computed here before Spark's workers would have begun to."""
MANY: Final = 1_000_000
"""Above so many messages, a session that starts slowly and works fast pays off."""
MANY_BYTES: Final = 32 << 20
"""What about a million lives take in a lake."""


class Lives(Protocol):
    """Lives of messages, somewhere."""

    @property
    def empty(self) -> bool: ...

    @property
    def many(self) -> bool: ...

    def frame(self, spark: SparkSession, selection: Selection) -> DataFrame:
        """The lives of messages that were published in a time."""
        ...


class LogLives:
    """Computed from a log."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._log = open_log(url)
        self._messages, self._events = self._log.cut()
        self._rows = {
            MESSAGES: self._log.rows(MESSAGES, 0, self._messages),
            EVENTS: self._log.rows(EVENTS, 0, self._events),
        }

    @property
    def empty(self) -> bool:
        return not self._messages

    @property
    def many(self) -> bool:
        return self._rows[MESSAGES] > MANY

    def frame(self, spark: SparkSession, selection: Selection) -> DataFrame:
        if max(self._rows.values()) > FEW:
            times = {"since": selection.since, "until": selection.until}
            given = {name: time for name, time in times.items() if time is not None}
            return read(spark, self._url, LIFECYCLE, failOnDataLoss=False, **given)
        missing: list[Gap] = []
        rows = lives(self._log, range(self._messages), [range(self._events)], None, selection, missing)
        table = pa.Table.from_batches(rows, LIFECYCLE_SCHEMA)
        tell_losses(shown(self._url), missing)
        return spark.createDataFrame(table.drop_columns(["consumed_by"]))


class LakeLives:
    """Kept in a lake."""

    def __init__(self, lake: str) -> None:
        self._lake = lake
        files = lifecycle_table(lake).manifest()
        if not files.version:
            raise NotFound(
                f"there is no table of lives in {lake!r}; make it: remuda pipeline run lifecycle DIR --lake {lake}"
            )
        self._bytes = sum(file.size for file in files.files)

    @property
    def empty(self) -> bool:
        return not self._bytes

    @property
    def many(self) -> bool:
        return self._bytes > MANY_BYTES

    def frame(self, spark: SparkSession, selection: Selection) -> DataFrame:
        return select(lifecycle_table(self._lake).read(spark), LIFECYCLE, selection)
