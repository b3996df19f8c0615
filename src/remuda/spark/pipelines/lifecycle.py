"""Lives (M7): one row for each message and queue, an aggregate of its events.

Of nearly all messages there is little to tell: fetched once, answered once. That is folded as plain numbers, which
Spark does in generated code without sorting. Only of messages to which more happened is the whole story gathered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.state import LIVE, PARKED, State
from remuda.spark.tables import LIFECYCLE_SCHEMA

_ANSWERS: Final = (State.SUCCESS, State.RETRY, State.INVALID, State.NOT_INTERESTED)
_STEP: Final = {"position": "bigint", "state": "string", "time": "bigint", "attempt": "int", "who": "bigint"}
_LETTER_BITS: Final = 7
"""A time and the letter of a state are one number, of which so many bits are the letter."""
_SHELF: Final = 64
"""Neighbouring offsets that one mask of bits is for."""


def lifecycle(messages: DataFrame, events: DataFrame) -> DataFrame:
    """What the broker would tell of every message, row by row."""
    # Dealt out by what they are joined by, lives are aggregated and joined with a single exchange.
    lives = begun(messages).unionByName(steps(events)).repartition("offset").transform(folded)
    return (
        described(messages)
        .join(lives, "offset", "left")
        .join(stories(events), "offset", "left")
        .join(F.broadcast(consumers(events)), "who", "left")
        .transform(told)
    )


def described(messages: DataFrame) -> DataFrame:
    """What a life says of its message."""
    topic_count = F.greatest(F.size("topics"), F.lit(1)).alias("topic_count")
    return messages.select("offset", "id", "name", "object", "key", "created", topic_count)


def begun(messages: DataFrame) -> DataFrame:
    """A message's entry in each of its queues, as a step of which nothing is told."""
    untold = [F.lit(None).cast(kind).alias(name) for name, kind in _STEP.items()]
    return messages.select("offset", F.explode("queues").alias("queue"), *untold)


def steps(events: DataFrame) -> DataFrame:
    """Events of neighbouring messages as one row for each message, in numbers where they can be."""
    time, who = F.unix_micros("time").alias("time"), _who().alias("who")
    return _of_each(events, "queue", "position", "state", time, "attempt", who)


def folded(rows: DataFrame) -> DataFrame:
    """The steps of each message and queue as one row. A step's place in the log decides, not the clock."""
    position, fetched, confirmed = F.col("position"), _is(State.FETCHED), _is(State.SUCCESS)
    return rows.groupBy("offset", "queue").agg(
        F.max_by(F.shiftleft("time", _LETTER_BITS) + F.ascii("state"), position).alias("last"),
        F.min_by("time", F.when(fetched, position)).alias("consumed"),
        F.min_by("time", F.when(_is(*_ANSWERS), position)).alias("processed"),
        F.min_by("time", F.when(_is(State.COMPLETED), position)).alias("completed"),
        F.count_if(confirmed).cast("int").alias("confirmed_count"),
        F.max_by("attempt", F.when(fetched, position)).alias("attempts"),
        F.max(F.when(fetched, F.col("who"))).alias("who"),
        F.max(F.when(confirmed, F.col("who"))).alias("confirmed_by"),
    )


def consumers(events: DataFrame) -> DataFrame:
    """The name behind each number of a consumer."""
    # Not asked for by a filter: Spark would hand it down to the source, and forget that others read there without it.
    who = F.when(_is(State.FETCHED), _who()).alias("who")
    return events.select(who, _consumer().alias("consumer")).groupBy("who").agg(F.min("consumer").alias("consumer"))


def stories(events: DataFrame) -> DataFrame:
    """All that is not told by numbers, of the messages of which there is such: for each, its steps in order.

    These were queued again, as comes before every fetch but the first; or a reason or detail was given; or several
    consumers fetched them at once.
    """
    speaks = (F.col("reason") != "") | (F.col("detail") != "") | _is(State.QUEUED)
    several = _is(State.FETCHED) & F.contains("consumer", F.lit(", "))
    step = F.struct("position", "queue", "state", "consumer", "time", "reason", "detail").alias("step")
    shelf, bit = F.expr(f"offset div {_SHELF}"), F.expr(f"int(offset % {_SHELF})")
    # Which messages these are is known to every task: two numbers for every 64 neighbours of which there is one.
    marked = F.bit_or(F.call_function("shiftleft", F.lit(1).cast("bigint"), bit))
    shelves = _of_each(events.where(speaks | several)).groupBy(shelf.alias("shelf")).agg(marked.alias("marks"))
    is_marked = F.call_function("shiftright", F.col("marks"), bit).bitwiseAND(F.lit(1).cast("bigint")) == 1
    return (
        _of_each(events.where(speaks | _is(State.FETCHED, State.SUCCESS)), step)
        .withColumn("shelf", shelf)
        .join(F.broadcast(shelves), "shelf")
        .where(is_marked)
        .groupBy("offset")
        .agg(F.array_sort(F.collect_list("step")).alias("story"))
    )


def told(rows: DataFrame) -> DataFrame:
    """The columns of the table."""
    untouched = F.when(F.col("queue").isNull(), State.UNCHANGED.value).otherwise(State.QUEUED.value)
    letter = F.lit((1 << _LETTER_BITS) - 1).cast("bigint")
    known = rows.withColumns(
        {
            "state": F.coalesce(F.chr(F.col("last").bitwiseAND(letter)), untouched),
            "modified": F.coalesce(F.timestamp_micros(F.shiftright("last", _LETTER_BITS)), "created"),
            "confirmed_count": F.coalesce("confirmed_count", F.lit(0)),
            "story": F.filter("story", lambda step: step["queue"] == F.col("queue")),
        }
    )
    ended = _is(State.SUCCESS, State.COMPLETED, State.KICKED)
    columns = {
        "queued": _is(State.QUEUED, State.RETRY),
        "delivered": F.col("processed").isNotNull() | _is(State.KICKED),
        "success": (F.col("confirmed_count") > 0) | ended,
        "archived": ~_is(*LIVE),
        "failed": F.when(_is(*PARKED), F.col("modified")),
        "attempts": F.coalesce("attempts", F.lit(0)),
        "reason": _standing("reason"),
        "detail": _standing("detail"),
        "consumed_by": F.when(F.col("story").isNull(), _consumed_once()).otherwise(_consumed_by()),
        **{name: F.timestamp_micros(name) for name in ("consumed", "processed", "completed")},
    }
    return known.withColumns(columns).select(*LIFECYCLE_SCHEMA.names)


def _of_each(events: DataFrame, *columns: Column | str) -> DataFrame:
    offsets = F.sequence("first", F.col("first") + F.col("count") - 1)
    return events.select(F.explode(offsets).alias("offset"), *columns)


def _is(*states: State) -> Column:
    return F.col("state").isin(*_letters(states))


def _letters(states: Iterable[State]) -> list[str]:
    return sorted(state.value for state in states)


def _consumer() -> Column:
    return F.coalesce("consumer", F.lit(""))


def _who() -> Column:
    # Of a million names, two have the same number in one log of forty million.
    return F.xxhash64(_consumer())


def _standing(name: str) -> Column:
    """The last word on something; a message that is queued again has none."""

    def speaks(step: Column) -> Column:
        return (step[name] != "") | (step["state"] == State.QUEUED.value)

    last = F.try_element_at(F.filter("story", speaks), F.lit(-1))
    return F.nullif(last[name], F.lit(""))


def _nobody() -> Column:
    return F.array().cast("array<struct<consumer:string,fetched:timestamp,confirmed:timestamp,duration:bigint>>")


def _consumed_once() -> Column:
    """Who fetched a message that was fetched by one consumer at most."""
    confirmed = F.when(F.col("who") == F.col("confirmed_by"), F.col("processed"))
    once = _consumption(F.col("consumer"), F.timestamp_micros("consumed"), F.timestamp_micros(confirmed))
    return F.when(F.col("consumed").isNull(), _nobody()).otherwise(F.array(once))


def _consumed_by() -> Column:
    """Who fetched the message, and which of them confirmed it: of one consumer's fetches the last unconfirmed."""
    meetings = F.filter("story", lambda step: step["state"].isin(State.FETCHED.value, State.SUCCESS.value))
    return F.aggregate(meetings, _nobody(), _followed)


def _followed(entries: Column, step: Column) -> Column:
    fetched = step["state"] == State.FETCHED.value
    return F.when(fetched, F.concat(entries, _fetched(step))).otherwise(_confirmed(entries, step))


def _fetched(step: Column) -> Column:
    names, never = F.split(F.coalesce(step["consumer"], F.lit("")), ", "), F.lit(None).cast("timestamp")
    return F.transform(names, lambda name: _consumption(name, step["time"], never))


def _confirmed(entries: Column, step: Column) -> Column:
    consumer = F.coalesce(step["consumer"], F.lit(""))

    def unanswered(entry: Column, at: Column) -> Column:
        return F.when((entry["consumer"] == consumer) & entry["confirmed"].isNull(), at)

    def answered(entry: Column, at: Column) -> Column:
        now = _consumption(entry["consumer"], entry["fetched"], step["time"])
        return F.when(at == F.array_max(F.transform(entries, unanswered)), now).otherwise(entry)

    return F.transform(entries, answered)


def _consumption(consumer: Column, fetched: Column, confirmed: Column) -> Column:
    return F.struct(
        consumer.alias("consumer"),
        fetched.alias("fetched"),
        confirmed.alias("confirmed"),
        (F.unix_micros(confirmed) - F.unix_micros(fetched)).alias("duration"),
    )
