"""What an archive holds of a log: up to which number it has all there was, and which rows it lacks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from remuda.model.errors import Conflict, StorageError
from remuda.spark.lake.delta import DeltaLog, Version
from remuda.spark.lake.older import Manifest, older_version
from remuda.spark.lake.store import lake_place, open_store, table_names
from remuda.spark.source.losses import Gap
from remuda.spark.source.selection import Selection
from remuda.spark.source.spark_log import SparkLog
from remuda.spark.source.tables import EVENTS, MESSAGES, NUMBER

if TYPE_CHECKING:
    from remuda.spark.source.directory_log import EmbeddedLog

HOLDS_NOTHING: Final = 1 << 62
"""What a pipeline notes that may miss rows: the collector need not wait for it."""
GAPS: Final = "gaps"
"""The lake's table of what its archive lacks."""


class Lack(NamedTuple):
    """Numbers of a log's table whose rows the archive lacks, and why."""

    log: str
    table: str
    start: int
    stop: int
    cause: str


class Archived(NamedTuple):
    """The offset and the position before which everything is in an archive."""

    offset: int
    position: int


def reached_by(identity: str, table: str) -> str:
    """The name under which a table of the archive notes how far it holds a log, in the commit that adds the rows."""
    return f"{identity}.{NUMBER[table]}"


def lacks(lake: str, identity: str) -> list[Lack]:
    """What an archive lacks of a log, in order."""
    store = open_store(f"{lake_place(lake)}/{GAPS}")
    files = (pq.read_table(io.BytesIO(store.read(file.path))) for file in newest(lake, GAPS).files)
    found = [row for file in files for row in file.to_pylist()]
    known = {Lack(**{name: row[name] for name in Lack._fields}) for row in found if row["log"] == identity}
    return sorted(known)


def archived(lake: str, log: EmbeddedLog) -> Archived:
    """How far a lake holds all rows of a log that the log could still give, by what was counted in the lake's commits;
    not at all where no archive of this log is. What one of the lake's other tables is still to be told of counts as not
    there."""
    try:
        held = {NUMBER[table]: _held(lake, log, table) for table in (MESSAGES, EVENTS)}
        for name in table_names(lake):
            table = newest(lake, name)
            for number, end in held.items():
                told = table.last_batch(f"{log.identity}.{number}")
                held[number] = end if told is None else min(end, told)
        return Archived(held["offset"], held["position"])
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, StorageError, Conflict) as error:
        raise StorageError(
            f"how far the archive in {lake!r} has come cannot be read ({error}); nothing was collected. Check the "
            "folder, or open the broker without collect_after_archive"
        ) from error


def _held(lake: str, log: EmbeddedLog, table: str) -> int:
    reached = newest(lake, table).last_batch(reached_by(log.identity, table)) or 0
    for lack in lacks(lake, log.identity):
        if lack.table == table and lack.start < reached:
            first = readable(log, table, lack.start, lack.stop)
            if first is not None:
                return first
    return reached


def readable(log: SparkLog, table: str, start: int, stop: int) -> int | None:
    """The first row between two numbers that can be read."""
    for batch in log.batches(table, start, stop, Selection(), (NUMBER[table],)):
        number: int = batch.column(0)[0].as_py()
        return number
    return None


def newest(lake: str, name: str) -> Version | Manifest:
    """The newest version of a lake's table, without Spark."""
    place = f"{lake_place(lake)}/{name}"
    return older_version(place) or DeltaLog(open_store(place)).newest()


def as_lacks(log: str, table: str, gaps: Sequence[Gap]) -> list[Lack]:
    return [Lack(log, table, one.start, one.stop, "damaged" if one.damaged else "collected") for one in gaps]
