"""Typed: the messages of a topic with their bodies as columns, by a schema. Bodies that do not fit it stop nothing."""

from __future__ import annotations

import re
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from remuda.model.errors import Conflict, InvalidOption
from remuda.spark.lake.table import LakeTable, kept_table
from remuda.spark.lake.versions import LOG_COLUMN, StreamBatch
from remuda.spark.pipelines.archive import utc_date
from remuda.spark.source.data_source import table_schema
from remuda.spark.source.tables import MESSAGES

BAD_ROWS: Final = "bad_rows"
FAULT: Final = "fault"
_CORRUPT: Final = "_remuda_corrupt"
_NAME: Final = re.compile(r"[A-Za-z]\w{0,62}", re.ASCII)
_BROKERS: Final = ("digest", "wire", "queues")
"""Columns of messages that a typed table does without."""
_PLAIN: Final = (
    StringType, BinaryType, BooleanType, IntegralType, FractionalType, DecimalType, DateType, TimestampType,
)  # fmt: skip


def with_body(messages: DataFrame, shape: StructType) -> DataFrame:
    """Messages with their JSON bodies as a struct of these fields. Where one is not such, it is null, and `fault` says
    why; else `fault` is null."""
    text = F.col("body").cast("string")
    wide = StructType([*shape.fields]).add(_CORRUPT, "string")
    told = messages.withColumn("_parsed", F.from_json(text, wide, {"columnNameOfCorruptRecord": _CORRUPT}))
    fits = F.col("_parsed").isNotNull() & F.col(f"_parsed.{_CORRUPT}").isNull()
    why = F.when(F.try_parse_json(text).isNull(), "the body is not JSON").otherwise("the body does not fit the schema")
    fields = [F.col("_parsed").getField(name).alias(name) for name in shape.fieldNames()]
    body = F.when(fits, F.struct(*fields))
    return told.withColumns({FAULT: F.when(~fits, why), "body": body}).drop("_parsed")


def shape_of(spark: SparkSession, schema: str) -> StructType:
    """The fields of bodies, from a schema as SQL writes it; raises where no engine could read them from a table."""
    try:
        shape = spark.createDataFrame([], f"body struct<{schema}>").schema["body"].dataType
    except PySparkException as error:
        raise InvalidOption(
            f"schema={schema!r} is not a schema ({str(error).splitlines()[0]}); write it as "
            "'id bigint, total double, lines array<struct<sku string, count int>>'"
        ) from error
    assert isinstance(shape, StructType)
    _check(shape)
    return shape


def inferred(messages: DataFrame) -> StructType | None:
    """The fields that these messages' bodies have; None where there are none."""
    said = messages.agg(F.schema_of_variant_agg(F.try_parse_json(F.col("body").cast("string")))).collect()[0][0]
    if said is None or said == "VOID":
        return None
    if not said.startswith("OBJECT<") or said == "OBJECT<>":
        raise InvalidOption(f"the bodies are not JSON objects of one kind but {said}; say what they are: schema=…")
    # Numbers with a point would have just as many digits as those seen; of what differs, texts take anything.
    text = re.sub(r"DECIMAL\(\d+,\s*\d+\)", "DOUBLE", said.replace("OBJECT<>", "STRING").replace("OBJECT<", "STRUCT<"))
    return shape_of(messages.sparkSession, re.sub(r"\b(VOID|VARIANT)\b", "STRING", text)[len("STRUCT<") : -1])


def table_name(topic: str, name: str | None, taken: tuple[str, ...]) -> str:
    found = re.sub(r"\W+", "_", topic, flags=re.ASCII).strip("_") if name is None else name
    if not _NAME.fullmatch(found) or found.lower() in taken or found.lower() == BAD_ROWS:
        raise InvalidOption(f"{found!r} cannot be a table of this lake; name another: table=…, in letters and digits")
    return found


def known_shape(lake: str, name: str, asked: StructType | None) -> StructType | None:
    """The fields of bodies in a table of the lake, or else those that are asked for; raises where both differ."""
    table = kept_table(lake, name)
    if table is None:
        return asked
    body = table.schema["body"].dataType if "body" in table.schema.fieldNames() else None
    if not isinstance(body, StructType):
        raise Conflict(f"the lake has another table {name!r}; nothing was written. Choose another: table=…")
    if asked is not None and asked.simpleString() != body.simpleString():
        raise Conflict(
            f"the bodies in table {name!r} are {body.simpleString()}; nothing was written. Leave schema out to go on "
            "with that, or choose another table=…"
        )
    return body


def typed_table(lake: str, name: str, shape: StructType) -> LakeTable:
    schema = StructType([field for field in table_schema(MESSAGES).fields if field.name not in (*_BROKERS, "body")])
    schema = schema.add("body", shape).add(LOG_COLUMN, "string").add("date", DateType())
    return LakeTable(lake, name, schema, ("date",), apart=(LOG_COLUMN,))


def bad_rows_table(lake: str) -> LakeTable:
    """The messages that are in none of the typed tables, since their bodies do not fit."""
    own = table_schema(MESSAGES)
    schema = StructType().add("table", "string").add(FAULT, "string")
    for name in ("offset", "created", "id", "name", "body"):
        schema = schema.add(own[name])
    schema = schema.add(LOG_COLUMN, "string").add("date", DateType())
    return LakeTable(lake, BAD_ROWS, schema, ("date",), apart=(LOG_COLUMN,))


def add_typed(
    rows: DataFrame, lake: str, target: LakeTable, app: str, batch: int, marks: tuple[StreamBatch, ...]
) -> None:
    """Add a batch to its tables, once: first what does not fit."""
    shape = target.schema["body"].dataType
    assert isinstance(shape, StructType)
    judged = with_body(rows.withColumn("_raw", F.col("body")), shape).withColumn("date", utc_date("created")).persist()
    try:
        bad = judged.where(F.col(FAULT).isNotNull())
        if not bad.isEmpty():
            told = bad.withColumns({"table": F.lit(target.name), "body": F.col("_raw")})
            bad_rows_table(lake).append(told, app=app, batch=batch)
        target.append(judged.where(F.col(FAULT).isNull()), app=app, batch=batch, marks=lambda files: marks)
    finally:
        judged.unpersist()


def _check(kind: DataType) -> None:
    if isinstance(kind, StructType):
        if not kind.fields or len({name.lower() for name in kind.fieldNames()}) < len(kind.fields):
            raise InvalidOption(f"a schema names its fields, each once, not {kind.simpleString()}")
        for field in kind.fields:
            _check(field.dataType)
    elif isinstance(kind, ArrayType):
        _check(kind.elementType)
    elif isinstance(kind, MapType):
        _check(kind.keyType)
        _check(kind.valueType)
    elif not isinstance(kind, _PLAIN):
        raise InvalidOption(f"no engine reads {kind.simpleString()} from a table of Delta; choose another type")
