"""A table at native speed: what is sealed by Spark's own Parquet reader, the rest by the data source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from remuda.log.parquet import SealedParquet, Unreadable
from remuda.model.errors import InvalidOption
from remuda.spark.embedded import EmbeddedLog
from remuda.spark.options import ReadOptions, refuse_stream_options
from remuda.spark.pins import snapshot
from remuda.spark.pipelines.topics import any_covered, topics_of
from remuda.spark.port import SparkLog, directory, is_stream, open_log
from remuda.spark.selection import Selection
from remuda.spark.source import table_schema
from remuda.spark.tables import EVENTS, LIFECYCLE, MESSAGES, MOMENT, NUMBER

_NAMES: Final = ("queues", "states", "topics")
_found_whole: set[tuple[int, int, int, int]] = set()


def read_table(spark: SparkSession, url: str, table: str, options: Mapping[str, Any]) -> DataFrame:
    """The rows that `format("remuda")` returns with the same options, as the log is now."""
    texts = {name: _text(name, value) for name, value in options.items()}
    asked = ReadOptions.parse({**texts, "path": url, "table": table})
    refuse_stream_options(texts)
    held = hold(url, fail_on_loss=asked.fail_on_loss)
    if table == LIFECYCLE:
        return _lifecycle(spark, held, asked.selection)
    return select(_whole(spark, held, table), table, asked.selection)


def select(rows: DataFrame, table: str, selection: Selection) -> DataFrame:
    """The selected rows of a table."""
    return reduce(lambda found, condition: found.where(condition), _conditions(table, selection), rows)


def _lifecycle(spark: SparkSession, held: Held, selection: Selection) -> DataFrame:
    from remuda.spark.pipelines.lifecycle import lifecycle

    of_message = msgspec.structs.replace(selection, queues=None, states=None)
    of_copy = Selection(queues=selection.queues, states=selection.states)
    messages = select(_whole(spark, held, MESSAGES), MESSAGES, of_message)
    return select(lifecycle(messages, _whole(spark, held, EVENTS)), LIFECYCLE, of_copy)


class Held(msgspec.Struct, frozen=True):
    """A log as it was at one moment: where it is held, and the numbers that came next."""

    url: str
    log: SparkLog
    ends: dict[str, int]
    fail_on_loss: bool = True


def hold(url: str, *, fail_on_loss: bool = True) -> Held:
    """One cut of the log for everything that is read of it, whatever is sealed, shrunk or expires meanwhile."""
    log = open_log(url)  # or say what is wrong with it
    if not is_stream(url):
        url = str(snapshot(Path(directory(url))))
        log = open_log(url)
    offset, position = log.cut()
    return Held(url, log, {MESSAGES: offset, EVENTS: position}, fail_on_loss)


def _whole(spark: SparkSession, held: Held, table: str) -> DataFrame:
    schema = table_schema(table)
    paths: list[str] = []
    by_source: list[tuple[int, int]] = []
    done = 0
    if isinstance(held.log, EmbeddedLog):
        for file in held.log.sealed(table):
            path = Path(held.url) / file.name
            if _is_whole(held.log, path, file.name):
                paths.append(str(path))
            else:
                # Spark would fail on it, or worse, not notice: the source leaves out just what cannot be read.
                by_source.append((file.first, file.last + 1))
            done = file.last + 1
        # The source says what is missing of these.
        by_source += [(one.start, min(one.stop, done)) for one in held.log.removed(table)]
    by_source.append((done, held.ends[table]))
    parts = [_by_source(spark, held, table, start, stop) for start, stop in by_source if start < stop]
    if paths:
        parts.insert(0, spark.read.schema(schema).parquet(*paths))
    return reduce(DataFrame.union, parts) if parts else spark.createDataFrame([], schema)


def _by_source(spark: SparkSession, held: Held, table: str, start: int, stop: int) -> DataFrame:
    reader = spark.read.format("remuda").option("table", table).option("failOnDataLoss", held.fail_on_loss)
    return reader.option("fromOffset", start).option("toOffset", stop).load(held.url)


def _is_whole(log: EmbeddedLog, path: Path, name: str) -> bool:
    """Whether the file's checksums hold. A file that has not been written since is checked only once."""
    status = path.stat()
    known = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if known in _found_whole:
        return True
    try:
        if not SealedParquet(log.disk, name).whole():
            return False
    except Unreadable:
        return False
    _found_whole.add(known)
    return True


def _conditions(table: str, selection: Selection) -> list[Column]:
    found: list[Column] = []
    number, moment = F.col(NUMBER[table]), F.col(MOMENT[table])
    if selection.start:
        found.append(number >= selection.start)
    if selection.stop != Selection().stop:
        found.append(number < selection.stop)
    if selection.since is not None:
        found.append(moment >= F.timestamp_micros(F.lit(selection.since)))
    if selection.until is not None:
        found.append(moment < F.timestamp_micros(F.lit(selection.until)))
    if selection.queues is not None:
        wanted = sorted(selection.queues)
        if table == MESSAGES:
            found.append(F.arrays_overlap("queues", F.array(*map(F.lit, wanted)).cast("array<string>")))
        else:
            found.append(F.col("queue").isin(wanted))
    if selection.states is not None:
        found.append(F.col("state").isin(sorted(selection.states)))
    if selection.topics is not None:
        found.append(any_covered(topics_of(), selection.topics))
    return found


def _text(name: str, value: Any) -> str:
    """An option as Spark would pass it on; lists are accepted too."""
    if name.lower() in _NAMES and not isinstance(value, str):
        names = list(value) if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping) else [value]
        if not all(isinstance(one, str) for one in names):
            raise InvalidOption(f"{name} must be a name or a list of names, not {value!r}")
        return msgspec.json.encode(names).decode()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise InvalidOption(f"option {name} cannot be {value!r}")
