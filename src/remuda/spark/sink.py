"""The sink `remuda`: rows become messages, each once, whatever is retried or restarted.

One process owns an embedded directory, and tasks run in others. They stage files; the commit moves them into the spool
as one batch, named after the query and the number that Spark gave the batch; the broker takes it in.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from remuda.log import spool
from remuda.log.disk.directory import DirectoryDisk
from remuda.log.sealed.table_schemas import MESSAGES_SCHEMA, TEXTS
from remuda.log.spool import SPOOL_SCHEMA
from remuda.model.errors import Conflict, InvalidMessage, InvalidOption, StorageError
from remuda.model.values.texts import near, read_name
from remuda.spark.source.read_options import NO_PATH, OF_SPARK, check_names, choice, whole_number
from remuda.spark.source.spark_log import directory, elsewhere
from remuda.spark.source.tables import MESSAGES, check_table

WRITE_OPTIONS: Final = ("path", "table", "appId", "batchId", "queue", "nullBody", "checkpointLocation")
_BY_BROKER: Final = ("offset", "created", "queues", "digest", "wire")
"""Columns of the table that no row can bring."""
_QUERY: Final = "sql.streaming.queryId"
_TEXT: Final = (StringType,)
_TIME: Final = (TimestampType,)
_KINDS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "name": _TEXT,
    "topics": (ArrayType,),
    "id": _TEXT,
    "object": _TEXT,
    "key": _TEXT,
    "timestamp": _TIME,
    "mime_type": _TEXT,
    "headers": (MapType,),
    "priority": (ByteType, ShortType, IntegerType, LongType),
    "expires": _TIME,
    "due": _TIME,
    "body": (BinaryType, StringType),
    "queue": _TEXT,
}


@dataclass
class Staged(WriterCommitMessage):
    """What a task wrote."""

    partition: int
    file: str
    rows: int
    query: str | None = None
    """The id of the task's query, where Spark passes it on."""


class _Sink:
    """Where rows go, and as what."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption("messages that were published cannot be overwritten; use .mode('append')")
        given = check_names(options, WRITE_OPTIONS, besides=OF_SPARK)
        if not given.get("path"):
            raise InvalidOption(f'say where the log is: .save("data/") or .option("path", "data/"). {NO_PATH}')
        if check_table(given.get("table", MESSAGES)) != MESSAGES:
            raise InvalidOption(f"rows become messages; only the broker writes the table {given['table']!r}")
        check_columns(schema)
        if "queue" in given and "queue" in _names(schema):
            raise InvalidOption("each row names its queue, so the option queue has no meaning; leave one of them out")
        self.directory = directory(given["path"])
        self.app = spool.check_chosen(given["appId"]) if "appId" in given else None
        self.batch = whole_number(given, "batchId", most=spool.MOST_NUMBER)
        self.checkpoint = given.get("checkpointLocation")
        self.queue = read_name("queue", given["queue"]) if "queue" in given else None
        self.empty = choice(given, "nullBody", "refuse", "empty") == "empty"
        self.log = DirectoryDisk.of_log(self.directory).identity

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        task = TaskContext.get()
        try:
            place = self._place()
        except StorageError as error:
            raise elsewhere(self.directory, str(error)) from error
        file, rows = spool.stage(place, (to_spool(batch, self.queue, empty=self.empty) for batch in batches))
        if task is None:
            return Staged(0, file, rows)
        return Staged(task.partitionId(), file, rows, task.getLocalProperty(_QUERY))

    def commit(self, messages: list[WriterCommitMessage | None], app: str, batch: int) -> None:
        place = self._place()
        staged = sorted(_staged(messages), key=lambda one: one.partition)
        spool.discard(place, [one.file for one in staged if not one.rows])
        files = [one.file for one in staged if one.rows]
        query = next((one.query for one in staged if one.query), None)
        if files and self.app is not None and query not in (None, app):
            try:
                claim(place, app, query)
            except Conflict:
                spool.discard(place, files)
                raise
        if files and not spool.lay(place, app, batch, files):
            # The query was restarted after this batch had been put into the spool: the broker takes in the first.
            spool.discard(place, files)

    def _place(self) -> Path:
        return spool.prepare(self.directory, self.log)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        spool.discard(self._place(), [one.file for one in _staged(messages)])


class BatchSink(DataSourceArrowWriter):
    """`df.write.format("remuda")`. With `appId` and `batchId` a batch is published once, however often written."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._sink = _Sink(options, schema, overwrite)
        if (self._sink.app is None) != (self._sink.batch is None):
            raise InvalidOption(
                "appId and batchId belong together: give both, and a higher batchId for every new batch"
            )
        self._app = self._sink.app or spool.new_once()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.commit(messages, self._app, self._sink.batch or 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.abort(messages)


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream.format("remuda")`. Batches are told apart by `appId`, or else by the query of the checkpoint."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._sink = _Sink(options, schema, overwrite)
        if self._sink.batch is not None:
            raise InvalidOption("a stream numbers its batches itself; leave out batchId")
        self._check_claim()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        query = next((one.query for one in _staged(messages) if one.query), None)
        app = self._sink.app or query or query_id(self._sink.checkpoint)
        self._sink.commit(messages, app, batchId)

    def _check_claim(self) -> None:
        """Refuse an `appId` of another query before anything is staged, where the checkpoint can be read here."""
        place = Path(self._sink.directory) / spool.SPOOL
        if self._sink.app is None or not (place / "apps" / self._sink.app).exists():
            return
        with contextlib.suppress(InvalidOption):
            claim(place, self._sink.app, query_id(self._sink.checkpoint))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._sink.abort(messages)


def claim(place: Path, app: str, query: str) -> None:
    """Note that an application's batches are those of one query. Raises `Conflict` if they are another's."""
    folder = place / "apps"
    folder.mkdir(exist_ok=True)
    note = folder / app
    if not note.exists():
        temporary = folder / f"{uuid.uuid4().hex}.tmp"
        temporary.write_text(query)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, note)
        temporary.unlink()
    known = note.read_text()
    if known != query:
        raise Conflict(
            f"appId {app!r} belongs to another query, or to this one with another checkpoint ({known}). Spark would "
            "count batches from 0 again, and new rows would be taken for published ones; nothing was published. "
            "Restore that checkpoint, or choose a new appId"
        )


def query_id(checkpoint: str | None) -> str:
    """The id that Spark keeps in a checkpoint, the same however often the query is started."""
    if checkpoint is not None:
        path = Path(unquote(checkpoint.removeprefix("file:"))) if checkpoint.startswith("file:") else Path(checkpoint)
        try:
            return spool.check_app(json.loads((path / "metadata").read_text())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
    raise InvalidOption(
        "give the query a name that stays the same: .option('appId', 'my-query'). The checkpoint cannot be read here"
    )


def is_whole(schema: StructType) -> bool:
    """Whether rows have all columns of the table `messages`, as those of INSERT INTO have."""
    return {*MESSAGES_SCHEMA.names} == {*_names(schema)}


def _names(schema: StructType) -> list[str]:
    """Names of columns as Spark compares them: without regard to case."""
    return [name.lower() for name in schema.fieldNames()]


def check_columns(schema: StructType) -> None:
    """Refuse rows that cannot be messages, before anything is written."""
    whole, names = is_whole(schema), _names(schema)
    for name, field in zip(names, schema.fields, strict=True):
        if names.count(name) > 1:
            raise InvalidOption(f"there are two columns {name!r}; a message has one")
        if whole and name in _BY_BROKER:
            continue
        kinds = _KINDS.get(name)
        if kinds is None:
            close = near(name, _KINDS)
            hint = f"did you mean {close!r}?" if close else f"drop it. A message has {', '.join(_KINDS)}"
            raise InvalidOption(f"column {field.name!r} is not part of a message; {hint}")
        if not isinstance(field.dataType, kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise InvalidOption(f"column {field.name!r} must be {wanted}, not {field.dataType.simpleString()}")
    if "body" not in names or not {"name", "topics"} & {*names}:
        raise InvalidOption("a message needs a body and a name or topics; give those columns")


def to_spool(batch: pa.RecordBatch, queue: str | None = None, *, empty: bool = False) -> pa.RecordBatch:
    """Rows of a query in the columns of the spool, all for one queue if it is named; what they lack is null. A row
    without a body is refused, or with `empty` gets an empty one."""
    batch = batch.rename_columns([name.lower() for name in batch.schema.names])
    known = set(batch.schema.names)
    for name in _BY_BROKER:
        if name in known and batch.column(name).null_count < batch.num_rows:
            raise InvalidMessage(
                f"the column {name!r} is the broker's to fill; leave it out, as in INSERT INTO log (name, body). "
                "Nothing was published"
            )
    if not empty and batch.column("body").null_count:
        raise InvalidMessage(
            f"the body is null in {batch.column('body').null_count:,} of these rows; nothing was published."
            " Leave these rows out, or publish them with empty bodies: nullBody=empty"
        )
    columns = {
        field.name: _cast(batch.column(field.name), field)
        if field.name in known
        else pa.nulls(batch.num_rows, field.type)
        for field in SPOOL_SCHEMA
    }
    columns["body"] = pc.fill_null(columns["body"], b"")
    if queue is not None:
        columns["queue"] = pa.repeat(pa.scalar(queue), batch.num_rows)
    if batch.num_rows and columns["name"].null_count:
        # A message is published under its first topic unless it says otherwise.
        topics = columns["topics"].filter(pc.is_null(columns["name"]))
        if pc.min(pc.fill_null(pc.list_value_length(topics), 0)).as_py() == 0:
            raise InvalidMessage("a row has neither a name nor a topic; nothing was published")
        columns["name"] = pc.coalesce(columns["name"], pc.list_element(_never_empty(columns["topics"]), 0))
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=SPOOL_SCHEMA)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise InvalidMessage(f"column {field.name!r}: {error}; nothing was published") from None


def _never_empty(lists: pa.Array) -> pa.Array:
    """Lists with at least one element each: a null in those that had none."""
    return pc.if_else(pc.equal(pc.fill_null(pc.list_value_length(lists), 0), 0), pa.scalar([None], TEXTS), lists)


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]
