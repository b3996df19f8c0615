"""The client on a real RabbitMQ."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing
from remuda.amqp.client.connection import Connection
from remuda.amqp.codec.properties import EMPTY, Properties, encode_properties
from remuda.amqp.connection_options import parse_url
from remuda.amqp.errors import (
    AmqpError,
    ChannelClosed,
    ConnectFailed,
    ConnectionEnded,
    ConnectionLost,
    ConsumerCancelled,
    LoginRefused,
    ReplyTimeout,
    Unroutable,
)
from remuda.model.errors import Conflict, InvalidMessage, InvalidOption
from tests.servers.faultproxy import FaultProxy
from tests.servers.ports import free_port
from tests.servers.rabbitmq import RabbitNode


@pytest.fixture
def connection(broker_url: str) -> Iterator[Connection]:
    with Connection(broker_url) as connection:
        yield connection


@pytest.fixture
def channel(connection: Connection) -> Channel:
    return connection.channel(confirms=True)


@pytest.fixture
def queue(channel: Channel) -> Iterator[str]:
    name = f"queue-{time.time_ns()}"
    channel.declare_queue(name)
    yield name
    channel.delete_queue(name)


def messages(queue: str, count: int, body: bytes = b"x") -> list[Outgoing]:
    return [Outgoing("", queue, EMPTY, body + b"%d" % number) for number in range(count)]


def take(channel: Channel, queue: str, count: int) -> list[bytes]:
    consumer = channel.consume(queue)
    bodies: list[bytes] = []
    while len(bodies) < count:
        batch = consumer.get(1000, 60)
        assert batch, f"only {len(bodies)} of {count} came"
        bodies += [delivery.body for delivery in batch]
        consumer.ack(batch)
    consumer.cancel()
    return bodies


def test_batches_out_and_in(connection: Connection, channel: Channel, queue: str) -> None:
    """In order, nothing lost, nothing left unacknowledged."""
    receipts = [channel.publish_many(messages(queue, 500, b"%d-" % batch), mandatory=True) for batch in range(10)]
    for receipt in receipts:
        receipt.wait(60)
    bodies = take(connection.channel(prefetch=700), queue, 5000)
    assert bodies == [b"%d-%d" % (batch, number) for batch in range(10) for number in range(500)]
    assert connection.channel().declare_queue(queue, passive=True).message_count == 0


def test_properties_and_bodies_come_back_exactly(channel: Channel, queue: str) -> None:
    """Also a body of many frames and an empty one."""
    raw = encode_properties(
        Properties(content_type="a/b", headers={"n": {"deep": [1, None, True, b"\xff"]}}, priority=4, timestamp=99)
    )
    for body in (b"", b"x", bytes(range(256)) * 4000):
        channel.publish("", queue, body, raw, mandatory=True).wait(60)
        found = channel.get(queue, no_ack=True)
        assert found is not None
        assert (found.raw_properties, found.body, found.routing_key) == (raw, body, queue)


def test_returns_are_matched_to_their_publishes(channel: Channel, queue: str) -> None:
    batch = messages(queue, 3) + messages("nowhere", 2) + messages(queue, 1) + messages("nowhere", 1)
    receipt = channel.publish_many(batch, mandatory=True)
    with pytest.raises(Unroutable, match="'nowhere'"):
        receipt.wait(60)
    assert (set(receipt.returned), receipt.nacked, receipt.failed) == ({3, 4, 6}, set(), {3, 4, 6})
    assert take(channel, queue, 4) == [b"x0", b"x1", b"x2", b"x0"]


def test_awaitable(connection: Connection, channel: Channel, queue: str) -> None:
    async def main() -> None:
        await asyncio.gather(*(_publish(channel.publish("", queue, b"x")) for _ in range(50)))
        with pytest.raises(Unroutable):
            await channel.publish("", "nowhere", b"x", mandatory=True)

    async def _publish(receipt: Any) -> None:
        await receipt

    asyncio.run(main())
    assert channel.declare_queue(queue, passive=True).message_count == 50


def test_many_threads_share_a_channel(channel: Channel, queue: str) -> None:
    def publish(thread: int) -> None:
        for number in range(100):
            channel.publish("", queue, b"%d-%d" % (thread, number)).wait(60)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(take(channel, queue, 800))) == 800


def test_a_refused_request_leaves_the_channel_usable(channel: Channel, queue: str) -> None:
    with pytest.raises(ChannelClosed, match="406 PRECONDITION_FAILED") as caught:
        channel.declare_queue(queue, durable=False)
    assert caught.value.code == 406
    with pytest.raises(ChannelClosed, match="404 NOT_FOUND"):
        channel.consume("no such queue")
    channel.publish("", queue, b"x", mandatory=True).wait(60)
    with pytest.raises(ChannelClosed, match="no exchange 'nowhere'"):
        channel.publish("nowhere", "key", b"x").wait(60)
    channel.publish("", queue, b"y", mandatory=True).wait(60)
    assert take(channel, queue, 2) == [b"x", b"y"]


def test_settling_twice_or_late(connection: Connection, channel: Channel, queue: str) -> None:
    channel.publish_many(messages(queue, 3)).wait(60)
    other = connection.channel(prefetch=10)
    consumer = other.consume(queue)
    held: list[Any] = []
    while len(held) < 3:
        held += consumer.get(10, 60)
    assert other.ack(held[:1]) == 1
    assert other.ack(held[:1]) == 0
    assert other.nack(held[0]) is False
    assert other.nack(held[1]) is True
    assert other.nack(held[1]) is False
    (again,) = consumer.get(10, 60)
    assert (again.body, again.redelivered) == (held[1].body, True)
    other.close()
    assert other.ack([held[2], again]) == 0
    with pytest.raises(ConnectionEnded):
        other.publish("", queue, b"x")
    assert sorted(take(channel, queue, 2)) == [b"x1", b"x2"]


def test_the_queue_is_deleted_under_a_consumer(connection: Connection, channel: Channel) -> None:
    """`basic.cancel` from the broker ends the consumer; the channel goes on."""
    channel.declare_queue("short-lived")
    consumer = connection.channel().consume("short-lived")
    channel.delete_queue("short-lived")
    with pytest.raises(ConsumerCancelled, match="'short-lived'"):
        consumer.get(1, 60)


def test_without_acknowledgement_memory_is_bounded(connection: Connection, channel: Channel, queue: str) -> None:
    """A slow taker of unacknowledged deliveries makes the connection stop reading, and all arrive in the end."""
    total = 25_000
    receipts = [channel.publish_many(messages(queue, 5000, b"y" * 400)) for _ in range(5)]
    for receipt in receipts:
        receipt.wait(60)
    with Connection(connection.options) as other:
        consumer = other.channel().consume(queue, no_ack=True)
        time.sleep(0.5)
        assert len(consumer._held) < 20_000
        seen = 0
        while seen < total:
            batch = consumer.get(1000, 60)
            assert batch
            seen += len(batch)


def test_connections_closed_by_the_broker_come_back(rabbit: RabbitNode, queue: str) -> None:
    with Connection(rabbit.url) as connection:
        channel = connection.channel(confirms=True, prefetch=10)
        consumer = channel.consume(queue)
        rabbit.close_connections("testing")
        deadline = time.monotonic() + 60
        while connection.connects < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        channel.publish("", queue, b"after", mandatory=True).wait(60)
        (delivery,) = consumer.get(10, 60)
        assert delivery.body == b"after"
        assert consumer.ack([delivery]) == 1


@pytest.mark.faults
def test_a_memory_alarm_blocks_publishers(rabbit: RabbitNode, queue: str) -> None:
    """`connection.blocked` is told; what is queued is bounded; and it goes on when the alarm is over."""
    with Connection(rabbit.url, max_buffered=100_000) as connection:
        channel = connection.channel(confirms=True)
        rabbit.limit_memory(0.00001)
        try:
            sent = channel.publish_many(messages(queue, 10))
            deadline = time.monotonic() + 60
            while connection.blocked is None and time.monotonic() < deadline:
                time.sleep(0.05)
            assert "memory" in (connection.blocked or "")
            big = Outgoing("", queue, EMPTY, bytes(1_000_000))

            def fill() -> None:
                for _ in range(50):
                    channel.publish_many([big], timeout=0.5)

            with pytest.raises(ReplyTimeout, match=r"blocks publishers \(low on memory\)"):
                fill()
        finally:
            rabbit.limit_memory(0.4)
        sent.wait(60)
        channel.publish("", queue, b"last").wait(60)
        assert connection.blocked is None


@pytest.mark.faults
def test_a_half_open_link_is_noticed_by_heartbeats(rabbit: RabbitNode, queue: str) -> None:
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        url = f"amqp://127.0.0.1:{proxy.port}/?heartbeat=1s&connect_timeout=20s"
        with Connection(url) as connection:
            channel = connection.channel(confirms=True)
            channel.publish("", queue, b"before").wait(60)
            proxy.silent = True
            with pytest.raises(ConnectionLost, match=r"silent for . s, two heartbeats"):
                channel.publish("", queue, b"lost?").wait(60)
            proxy.silent = False
            channel.publish("", queue, b"after").wait(60)
            assert connection.connects >= 2


@pytest.mark.faults
def test_heartbeats_keep_an_idle_connection(broker_url: str, queue: str) -> None:
    """W7: nothing but heartbeats for four times the limit."""
    with Connection(f"{broker_url}?heartbeat=1s") as connection:
        channel = connection.channel(confirms=True)
        time.sleep(4)
        channel.publish("", queue, b"x").wait(60)
        assert connection.connects == 1


@pytest.mark.faults
def test_split_delayed_cut_and_corrupt(rabbit: RabbitNode, queue: str) -> None:
    """Published again until confirmed, everything arrives; a corrupt stream costs the connection, nothing else."""
    with FaultProxy("127.0.0.1", rabbit.port, seed=7) as proxy:
        url = f"amqp://127.0.0.1:{proxy.port}/?connect_timeout=5s&reply_timeout=1s"
        with Connection(url, backoff=0.01, backoff_max=0.05) as connection:
            channel = connection.channel(confirms=True)
            done = set()
            for number in range(40):
                proxy.split = (0, 1, 7)[number % 3]
                proxy.delay = 0.0005 if number % 10 == 0 else 0.0
                proxy.corrupt = 0.2 if 30 <= number < 34 else 0.0
                if number % 9 == 4:
                    threading.Timer(0.002, proxy.cut).start()
                body = b"message %d" % number
                while body not in done:
                    try:
                        channel.publish("", queue, body, mandatory=True).wait(2)
                        done.add(body)
                    except (AmqpError, InvalidMessage):
                        pass
            proxy.split, proxy.corrupt, proxy.delay = 0, 0.0, 0.0
            assert connection.connects > 1
    with Connection(rabbit.url) as connection:
        channel = connection.channel()
        count = channel.declare_queue(queue, passive=True).message_count
        assert set(take(channel, queue, count)) >= done


def test_tls(rabbit: RabbitNode, queue: str) -> None:
    """The certificate is checked; large and small messages pass both ways."""
    url = f"amqps://guest:guest@127.0.0.1:{rabbit.tls_port}/"
    with Connection(f"{url}?cafile={rabbit.certificate}&heartbeat=2s") as connection:
        channel = connection.channel(confirms=True, prefetch=500)
        bodies = [bytes([number % 256]) * (3000 if number % 50 else 400_000) for number in range(300)]
        channel.publish_many([Outgoing("", queue, EMPTY, body) for body in bodies], mandatory=True).wait(60)
        assert take(channel, queue, 300) == bodies
    with pytest.raises(ConnectFailed, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        Connection(url, attempts=1).open()
    with Connection(f"{url}?verify=no", attempts=1) as connection:
        assert connection.up
    with pytest.raises(ConnectFailed):
        Connection(f"amqp://127.0.0.1:{rabbit.tls_port}/?connect_timeout=2s", attempts=1).open()


def test_the_second_host_is_tried(rabbit: RabbitNode) -> None:
    for hosts in (f"127.0.0.1:{free_port()},127.0.0.1:{rabbit.port}", f"127.0.0.1:{rabbit.port},127.0.0.1:1"):
        with Connection(f"amqp://{hosts}/", attempts=3) as connection:
            assert connection.up


def test_errors_at_the_door(broker_url: str) -> None:
    with pytest.raises(ConnectFailed, match="within 2 attempts"):
        Connection(f"amqp://127.0.0.1:{free_port()}/", attempts=2, backoff=0.01).open()
    with pytest.raises(LoginRefused, match="403"):
        Connection(broker_url.replace("guest:guest", "guest:no")).open()
    with Connection(broker_url) as connection:
        for prefetch in (-1, 65536, True, "5"):
            with pytest.raises(InvalidOption, match="prefetch"):
                connection.channel(prefetch=prefetch)  # type: ignore[arg-type]
        channel = connection.channel(confirms=True)
        with pytest.raises(InvalidMessage, match="routing_key"):
            channel.publish("", "x" * 256, b"")
        with pytest.raises(InvalidMessage, match="exchange"):
            channel.publish(5, "x", b"")  # type: ignore[arg-type]
        for wrong in ("text", None, 5):
            with pytest.raises(InvalidMessage, match="must be bytes"):
                channel.publish("", "x", wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="is an Outgoing"):
            channel.publish_many([("", "x", b"")])  # type: ignore[list-item]
        with pytest.raises(InvalidOption, match="arguments must be a mapping"):
            channel.declare_queue("x", arguments=[1])  # type: ignore[arg-type]
    with pytest.raises(ConnectionEnded):
        connection.channel()
    connection.close()
    with pytest.raises(ConnectionEnded, match="call open"):
        Connection(broker_url).channel()


def test_a_callback_cannot_wait_for_itself(connection: Connection, channel: Channel, queue: str) -> None:
    """The connection's own thread is told so, instead of hanging."""
    raised: list[Exception] = []

    def call() -> None:
        if connection.in_own_thread:  # not where the answer had come before it was asked for
            for wrong in (connection.close, lambda: channel.declare_queue(queue)):
                try:
                    wrong()
                except InvalidOption as error:
                    raised.append(error)
        done.set()

    for _ in range(200):
        done = threading.Event()
        channel.publish("", queue, b"x").when_settled(call)
        assert done.wait(60)
        if raised:
            break
    assert len(raised) == 2


def test_consuming_while_a_channel_comes_back(channel: Channel, queue: str) -> None:
    """A consumer asked for just then is asked for once."""
    for _ in range(5):
        with pytest.raises(ChannelClosed):
            channel.declare_queue("amq.reserved")
        consumer = channel.consume(queue, exclusive=True)
        with pytest.raises(ChannelClosed, match="403 ACCESS_REFUSED"):
            channel.consume(queue)
        channel.publish("", queue, b"x").wait(60)
        (delivery,) = consumer.get(1, 60)
        assert consumer.ack([delivery]) == 1
        consumer.cancel()
    assert channel.connection.connects == 1


def test_no_more_channels_than_the_broker_allows(broker_url: str) -> None:
    with Connection(broker_url) as connection:
        connection.channel_max = 3
        for _ in range(3):
            connection.channel()
        with pytest.raises(Conflict, match="has 3 channels, the most"):
            connection.channel()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://x", "is not the URL"), ("amqp:/x", "is not the URL"), ("amqp://h:port/", "is not a host"),
        ("amqp://a,,b/", "is not a host"), ("amqp://h/?heartbeat=soon", "not a duration"),
        ("amqp://h/?color=red", "unknown option 'color'"), ("amqp://h/?cafile=x", "write amqps://"),
        ("amqps://h/?cafile=/no/such/file", "cannot be used"), ("amqp://h/?attempts=0", "attempts"),
        ("amqp://h/?retry_after=0s", "retry_after must be"), ("amqp://h/?reply_timeout=0s", "reply_timeout must be"),
        ("amqp://h/?heartbeat=70000s", "at most 65535s"), (5, "must be a string"),
    ],
)  # fmt: skip
def test_wrong_urls(url: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        parse_url(url)


def test_urls() -> None:
    options = parse_url("amqp://me:p%40ss@one,two:5673,[::1]:99/my%2Fhost?heartbeat=5s")
    assert options.hosts == (("one", 5672), ("two", 5673), ("::1", 99))
    assert (options.user, options.password, options.virtual_host, options.heartbeat) == ("me", "p@ss", "my/host", 5)
    assert "p@ss" not in repr(options)
    with pytest.raises(InvalidOption) as caught:
        parse_url("http://me:secret@host/")
    assert "secret" not in str(caught.value)
