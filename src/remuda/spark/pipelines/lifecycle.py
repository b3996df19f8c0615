"""Lives (M7): one row for each message and queue, an aggregate of its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.state import LIVE, PARKED, State
from remuda.spark.tables import LIFECYCLE_SCHEMA

_ANSWERS: Final = (State.SUCCESS, State.RETRY, State.INVALID, State.NOT_INTERESTED)
_MESSAGE: Final = ("id", "name", "object", "key", "created", "topic_count")


def lifecycle(messages: DataFrame, events: DataFrame) -> DataFrame:
    """What the broker would tell of every message, row by row."""
    return begun(messages).unionByName(steps(events)).transform(folded).transform(told)


def begun(messages: DataFrame) -> DataFrame:
    """A message's entry in each of its queues, as a step before all others."""
    topic_count = F.greatest(F.size("topics"), F.lit(1)).alias("topic_count")
    message = F.struct("id", "name", "object", "key", "created", topic_count)
    step = F.struct(
        F.lit(-1).cast("bigint").alias("position"),
        F.lit(None).cast("string").alias("state"),
        F.col("created").alias("time"),
        F.lit(None).cast("string").alias("consumer"),
        F.lit(None).cast("int").alias("attempt"),
        F.lit(None).cast("string").alias("reason"),
        F.lit(None).cast("string").alias("detail"),
    )
    queue = F.explode_outer("queues").alias("queue")
    return messages.select("offset", queue, step.alias("step"), message.alias("message"))


def steps(events: DataFrame) -> DataFrame:
    """Events of neighbouring messages as one row for each message."""
    offsets = F.sequence("first", F.col("first") + F.col("count") - 1)
    step = F.struct("position", "state", "time", "consumer", "attempt", "reason", "detail")
    nobody = F.lit(None).cast(
        "struct<id:string,name:string,object:string,key:string,created:timestamp,topic_count:int>"
    )
    return events.select(F.explode(offsets).alias("offset"), "queue", step.alias("step"), nobody.alias("message"))


def folded(rows: DataFrame) -> DataFrame:
    """The steps of each message and queue as one row. A step's place in the log decides, not the clock."""

    def first(*states: State) -> Column:
        return F.min(F.when(_is(*states), F.struct("step.position", "step.time")))["time"]

    last = F.max(F.struct("step.position", "step.state", "step.time"))
    attempt = F.max(F.when(_is(State.FETCHED), F.struct("step.position", "step.attempt")))["attempt"]
    meeting = F.when(
        _is(State.FETCHED, State.SUCCESS), F.struct("step.position", "step.state", "step.consumer", "step.time")
    )
    return rows.groupBy("offset", "queue").agg(
        F.first("message", ignorenulls=True).alias("message"),
        last.alias("last"),
        first(State.FETCHED).alias("consumed"),
        first(*_ANSWERS).alias("processed"),
        first(State.COMPLETED).alias("completed"),
        F.count_if(_is(State.SUCCESS)).cast("int").alias("confirmed_count"),
        F.coalesce(attempt, F.lit(0)).alias("attempts"),
        _standing("reason").alias("reason"),
        _standing("detail").alias("detail"),
        F.collect_list(meeting).alias("meetings"),
    )


def told(rows: DataFrame) -> DataFrame:
    """The columns of the table, for the messages that are still there."""
    copies = Window.partitionBy("offset")
    known = rows.withColumns(
        {
            "message": F.first("message", ignorenulls=True).over(copies),
            "queues": F.count("queue").over(copies),
        }
    ).where(F.col("message").isNotNull() & (F.col("queue").isNotNull() | (F.col("queues") == 0)))
    state = F.coalesce(
        "last.state", F.when(F.col("queue").isNull(), State.UNCHANGED.value).otherwise(State.QUEUED.value)
    )
    processed, modified = F.col("processed"), F.col("last.time")
    ended = state.isin(State.SUCCESS.value, State.COMPLETED.value, State.KICKED.value)
    columns = {
        "state": state,
        "queued": state.isin(State.QUEUED.value, State.RETRY.value),
        "delivered": processed.isNotNull() | (state == State.KICKED.value),
        "success": (F.col("confirmed_count") > 0) | ended,
        "archived": ~state.isin(*_letters(LIVE)),
        "modified": modified,
        "failed": F.when(state.isin(*_letters(PARKED)), modified),
        "consumed_by": _consumed_by(),
        **{name: F.col(f"message.{name}") for name in _MESSAGE},
    }
    kept = [name for name in LIFECYCLE_SCHEMA.names if name not in columns]
    whole = known.select(*kept, *(column.alias(name) for name, column in columns.items()))
    return whole.select(*LIFECYCLE_SCHEMA.names)


def _is(*states: State) -> Column:
    return F.col("step.state").isin(*_letters(states))


def _letters(states: Iterable[State]) -> list[str]:
    return sorted(state.value for state in states)


def _standing(name: str) -> Column:
    """The last word on something; a message that is queued again has none."""
    value = F.nullif(F.col(f"step.{name}"), F.lit(""))
    says = value.isNotNull() | _is(State.QUEUED)
    return F.max(F.when(says, F.struct("step.position", value.alias("value"))))["value"]


def _consumed_by() -> Column:
    """Who fetched the message, and which of them confirmed it: of one consumer's fetches the last unconfirmed."""
    meetings = F.array_sort("meetings")
    nobody = F.array().cast("array<struct<consumer:string,fetched:timestamp,confirmed:timestamp,duration:bigint>>")

    def fetched(meeting: Column) -> Column:
        names = F.split(F.coalesce(meeting["consumer"], F.lit("")), ", ")
        return F.transform(
            names,
            lambda name: F.struct(
                name.alias("consumer"),
                meeting["time"].alias("fetched"),
                F.lit(None).cast("timestamp").alias("confirmed"),
                F.lit(None).cast("bigint").alias("duration"),
            ),
        )

    def confirmed(entries: Column, meeting: Column) -> Column:
        open_ = F.transform(
            entries,
            lambda entry, at: F.when(
                (entry["consumer"] == F.coalesce(meeting["consumer"], F.lit(""))) & entry["confirmed"].isNull(), at
            ),
        )
        latest = F.array_max(open_)
        return F.transform(
            entries,
            lambda entry, at: F.when(
                at == latest,
                F.struct(
                    entry["consumer"].alias("consumer"),
                    entry["fetched"].alias("fetched"),
                    meeting["time"].alias("confirmed"),
                    (F.unix_micros(meeting["time"]) - F.unix_micros(entry["fetched"])).alias("duration"),
                ),
            ).otherwise(entry),
        )

    def follow(entries: Column, meeting: Column) -> Column:
        return F.when(meeting["state"] == State.FETCHED.value, F.concat(entries, fetched(meeting))).otherwise(
            confirmed(entries, meeting)
        )

    return F.when(F.size("meetings") == 0, nobody).otherwise(F.aggregate(meetings, nobody, follow))
