"""The event log on a stream: many writers, readers that begin anywhere, broken connections (L1, L8)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remuda
from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.confirms import Receipt
from remuda.amqp.client.connection import Connection
from remuda.amqp.client.consumer import Consumer
from remuda.log.eventlog import Ends, EventLog, open_event_log
from remuda.log.streams import stream_log as streams
from remuda.log.streams import stream_source as sources
from remuda.log.streams import stream_writer as writers
from remuda.log.streams.entries import decode_entry, encode_entry, encode_records
from remuda.log.streams.references import References
from remuda.log.streams.stream_log import StreamLog
from remuda.log.streams.stream_numbers import GONE, ROWS, first_of, neighbours, reference
from remuda.log.streams.stream_source import StreamSource
from remuda.log.streams.stream_writer import Retention, StreamWriter
from remuda.log.tail.record_codec import Damaged
from remuda.model.errors import BrokerClosed, InvalidMessage, InvalidOption, RemudaError, StorageError
from remuda.model.ids import Snowflakes
from remuda.model.messages import Messages
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State
from remuda.model.values.urls import parse_url
from tests.log.eventlogs import now, tell
from tests.servers.faultproxy import FaultProxy
from tests.servers.rabbitmq import RabbitNode


@pytest.fixture
def url(broker_url: str) -> Iterator[str]:
    """A stream of its own."""
    name = f"log-{uuid.uuid4().hex[:8]}"
    yield f"{broker_url}?log={name}"
    with Connection(broker_url) as connection:
        connection.channel().delete_queue(name)


def batch(ids: range | list[str], body: bytes = b"body") -> Appended:
    return Appended(0, now(), Messages(bodies=[body] * len(ids), name="q.x", ids=ids, created=now()), ("q",))


def rows_of(log: EventLog) -> list[tuple[int, str]]:
    return [(record.first + row, record.messages.id(row)) for record in log.messages() for row in range(len(record))]


def firsts(log: EventLog, start: int = 0) -> list[int]:
    return [row.first for record in log.events(start) for row in record.rows]


def by_way_of(proxy: FaultProxy, url: str) -> str:
    return url.replace(f":{proxy.target[1]}/", f":{proxy.port}/")


# Numbers and bytes, without a broker.


def test_l8_a_reference_is_the_snowflake_or_a_hash_beyond_all_of_them() -> None:
    assert reference("248012345678901234") == 248012345678901234
    assert reference("0") == 0
    others = ["", "order-7", "007", "-1", "٣", "1" * 30, str(2**63), "1_0", " 1", "\ud800"]
    found = [reference(id) for id in others]
    assert all(2**61 <= one < 2**62 for one in found)
    assert reference(str(2**61 - 1)) == 2**61 - 1
    assert len(set(found)) == len(others)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=60), st.integers(0, 5), st.integers(0, 45))
@settings(max_examples=200, deadline=None)
def test_l8_references_lead_to_the_newest_before_else_the_first_behind(
    messages: list[tuple[int, int]], sought: int, position: int
) -> None:
    seen = References()
    for at, (one, entry) in enumerate(messages):
        seen.add(entry * 100 + at, iter([(entry * 1000 + at, [one])]))
        if at % 7 == 0:
            seen.find(one, 0)  # which puts them in order
    offsets = [entry * 1000 + at for at, (one, entry) in enumerate(messages) if one == sought]
    before = [one for one in offsets if one <= position * 1000]
    behind = [one for one in offsets if one > position * 1000]
    assert seen.find(sought, position * 1000) == (max(before) if before else min(behind, default=None))


@given(st.permutations(range(30)), st.integers(0, 31))
def test_l8_what_was_looked_at_is_known(entries: list[int], before: int) -> None:
    seen = References()
    looked: set[int] = set()
    for entry in entries[:20]:
        seen.add(entry, iter([]))
        looked.add(entry)
    assert [seen.covers(entry) for entry in range(30)] == [entry in looked for entry in range(30)]
    first = before
    while first - 1 in looked:
        first -= 1
    assert seen.first_covered(before) == first


def test_l8_records_survive_an_entry_as_they_were() -> None:
    ids = Snowflakes(3).take(500, now())
    said = Event("q", State.RETRY, ids[7], 3, "c", 2, "why", 5, True, "ann", 4, "trace", "other")
    events = Events(0, 17, [Event("q", State.FETCHED, ids[0], 500), said])
    parts = encode_records([batch(ids, b"x" * 2000), events, batch(["own"])])
    assert len(parts) > 4
    assert all(part.rows <= ROWS for part in parts)
    entry = decode_entry(9, encode_entry(b"me", 4, 5, parts))
    assert (entry.writer, entry.sequence, entry.time) == (b"me", 4, 5)
    read = list(entry.messages())
    assert [record.messages.id(row) for record in read for row in range(len(record))] == [*map(str, ids), "own"]
    assert read[0].first == first_of(9)
    assert sum(map(len, read)) == entry.message_count == 501
    assert [list(names) for _, names in entry.references()][-1] == [reference("own")]
    fetched, retried = list(entry.events())
    assert list(fetched[3]) == list(ids)
    assert list(retried[3]) == list(neighbours(ids[7], 3))
    assert (retried[0], retried[1]) == (first_of(9) + 500, 17)
    assert retried[2] == Event("q", State.RETRY, 0, 1, "c", 2, "why", 5, True, "ann", 4, "trace", "other")


@given(st.binary(max_size=60), st.integers(0, 10_000), st.integers(1, 255))
@settings(max_examples=150, deadline=None)
def test_l8_bytes_that_are_no_entry_are_damage(junk: bytes, at: int, flip: int) -> None:
    whole = encode_entry(b"me", 1, 2, encode_records([batch(["a", "b"])]))
    changed = bytearray(whole)
    changed[at % len(whole)] ^= flip
    for body in (junk, bytes(changed), whole[: at % len(whole)]):
        with pytest.raises(Damaged, match="entry 3"):
            decode_entry(3, body)


def test_l8_an_event_of_more_messages_than_an_entry_holds_is_parted() -> None:
    parts = encode_records([Events(0, 1, [Event("q", State.FETCHED, 1 << 40, 3 * ROWS)])])
    assert sum(part.rows for part in parts) == 3 * ROWS
    assert max(part.rows for part in parts) <= ROWS


# At the door.


def test_l8_wrong_values_are_refused_by_name(url: str) -> None:
    for wrong in ("", None, 5, b"x", "n" * 300):
        with pytest.raises(InvalidOption, match="name of a stream"):
            StreamWriter(url.partition("?")[0], stream=wrong)  # type: ignore[arg-type]
    for place in (5, None, "", "data", "memory://", "http://x", "amqp://host:port"):
        with pytest.raises(InvalidOption):
            StreamLog(place)  # type: ignore[arg-type]
    for retention in (Retention(max_age="soon"), Retention(max_bytes=0), Retention(max_bytes="1"),  # type: ignore[arg-type]
                      Retention(segment_bytes=-1), Retention(max_bytes=True)):  # fmt: skip
        with pytest.raises(InvalidOption):
            StreamWriter(url, retention=retention)
    with pytest.raises(InvalidOption):
        StreamWriter(url, linger=-1)
    for timeout in (0, -1, "5", None, float("nan"), True):
        with pytest.raises(InvalidOption, match="timeout must be a number"):
            StreamWriter(url, timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(RemudaError, match="no connection"):
        StreamWriter("amqp://127.0.0.1:1/")
    with StreamWriter(url) as writer:
        for record in (None, 5, "text", Event("q", State.FETCHED, 1)):
            with pytest.raises(InvalidMessage, match="a record is an Appended or an Events"):
                writer.append([record])  # type: ignore[list-item]
        with pytest.raises(InvalidMessage, match="must have its id"):
            writer.append([Appended(0, now(), Messages(bodies=[b""], name="q"), ("q",))])
        writer.append([])
        writer.append([Events(0, now(), [])])
        writer.flush()
    with pytest.raises(BrokerClosed):
        writer.append([batch(["a"])])
    writer.close()
    assert list(open_event_log(url).messages()) == []


def test_l8_a_url_may_be_parsed_before(url: str) -> None:
    with StreamWriter(parse_url(url)) as writer:
        writer.append([batch(["a"])])
    assert [id for _, id in rows_of(StreamLog(parse_url(url)))] == ["a"]
    assert [id for _, id in rows_of(StreamLog(f"{url}&queue_type=classic"))] == ["a"]
    with pytest.raises(InvalidOption, match="no event log is kept there"):
        StreamLog(f"{url.partition('?')[0]}?log=no")


def test_l8_the_stream_keeps_as_long_as_who_made_it_said(url: str, rabbit: RabbitNode) -> None:
    with StreamWriter(url, retention=Retention(max_age="2h", max_bytes=5_000_000)) as writer:
        assert Retention(max_age="2h").arguments()["x-max-age"] == "7200s"
        mine = rabbit.arguments_of(writer.stream)
        assert "7200s" in mine
        assert "5000000" in mine
        with StreamWriter(url, retention=Retention(max_age="1h")) as other:
            other.append([batch(["b"])])
    assert [id for _, id in rows_of(open_event_log(url))] == ["b"]


# Many writers, and readers that begin anywhere.


_WRITER = """
import sys, time
from remuda.log.streams.stream_numbers import reference
from remuda.log.streams.stream_writer import StreamWriter
from remuda.model.messages import Messages
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State
url, name = sys.argv[1:]
with StreamWriter(url) as writer:
    for n in range(200):
        id, now = f"{name}-{n}", time.time_ns() // 1000
        writer.append([Appended(0, now, Messages(bodies=[id.encode()], name="q", ids=[id], created=now), ("q",))])
        if n % 20 == 0:
            writer.flush()
        writer.append([Events(0, now, [Event("q", State.FETCHED, reference(id), consumer=name, attempt=1)])])
"""


def test_l1_many_processes_write_one_log_and_every_reader_sees_the_same(url: str) -> None:
    StreamWriter(url).close()
    source = str(Path(remuda.__file__).parent.parent)
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, url, name], env={"PYTHONPATH": source, "PATH": "/usr/bin"})
        for name in ("a", "b", "c")
    ]
    try:
        assert [writer.wait(150) for writer in writers] == [0, 0, 0]
    finally:
        for writer in writers:
            writer.kill()
    first, second = rows_of(open_event_log(url)), rows_of(open_event_log(url))
    assert first == second
    assert sorted(id for _, id in first) == sorted(f"{name}-{n}" for name in "abc" for n in range(200))
    for name in "abc":
        mine = [id for _, id in first if id.startswith(name)]
        assert mine == [f"{name}-{n}" for n in range(200)]
    offsets = {id: offset for offset, id in first}
    told = [(row.consumer, row.first) for record in open_event_log(url).events() for row in record.rows]
    for name in "abc":
        assert [first for consumer, first in told if consumer == name] == [offsets[f"{name}-{n}"] for n in range(200)]


def test_l8_a_reader_that_begins_in_the_middle_finds_the_messages_before(url: str) -> None:
    numbers = Snowflakes(4).take(3, now())
    ids = [str(numbers[0]), "own", str(numbers[2])]
    with StreamWriter(url) as writer:
        for id in ids:
            writer.append([batch([id])])
            writer.flush()
        for n in range(100):
            writer.append([batch([f"filler-{n}"])])
            writer.flush()
        for id in ids:
            tell(writer, id, State.FETCHED)
        tell(writer, "never logged", State.FETCHED)
        tell(writer, str(numbers[2] + 1024 * 9), State.FETCHED)
        writer.flush()
    offsets = {id: offset for offset, id in rows_of(open_event_log(url))}
    middle = open_event_log(url).position_of_last(5)
    log = open_event_log(url)
    assert firsts(log, middle) == [*(offsets[id] for id in ids), GONE, GONE]
    assert firsts(log, middle) == firsts(open_event_log(url))[-5:]
    assert [log.offset_of(id) for id in ids] == [offsets[id] for id in ids]


def test_l8_an_event_may_come_just_before_its_message(url: str) -> None:
    with StreamWriter(url) as writer:
        for id in ("early", "late"):
            tell(writer, id, State.FETCHED)
            writer.flush()
            writer.append([batch([id])])
            writer.flush()
    offsets = {id: offset for offset, id in rows_of(open_event_log(url))}
    log = open_event_log(url)
    assert firsts(log) == [offsets["early"], offsets["late"]]
    positions = [record.first for record in log.events()]
    alone = open_event_log(url)
    found = [row.first for record in alone.events(positions[1], positions[1] + 1) for row in record.rows]
    assert found == [offsets["late"]]
    assert [event.state for _, event in log.events_of(offsets["late"])] == [State.FETCHED]


def test_l8_an_id_that_is_used_again_tells_two_lives(url: str) -> None:
    with StreamWriter(url) as writer:
        for state in (State.SUCCESS, State.DEAD):
            writer.append([batch(["twice"])])
            writer.flush()
            tell(writer, "twice", state)
            writer.flush()
    log = open_event_log(url)
    (first, _), (second, _) = rows_of(log)
    assert firsts(log) == [first, second]
    assert log.offset_of("twice") == second
    assert [event.state for _, event in log.events_of(first)] == [State.SUCCESS]
    assert [event.state for _, event in log.events_of(second)] == [State.DEAD]


def test_l8_numbers_and_times_beyond_all_are_answered(url: str) -> None:
    with StreamWriter(url) as writer:
        writer.append([batch(["only"])])
    log = open_event_log(url)
    end = log.ends().next_offset
    for far in (end, 10**12, 10**18, 2**62):
        assert list(log.messages(far)) == []
        assert list(log.events(far)) == []
        assert log.message(far) is None
        assert log.events_of(far) == []
    for early in (-1, -(10**18)):
        assert log.message(early) is None
        assert sum(map(len, log.messages(early))) == 1
        assert log.offset_at(early) == log.offset_of("only")
    for late in (10**17, 2**62):
        assert log.offset_at(late) == log.position_at(late) == end
    for id in ("", "\ud800", "x" * 10_000, "-5", "9" * 18):
        assert log.offset_of(id) is None


def test_l8_a_stream_without_entries_is_told_by_its_count(
    url: str, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8: nothing comes and RabbitMQ counts nothing. It counts every five seconds, which is not waited for here."""
    monkeypatch.setattr(sources, "_COUNTED", 0.1)
    monkeypatch.setattr(sources, "_LOOK", 0.1)
    name = url.partition("log=")[2]
    with Connection(broker_url) as connection:
        connection.channel().declare_queue(name, arguments={"x-queue-type": "stream"})
    log = StreamLog(url)
    assert log.ends() == Ends(0, 0, 0, 0)
    assert rows_of(log) == []
    assert log.offset_at(0) == 0
    log.close()


def test_l8_entries_that_are_slow_to_come_are_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L8: where RabbitMQ counts some, a reader under load does not take the stream for empty."""
    with StreamWriter(url) as writer:
        writer.append([batch(["only"])])
    monkeypatch.setattr(sources, "_COUNTED", 0.0)
    monkeypatch.setattr(StreamSource, "_count", lambda source, channel: 2)
    taken, waits = StreamSource._taken, iter([True, True, False])

    def late(source: StreamSource, consumer: Consumer, wait: float) -> list[Delivery]:
        return [] if next(waits, False) else taken(source, consumer, wait)

    monkeypatch.setattr(StreamSource, "_taken", late)
    source = StreamSource(url)
    last = source.last()
    assert last is not None
    assert last.number >= 1
    source.close()


def test_l8_a_time_behind_the_last_entry_is_told_at_once(url: str) -> None:
    """L8: by what comes of the last entry, not by waiting whether something comes."""
    with StreamWriter(url) as writer:
        writer.append([batch(["only"])])
    source = StreamSource(url)
    for _ in range(3):
        assert source.at_time(now() + 3600 * 1_000_000) is None
        assert source.at_time(0) == source.first()
    source.close()


def test_l8_one_log_serves_many_threads(url: str) -> None:
    ids = [f"id-{n}" for n in range(60)]
    with StreamWriter(url) as writer:
        for id in ids:
            writer.append([batch([id])])
            tell(writer, id, State.FETCHED)
            writer.flush()
    log = open_event_log(url)
    offsets = {id: offset for offset, id in rows_of(log)}
    shared = open_event_log(url)
    wrong: list[object] = []

    def look(mine: list[str]) -> None:
        try:
            if firsts(shared) != [offsets[id] for id in ids]:
                wrong.append("events")
            wrong.extend(id for id in mine if shared.offset_of(id) != offsets[id])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=look, args=[ids[at::12]], daemon=True) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


def test_l8_what_others_put_into_the_stream_is_a_gap_and_no_more(url: str, broker_url: str) -> None:
    with StreamWriter(url) as writer, Connection(broker_url) as connection:
        channel = connection.channel(confirms=True)
        for n in range(3):
            writer.append([batch([f"mine-{n}"])])
            writer.flush()
            for junk in (b"", b"hello", b"RMD1" + b"\0" * 40):
                channel.publish("", writer.stream, junk).wait(60)
        tell(writer, "mine-0", State.FETCHED)
        writer.flush()
    log = open_event_log(url)
    assert [id for _, id in rows_of(log)] == ["mine-0", "mine-1", "mine-2"]
    assert len(log.gaps) == 9
    assert all(len(gap) == ROWS for gap in log.gaps)
    assert firsts(log) == [rows_of(log)[0][0]]


def test_l8_what_the_broker_let_go_is_told(url: str) -> None:
    """Retention by the stream's own arguments: segments go when new ones begin."""
    retention = Retention(max_bytes=200_000, segment_bytes=50_000)
    with StreamWriter(url, retention=retention) as writer:
        writer.append([batch(["first"])])
        writer.flush()
        for n in range(60):
            writer.append([batch([f"{n}"], b"x" * 20_000)])
            writer.flush()
        log = open_event_log(url)
        deadline = time.monotonic() + 60
        while log.ends().first_offset == 0 and time.monotonic() < deadline:
            writer.append([batch([uuid.uuid4().hex], b"x" * 20_000)])
            writer.flush()
            time.sleep(0.1)
        tell(writer, "first", State.FETCHED)
        writer.flush()
    first = log.ends().first_offset
    assert first > 0
    left = rows_of(log)
    assert "first" not in {id for _, id in left}
    assert log.gaps[0] == range(first)
    assert log.message(0) is None
    assert log.offset_of("first") is None
    assert firsts(log) == [GONE]


# Broken connections.


def test_l1_a_cut_connection_loses_nothing_and_doubles_nothing(url: str, rabbit: RabbitNode) -> None:
    """Cuts in mid-load, when entries are on their way: those that came in are not sent again."""
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        with StreamWriter(by_way_of(proxy, url)) as writer:
            for n in range(600):
                writer.append([batch([f"id-{n}"], b"x" * 3000)])
                if n % 150 == 75:
                    writer.flush()
                    writer.append([batch([f"cut-{n}"], b"y" * 200_000)])
                    proxy.cut()
            writer.flush(60)
        assert proxy.accepted > 3
    found = [id for _, id in rows_of(open_event_log(url))]
    assert len(found) == len(set(found)) == 604
    assert [id for id in found if id.startswith("id-")] == [f"id-{n}" for n in range(600)]


def test_l1_confirms_that_are_lost_are_looked_up(url: str, rabbit: RabbitNode) -> None:
    """The broker has the entries, but its confirms never arrive: they are found, not sent again."""
    with FaultProxy("127.0.0.1", rabbit.port) as proxy, StreamWriter(by_way_of(proxy, url)) as writer:
        for n in range(5):
            proxy.delay = 0.3  # the cut comes while confirms are held back
            writer.append([batch([f"id-{n}"])])
            deadline = time.monotonic() + 60
            while [id for _, id in rows_of(open_event_log(url))].count(f"id-{n}") == 0:
                assert time.monotonic() < deadline
            proxy.delay = 0.0
            proxy.cut()
            writer.flush(60)
    assert [id for _, id in rows_of(open_event_log(url))] == [f"id-{n}" for n in range(5)]


def test_l1_a_silent_broker_is_waited_for_and_said(url: str, rabbit: RabbitNode) -> None:
    with FaultProxy("127.0.0.1", rabbit.port) as proxy, StreamWriter(by_way_of(proxy, url)) as writer:
        proxy.silent = True
        writer.append([batch(["patient"])])
        with pytest.raises(StorageError, match=r"did not confirm within 0.5 s.*the records wait here"):
            writer.flush(0.5)
        proxy.silent = False
        writer.flush(60)
    assert [id for _, id in rows_of(open_event_log(url))] == ["patient"]


def test_l1_an_end_does_not_wait_long_for_a_silent_broker(
    url: str, rabbit: RabbitNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once nothing was confirmed for a while: whatever has come in until then is kept, and the rest is told of."""
    monkeypatch.setattr(writers, "_STALLED", 0.2)
    monkeypatch.setattr(writers, "_FAREWELL", 0.2)
    patience = 300.0
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        writer = StreamWriter(by_way_of(proxy, url), timeout=patience)
        writer.append([batch(["kept"])])
        writer.flush()
        proxy.silent = True
        writer.append([batch(["late"])])
        began = time.monotonic()
        with pytest.raises(StorageError, match="did not confirm within"):
            writer.close(patience)
        assert time.monotonic() - began < patience / 10
    assert "kept" in [id for _, id in rows_of(open_event_log(url))]


def test_l1_an_end_does_not_wait_long_for_a_broker_that_takes_nothing_in(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is low on memory: nothing is on its way then, so nothing on its way tells how long that has been."""
    monkeypatch.setattr(writers, "_STALLED", 0.2)
    monkeypatch.setattr(writers, "_FAREWELL", 0.2)
    patience = 300.0
    writer = StreamWriter(url, timeout=patience)
    connection = writer._connection

    def blocked(entries: Sequence[tuple[int, bytes]]) -> Receipt:
        while connection.failure is None:
            time.sleep(0.01)
        raise connection.failure

    monkeypatch.setattr(writer, "_publish", blocked)
    assert writer.trouble is None
    writer.append([batch(["late"])])
    while writer.trouble is None:
        time.sleep(0.01)
    assert "has confirmed nothing for" in writer.trouble
    began = time.monotonic()
    with pytest.raises(StorageError, match="did not confirm within"):
        writer.close(patience)
    assert time.monotonic() - began < patience / 10


def test_l1_what_the_broker_does_not_take_holds_nothing_up(url: str, rabbit: RabbitNode) -> None:
    """A message larger than RabbitMQ allows is told of, once; those around it are kept."""
    rabbit.evaluate("application:set_env(rabbit, max_message_size, 2000000)")
    try:
        with StreamWriter(url) as writer:
            for id, size in (("small", 10), ("large", 1_500_000), ("too large", 3_000_000), ("last", 10)):
                writer.append([batch([id], b"x" * size)])
            with pytest.raises(StorageError, match="larger than the broker takes"):
                writer.flush(60)
            writer.append([batch(["after"])])
            writer.flush(60)
    finally:
        rabbit.evaluate("application:set_env(rabbit, max_message_size, 134217728)")
    assert sorted(id for _, id in rows_of(open_event_log(url))) == ["after", "large", "last", "small"]


def test_l8_a_follower_comes_back_where_it_was(url: str, rabbit: RabbitNode) -> None:
    with FaultProxy("127.0.0.1", rabbit.port) as proxy, StreamWriter(url) as writer:
        found: list[str] = []
        arrived = threading.Semaphore(0)
        stop = threading.Event()

        def follow() -> None:
            log = open_event_log(by_way_of(proxy, url))
            for record in log.follow_messages(poll=0.05, stop=stop):
                found.extend(record.messages.id(row) for row in range(len(record)))
                arrived.release(len(record))

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        for n in range(9):
            writer.append([batch([f"id-{n}"])])
            writer.flush()
            assert arrived.acquire(timeout=60)
            if n % 3 == 2:
                proxy.cut()
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
    assert found == [f"id-{n}" for n in range(9)]


def test_l8_a_follower_waits_for_a_message_that_is_on_the_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process tells of a message a moment before its publisher has logged it. Here a moment may be long."""
    monkeypatch.setattr(streams, "_WAIT", 60.0)
    monkeypatch.setattr(streams, "_FRESH", 60_000_000)
    with StreamWriter(url) as writer, StreamWriter(url) as other:
        stop = threading.Event()
        found: list[int] = []
        arrived = threading.Event()

        def follow() -> None:
            for record in open_event_log(url).follow_events(poll=0.05, stop=stop):
                found.extend(row.first for row in record.rows)
                arrived.set()

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        tell(other, "on the way", State.FETCHED)
        other.flush()
        writer.append([batch(["on the way"])])
        writer.flush()
        assert arrived.wait(60)
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
    assert found == [rows_of(open_event_log(url))[0][0]]
