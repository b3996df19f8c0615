"""A table at native speed: what is sealed by Spark's own Parquet reader, the rest by the data source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.errors import InvalidOption
from remuda.spark.source.data_source import bounds, check_queues, table_schema
from remuda.spark.source.directory_log import EmbeddedLog
from remuda.spark.source.read_options import ReadOptions, refuse_stream_options
from remuda.spark.source.selection import EVERYTHING, Selection
from remuda.spark.source.snapshots import is_snapshot, snapshot
from remuda.spark.source.spark_log import SparkLog, directory, is_stream, open_log
from remuda.spark.source.tables import EVENTS, LIFECYCLE, MESSAGES, MOMENT, NUMBER, STEPS, WORKFLOWS
from remuda.spark.source.verifying import sound
from remuda.spark.topics import any_covered, topics_of

_NAMES: Final = ("queues", "states", "topics")


def read_table(spark: SparkSession, url: str, table: str, options: Mapping[str, Any]) -> DataFrame:
    """The rows that `format("remuda")` returns with the same options, as the log is now."""
    texts = {name: _text(name, value) for name, value in options.items()}
    if table in (STEPS, WORKFLOWS):
        return _of_workflows(spark, url, table, texts)
    asked = ReadOptions.parse({**texts, "path": url, "table": table})
    refuse_stream_options(texts)
    held = hold(url, fail_on_loss=asked.fail_on_loss)
    check_queues(held.log, asked.selection)
    if table == LIFECYCLE:
        return _lifecycle(spark, held, asked.selection)
    return select(_whole(spark, held, table, asked.selection), table, asked.selection)


def select(rows: DataFrame, table: str, selection: Selection) -> DataFrame:
    """The selected rows of a table."""
    return reduce(lambda found, condition: found.where(condition), _conditions(table, selection), rows)


def _lifecycle(spark: SparkSession, held: Held, selection: Selection) -> DataFrame:
    from remuda.spark.pipelines.lifecycle import lifecycle

    of_message = msgspec.structs.replace(selection, queues=None, states=None)
    of_copy = Selection(queues=selection.queues, states=selection.states)
    messages = select(_whole(spark, held, MESSAGES, of_message), MESSAGES, of_message)
    start, stop = bounds(held.log, MESSAGES, of_message, held.ends[MESSAGES])
    events = _whole(spark, held, EVENTS).where((F.col("first") < stop) & (F.col("first") + F.col("count") > start))
    return select(lifecycle(messages, events), LIFECYCLE, of_copy)


def _of_workflows(spark: SparkSession, url: str, table: str, texts: dict[str, str]) -> DataFrame:
    """Runs of workflows, or their steps: notes among the messages, and lives of the runs."""
    from remuda.spark.pipelines.lifecycle import lifecycle
    from remuda.spark.pipelines.workflows import steps, workflows

    prefix = texts.pop("prefix", "")
    asked = ReadOptions.parse({**texts, "path": url, "table": MESSAGES})
    refuse_stream_options(texts)
    if asked.selection != EVERYTHING:
        raise InvalidOption(f"table {table} takes no selection; filter its rows instead, with where()")
    held = hold(url, fail_on_loss=asked.fail_on_loss)
    messages = _whole(spark, held, MESSAGES)
    if table == STEPS:
        return steps(messages)
    return workflows(lifecycle(messages, _whole(spark, held, EVENTS)), messages, prefix)


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


def _whole(spark: SparkSession, held: Held, table: str, selection: Selection = EVERYTHING) -> DataFrame:
    """The rows of a table of which those that are selected are wanted, and perhaps more."""
    schema = table_schema(table)
    first, last = selection.start, min(selection.stop, held.ends[table])
    wanted: list[str] = []
    by_source: list[tuple[int, int]] = []
    done = 0
    if isinstance(held.log, EmbeddedLog):
        root = Path(held.url)
        files = held.log.sealed(table)
        asked = [file for file in files if file.first < last and file.last >= first]
        whole = sound(spark, root, [file.name for file in asked], leave_out=not held.fail_on_loss)
        wanted = [str(root / file.name) for file in asked if file.name in whole]
        # Spark would fail on the others, or worse, not notice: the source leaves out just what cannot be read.
        by_source = [(file.first, file.last + 1) for file in asked if file.name not in whole]
        done = files[-1].last + 1 if files else 0
        # The source says what is missing of these.
        by_source += [(one.start, min(one.stop, done)) for one in held.log.removed(table)]
        if len(wanted) == len(files) and is_snapshot(held.url):
            # Spark lists a folder sooner than it looks for each of ten thousand files.
            wanted = [str(root / "sealed")]
    by_source.append((done, held.ends[table]))
    bounds = ((max(start, first), min(stop, last)) for start, stop in by_source)
    parts = [_by_source(spark, held, table, start, stop, selection) for start, stop in bounds if start < stop]
    if wanted:
        sealed = parquet(spark).schema(schema).option("pathGlobFilter", f"{table}-*.parquet").parquet(*wanted)
        parts.insert(0, sealed)
    return reduce(DataFrame.union, parts) if parts else spark.createDataFrame([], schema)


def parquet(spark: SparkSession) -> DataFrameReader:
    """Spark's own reader, which fails where a file is gone or damaged, however the session is set."""
    reader = spark.read.option("ignoreMissingFiles", False).option("ignoreCorruptFiles", False)
    return reader.option("parquet.page.verify-checksum.enabled", True)


def _by_source(spark: SparkSession, held: Held, table: str, start: int, stop: int, selection: Selection) -> DataFrame:
    reader = spark.read.format("remuda").option("table", table).option("failOnDataLoss", held.fail_on_loss)
    for name, value in selection.options().items():
        reader = reader.option(name, value)
    return reader.option("fromOffset", start).option("toOffset", stop).load(held.url)


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
