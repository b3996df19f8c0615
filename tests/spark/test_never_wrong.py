"""P1, P3, L6: whatever is collected, set or replaced meanwhile, no row is wrong; what cannot be right is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from remuda.model.errors import Conflict, InvalidOption, NotFound, StorageError
from remuda.model.message import Message
from remuda.spark import read
from remuda.spark.commands import app
from remuda.spark.lake.table import LakeTable
from remuda.spark.pipelines.archive import archived_messages, lifecycle_table, messages_table
from remuda.spark.pipelines.corrections import COLLECTED
from remuda.spark.pipelines.jobs import JOBS, history_table, metrics_table
from remuda.spark.pipelines.metrics import metrics
from remuda.spark.pipelines.streaming_queries import Place, checkpoint_of
from remuda.spark.source import snapshots
from remuda.spark.source.directory_log import EmbeddedLog
from remuda.spark.source.documents import lives
from remuda.spark.source.losses import Gap
from remuda.spark.source.selection import Selection
from tests.begun import begun
from tests.broker.kit import HOUR, ManualClock
from tests.spark.samples import broker_at, column, finish, half_sealed, load, numbers, plain, play, publish, seal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from remuda.broker.threads import EmbeddedBroker


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    snapshots.release()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(url=str(tmp_path / "data"), lake=str(tmp_path / "lake"))


def expire(broker: EmbeddedBroker) -> None:
    """Seal, and collect what has ended."""
    publish(broker, 400, "filler")
    seal(broker)
    assert broker.collect().messages


class CollectedMeanwhile(EmbeddedLog):
    """A log of which the broker collects after the first look."""

    broker: EmbeddedBroker | None = None

    def batches(
        self,
        table: str,
        start: int,
        stop: int,
        selection: Selection,
        columns: Sequence[str],
        missing: list[Gap] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        yield from list(super().batches(table, start, stop, selection, columns, missing))
        if self.broker is not None:
            broker, self.broker = self.broker, None
            expire(broker)


def test_a_life_read_while_the_collector_runs_is_right_or_gone(tmp_path: Path) -> None:
    """Its end is never missed: no message that completed is told as queued."""
    with broker_at(tmp_path, success_retention="1ms") as broker:
        publish(broker, 600)
        publish(broker, 5, "keep")
        finish(broker)
        log = CollectedMeanwhile(str(tmp_path))
        offset, position = log.cut()
        log.broker = broker
        told = pa.Table.from_batches(list(lives(log, range(offset), [range(position)], None, Selection())))
    states = set(zip(told["queue"].to_pylist(), told["state"].to_pylist(), strict=True))
    assert states <= {("orders", "X"), ("keep", "Q")}
    assert ("keep", "Q") in states


def test_a_frame_is_one_cut_of_the_log_whatever_is_sealed_and_collected_then(
    spark: SparkSession, tmp_path: Path
) -> None:
    with broker_at(tmp_path, success_retention="1ms") as broker:
        publish(broker, 600)
        seal(broker)
        publish(broker, 200, start=600)
        finish(broker)
        frame, messages = read(spark, tmp_path, "lifecycle"), read(spark, tmp_path, "messages")
        expire(broker)
        assert [tuple(row) for row in frame.groupBy("state").count().collect()] == [("X", 800)]
        assert messages.count() == 800
        assert read(spark, tmp_path, "messages", queues=["orders"]).count() < 800


def test_a_later_run_mends_what_an_earlier_one_could_not_know(spark: SparkSession, place: Place) -> None:
    """Messages that waited at the first run, ended and were collected before the second; of some the archive knows."""
    with broker_at(Path(place.url), success_retention="1ms") as broker:
        publish(broker, 300)
        publish(broker, 300, "other")
        broker.runtime.sync()
        JOBS["lifecycle"](spark, place)
        finish(broker)
        JOBS["archive"](spark, place)
        finish(broker, "other")
        expire(broker)
        go_on = Place(url=place.url, lake=place.lake, options={"failOnDataLoss": "false"})
        JOBS["lifecycle"](spark, go_on)
        present = set(column(load(spark, Path(place.url)), "offset"))
        assert not present & set(range(600))
    table = lifecycle_table(place.lake).read(spark).where("queue != 'filler'")
    told = {tuple(row) for row in table.select("queue", "state", "archived", "reason").distinct().collect()}
    assert told == {("orders", "X", True, None), ("other", None, True, COLLECTED)}
    assert table.count() == 600


def test_p3_windows_of_which_messages_are_gone_do_not_wait_for_ever(spark: SparkSession, place: Place) -> None:
    """Some of them, or all: then nothing that happens leads to the window any more."""
    clock = ManualClock()
    with broker_at(Path(place.url), success_retention="1ms", clock=clock) as broker:
        publish(broker, 600, "gone")
        clock.now += HOUR
        publish(broker, 600)
        broker.runtime.sync()
        JOBS["metrics"](spark, place)
        finish(broker, "gone")
        subscription = broker.subscribe("orders", batch=550)
        delivery = subscription.receive(60)
        assert delivery is not None
        delivery.ack()
        subscription.close()
        broker.runtime.sync()
        publish(broker, 400, "filler")
        seal(broker)
        clock.now += HOUR
        assert broker.collect().messages
        broker.runtime.sync()
        JOBS["metrics"](spark, Place(url=place.url, lake=place.lake, options={"failOnDataLoss": "false"}))
    rows = metrics_table(place.lake).read(spark).where("queue != 'filler'").groupBy("queue")
    total = rows.sum("published", "succeeded", "waiting", "dead").orderBy("queue").collect()
    assert [tuple(row) for row in total] == [("gone", 600, 600, 0, 0), ("orders", 600, 550, 50, 0)]


def test_metrics_of_days_between_those_that_changed_are_not_doubled(spark: SparkSession, place: Place) -> None:
    """More spans than are read one by one, with quiet days between them, outside UTC."""
    clock = ManualClock()
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    try:
        with broker_at(Path(place.url), clock=clock) as broker:
            broker.create_queue("orders", type="pull")
            for turn in range(12):
                name = "orders" if turn % 2 else "quiet"
                broker.publish(Message(name, b"x"))
                clock.now += 13 * HOUR
            broker.runtime.sync()
            JOBS["metrics"](spark, place)
            JOBS["lifecycle"](spark, place)
            assert plain(metrics_table(place.lake).read(spark).drop("date", "log")) == plain(
                metrics(told(spark, place))
            )
            delivery = broker.pull("orders", 10)
            assert delivery is not None
            delivery.ack()
            broker.runtime.sync()
            spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
            JOBS["metrics"](spark, place)
            JOBS["lifecycle"](spark, place)
            windows = metrics_table(place.lake).read(spark)
            assert plain(windows.drop("date", "log")) == plain(metrics(told(spark, place)))
            assert windows.count() == 12
            assert lifecycle_table(place.lake).read(spark).count() == 12
            days = windows.selectExpr("unix_date(date) = unix_micros(start) div 86400000000 as utc").distinct()
            assert column(days, "utc") == [True]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")


def told(spark: SparkSession, place: Place) -> DataFrame:
    return load(spark, Path(place.url), "lifecycle")


def test_rewriting_takes_exactly_what_it_replaces(spark: SparkSession, tmp_path: Path) -> None:
    schema = "id bigint, part int"
    table = LakeTable(str(tmp_path), "t", spark.createDataFrame([], schema).schema, ("part",))
    rows = spark.createDataFrame([(1, 1), (2, 2)], schema)
    table.append(rows)
    with pytest.raises(Conflict, match="would be written beside those that are there"):
        table.rewrite(spark, lambda partition: partition["part"] == "1", lambda old: rows)
    assert plain(table.read(spark)) == plain(rows)


def test_a_queue_named_like_no_queue_survives(spark: SparkSession, place: Place) -> None:
    names = ["__HIVE_DEFAULT_PARTITION__", "a b/c=d%e", "ü" * 120]
    with broker_at(Path(place.url)) as broker:
        for name in names:
            broker.create_queue(name)
            broker.publish(Message("x", b"1"), queue=name)
        broker.publish([Message("things", b"same", object="o", key="k") for _ in range(2)])
        broker.runtime.sync()
    table = messages_table(place.lake)
    table.append(archived_messages(load(spark, Path(place.url))))
    found = column(table.read(spark), "queue")
    assert sorted(map(str, found)) == sorted([*names, "None", "things"])
    elsewhere = polars.scan_delta(str(table.root))
    assert sorted(map(str, elsewhere.collect()["queue"])) == sorted([*names, "None", "things"])
    for name in names:
        assert elsewhere.filter(polars.col("queue") == name).collect()["queue"].to_list() == [name]


class Copying:
    def __init__(self, spark: SparkSession, source: Path, target: Path) -> None:
        self._spark, self._source, self._target = spark, source, target

    def run(self, checkpoint: Path, **options: Any) -> None:
        stream = self._spark.readStream.format("remuda").option("maxRowsPerTrigger", 250).load(str(self._source))
        rows = stream.selectExpr("'copies' as name", "body")
        writer = rows.writeStream.format("remuda").options(**options).trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start(str(begun(self._target))).awaitTermination()


def test_p2_an_app_id_with_another_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    half_sealed(tmp_path / "source", 300)
    copying = Copying(spark, tmp_path / "source", tmp_path / "target")
    for _ in range(2):
        copying.run(tmp_path / "one", appId="copy")
    with pytest.raises(StreamingQueryException, match=r"appId 'copy' belongs to another query.*choose a new appId"):
        copying.run(tmp_path / "two", appId="copy")
    with broker_at(tmp_path / "target") as broker:
        broker.runtime.upkeep.take_in()
        found = [body for record in broker.spectate().messages() for body in record.messages.bodies]
    assert numbers(found) == list(range(400))


def test_another_log_under_an_old_checkpoint_is_refused(spark: SparkSession, place: Place) -> None:
    data = Path(place.url)
    half_sealed(data, 300)
    JOBS["lifecycle"](spark, place)
    shutil.rmtree(data)
    half_sealed(data, 700)
    with pytest.raises(Conflict, match="holds something else than was read: it is not the log"):
        JOBS["lifecycle"](spark, place)
    assert lifecycle_table(place.lake).read(spark).count() == 400


def test_lives_are_not_mended_by_another_log(spark: SparkSession, place: Place) -> None:
    """One that has let go what still waits in the lake: it was never there."""
    data = Path(place.url)
    with broker_at(data) as broker:
        publish(broker, 20)
    JOBS["lifecycle"](spark, place)
    shutil.rmtree(data)
    with broker_at(data, success_retention="1ms") as broker:
        publish(broker, 19)
        publish(broker, 1, "keep")
        publish(broker, 580)
        finish(broker)
        expire(broker)
        with pytest.raises(Conflict, match="it is not the log"):
            JOBS["lifecycle"](spark, place)
    told = lifecycle_table(place.lake).read(spark).groupBy("state").count().collect()
    assert [tuple(row) for row in told] == [("Q", 20)]


def test_trouble_with_a_checkpoint_is_told_before_anything_is_read(spark: SparkSession, place: Place) -> None:
    half_sealed(Path(place.url), 300)
    checkpoint = checkpoint_of(place.lake, "archive", "messages")
    checkpoint.mkdir(parents=True)
    (checkpoint / "notes.txt").touch()
    with pytest.raises(Conflict, match=r"not a checkpoint of Spark's \(notes.txt\); nothing was read"):
        JOBS["archive"](spark, place)
    (checkpoint / "notes.txt").unlink()
    (checkpoint / "metadata").write_text("{")
    with pytest.raises(StorageError, match="is damaged: its metadata cannot be read"):
        JOBS["archive"](spark, place)
    shutil.rmtree(checkpoint)
    checkpoint.write_text("a file")
    with pytest.raises(StorageError, match="cannot be written: File exists"):
        JOBS["archive"](spark, place)
    assert not messages_table(place.lake).manifest().version


_HOLDS = """
import sys, time
from pathlib import Path
from remuda.spark.checkpoints import sole_use

with sole_use(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("job", ["archive", "lifecycle"])
def test_p3_of_two_runs_at_once_the_second_is_refused(spark: SparkSession, place: Place, job: str) -> None:
    """Until the first has ended, however it ended."""
    half_sealed(Path(place.url), 300)
    table = {"archive": messages_table, "lifecycle": lifecycle_table}[job](place.lake)
    checkpoint = checkpoint_of(place.lake, job, table.root.name)
    checkpoint.mkdir(parents=True)
    other = subprocess.Popen([sys.executable, "-c", _HOLDS, str(checkpoint)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(Conflict, match=r"another run uses the checkpoint .*; nothing was done. Wait until"):
            JOBS[job](spark, place)
        assert not table.manifest().version
    finally:
        other.kill()
        other.communicate()
    for _ in range(2):
        JOBS[job](spark, place)
    assert table.read(spark).count() == 400


@pytest.mark.parametrize(
    ("job", "options", "complaint"),
    [
        ("archive", {"maxRow": "5"}, "unknown option 'maxRow'; did you mean 'maxRows'?"),
        ("archive", {"maxRows": "many"}, "maxRows must be a whole number from 1 on, not 'many'"),
        ("lifecycle", {"window": "1 minute"}, "unknown option 'window'; the options are maxRows, failOnDataLoss"),
        ("metrics", {"window": "soon"}, "is not a window; write it like"),
        ("metrics", {"window": "0 minutes"}, "a millisecond at least"),
        ("metrics", {"window": "nan days"}, "is not a window; write it like"),
        ("metrics", {"window": "1e3 seconds"}, "is not a window; write it like"),
        ("metrics", {"WINDOW": "soon"}, "is not a window; write it like"),
        ("archive", {"MAXROWS": "many"}, "maxRows must be a whole number from 1 on, not 'many'"),
        ("replay", {"where": "true", "batch": "1"}, "give app too, or leave batch out"),
        ("replay", {"where": "true", "to": ""}, "to must be 1 to 255 bytes of printable text, not ''"),
        ("ingest", {"source": "x", "order": "y", "batch": "1"}, "give app too, or leave batch out"),
        ("ingest", {"source": "x", "order": "y", "repeat": "drop"}, "did you mean 'repeats'?"),
        ("ingest", {"source": "x", "order": "y", "repeats": "maybe"}, "repeats must be keep or drop, not 'maybe'"),
        ("replay", {"where": "true", "success": "1d"}, "unknown option 'success'"),
        ("retention", {"success": "soon"}, "'soon' is not a duration"),
        ("retention", {"header": "true"}, "unknown option 'header'"),
    ],
)
def test_settings_that_a_pipeline_does_not_have_are_refused(
    spark: SparkSession, place: Place, job: str, options: dict[str, str], complaint: str
) -> None:
    with broker_at(Path(place.url)):
        pass
    with pytest.raises(InvalidOption) as refused:
        JOBS[job](spark, Place(url=place.url, lake=place.lake, options=options))
    assert complaint in str(refused.value)


def test_replay_and_retention_say_what_they_did(spark: SparkSession, place: Place) -> None:
    with broker_at(Path(place.url)) as broker:
        play(broker)
    runner = CliRunner()

    def run(name: str, *more: str) -> str:
        ran = runner.invoke(app, ["run", name, place.url, "--lake", place.lake, *more])
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    with pytest.raises(NotFound, match="there is no archive in the lake"):
        JOBS["replay"](spark, Place(url=place.url, lake=place.lake, options={"where": "true"}))
    with pytest.raises(NotFound, match=r"there is no archive in the lake .*; nothing was removed"):
        JOBS["retention"](spark, place)
    run("archive")
    run("lifecycle")
    assert "replay: 5 messages spooled for the broker" in run("replay", "--set", "where=queue='orders' and offset < 5")
    assert "retention: 0 messages, 0 lifecycle, 0 events removed" in run("retention")
    # What moved on to another queue still waits there: such a message stays whole.
    ended = lifecycle_table(place.lake).read(spark).where("archived and not (reason <=> 'elsewhere')").count()
    assert f", {ended} lifecycle, 0 events removed" in run("retention", "--set", "success=0s", "--set", "dead=0s")
    assert history_table(place.lake).manifest().version == 0
