"""T3 across processes: what an object and key said last, by the one order that a stream has."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from hashlib import blake2b

import pytest

from remuda.amqp.connection import Connection
from remuda.log.streams.history import ObjectHistory
from remuda.log.streams.log import StreamLog
from remuda.log.streams.writer import StreamWriter
from remuda.model.errors import InvalidMessage
from remuda.model.messages import Messages, cell
from remuda.model.records import Appended
from tests.log.eventlogs import now


@pytest.fixture
def url(broker_url: str) -> Iterator[str]:
    name = f"log-{uuid.uuid4().hex[:8]}"
    with StreamWriter(f"{broker_url}?log={name}"):
        yield f"{broker_url}?log={name}"
    with Connection(broker_url) as connection:
        connection.channel().delete_queue(name)


def said(*bodies: bytes, key: str | None = "7", object_: str = "order") -> Appended:
    columns = Messages(
        bodies=list(bodies), name="q", ids=[uuid.uuid4().hex for _ in bodies], created=now(), object=object_, key=key
    )
    digests = [None if key is None else blake2b(body, digest_size=16).digest() for body in bodies]
    return Appended(0, now(), columns, ("q",), digests)


def test_t3_a_b_a_is_three_times_news_and_a_a_is_not(url: str) -> None:
    with StreamWriter(url) as writer, ObjectHistory(url) as history:
        assert history.append(writer, said(b"A", b"B", b"A", b"A")) == [False, False, False, True]
        assert history.append(writer, said(b"A")) == [True]
        assert history.append(writer, said(b"A", key="8")) == [False]
        assert history.append(writer, said(b"A", object_="offer")) == [False]
        assert history.append(writer, said(b"A", b"A", key=None)) == [False, False]
        twice = Appended(0, 0, Messages(bodies=[b"", b""], name="q", ids=["x", "x"]), ("q",))
        with pytest.raises(InvalidMessage, match="ids of their own"):
            history.append(writer, twice)
    with StreamWriter(url) as writer, ObjectHistory(url) as later:
        assert later.append(writer, said(b"A")) == [True]
        assert later.append(writer, said(b"C")) == [False]


def test_t3_processes_that_publish_at_once_agree(url: str) -> None:
    """Each has a connection, a writer and a history of its own; the stream's order tells who was first."""
    verdicts: dict[str, bool] = {}
    failures: list[BaseException] = []
    begin = threading.Barrier(3)

    def work(name: int) -> None:
        try:
            with StreamWriter(url) as writer, ObjectHistory(url) as history:
                begin.wait(60)
                for turn in range(15):
                    record = said(b"%d" % (turn // 3), key=str(turn % 2))
                    verdicts[record.messages.id(0)] = history.append(writer, record)[0]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[name], daemon=True) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
        assert not thread.is_alive()
    assert failures == []
    last: dict[str | None, bytes] = {}
    log = StreamLog(url)
    for record in log.messages():
        for row in range(len(record)):
            key, body = cell(record.messages.key, row), record.messages.bodies[row]
            assert verdicts.pop(record.messages.id(row)) == (last.get(key) == body)
            last[key] = body
    assert verdicts == {}
    log.close()
