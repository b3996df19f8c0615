"""T4: the same queries give the same answers on every index, and they are those of the log."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen
from uuid import uuid4

import msgspec
import pytest

from remuda import Message, open_broker
from remuda.index import Follower, Query, SearchIndex, open_index, rebuild
from remuda.model.state import State
from tests.index.kit import caught_up, every, ids, source
from tests.index.naive import Naive

pytestmark = pytest.mark.timeout(600)  # a server starts in them too
LONG = "fruit." + "very-" * 40 + "long"
WORDS = "apple pear plum cherry Äpfel STRASSE straße 東京 naïve order42 x_y 3.14".split()


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hundreds of messages of all kinds, in all states, some moved to other queues, some sealed."""
    chance = random.Random(7)
    folder = tmp_path_factory.mktemp("log") / "data"
    with open_broker(folder, sync="os") as broker:
        broker.create_queue("fruit", type="pull", put_back="no")
        broker.create_queue("Fruits", type="pull")
        broker.create_queue("other", type="pull")
        for number in range(300):
            body = " ".join(chance.choices(WORDS, k=4))
            kind = chance.choice(["text/plain", "application/json", "application/octet-stream"])
            broker.publish(
                Message(
                    chance.choice(["fruit.sour", "FRUIT.Sour", "fruit", "Fruits.x", "fruit.sweet.red", LONG]),
                    f'{{"{WORDS[0]}": ["{body}", {number}]}}'.encode() if kind.endswith("json") else body.encode(),
                    id=f"m{number}",
                    object=chance.choice([None, "customer", "k" * 600]),
                    key=chance.choice([None, f"key-{number % 20}", "K" * 40_000]),
                    topics=chance.choice([(), ("fruit.extra", "other.Thing")]),
                    mime_type=kind,
                )
            )
        for queue in ("fruit", "Fruits", "other"):
            while delivery := broker.pull(queue, chance.randint(1, 9), consumer="c"):
                match chance.randrange(7):
                    case 0:
                        delivery.invalid(reason="not \x1b[31mvalid")
                    case 1:
                        delivery.not_interested()
                    case 2:
                        reason = chance.choice(["gone", "moved to other: gone"])
                        delivery.dead(reason=reason, to="other") if queue != "other" else delivery.dead(reason="gone")
                    case 3:
                        delivery.retry(after="1h", reason="later")
                    case _:
                        delivery.ack()
                if chance.random() < 0.1:
                    break
        broker.reprocess("fruit")
    return folder


QUERIES = {
    "all": Query(),
    "queue": Query(queue="fruit"),
    "queue in another case": Query(queue="fruits"),
    "no queue": Query(queue=""),
    "dead, not moved": Query(states=frozenset({State.DEAD})),
    "moved": Query(moved=True),
    "moved, or invalid": Query(states=frozenset({State.INVALID}), moved=True, queue="fruit"),
    "unknown queue": Query(queue="nobody's"),
    "topic below": Query(topic="fruit.*"),
    "topic in capitals": Query(topic="FRUIT.SOUR"),
    "topic by letters": Query(topic="fruit*"),
    "topic by a part of a word": Query(topic="fruit.so*"),
    "long topic": Query(topic=LONG.upper()),
    "long topic by letters": Query(topic=LONG[:-4] + "*"),
    "another topic of it": Query(topic="other"),
    "any topic": Query(topic="*"),
    "no such topic": Query(topic="fruit.so"),
    "states": Query(states=frozenset({State.INVALID, State.RETRY})),
    "queue and state": Query(queue="other", states=frozenset({State.QUEUED})),
    "object": Query(object="customer"),
    "long object": Query(object="k" * 600),
    "key": Query(key="key-7"),
    "long key": Query(key="K" * 40_000),
    "another long key": Query(key="K" * 39_999),
    "object and key": Query(object="customer", key="key-7"),
    "word": Query(text="apple"),
    "words": Query(text="PEAR plum"),
    "accents": Query(text="apfel"),
    "sharp s": Query(text="Straße"),
    "ideograph": Query(text="京"),
    "beginning of a word": Query(text="cherr* na*"),
    "number": Query(text="299"),
    "parts of a word": Query(text="x_y"),
    "word and topic and state": Query(text="apple", topic="fruit", states=frozenset({State.COMPLETED})),
    "missing word": Query(text="apple zebra"),
    "offsets": Query(offsets=(*range(250, 0, -3), 10**9)),
    "offsets of a queue": Query(queue="fruit", offsets=(5, 5, 0, 299, 150)),
    "offsets and a word": Query(text="apple", offsets=tuple(range(100))),
    "no offsets": Query(offsets=()),
}


@pytest.mark.parametrize("kind", ["sqlite", "opensearch"])
def test_answers_are_those_of_the_log(kind: str, directory: Path, request: pytest.FixtureRequest) -> None:
    """T4"""
    index: SearchIndex = request.getfixturevalue(f"filled_{kind}")
    truth = Naive(directory)
    assert index.counts() == truth.counts()
    seen = 0
    for name, query in QUERIES.items():
        expected = truth.search(query)
        assert every(index, query, 60) == expected, name
        seen += len(expected)
    assert seen > 2000
    assert every(index, Query(queue="fruit"), 7) == truth.search(Query(queue="fruit"))
    times = sorted(hit.created for hit, _ in truth.copies)
    for since, until in ((times[40], times[90]), (None, times[5]), (times[-3], None), (times[9], times[9]), (0, 1)):
        query = Query(since=since, until=until, topic="fruit")
        assert every(index, query, 100) == truth.search(query)


@pytest.mark.parametrize("kind", ["sqlite", "opensearch"])
def test_t4_two_hundred_questions_have_the_logs_own_answers(
    kind: str, directory: Path, request: pytest.FixtureRequest
) -> None:
    """T4: any fields of those questions together."""
    index: SearchIndex = request.getfixturevalue(f"filled_{kind}")
    truth, rng, seen = Naive(directory), random.Random(7), 0
    for _ in range(200):
        fields: dict[str, Any] = {}
        for query in rng.sample(list(QUERIES.values()), rng.choice([1, 2, 2, 3])):
            asked = msgspec.structs.asdict(query)
            fields |= {name: value for name, value in asked.items() if value != getattr(Query(), name)}
        query = Query(**fields)
        expected = truth.search(query)
        assert every(index, query, 100) == expected, query
        seen += len(expected)
    assert seen > 500


def test_a_topic_prefix_ends_at_the_dot(filled: SearchIndex) -> None:
    """T4: `fruit.*` finds `fruit.sour`, not `fruits.x`; in any case."""
    names = {hit.name for hit in every(filled, Query(topic="fruit.*", queue="fruit"), 500)}
    assert {"fruit.sour", "FRUIT.Sour", LONG} <= names
    assert all(
        hit.queue != "Fruits" or "fruit.extra" in hit.topics for hit in every(filled, Query(topic="fruit.*"), 500)
    )


def test_an_index_can_begin_anywhere(index: SearchIndex, directory: Path) -> None:
    """T4: from any point, and what it holds is told of whole."""
    log = source(directory)
    Follower(index, log, start=200).catch_up()
    index.refresh()
    truth = [hit for hit in Naive(directory).search(Query()) if hit.offset >= 200]
    assert every(index, Query(), 100) == truth
    rebuild(index, log)
    index.refresh()
    assert every(index, Query(), 100) == Naive(directory).search(Query())


def test_a_rebuild_lets_the_old_index_answer_until_it_is_done(index: SearchIndex, directory: Path) -> None:
    caught_up(index, directory)
    seen: list[int] = []

    def look(_: object) -> None:
        seen.append(len(index.search(Query(limit=1000)).messages))

    rebuild(index, source(directory), start=250, progress=look)
    index.refresh()
    before = len(Naive(directory).copies)
    assert set(seen) == {before}
    assert 0 < len(index.search(Query(limit=1000)).messages) < before
    assert Follower(index, source(directory)).lag().messages == 0


def test_an_index_that_does_not_exist_finds_nothing(index: SearchIndex) -> None:
    assert index.reached() is None
    assert index.search(Query(text="apple")).messages == []
    assert index.counts() == {}
    index.drop()


def test_a_dropped_index_can_be_filled_again(index: SearchIndex, directory: Path) -> None:
    caught_up(index, directory)
    index.drop()
    assert index.search(Query()).messages == []
    assert index.reached() is None
    assert every(caught_up(index, directory), Query(), 100) == Naive(directory).search(Query())


def test_an_index_follows_every_step(index: SearchIndex, tmp_path: Path) -> None:
    """However the log is cut into batches, the index tells what the log tells."""
    folder = tmp_path / "steps"
    with open_broker(folder, sync="os") as broker:
        broker.create_queue("a", type="pull")
        broker.create_queue("b", type="pull")
        follower = Follower(index, source(folder))
        for number in range(12):
            broker.publish([Message(f"a.{number}", b"text", id=f"{number}-{row}") for row in range(3)])
            if number % 3 == 0:
                follower.catch_up()
            if delivery := broker.pull("a", 2):
                if number % 2:
                    delivery.ack()
                else:
                    delivery.dead(reason="no", to="b")
            if number % 4 == 0:
                follower.catch_up()
                assert follower.lag().events == 0
        follower.catch_up()
        index.refresh()
        truth = Naive(folder)
        assert every(index, Query()) == truth.search(Query())
        assert index.counts() == truth.counts()


def test_collected_messages_leave(index: SearchIndex, tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    with open_broker(folder, sync="os", success_retention=0, segment_bytes=1 << 16) as broker:
        broker.create_queue("a", type="pull")
        for number in range(200):
            broker.publish([Message("a", f"number {number}".encode() * 80, id=str(number), mime_type="text/plain")])
        delivery = broker.pull("a", 150)
        assert delivery is not None
        delivery.ack([row for row in range(150) if row % 10])
        caught_up(index, folder)
        assert len(index.search(Query(limit=500)).messages) == 200
        assert broker.collect().messages > 0
        caught_up(index, folder)
        truth = Naive(folder)
        assert len(truth.copies) < 200
        assert ids(every(index, Query())) == ids(truth.search(Query()))
        assert index.counts() == truth.counts()
        assert every(index, Query(text="number")) == truth.search(Query(text="number"))


@pytest.fixture(scope="session")
def filled_sqlite(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    from remuda.index import open_index

    return caught_up(open_index(tmp_path_factory.mktemp("filled") / "index"), directory)


@pytest.fixture(scope="session")
def filled_opensearch(directory: Path, opensearch: str) -> SearchIndex:
    from remuda.index import open_index

    return caught_up(open_index(opensearch.replace("http", "opensearch") + "/filled"), directory)


@pytest.fixture(params=["sqlite", "opensearch"])
def filled(request: pytest.FixtureRequest) -> SearchIndex:
    index: SearchIndex = request.getfixturevalue(f"filled_{request.param}")
    return index


def test_t4_a_queue_is_found_on_the_server_under_its_own_name(opensearch: str, tmp_path: Path) -> None:
    """With the whole of the seed's mapping, also by others than Remuda."""
    name = f"t-{uuid4().hex[:12]}"
    with open_broker(tmp_path / "data", sync="os") as broker:
        broker.publish(Message("fruit.sour", b"lemon soap", mime_type="text/plain", timestamp=1_700_000_000_000_000))
        others = ("Fruit", "all", "b1-x", "ümlaut", "a b", "é" * 126, "x" * 253, "-_+", "*", "a,b")
        broker.publish([Message(f"{queue}.x", b"x") for queue in others])
        delivery = broker.pull("fruit", consumer="anna")
        assert delivery is not None
        delivery.ack()
    index = open_index(f"{opensearch.replace('http', 'opensearch')}/{name}")
    try:
        for _ in range(2):  # after a rebuild, too
            rebuild(index, source(tmp_path / "data"))
            index.refresh()
            with urlopen(f"{opensearch}/{name}.fruit/_search") as answer:
                (found,) = json.load(answer)["hits"]["hits"]
            kept = found["_source"]
            wanted = {"message": "lemon soap", "timestamp": 1_700_000_000_000_000, "mimeType": "text/plain",
                      "topics": ["fruit.sour"], "state": "X", "queued": False, "delivered": True, "success": True,
                      "archived": True, "topicCount": 1, "confirmedCount": 1}  # fmt: skip
            assert {field: kept[field] for field in wanted} == wanted
            assert kept["created"] <= kept["consumed"] <= kept["processed"] <= kept["completed"] == kept["modified"]
            assert [one["consumer"] for one in kept["consumedBy"]] == ["anna"]
            with urlopen(f"{opensearch}/{name}.{quote('ümlaut')}/_count") as answer:
                assert json.load(answer)["count"] == 1
            assert len(index.search(Query()).messages) == 1 + len(others)
    finally:
        index.drop()
        index.close()


def test_t4_indexes_whose_names_begin_alike_leave_each_other_alone(opensearch: str, tmp_path: Path) -> None:
    """One is built again, and dropped, beside others whose names it begins."""
    name, address = f"t-{uuid4().hex[:12]}", opensearch.replace("http", "opensearch")
    with open_broker(tmp_path / "data", sync="os") as broker:
        broker.publish([Message(f"{queue}.x", b"x") for queue in ("fruit", "back.all", "back-all")])
    first, *others = (open_index(f"{address}/{name}{more}") for more in ("", "-back", "-back-b1"))
    try:
        for index in (first, *others, first):
            rebuild(index, source(tmp_path / "data"))
        for index in (first, *others):
            index.refresh()
            assert len(index.search(Query()).messages) == 3
            assert len(index.search(Query(queue="fruit")).messages) == 1
        first.drop()
        for index in others:
            assert len(index.search(Query(queue="fruit")).messages) == 1
    finally:
        for index in (first, *others):
            index.drop()
            index.close()
