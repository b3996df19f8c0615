"""P3, P5: the pipelines as jobs and commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from remuda.model.errors import Conflict, InvalidOption
from remuda.model.message import Message
from remuda.spark import session
from remuda.spark.commands import _reason, app
from remuda.spark.pipelines.archive import events_table, lifecycle_table, messages_table
from remuda.spark.pipelines.history import history
from remuda.spark.pipelines.jobs import JOBS, history_table, metrics_table
from remuda.spark.pipelines.metrics import metrics
from remuda.spark.pipelines.streaming_queries import Place
from tests.spark.samples import broker_at, load, numbers, plain, play, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from remuda.broker.threads import EmbeddedBroker


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(url=str(tmp_path / "data"), lake=str(tmp_path / "lake"), options={"maxRows": "60"})


def run(spark: SparkSession, name: str, place: Place, **options: str) -> None:
    limits = place.options if name in ("archive", "lifecycle", "history", "metrics") else {}
    JOBS[name](spark, Place(url=place.url, lake=place.lake, options={**limits, **options}))


def test_the_trail_becomes_tables_and_goes_back_into_queues(spark: SparkSession, place: Place) -> None:
    """Archive, lifecycle, history, metrics, replay, retention in turn; what is run again changes nothing."""
    path = Path(place.url)
    with broker_at(path) as broker:
        play(broker)
        broker.runtime.sync()
        for _ in range(2):
            run(spark, "archive", place)
            run(spark, "lifecycle", place)
        lives = lifecycle_table(place.lake).read(spark).drop("date", "log")
        assert plain(lives) == plain(load(spark, path, "lifecycle"))
        archived = messages_table(place.lake).read(spark)
        assert archived.select("offset").distinct().count() == load(spark, path).count()
        assert events_table(place.lake).read(spark).count() == load(spark, path, "events").count()

        run(spark, "metrics", place, maxRows="1000")
        run(spark, "history", place, maxRows="1000")
        (row,) = history_table(place.lake).read(spark).collect()
        assert (row["object"], row["key"], row["version"], row["messages"]) == ("o", "k", 1, 3)
        assert metrics_table(place.lake).read(spark).groupBy().sum("published").collect()[0][0] == lives.count()

        before = broker.queue("orders").size
        for _ in range(2):
            run(spark, "replay", place, where="queue = 'orders' and offset < 5", app="again")
            broker.runtime.upkeep.take_in()
        assert broker.queue("orders").size == before + 5

    run(spark, "retention", place, success="0s", dead="0s")
    left = lifecycle_table(place.lake).read(spark)
    # Six moved on to another queue, where they still wait: such a message stays whole.
    assert left.where("archived").count() == left.where("archived and reason = 'elsewhere'").count() == 6
    assert left.count() == lives.where("not archived").count() + 6
    assert messages_table(place.lake).read(spark).count() > 0


def told_at_once(spark: SparkSession, place: Place) -> tuple[list[str], list[str]]:
    """History and metrics of the whole log, in one go."""
    path = Path(place.url)
    return plain(history(load(spark, path))), plain(metrics(load(spark, path, "lifecycle")))


def told_bit_by_bit(spark: SparkSession, place: Place) -> tuple[list[str], list[str]]:
    tables = (
        history_table(place.lake).read(spark).drop("part", "hash", "log"),
        metrics_table(place.lake).read(spark).drop("date", "log"),
    )
    return plain(tables[0]), plain(tables[1])


def say(broker: EmbeddedBroker, *bodies: str) -> None:
    broker.publish([Message("things", body.encode(), object="o", key=body[0]) for body in bodies])
    broker.runtime.sync()


def test_p3_history_and_metrics_told_bit_by_bit_are_those_told_at_once(spark: SparkSession, place: Place) -> None:
    """Repetitions are seen across batches, late events correct old windows, and nothing is counted twice."""
    with broker_at(Path(place.url)) as broker:
        play(broker)
        say(broker, "k1", "k1", "j1")
        run(spark, "history", place)
        run(spark, "metrics", place)
        say(broker, "j1", "k2", "k1", "i1")
        delivery = broker.pull("orders", 10)
        assert delivery is not None
        delivery.ack()
        broker.runtime.sync()
        for name in ("history", "metrics", "history", "metrics"):
            run(spark, name, place)
        assert told_bit_by_bit(spark, place) == told_at_once(spark, place)
        shutil.rmtree(Path(place.lake) / "_checkpoints")
        run(spark, "history", place, maxRows="1000")
        assert told_bit_by_bit(spark, place) == told_at_once(spark, place)


def test_p3_history_and_metrics_follow_the_log(spark: SparkSession, place: Place) -> None:
    with broker_at(Path(place.url)) as broker:
        broker.create_queue("things", type="pull")
        say(broker, "k1")
        following = Place(url=place.url, lake=place.lake, continuous=True)
        queries = [query for name in ("history", "metrics") for query in JOBS[name](spark, following)]
        try:
            for bodies in (["k1", "k2"], ["k2", "j1"]):
                for query in queries:
                    query.processAllAvailable()
                say(broker, *bodies)
            delivery = broker.pull("things", 2)
            assert delivery is not None
            delivery.ack()
            broker.runtime.sync()
            for query in queries:
                query.processAllAvailable()
        finally:
            for query in queries:
                query.stop()
        assert told_bit_by_bit(spark, place) == told_at_once(spark, place)


def test_files_that_come_one_by_one_are_ingested_once(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    source = tmp_path / "files"
    options = {"source": str(source), "order": "number"}
    following = Place(url=place.url, lake=place.lake, continuous=True, options=options)
    source.mkdir()
    with pytest.raises(InvalidOption, match="the columns of the files in"):
        JOBS["ingest"](spark, following)
    with broker_at(Path(place.url)) as broker:
        for turn in range(3):
            rows = spark.range(10 * turn, 10 * turn + 10)
            rows = rows.selectExpr("-id as number", "'orders' as name", "cast(id as string) as body")
            rows.coalesce(1).write.mode("append").parquet(str(source))
            (query,) = JOBS["ingest"](spark, following)
            query.processAllAvailable()
            query.stop()
            if turn == 1:
                # As if the process had died after the rows were laid, before Spark noted it: they come once more.
                (checkpoint,) = (Path(place.lake) / "_files").iterdir()
                (checkpoint / "commits" / "1").unlink()
            broker.runtime.upkeep.take_in()
        bodies = [int(body) for record in broker.spectate().messages(0) for body in record.messages.bodies]
    assert bodies == [number for first in (9, 19, 29) for number in range(first, first - 10, -1)]


def test_files_are_ingested_once_and_in_order(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    rows = spark.range(40).selectExpr(
        "id as number", "'orders' as name", "'o' as object", "'k' as key", "cast(id div 10 as string) as body"
    )
    rows.write.parquet(str(tmp_path / "files"))
    options = {"source": str(tmp_path / "files"), "order": "number", "app": "files"}
    with broker_at(Path(place.url)) as broker:
        for _ in range(2):
            run(spark, "ingest", Place(url=place.url, lake=place.lake), **options)
            broker.runtime.upkeep.take_in()
        assert broker.queue("orders").size == 4
        assert broker.spectate().log.ends().next_offset == 40
        run(spark, "ingest", Place(url=place.url, lake=place.lake), **{**options, "batch": "1", "repeats": "drop"})
        broker.runtime.upkeep.take_in()
        bodies = [body for record in broker.spectate().messages(40) for body in record.messages.bodies]
        assert numbers(bodies) == [0, 1, 2, 3]


def test_an_archive_whose_checkpoint_was_lost_is_neither_doubled_nor_left_short(
    spark: SparkSession, place: Place
) -> None:
    with broker_at(Path(place.url)) as broker:
        publish(broker, 100)
        broker.runtime.sync()
        run(spark, "archive", place)
        shutil.rmtree(Path(place.lake) / "_checkpoints")
        publish(broker, 50)
        broker.runtime.sync()
        with pytest.raises(Conflict, match="whose checkpoint is gone"):
            run(spark, "archive", place)
    assert messages_table(place.lake).read(spark).count() == 100


def test_a_job_that_cannot_go_on_for_ever_says_so(spark: SparkSession, place: Place) -> None:
    with pytest.raises(InvalidOption, match="retention runs over what is there and ends"):
        JOBS["retention"](spark, Place(url=place.url, lake=place.lake, continuous=True))
    with pytest.raises(InvalidOption, match="replay needs the option 'where'"):
        run(spark, "replay", place)


def test_the_command_line_lists_runs_and_tells_how_far_behind(spark: SparkSession, place: Place) -> None:
    with broker_at(Path(place.url)) as broker:
        publish(broker, 50)
    runner = CliRunner()
    listed = runner.invoke(app, ["list", "--json"])
    assert set(json.loads(listed.stdout)) == set(JOBS)
    ran = runner.invoke(app, ["run", "archive", place.url, "--lake", place.lake, "--json"])
    assert ran.exit_code == 0, ran.output
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {"query": "archive-messages", "batch": 0, "rows": 50, "lag": 0}.items() <= told[0].items()
    with broker_at(Path(place.url)) as broker:
        publish(broker, 7)
    status = json.loads(runner.invoke(app, ["status", place.url, "--lake", place.lake, "--json"]).stdout)
    behind = {row["pipeline"]: row["behind"] for row in status}
    assert behind["archive-messages"] == 7


def test_the_command_line_answers_mistakes_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    runner = CliRunner()
    missing = runner.invoke(app, ["status", str(tmp_path / "nowhere")])
    assert missing.exit_code == 1
    assert "there is no directory" in missing.output
    assert "there is no pipeline 'archiv'" in runner.invoke(app, ["run", "archiv", str(tmp_path)]).output
    data, lake = str(tmp_path / "nowhere"), str(tmp_path / "lake")
    for command in (
        ["run", "archive", data, "--lake", ""],
        ["run", "archive", "", "--lake", lake],
        ["status", ""],
        ["status", data, "--lake", ""],
    ):
        refused = runner.invoke(app, command)
        assert (refused.exit_code, refused.output) == (1, "error: give a directory as a path or a URL, not ''\n")
    for job in ("archive", "lifecycle", "metrics", "history"):
        refused = runner.invoke(app, ["run", job, data, "--lake", lake])
        assert refused.exit_code == 1
        text = "nothing was created. Check the path, and that its volume is mounted here"
        assert refused.output == f"error: there is no directory {data!r}; {text}\n"
    assert not Path(lake).exists(), "and no lake is begun that a replay would take for an empty one"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"name": 5}, "name must be a string, not 5"),
        ({"master": 5}, "master must be a string, not 5"),
        ({"quick": "yes"}, "quick must be true or false, not 'yes'"),
        ({"master": "local[1]", "remote": "sc://x"}, "both say where Spark runs"),
        ({"config": {1: "a"}}, "config must map"),
    ],
)
def test_p5_what_a_session_is_asked_for_is_checked_before_it_starts(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        session(**arguments)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\n[PARSE_SYNTAX_ERROR] Syntax error at 'x'.\n\n== SQL ==", "[PARSE_SYNTAX_ERROR] Syntax error at 'x'."),
        (
            "An error occurred while calling o1.load.\n: org.apache.spark.NoClass: [NOT_FOUND] no x\n\tat y",
            "[NOT_FOUND] no x",
        ),
        ("[A] b\nremuda.model.errors.Conflict: ours\n", "ours"),
        (
            '[A] of a plan: Traceback (most recent call last):\n  File "x", line 1, in y\n    z()\nKeyError: 5\n\tat z',
            "KeyError: 5",
        ),
    ],
)
def test_what_spark_complains_of_is_told_in_one_line(text: str, told: str) -> None:
    assert _reason(text) == told
