"""Consumers: prefetch, order among them, leaving, and being left (S1)."""

from __future__ import annotations

import time
from typing import Any

import amqp  # type: ignore[import-untyped]
import kombu
import pika
import pytest

from remuda.server.amqp.protocol.connection import Limits
from tests.server.amqp.kit import Client, closing, eventually, fresh
from tests.servers.amqpd import RunningServer


class Taker:
    """A consumer that notes what it gets and answers when told."""

    def __init__(self, client: Client, queue: str, *, prefetch: int | None = None, **options: Any) -> None:
        self.client = client
        self.channel = client.connection.channel()
        if prefetch is not None:
            self.channel.basic_qos(prefetch_count=prefetch)
        self.got: list[tuple[Any, bytes]] = []
        self.tag = self.channel.basic_consume(queue, lambda ch, m, p, body: self.got.append((m, body)), **options)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.got]

    def wait(self, count: int) -> list[bytes]:
        """Until it has so many; fails if more come meanwhile."""
        deadline = time.monotonic() + 60
        while len(self.got) < count and time.monotonic() < deadline:
            self.client.connection.process_data_events(0.05)
        assert len(self.got) == count, self.bodies
        return self.bodies

    def rest(self) -> list[bytes]:
        """What else comes within a moment."""
        self.client.connection.process_data_events(0.3)
        return self.bodies


def test_prefetch_bounds_what_a_consumer_holds(client: Client) -> None:
    """S1, Q2."""
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, *(b"%d" % n for n in range(10)))
    taker = Taker(client, name, prefetch=3)
    taker.wait(3)
    assert len(taker.rest()) == 3
    taker.channel.basic_ack(taker.got[0][0].delivery_tag)
    taker.wait(4)
    taker.channel.basic_qos(prefetch_count=6)
    taker.wait(7)
    taker.channel.basic_ack(0, multiple=True)
    assert taker.wait(10) == [b"%d" % n for n in range(10)]


def test_no_prefetch_means_everything_comes(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    unconfirmed = client.open(confirms=False)
    for number in range(5000):
        unconfirmed.basic_publish("", name, b"%d" % number)
    taker = Taker(client, name)
    assert taker.wait(5000) == [b"%d" % number for number in range(5000)]


def test_a_shared_prefetch_counts_over_all_consumers_of_a_channel(client: Client) -> None:
    """S1, Q2."""
    first, second = fresh(), fresh()
    for queue in (first, second):
        client.channel.queue_declare(queue)
        client.publish(queue, b"1", b"2", b"3")
    channel = client.open(confirms=False)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    got: list[Any] = []
    for queue in (first, second):
        channel.basic_consume(queue, lambda ch, m, p, body: got.append(m))
    eventually(lambda: client.connection.process_data_events(0.1) or len(got) >= 2)
    client.connection.process_data_events(0.3)
    assert len(got) == 2


def test_without_acknowledgement_messages_are_gone_when_sent(server: RunningServer, client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    taker = Taker(client, name, auto_ack=True)
    client.publish(name, *(b"%d" % n for n in range(50)))
    taker.wait(50)
    eventually(lambda: server.broker.queue(name).size == 0)


def test_a_cancelled_consumer_may_still_answer(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, b"1", b"2", b"3")
    taker = Taker(client, name, prefetch=2)
    taker.wait(2)
    # pika would reject what it holds for a cancelled consumer, so this goes past it.
    taker.channel._impl._send_method(pika.spec.Basic.Cancel(taker.tag, True))
    eventually(lambda: client.channel.queue_declare(name, passive=True).method.consumer_count == 0)
    assert client.waiting(name) == 1
    taker.channel.basic_ack(taker.got[0][0].delivery_tag)
    taker.channel.close()
    method, _, body = client.get(name)
    assert (body, method.redelivered) == (b"2", True)
    assert client.bodies(name) == [b"3"]


def test_consumers_are_told_when_their_queue_goes(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    taker = Taker(client, name)
    cancelled: list[Any] = []
    taker.channel.add_on_cancel_callback(cancelled.append)
    client.channel.queue_delete(name)
    eventually(lambda: client.connection.process_data_events(0.1) or cancelled)
    assert cancelled[0].method.consumer_tag == taker.tag


def test_who_deletes_a_queue_hears_that_first_and_then_of_its_consumers(server: RunningServer) -> None:
    """S1: py-amqp, and so kombu, takes a cancellation before the answer for an error."""
    with amqp.Connection(f"127.0.0.1:{server.port}") as connection:
        channel = connection.channel()
        for _ in range(10):
            channel.queue_declare(name := fresh())
            channel.basic_consume(name)
            channel.queue_delete(name)
            with pytest.raises(amqp.exceptions.ConsumerCancelled):
                connection.drain_events(timeout=60)


def test_higher_priority_consumers_come_first(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    low = Taker(client, name, prefetch=5)
    high = Taker(client, name, prefetch=2, arguments={"x-priority": 10})
    client.publish(name, b"1", b"2", b"3")
    high.wait(2)
    assert low.wait(1) == [b"3"]


def test_a_single_active_consumer_is_followed_by_the_next(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name, arguments={"x-single-active-consumer": True})
    first, second = Taker(client, name, prefetch=1), Taker(client, name, prefetch=10)
    client.publish(name, b"1", b"2")
    first.wait(1)
    assert second.rest() == []
    first.channel.close()
    assert sorted(second.wait(2)) == [b"1", b"2"]


def test_exclusive_consumers_keep_others_out(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    taker = Taker(client, name, exclusive=True)
    assert client.refused(lambda ch: ch.basic_consume(name, print)) == (
        403, f"ACCESS_REFUSED - queue '{name}' in vhost '/' in exclusive use",
    )  # fmt: skip
    taker.channel.close()
    Taker(client, name)
    assert client.refused(lambda ch: ch.basic_consume(name, print, exclusive=True))[0] == 403


def test_a_consumer_tag_is_used_once(server: RunningServer) -> None:
    """S1."""
    name = fresh()
    with Client(server.url) as client:
        client.channel.queue_declare(name, auto_delete=True)
        channel = client.connection.channel()._impl
        channel.basic_consume(name, print, consumer_tag="same")
        del channel._consumers["same"]  # pika refuses it by itself
        channel.basic_consume(name, print, consumer_tag="same")
        with pytest.raises(
            pika.exceptions.ConnectionClosedByBroker, match=r"530.*attempt to reuse consumer tag 'same'"
        ):
            eventually(lambda: client.connection.process_data_events(0.1))


def test_who_takes_too_long_loses_the_channel(client: Client) -> None:
    """S1: x-consumer-timeout."""
    name = fresh()
    client.channel.queue_declare(name, arguments={"x-consumer-timeout": 300})
    taker = Taker(client, name)
    reason = closing(taker.channel)
    client.publish(name, b"slow")
    taker.wait(1)
    eventually(lambda: client.connection.process_data_events(0.1) or reason)
    assert reason[0].reply_code == 406
    assert "timed out. Timeout value used: 300 ms" in reason[0].reply_text
    method, _, _ = client.get(name)
    assert method.redelivered


def test_a_silent_peer_is_dropped_and_what_it_held_comes_back() -> None:
    """S1, S4: heartbeats."""
    with RunningServer(limits=Limits(heartbeat=1)) as server, Client(server.url) as watcher:
        parameters = pika.URLParameters(server.url)
        parameters.heartbeat = 1
        silent = pika.BlockingConnection(parameters)
        channel = silent.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"held")
        channel.basic_get("q")

        def back() -> bool:
            watcher.connection.process_data_events(0)
            return server.broker.queue("q").waiting == 1

        eventually(back)  # nobody serves the silent connection meanwhile, so no heartbeat leaves it
        eventually(lambda: len(server.server.clients) == 1)


def test_s2_a_celery_worker_has_one_limit_for_all_its_queues(server: RunningServer, client: Client) -> None:
    """Kombu decides by the server's name and version whether a limit has to be `global` for that."""
    names = [fresh() for _ in range(3)]
    for name in names:
        client.channel.queue_declare(name)
        client.publish(name, b"1", b"2")
    with kombu.Connection(server.url, heartbeat=0) as connection:
        assert not connection.qos_semantics_matches_spec
        channel = connection.channel()
        channel.basic_qos(0, 1, not connection.qos_semantics_matches_spec)
        seen: list[Any] = []
        for name in names:
            channel.basic_consume(name, no_ack=False, callback=seen.append)
        for number in range(1, 7):
            while len(seen) < number:
                connection.drain_events(timeout=60)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.1)
            assert len(seen) == number  # and not one from each queue
            channel.basic_ack(seen[-1].delivery_tag)


def test_f1_consumers_of_a_queue_with_rules_per_key(client: Client, server: RunningServer) -> None:
    """F1, F2: order per key holds over all consumers, whichever way they came; the key is a header of theirs."""
    name = fresh()
    client.channel.queue_declare(name)
    server.broker.configure_queue(name, ordered=True, flow_key="header:tenant")
    for number, tenant in enumerate("aabab"):
        client.publish(name, b"%d" % number, headers={"tenant": tenant})
    takers = [Taker(client, name, prefetch=10) for _ in range(2)]

    def bodies() -> list[bytes]:
        client.connection.process_data_events(0.05)
        return sorted(body for taker in takers for body in taker.bodies)

    eventually(lambda: bodies() == [b"0", b"2"])
    assert [body for taker in takers for body in taker.rest() if body not in (b"0", b"2")] == []
    for taker in takers:
        for method, body in taker.got:
            if body == b"0":
                taker.channel.basic_nack(method.delivery_tag, requeue=True)
    eventually(lambda: bodies() == [b"0", b"0", b"2"])
    for taker in takers:
        if taker.got and taker.got[-1][1] == b"0":
            taker.channel.basic_ack(taker.got[-1][0].delivery_tag)
    eventually(lambda: bodies() == [b"0", b"0", b"1", b"2"])
