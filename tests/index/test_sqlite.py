"""What can happen to the files of an index, and to those who use them at the same time."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.index import Follower, Query, Reached, open_index, rebuild
from remuda.index.port import IndexMoved, IndexUnusable
from remuda.index.sqlite import writing
from remuda.index.sqlite.database import Database
from remuda.index.sqlite.index import SqliteIndex
from remuda.model.errors import Conflict
from tests.index.kit import caught_up, source


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with open_broker(tmp_path / "data", sync="os") as broker:
        broker.publish([Message("a.b", b"some words", mime_type="text/plain", id=str(number)) for number in range(10)])
    return tmp_path / "data"


def test_a_damaged_file_is_told_and_built_anew(log: Path, tmp_path: Path) -> None:
    index = caught_up(open_index(tmp_path / "index"), log)
    index.close()
    (tmp_path / "index/000001.sqlite").write_bytes(b"x" * 9000)
    with pytest.raises(IndexUnusable, match="remuda index build"):
        index.search(Query())
    rebuild(index, source(log))
    assert len(index.search(Query()).messages) == 10
    assert [path.name for path in (tmp_path / "index").glob("*.sqlite")] == ["000002.sqlite"]


def test_another_program_s_file_is_not_taken_for_an_index(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    other = sqlite3.connect(tmp_path / "index/000001.sqlite")
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(IndexUnusable, match="not a search index"):
        open_index(tmp_path / "index").reached()


def test_a_file_without_a_layout_is_no_index_yet(log: Path, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index/000001.sqlite").touch()
    index = open_index(tmp_path / "index")
    assert index.reached() is None
    assert len(caught_up(index, log).search(Query()).messages) == 10


def test_what_was_applied_already_is_not_applied_again(log: Path, tmp_path: Path) -> None:
    index = caught_up(open_index(tmp_path / "index"), log)
    at = index.reached()
    with pytest.raises(IndexMoved):
        index.apply([], [], Reached(3, 0, 0), Reached(99, 0, 0))
    assert index.reached() == at


def test_an_index_of_another_log_is_told(log: Path, tmp_path: Path) -> None:
    index = caught_up(open_index(tmp_path / "index"), log)
    with open_broker(tmp_path / "other", sync="os") as broker:
        broker.publish(Message("a", b""))
    with pytest.raises(Conflict, match="another log"):
        Follower(index, source(tmp_path / "other")).catch_up()
    with pytest.raises(Conflict, match="another log"):
        Follower(index, source(tmp_path / "other")).lag()


def test_one_searches_while_another_writes_and_a_third_rebuilds(tmp_path: Path) -> None:
    place = tmp_path / "index"
    with open_broker(tmp_path / "data", sync="os") as broker:
        broker.create_queue("a", type="pull")
        broker.publish(Message("a", b"first"))
        caught_up(open_index(place), tmp_path / "data")
        stop = threading.Event()
        errors: list[BaseException] = []

        def guarded(work: threading.Thread | object) -> None:
            try:
                work()  # type: ignore[operator]
            except BaseException as error:
                errors.append(error)

        def follow() -> None:
            Follower(open_index(place), source(tmp_path / "data")).follow(stop)

        def search() -> None:
            index = open_index(place)
            while not stop.is_set():
                hits = index.search(Query(limit=1000)).messages
                assert [hit.offset for hit in hits] == list(range(len(hits) - 1, -1, -1))

        threads = [threading.Thread(target=guarded, args=(work,)) for work in (follow, follow, search)]
        for thread in threads:
            thread.start()
        for number in range(30):
            broker.publish([Message("a", b"more")] * 5)
            if delivery := broker.pull("a", 3):
                delivery.ack()
            if number % 10 == 5:
                rebuild(open_index(place), source(tmp_path / "data"))
        stop.set()
        for thread in threads:
            thread.join(60)
        assert errors == []
        index = caught_up(open_index(place), tmp_path / "data")
        assert sum(sum(states.values()) for states in index.counts().values()) == 151


def test_a_build_that_is_replaced_while_it_is_opened_gives_way_to_the_newer(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the opening another process finishes a build, and removes the one that was listed."""
    place = tmp_path / "index"
    expected = len(caught_up(open_index(place), log).search(Query(limit=1000)).messages)
    assert expected
    index = SqliteIndex(place)
    listed = SqliteIndex._builds

    def builds(self: SqliteIndex) -> list[int]:
        found = listed(self)
        if self is index:
            monkeypatch.setattr(SqliteIndex, "_builds", listed)
            rebuild(open_index(place), source(log))
        return found

    monkeypatch.setattr(SqliteIndex, "_builds", builds)
    assert len(index.search(Query(limit=1000)).messages) == expected
    assert [path.name for path in place.iterdir() if path.suffix == ".sqlite"] == ["000002.sqlite"]


def test_ten_thousand_queues_and_topics(tmp_path: Path) -> None:
    count = 10_000
    with open_broker(tmp_path / "data", sync="os") as broker:
        broker.publish([Message(f"q{number}.t{number}", b"x", key=str(number)) for number in range(count)])
    index = caught_up(open_index(tmp_path / "index"), tmp_path / "data")
    assert len(index.counts()) == count
    assert [hit.key for hit in index.search(Query(queue="q77")).messages] == ["77"]
    assert [hit.key for hit in index.search(Query(topic="q77*", limit=2)).messages] == ["7799", "7798"]
    assert len(index.search(Query(states=frozenset("Q"), limit=5000)).messages) == 5000  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("statement", "search"), [(writing.AT, "(offset=? AND queue=?)"), (writing.BETWEEN, "(offset>? AND")]
)
def test_changes_cost_the_same_however_many_messages_there_are(tmp_path: Path, statement: str, search: str) -> None:
    """T4: the changes are gone through, and each finds its copy by the primary key."""
    database = Database(tmp_path / "1.sqlite", create=True)
    plan = [
        row[3] for row in database.connection.execute(f"EXPLAIN QUERY PLAN {statement}", (0,) * statement.count("?"))
    ]
    database.close()
    assert any(step.startswith(f"SEARCH copies USING PRIMARY KEY {search}") for step in plan), plan
    assert not any(step.startswith(("SCAN copies", "SCAN messages")) for step in plan), plan
