"""P2: what lies in the spool is taken in, each row once, whatever is killed in between."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from remuda.broker.threads import EmbeddedBroker
from remuda.core.recovery.spool import Progress, Spool
from remuda.log import spool
from remuda.log.spool import SPOOL_SCHEMA
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.records import Appended, SpoolTaken
from tests.begun import begun
from tests.spark.samples import broker_at, numbers


def rows(first: int, count: int, name: str = "orders", **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"name": name, "body": b"%d" % number, **columns} for number in range(first, first + count)], SPOOL_SCHEMA
    )


def lay(path: Path, app: str, number: int, *parts: pa.RecordBatch) -> bool:
    place = spool.prepare(str(begun(path)))
    return spool.lay(place, app, number, [spool.stage(place, [part])[0] for part in parts])


def bodies(broker: EmbeddedBroker) -> list[int]:
    return numbers(body for record in broker.spectate().messages() for body in record.messages.bodies)


def take_in(broker: EmbeddedBroker) -> None:
    broker.runtime.upkeep.take_in()


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_batch_is_taken_in_by_a_running_broker_and_at_the_next_start(tmp_path: Path) -> None:
    lay(tmp_path, "app", 0, rows(0, 30), rows(30, 20))
    with broker_at(tmp_path) as broker:
        eventually(lambda: bodies(broker) == list(range(50)))
        lay(tmp_path, "app", 1, rows(50, 10))
        eventually(lambda: bodies(broker) == list(range(60)))
        eventually(lambda: not spool.waiting(tmp_path / "spool"))


def test_a_batch_that_is_laid_again_is_not_published_again(tmp_path: Path) -> None:
    for _ in range(2):
        with broker_at(tmp_path) as broker:
            for _ in range(2):
                lay(tmp_path, "app", 3, rows(0, 10))
                lay(tmp_path, "app", 2, rows(0, 10))
                take_in(broker)
            assert len(bodies(broker)) == 20, "each number once"
            broker.checkpoint()
    assert not spool.waiting(tmp_path / "spool")


def test_laying_a_batch_that_waits_changes_nothing(tmp_path: Path) -> None:
    assert lay(tmp_path, "app", 0, rows(0, 10))
    assert not lay(tmp_path, "app", 0, rows(0, 99))
    with broker_at(tmp_path) as broker:
        take_in(broker)
        assert bodies(broker) == list(range(10))


def test_every_column_arrives(tmp_path: Path) -> None:
    whole = rows(
        7, 1, "fruit.sour", topics=["fruit.sour", "stone"], id="mine", object="tree", key="k", timestamp=5,
        mime_type="text/plain", headers={"a": "1"}, priority=1, expires=9 * 10**15, due=8 * 10**15,
    )  # fmt: skip
    lay(tmp_path, "app", 0, whole, rows(8, 1, "fruit"))
    with broker_at(tmp_path) as broker:
        take_in(broker)
        first, second = (broker.message(offset).message for offset in (0, 1))
    assert (first.name, first.topics, first.id, first.object, first.key) == (
        "fruit.sour", ("fruit.sour", "stone"), "mine", "tree", "k",
    )  # fmt: skip
    assert (first.timestamp, first.mime_type, dict(first.headers), first.priority) == (5, "text/plain", {"a": "1"}, 1)
    assert (first.expires, first.due) == (9 * 10**15, 8 * 10**15)
    assert (second.topics, second.object, dict(second.headers), second.priority) == ((), None, {}, 0)
    assert second.id.isdigit()


def test_rows_can_go_to_one_queue_whatever_their_topics(tmp_path: Path) -> None:
    lay(tmp_path, "app", 0, rows(0, 5, "a.b", queue="repair"), rows(5, 2, "a.b"))
    with broker_at(tmp_path) as broker:
        take_in(broker)
        assert {info.name: info.size for info in broker.queues()} == {"repair": 5, "a": 2}


def test_rows_that_no_queue_takes_are_set_aside_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with broker_at(tmp_path) as broker:
        broker.create_queue("orders", message_limit=3)
        lay(tmp_path, "app", 0, rows(0, 5), rows(5, 1, ".bad"), rows(6, 2, "other"))
        take_in(broker)
        assert bodies(broker) == [0, 1, 2, 6, 7]
    refused = tmp_path / "spool" / "refused" / "app.00000000000000000000.arrow"
    with pa.OSFile(str(refused)) as source:
        kept = pa.ipc.open_file(source).read_all().to_pylist()
    assert [int(row["body"]) for row in kept] == [3, 4, 5]
    assert "message_limit" in kept[0]["reason"]
    assert "no root" in kept[2]["reason"]
    assert "3 rows of app" in caplog.text


def test_with_automatic_creation_off_unknown_queues_are_refused_row_by_row(tmp_path: Path) -> None:
    with broker_at(tmp_path, auto_queue_creation=False) as broker:
        broker.create_queue("orders")
        lay(tmp_path, "app", 0, rows(0, 3), rows(3, 2, "unknown"), rows(5, 1))
        take_in(broker)
        assert bodies(broker) == [0, 1, 2, 5]


def test_a_file_that_cannot_be_read_is_set_aside_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lay(tmp_path, "bad", 0, rows(0, 3))
    for part in spool.waiting(tmp_path / "spool")[0].parts():
        part.write_bytes(b"not arrow")
    lay(tmp_path, "good", 0, rows(3, 3))
    with broker_at(tmp_path) as broker:
        take_in(broker)
        assert bodies(broker) == [3, 4, 5]
    assert (tmp_path / "spool" / "refused" / "bad.00000000000000000000").is_dir()
    assert "cannot be read" in caplog.text


def test_a_single_batch_is_forgotten_once_it_is_gone(tmp_path: Path) -> None:
    lay(tmp_path, spool.new_once(), 0, rows(0, 3))
    with broker_at(tmp_path) as broker:
        take_in(broker)
        assert broker.runtime.engine.core.spool.taken == {}


def test_what_dead_tasks_left_is_swept_after_a_day(tmp_path: Path) -> None:
    place = spool.prepare(str(begun(tmp_path)))
    spool.stage(place, [rows(0, 1)])
    spool.sweep(place, time.time() - 60)
    assert list((place / "staging").iterdir())
    spool.sweep(place, time.time() + 60)
    assert not list((place / "staging").iterdir())


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    place = spool.prepare(str(begun(tmp_path)))

    def failing() -> Any:
        yield rows(0, 3)
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError):
        spool.stage(place, failing())
    assert not list((place / "staging").iterdir())


@pytest.mark.faults
def test_a_crash_between_any_two_records_publishes_no_row_twice_or_never(tmp_path: Path) -> None:
    """The log is cut at many places; then the broker starts, something else is published first, and it starts again."""
    with broker_at(tmp_path / "data") as broker:
        broker.create_queue("orders", message_limit=25)
        broker.runtime.sync()
        shutil.copytree(tmp_path / "data", tmp_path / "before", ignore=shutil.ignore_patterns("socket"))
        for place in ("before", "data"):
            lay(tmp_path / place, "app", 4, rows(0, 10), rows(10, 1, ".bad"), rows(11, 19), rows(30, 5, "other"))
        (tail,) = (tmp_path / "data" / "tail").glob("*.log")
        start = len((tmp_path / "before" / "tail" / tail.name).read_bytes().rstrip(b"\0"))
        take_in(broker)
        broker.runtime.sync()
        log = tail.read_bytes().rstrip(b"\0")
    assert len(log) > start
    for cut in range(start, len(log) + 1, 23):
        scene = tmp_path / "scene"
        shutil.rmtree(scene, ignore_errors=True)
        shutil.copytree(tmp_path / "before", scene)
        (scene / "tail" / tail.name).write_bytes(log[:cut])
        found: list[int] = []
        for turn in range(2):
            with broker_at(scene) as broker:
                if turn == 0:
                    broker.publish(Message("elsewhere", b"99"))
                take_in(broker)
                found = bodies(broker)
        assert found == [*range(10), *range(11, 26), *range(30, 35), 99], cut


def test_messages_published_after_a_crash_are_not_taken_for_those_announced() -> None:
    """The log ends between the mark and its messages; others come in at the very offset that was announced."""
    mark = SpoolTaken("app", 1, 10, 0, done=True, first=5)
    others = Appended(5, 0, Messages(bodies=[b"x"], name="n"), ("q",))
    first = Spool()
    first.replay(mark)
    retracted = first.retract(1)
    assert retracted == SpoolTaken("app", 1, 0, 1)
    second = Spool()
    for record in (mark, retracted):
        second.replay(record)
    second.replay_messages(others)
    assert second.progress("app", 1) == Progress(1, 0)
    whole = Spool()
    whole.replay(mark)
    whole.replay_messages(others)
    assert whole.progress("app", 1) == Progress(1, 10, True)
    assert whole.retract(1) is None
