"""Streams are read from an offset, by every consumer on its own, and nothing is taken out (S1)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from remuda.broker.spectator import Spectator
from remuda.model.message import Message
from tests.server.amqp.kit import Client, eventually, fresh
from tests.servers.amqpd import RunningServer


def _stream(client: Client, **arguments: Any) -> str:
    name = fresh("stream")
    client.channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **arguments})
    return name


def _read(client: Client, name: str, count: int, start: Any = "first", prefetch: int = 100) -> list[tuple[int, bytes]]:
    """This many messages of a stream, each with its offset, and no more."""
    channel = client.open(confirms=False)
    channel.basic_qos(prefetch_count=prefetch)
    found: list[tuple[int, bytes]] = []
    arguments = {} if start is None else {"x-stream-offset": start}
    for method, properties, body in channel.consume(name, arguments=arguments, inactivity_timeout=20):
        assert method is not None, f"{len(found)} of {count} came"
        found.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.close()
    return found


def test_s1_a_stream_is_read_from_any_offset_again_and_again(client: Client) -> None:
    name, other = _stream(client), fresh()
    client.channel.queue_declare(other)
    for number in range(20):
        client.publish(name, b"%d" % number)
        client.publish(other, b"between")
    everything = _read(client, name, 20, prefetch=3)
    assert [body for _, body in everything] == [b"%d" % number for number in range(20)]
    offsets = [offset for offset, _ in everything]
    assert offsets == sorted(set(offsets))
    assert _read(client, name, 20) == everything
    assert _read(client, name, 8, offsets[12]) == everything[12:]
    assert _read(client, name, 8, offsets[11] + 1) == everything[12:]
    assert _read(client, name, 1, "last") == everything[-1:]
    assert client.waiting(name) == 20


def test_s1_other_queues_wake_no_consumer_of_a_stream(
    server: RunningServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: what grows elsewhere costs consumers of streams nothing; what a bus publishes reaches them all the same."""
    name, other, got = _stream(client), fresh(), list[bytes]()
    client.channel.queue_declare(other)
    for _ in range(3):
        channel = client.open(confirms=False)
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume(name, lambda _c, _m, _p, body: got.append(body))
    looks, look = 0, Spectator.messages

    def counted(spectator: Spectator, offset: int = 0) -> Any:
        nonlocal looks
        looks += 1
        return look(spectator, offset)

    monkeypatch.setattr(Spectator, "messages", counted)
    for _ in range(200):
        client.publish(other, b"elsewhere")
    assert looks < 100  # each looks a few times, ever more rarely; 200 messages would wake three of them 600 times
    server.broker.publish(Message(name, b"here"), queue=name)
    eventually(lambda: client.connection.process_data_events(0.05) or len(got) == 3)


def test_s1_a_stream_goes_on_with_what_is_published_next(client: Client) -> None:
    name = _stream(client)
    client.publish(name, b"before")
    channel = client.open(confirms=False)
    channel.basic_qos(prefetch_count=10)
    came: list[bytes] = []
    channel.basic_consume(name, lambda _c, _m, _p, body: came.append(body))  # next is the default
    for number in range(3):
        client.publish(name, b"%d" % number)
    eventually(lambda: client.connection.process_data_events(0.05) or len(came) == 3)
    assert came == [b"0", b"1", b"2"]
    declared = client.channel.queue_declare(name, passive=True).method
    assert (declared.message_count, declared.consumer_count) == (4, 1)


def test_s1_a_consumer_of_a_stream_holds_no_more_than_its_prefetch(client: Client) -> None:
    name = _stream(client)
    client.publish(name, *(b"%d" % number for number in range(10)))
    channel = client.open(confirms=False)
    channel.basic_qos(prefetch_count=4)
    tags: list[int] = []
    channel.basic_consume(
        name, lambda _c, method, _p, _b: tags.append(method.delivery_tag), arguments={"x-stream-offset": "first"}
    )
    eventually(lambda: client.connection.process_data_events(0.05) or len(tags) == 4)
    client.connection.process_data_events(0.5)
    assert len(tags) == 4
    channel.basic_nack(tags[1], multiple=True, requeue=True)  # a stream takes nothing back
    eventually(lambda: client.connection.process_data_events(0.05) or len(tags) == 6)


def test_s1_a_stream_is_read_from_a_time(client: Client) -> None:
    name = _stream(client)
    client.publish(name, b"old")
    time.sleep(1.1)  # timestamps of AMQP are whole seconds
    since = time.time()
    time.sleep(1.1)
    client.publish(name, b"new")
    moment = datetime.fromtimestamp(int(since) + 1, UTC).replace(tzinfo=None)
    assert [body for _, body in _read(client, name, 1, moment)] == [b"new"]
    assert [body for _, body in _read(client, name, 2, "1h")] == [b"old", b"new"]


def test_s1_a_stream_outlives_its_server(tmp_path: Path) -> None:
    with RunningServer(str(tmp_path / "data")) as server, Client(server.url) as client:
        name = _stream(client)
        client.publish(name, b"a", b"b", b"c")
        before = _read(client, name, 3)
    with RunningServer(str(tmp_path / "data")) as server, Client(server.url) as client:
        client.publish(name, b"d")
        after = _read(client, name, 4)
        assert after[:3] == before
        assert _read(client, name, 2, before[2][0]) == after[2:]


def test_s1_a_stream_keeps_no_more_than_it_may(client: Client) -> None:
    name = _stream(client, **{"x-max-length-bytes": 5000})
    for number in range(20):
        client.publish(name, b"%03d" % number + b"x" * 997)
    found = _read(client, name, 1, "first")
    assert found[0][1].startswith(b"015")
    aged = _stream(client, **{"x-max-age": "1s"})
    client.publish(aged, b"old")
    eventually(lambda: client.waiting(aged) == 0)


def test_s1_a_stream_that_is_deleted_cancels_its_consumers(client: Client) -> None:
    name = _stream(client)
    channel = client.open(confirms=False)
    channel.basic_qos(prefetch_count=1)
    gone: list[Any] = []
    channel.add_on_cancel_callback(gone.append)
    channel.basic_consume(name, lambda *_: None)
    client.channel.queue_delete(name)
    eventually(lambda: client.connection.process_data_events(0.05) or gone)


@pytest.mark.parametrize(
    ("ask", "code", "text"),
    [
        (lambda channel, name: channel.basic_consume(name, print), 406, "prefetch count is not set"),
        (lambda channel, name: channel.basic_get(name), 540, "basic.get not supported by stream queues"),
        (lambda channel, name: channel.queue_purge(name), 540, "queue.purge not supported by stream queues"),
        (
            lambda channel, name: (channel.basic_qos(prefetch_count=1), channel.basic_consume(name, print, True)),
            540, "automatic acknowledgement not supported by stream",
        ),
        (
            lambda channel, name: (
                channel.basic_qos(prefetch_count=1),
                channel.basic_consume(name, print, arguments={"x-stream-offset": "middle"}),
            ),
            406, "x-stream-offset",
        ),
        (
            lambda channel, _: channel.queue_declare(fresh(), arguments={"x-queue-type": "stream"}),
            406, "invalid property 'non-durable'",
        ),
        (
            lambda channel, _: channel.queue_declare(
                fresh(), durable=True, arguments={"x-queue-type": "stream", "x-message-ttl": 1}
            ),
            406, "rabbit_stream_queue",
        ),
        (
            lambda channel, _: channel.queue_declare(
                fresh(), durable=True, arguments={"x-queue-type": "stream", "x-max-age": "soon"}
            ),
            406, "x-max-age",
        ),
    ],
)  # fmt: skip
def test_s1_what_a_stream_cannot_do_is_refused(client: Client, ask: Any, code: int, text: str) -> None:
    name = _stream(client)
    expected = pika.exceptions.ConnectionClosedByBroker if code == 540 else ChannelClosedByBroker
    with Client(client.url) as own, pytest.raises(expected) as refused:
        ask(own.open(confirms=False), name)
    assert refused.value.reply_code == code
    assert text in refused.value.reply_text
