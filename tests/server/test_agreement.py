"""M7, T4, U3: whatever happens to messages, every face tells the same of them, and answers questions alike."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import msgspec
import pytest

from remuda import Bus
from remuda.broker.port import Broker
from remuda.index import Follower, LogSource, Query, SearchIndex, open_index
from remuda.log.disk import DirectoryDisk
from remuda.log.readers.reader import Reader
from remuda.model.life import Life
from remuda.model.message import Message
from remuda.model.message_row import MessageRow
from remuda.model.operations.filters import MessageFilter
from remuda.model.state import State
from remuda.server.http.service import MessagingService
from remuda.spark.source.documents import lives
from remuda.spark.source.selection import Selection
from remuda.spark.source.spark_log import open_log
from tests.cli.kit import runner
from tests.server.site import Site, serving

QUEUES = ("fruit", "bread", "late", "two", "silent")
WORDS = ("lemon", "rye", "soap", "Äpfel")
REASONS = (
    None,
    "no stock",
    "moved to bread",
    "moved to bread: boom",
    "moved from fruit: x",
    "consumer lost",
    "expired",
)


def play(broker: Broker, rng: random.Random, index: Follower, service: MessagingService) -> None:
    """A random history: answers of all kinds, expiry, dead letters, operators; readers look in between."""
    held: dict[str, Any] = {"type": "pull", "acknowledge_timeout": "1h"}
    broker.create_queue("fruit", **held, put_back="regular", patterns=["fruit.#"], dead_letter_queue="late")
    broker.create_queue("bread", **held, put_back="no", patterns=["bread.#", "fruit.both"])
    broker.create_queue("late", **held)
    broker.create_queue("two", **held | {"type": "push"}, patterns=["two.#"], confirmations=2)
    broker.create_queue("silent", **held, patterns=["silent.#"], acknowledge="none")
    subscribed = [broker.subscribe("two", consumer=name, batch=2) for name in "ab"]
    broker.create_queue("silent", type="pull", acknowledge_timeout="1h", patterns=["silent.#"], acknowledge="none")
    for number in range(200):
        match rng.randrange(8):
            case 0 | 1 | 2:
                broker.publish([_message(rng, number, part) for part in range(rng.randint(1, 4))], raise_refusals=False)
            case 3 | 4 | 5:
                name = rng.choice(QUEUES)
                if name == "two":
                    found = rng.choice(subscribed).receive(timeout=0)
                else:
                    found = broker.pull(name, rng.randint(1, 4), consumer=rng.choice("abc"))
                if found is not None:
                    _answer(rng, found, name)
            case 6:
                _operate(rng, broker)
            case _:
                index.catch_up()
                service.refresh()


def _message(rng: random.Random, number: int, part: int) -> Message:
    return Message(
        rng.choice(["fruit.sour", "FRUIT.sweet", "fruit.both", "bread.x", "two.y", "silent.z", "nobody"]),
        " ".join(rng.choices(WORDS, k=2)).encode(),
        id=f"m{number}-{part}",
        topics=rng.choice([(), (), ("fruit.extra",)]),
        object=rng.choice([None, "customer"]),
        key=rng.choice([None, "1", "2"]),
        timestamp=rng.choice([None, 1_700_000_000_000_000]),
        mime_type="text/plain",
        expires=rng.choice([None, None, None, time.time_ns() // 1000 + 20_000]),
    )


def _answer(rng: random.Random, found: Any, name: str) -> None:
    reason = rng.choice(REASONS)
    match rng.randrange(9):
        case 0:
            found.invalid(reason=reason)
        case 1:
            found.not_interested(reason=reason)
        case 2:
            found.dead(reason=reason)
        case 3:
            found.dead(reason=reason, to=rng.choice([one for one in QUEUES if one != name]))
        case 4:
            found.retry(after=rng.choice([0, "1h"]), reason=reason)
        case 5:
            found.nack(reason=reason)
        case 6:
            found.release()
        case 7:
            pass  # still with its consumer
        case _:
            found.ack()


def _operate(rng: random.Random, broker: Broker) -> None:
    name, to = rng.sample(QUEUES, 2)
    match rng.randrange(5):
        case 0:
            broker.reprocess(name, who="eve")
        case 1:
            broker.move(name, to, MessageFilter(), who="eve")
        case 2:
            broker.move(name, to, who="eve")
        case 3:
            broker.clear(name, offsets=broker.waiting(name)[:1], who="eve")
        case _:
            broker.reprocess(name, MessageFilter(states=frozenset({State.RETRY})))


class Scene:
    """One history, and what each face tells of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.data = str(folder / "data")
        self.bus = Bus(folder / "data")
        self.service = MessagingService(self.bus)
        broker = self.bus.broker
        log = LogSource(DirectoryDisk(folder / "data", create=False))
        self.index = open_index(folder / "elsewhere")  # where the page does not look
        follower = Follower(self.index, log)
        play(broker, random.Random(seed), follower, self.service)
        time.sleep(0.05)  # the last ones expire
        broker.queues()
        broker.spectate()
        follower.catch_up()
        self.service.refresh()
        self.truth = sorted(self._truth(broker), key=lambda row: (-row.offset, row.queue or ""))
        self.bodies = {row.offset: broker.message(row.offset).message.body for row in self.truth}

    def _truth(self, broker: Broker) -> Iterator[MessageRow]:
        for offset in range(Reader(DirectoryDisk(self.data, create=False)).ends().next_offset):
            told = broker.message(offset)
            one = told.message
            shared = (
                offset, told.created, one.id, one.name, one.topics, one.object, one.key, one.timestamp, one.mime_type,
                len(one.body),
            )  # fmt: skip
            for view in told.queues:
                yield MessageRow.of(*shared, view.queue, view)
            if not told.queues:
                yield MessageRow.of(*shared, None, Life.begun(told.created, None))

    def close(self) -> None:
        self.service.close()
        self.index.close()
        self.bus.close()


OTHERS = pytest.mark.thorough("seed 0 plays a history of the same kinds")


@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=OTHERS), pytest.param(2, marks=OTHERS)])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("scene"), request.param)
    yield made
    made.close()


@pytest.fixture
def on_server(scene: Scene, opensearch: str) -> Iterator[SearchIndex]:
    """The same history on OpenSearch."""
    index = open_index(f"{opensearch.replace('http', 'opensearch')}/t-{uuid4().hex[:12]}")
    Follower(index, LogSource(DirectoryDisk(scene.data, create=False))).catch_up()
    index.refresh()
    yield index
    index.drop()
    index.close()


@pytest.fixture
def site(scene: Scene) -> Iterator[Site]:
    with serving(scene.bus, service=scene.service) as made:
        yield made


def plain(row: MessageRow) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(row))
    return {name: value for name, value in told.items() if name != "excerpt"}


def test_every_reader_tells_the_same_of_every_message(scene: Scene) -> None:
    """M7, T4: the index on the disk, the page's in memory, and Spark's lives against the broker's documents."""
    query = Query(limit=5000)
    assert len({(row.state, row.moved_to is None) for row in scene.truth}) >= 8
    for index in (scene.index, scene.service.window.index):
        assert [plain(row) for row in index.search(query).messages] == list(map(plain, scene.truth))
    log = open_log(scene.data)
    messages, events = log.cut()
    told = [
        one for batch in lives(log, range(messages), [range(events)], None, Selection()) for one in batch.to_pylist()
    ]
    by_copy = {(one["offset"], one["queue"]): one for one in told}
    assert len(told) == len(by_copy) == len(scene.truth)
    for row in scene.truth:
        one = by_copy[row.offset, row.queue]
        for name in ("state", "queued", "delivered", "success", "archived", "attempts", "confirmed_count", "duration",
                     "reason", "moved_to", "topic_count", "object", "key", "name", "id"):  # fmt: skip
            assert one[name] == getattr(row, name), (row, name)
        for name in ("created", "modified", "consumed", "processed", "completed", "failed"):
            found = one[name] and round(one[name].timestamp() * 1e6)
            assert found == getattr(row, name), (row, name)


def test_b7_dead_means_the_same_to_queues_and_searches(scene: Scene) -> None:
    """What expired into a dead letter queue, or has a reason like that of a move, is counted where it is."""
    for name in QUEUES:
        info = scene.bus.broker.queue(name)
        dead = Query(queue=name, states=frozenset({State.DEAD}), limit=5000)
        counts = scene.index.counts().get(name, {})
        assert len(scene.index.search(dead).messages) == counts.get(State.DEAD, 0) == info.dead
        for row in scene.index.search(dead).messages:
            assert scene.bus.status(row.id).queues[name].word == "dead"
        moved = Query(queue=name, moved=True, limit=5000)
        assert all(row.moved_to for row in scene.index.search(moved).messages)


def test_questions_have_the_same_answers_everywhere(
    scene: Scene, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """T4, U3: 70 random questions of a history to the row's own rule, SQLite, page, HTTP and CLI."""
    remuda = runner(capsys)
    rng, matched = random.Random(5), 0
    for number in range(70):
        words = question(rng, scene)
        query = asked(words)
        expected = [row for row in scene.truth if query.fits(row, scene.bodies[row.offset])]
        told = list(map(plain, expected))
        matched += len(told)
        assert list(map(plain, scene.index.search(query).messages)) == told, words
        assert list(map(plain, scene.service.search(query).messages)) == told, words
        if number % 4 == 0:
            answer = site.client.get(f"/api/v1/messages?{urlencode({**words, 'limit': 500})}").json()
            assert [{**row, "excerpt": ""} for row in answer["messages"]] == [{**row, "excerpt": ""} for row in told]
        if number % 10 == 0 and not words.keys() & {"since", "until"}:  # a form gives these to the minute
            page = site.client.get(f"/messages?{urlencode(words)}").text
            assert all(f'/messages/{row["id"]}"' in page for row in told[:40]), words
        if number % 20 == 0:
            terms = map(typed, words.items())
            found = remuda("search", scene.data, *terms, "--limit", "5000", "--json").value["messages"]
            keys = ("offset", "queue", "state", "movedTo", "reason", "attempts", "topics", "topicCount", "queued")
            assert [[row[key] for key in keys] for row in found] == [[row[key] for key in keys] for row in told], words
    assert matched > 200


def test_opensearch_tells_and_answers_the_same(scene: Scene, on_server: SearchIndex) -> None:
    """M7, T4: every field of every message, and the same random questions."""
    assert [plain(row) for row in on_server.search(Query(limit=5000)).messages] == list(map(plain, scene.truth))
    rng = random.Random(5)
    for _ in range(70):
        words = question(rng, scene)
        told = on_server.search(asked(words)).messages
        assert list(map(plain, told)) == list(map(plain, scene.index.search(asked(words)).messages)), words


def question(rng: random.Random, scene: Scene) -> dict[str, str]:
    some = rng.choice(scene.truth)
    offered = {
        "queue": rng.choice(QUEUES),
        "topic": rng.choice(["fruit", "FRUIT.*", "fr*", "fruit.s*", "nobody", "*"]),
        "state": ",".join(rng.sample(["dead", "moved", "queued", "retry", "completed", "invalid", "fetched"], 2)),
        "object": "customer",
        "key": rng.choice("12"),
        "text": rng.choice(["lemon", "so*", "rye soap", "apfel"]),
        "since": str(some.created),
        "until": str(some.created),
    }
    chosen = rng.sample(sorted(offered), rng.randint(0, 2))
    return {name: offered[name] for name in chosen}


def typed(word: tuple[str, str]) -> str:
    """As people type it at the command line."""
    name, text = word
    if name in ("since", "until"):
        text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(text))).isoformat()
    return text if name == "text" else f"{name}:{text}"


def asked(words: dict[str, str]) -> Query:
    from remuda.index.language import parse_query

    terms = [text if name == "text" else f"{name}:{text}" for name, text in words.items()]
    return parse_query(terms, lambda text, name: int(text), limit=500)
