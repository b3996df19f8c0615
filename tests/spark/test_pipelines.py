"""P3, P4: the pipelines' functions on a handful of rows, and against the broker itself."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from remuda.core.compacter import history_key
from remuda.model.message import Message
from remuda.spark import read
from remuda.spark.pipelines.archive import archived_messages
from remuda.spark.pipelines.history import history
from remuda.spark.pipelines.ingest import Routes, judged
from remuda.spark.pipelines.metrics import dead_reasons, funnel, metrics
from remuda.spark.pipelines.replay import replayed
from remuda.spark.pipelines.retention import retained
from remuda.spark.source import snapshots
from remuda.spark.source.data_source import table_schema
from tests.spark.samples import broker_at, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 31, 12)


TOPICS = [
    "orders.new", "orders", "Orders", "fruit.sour", "fruits.x", "stone.a.b", "fruit.", "fruit..x", "ünï.☃",
    "u\u0308n.x", "\U0001d518.x", "a b.c", "trail ", "*", "#", "fruit.*", "%.x", "_", "x_y", "a'b", "a\\b.c", "$a.b",
    "(a", "[a].b", "a|b", "__HIVE__", "x" * 255,
]  # fmt: skip
KEYS = [None, "", " ", "é", "e\u0301", "a\x00b", "\ufeff", "None", "\\", "'"]
BODIES = [b"", b"\x00", b"\xff\xfe", "é".encode(), b"0", b"00"]


def random_messages(count: int, seed: int = 0) -> list[Message]:
    """Each seed has words of its own among those that are hard to get right."""
    rng = random.Random(seed)
    topics, bodies = rng.sample(TOPICS, 9), rng.sample(BODIES, 3)
    keys = [*rng.sample(KEYS, 4), *map(str, range(count // 100))]
    objects = [None, "tree", "noisy", *rng.sample(KEYS, 2)]
    return [
        Message(
            rng.choice(topics),
            rng.choice(bodies),
            topics=tuple(rng.sample(topics, rng.randrange(4))) if rng.random() < 0.4 else (),
            object=rng.choice(objects),
            key=rng.choice(keys),
        )
        for _ in range(count)
    ]


def as_frame(spark: SparkSession, messages: list[Message]) -> DataFrame:
    table = pa.table(
        {
            "number": list(range(len(messages))),
            "name": [message.name for message in messages],
            "topics": pa.array([list(message.topics) for message in messages], pa.list_(pa.string())),
            "object": pa.array([message.object for message in messages], pa.string()),
            "key": pa.array([message.key for message in messages], pa.string()),
            "body": [message.body for message in messages],
        }
    )
    return spark.createDataFrame(table)


def test_p4_spark_judges_30_000_messages_as_the_broker_does(spark: SparkSession, tmp_path: Path) -> None:
    """T3, T1, T2: the same states and queues, row by row; in two parts, of which the second goes on from the first."""
    messages = [message for seed in range(10) for message in random_messages(3000, seed)]
    random.Random(0).shuffle(messages)
    channels = {
        "sour": ["fruit"], "many": ["#", "orders"], "stones": ["stone.*"], "odd": ["%", "(a", "a\\b.*", "$a"],
        "☃": ["ünï*", "[a]."], "every": ["*"],
    }  # fmt: skip
    objects = {"noisy": False}
    with broker_at(tmp_path, compact_objects=objects) as broker:
        for name, prefixes in channels.items():
            broker.create_queue(name, type="pull", topics=prefixes)
        for first in range(0, len(messages), 1000):
            broker.publish(messages[first : first + 1000])
        columns = ("offset", "queues")
        expected = {
            offset: tuple(queues)
            for batch in broker.spectate().log.message_batches(columns=columns)
            for offset, queues in zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        }
        remembered = dict(broker.runtime.engine.core.compacter.history)
    frame = as_frame(spark, messages)
    routes = Routes(channels=channels)
    half = len(messages) // 2
    early, late = frame.where(f"number < {half}"), frame.where(f"number >= {half}")
    last = early.where("object is not null and key is not null")
    last = last.groupBy("object", "key").agg(F.max_by("body", "number").alias("body"))
    judgements = [
        judged(early, "number", routes=routes, objects=objects),
        judged(late, "number", last=last, routes=routes, objects=objects),
    ]
    found = {
        row["number"]: (tuple(row["queues"]), row["state"])
        for judgement in judgements
        for row in judgement.select("number", "queues", "state").toArrow().to_pylist()
    }
    assert len(found) == len(expected)
    wrong = {
        number: (found[number], queues)
        for number, queues in expected.items()
        if (sorted(found[number][0]), found[number][1]) != (sorted(queues), "Q" if queues else "U")
    }
    assert wrong == {}
    assert sum(not queues for queues in expected.values()) > 300
    told = history(read(spark, tmp_path, "messages")).collect()
    snapshots.release()
    assert {history_key(row["object"], row["key"]): bytes(row["digest"]) for row in told} == remembered


def test_history_counts_versions_and_a_b_a_is_three(spark: SparkSession) -> None:
    rows = [(offset, "o", key, digest.encode(), START) for offset, (key, digest) in enumerate(
        [("k", "a"), ("k", "a"), ("k", "b"), ("j", "x"), ("k", "a")]
    )]  # fmt: skip
    frame = spark.createDataFrame(rows, "offset bigint, object string, key string, digest binary, created timestamp")
    told = {row["key"]: (bytes(row["digest"]), row["version"], row["messages"]) for row in history(frame).collect()}
    assert told == {"k": (b"a", 3, 4), "j": (b"x", 1, 1)}


def lives(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    schema = table_schema("lifecycle")
    whole = {
        "queue": "q", "state": "X", "success": True, "archived": True, "attempts": 1, "created": START,
        "modified": START, "queued": False, "delivered": True,
    }  # fmt: skip
    values = [{"offset": number, **whole, **row} for number, row in enumerate(rows)]
    return spark.createDataFrame([tuple(row.get(name) for name in schema.fieldNames()) for row in values], schema)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_metrics_tell_rates_times_and_outcomes_per_queue_and_window(spark: SparkSession) -> None:
    frame = lives(
        spark,
        {"consumed": after(1), "processed": after(3), "duration": 2_000_000},
        {"consumed": after(2), "processed": after(3), "attempts": 3, "duration": 1_000_000},
        {"state": "E", "success": False, "reason": "broken", "failed": after(9)},
        {"state": "Q", "success": False, "archived": False, "attempts": 0},
        {"created": after(70)},
        {"queue": None, "state": "U", "success": False, "attempts": 0},
    )
    rows = {(row["queue"], row["start"]): row for row in metrics(frame).collect()}
    first = rows["q", START]
    assert [first[name] for name in ("published", "succeeded", "retried", "dead", "waiting")] == [4, 2, 1, 1, 1]
    assert (first["wait_p50"], first["wait_p99"], first["processing_p99"]) == (1.0, 2.0, 2.0)
    assert first["rate"] == 4 / 60
    assert rows["q", after(60)]["published"] == 1
    assert rows[None, START]["unchanged"] == 1


def test_the_funnel_tells_how_many_came_to_each_attempt(spark: SparkSession) -> None:
    frame = lives(spark, {}, {"attempts": 2}, {"attempts": 2, "success": False, "state": "E"})
    rows = sorted((row["attempt"], row["reached"], row["succeeded"]) for row in funnel(frame).collect())
    assert rows == [(1, 3, 1), (2, 2, 1)]


def test_dead_reasons_come_most_frequent_first(spark: SparkSession) -> None:
    frame = lives(spark, *[{"state": "E", "reason": "late"}] * 2, {"state": "I", "reason": None}, {})
    rows = [(row["state"], row["reason"], row["messages"]) for row in dead_reasons(frame).collect()]
    assert rows == [("E", "late", 2), ("I", "no reason given", 1)]


def test_l6_retention_keeps_what_waits_and_what_died_lately(spark: SparkSession) -> None:
    day = 86_400_000_000
    frame = lives(
        spark,
        {"modified": after(0)},
        {"modified": after(0), "state": "E"},
        {"modified": after(-20 * 86400), "state": "E"},
        {"modified": after(-90 * 86400), "state": "Q", "archived": False},
        {"modified": after(86400)},
    )
    now = after(2 * 86400)
    kept = retained(frame.select("offset"), frame, now, day, 15 * day)
    assert sorted(row[0] for row in kept.collect()) == [1, 3]


def test_replayed_rows_go_back_by_queue_and_name_their_original(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path) as broker:
        broker.publish(
            [
                Message("a.x", b"1", id="one", topics=("a.x", "b"), headers={"h": "1", "cap-corr-id": "older"}),
                *[Message("o", b"same", object="o", key="k")] * 2,
            ]
        )
        rows = replayed(archived_messages(load(spark, tmp_path))).collect()
        moved = replayed(archived_messages(load(spark, tmp_path)).where("id = 'one'"), to="repair").collect()
    assert sorted((row["queue"], bytes(row["body"])) for row in rows) == [("a", b"1"), ("b", b"1"), ("o", b"same")]
    assert rows[0]["headers"] == {"h": "1", "cap-corr-id": "one"}
    assert {row["queue"] for row in moved} == {"repair"}
