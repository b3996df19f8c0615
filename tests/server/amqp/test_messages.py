"""Messages on their way: confirms, returns, acknowledgements, dead letters, limits and time (S1)."""

from __future__ import annotations

import random
import time
from datetime import UTC
from typing import Any

import pika
import pika.exceptions
import pytest

from benchmarks.raw_amqp import Confirmed, RawClient
from remuda.amqp.codec.frames import add_content, method_frame
from remuda.amqp.codec.methods import BasicPublish, BasicReturn, ConfirmSelect, ConfirmSelectOk
from remuda.amqp.codec.properties import Properties, encode_properties
from tests.server.amqp.kit import Client, eventually, fresh
from tests.servers.amqpd import RunningServer


def test_properties_come_out_as_they_went_in(client: Client) -> None:
    """S3, M2."""
    name = fresh()
    client.channel.queue_declare(name)
    sent = pika.BasicProperties(
        content_type="text/plain", content_encoding="utf-8", delivery_mode=2, priority=7, correlation_id="c",
        reply_to="r", message_id="m", timestamp=1_700_000_000, type="t", app_id="a",
        headers={"int": 1, "long": 1 << 40, "text": "ä", "bool": False, "list": [1, "two", None], "table": {"x": -5},
                 "bytes": b"\x00\xff", "none": None},
    )  # fmt: skip
    client.channel.basic_publish("", name, b"body", sent)
    _, got, body = client.get(name)
    assert (got, body) == (sent, b"body")


def test_large_bodies_travel_in_several_frames(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    for size in (0, 1, 131064, 131065, 1_000_000):
        body = bytes(size)
        client.publish(name, body)
        assert client.get(name)[2] == body


def test_what_nobody_takes_is_returned_before_it_is_confirmed(client: Client) -> None:
    """S1."""
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        client.channel.basic_publish("amq.direct", "nowhere", b"back", mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text, returned.body) == (312, "NO_ROUTE", b"back")
    client.channel.basic_publish("amq.direct", "nowhere", b"gone")


def test_rejected_messages_come_back_in_their_old_order(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, b"1", b"2", b"3", b"4")
    held = [client.get(name, ack=False) for _ in range(3)]
    for method, _, _ in reversed(held):
        assert not method.redelivered
        client.channel.basic_nack(method.delivery_tag, requeue=True)
    again = [client.get(name) for _ in range(4)]
    assert [body for _, _, body in again] == [b"1", b"2", b"3", b"4"]
    assert [method.redelivered for method, _, _ in again] == [True, True, True, False]


def test_what_a_channel_held_goes_back_when_it_closes(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, b"1", b"2")
    channel = client.open()
    channel.basic_get(name)
    channel.close()
    method, _, body = client.get(name)
    assert (body, method.redelivered) == (b"1", True)


def test_an_unknown_tag_closes_the_channel(client: Client) -> None:
    """S1."""
    assert client.refused(lambda ch: ch.basic_ack(99)) == (406, "PRECONDITION_FAILED - unknown delivery tag 99")
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, b"1")

    def twice(channel: Any) -> None:
        method, _, _ = channel.basic_get(name)
        channel.basic_ack(method.delivery_tag)
        channel.basic_ack(method.delivery_tag)

    assert client.refused(twice) == (406, "PRECONDITION_FAILED - unknown delivery tag 1")


def test_acknowledging_many_at_once(server: RunningServer, client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, *(b"%d" % n for n in range(10)))
    channel = client.open()
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(10)]
    channel.basic_ack(tags[6], multiple=True)
    channel.close()
    assert client.bodies(name) == [b"7", b"8", b"9"]
    assert eventually(lambda: server.broker.queue(name).size == 0)


def test_messages_expire_by_their_own_time_and_by_the_queues(client: Client) -> None:
    """S1."""
    own, common = fresh(), fresh()
    client.channel.queue_declare(own)
    client.channel.queue_declare(common, arguments={"x-message-ttl": 100})
    client.publish(own, b"short", expiration="50")
    client.publish(own, b"long", expiration="3600000")
    client.publish(common, b"any")
    eventually(lambda: client.waiting(own) == 1 and client.waiting(common) == 0)
    assert client.bodies(own) == [b"long"]
    code, text = client.refused(lambda ch: ch.basic_publish("", own, b"x", pika.BasicProperties(expiration="soon")))
    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - invalid expiration 'soon'")


def _with_dead_letters(client: Client, **arguments: Any) -> tuple[str, str]:
    channel, queue, dead, exchange = client.channel, fresh(), fresh("dead"), fresh("dlx")
    channel.exchange_declare(exchange, "topic")
    channel.queue_declare(dead)
    channel.queue_bind(dead, exchange, "#")
    channel.queue_declare(queue, durable=True, arguments={"x-dead-letter-exchange": exchange, **arguments})
    return queue, dead


def test_dead_letters_tell_their_story(client: Client) -> None:
    """S1: x-death as RabbitMQ writes it."""
    queue, dead = _with_dead_letters(client, **{"x-dead-letter-routing-key": "died"})
    client.publish(queue, b"bad", headers={"mine": 1}, expiration="600000")
    method, _, _ = client.get(queue, ack=False)
    client.channel.basic_reject(method.delivery_tag, requeue=False)
    method, properties, body = client.get(dead)
    assert (body, method.routing_key, properties.headers["mine"]) == (b"bad", "died", 1)
    (death,) = properties.headers["x-death"]
    assert abs(death.pop("time").replace(tzinfo=UTC).timestamp() - time.time()) < 120
    assert death == {
        "count": 1, "reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue],
        "original-expiration": "600000",
    }  # fmt: skip
    assert properties.expiration is None
    assert properties.headers["x-first-death-reason"] == "rejected"
    assert properties.headers["x-first-death-queue"] == queue


def test_expired_and_evicted_messages_are_dead_letters_too(client: Client) -> None:
    """S1."""
    queue, dead = _with_dead_letters(client, **{"x-message-ttl": 50})
    client.publish(queue, b"late")
    _, properties, _ = client.get(dead)
    assert properties.headers["x-death"][0]["reason"] == "expired"
    queue, dead = _with_dead_letters(client, **{"x-max-length": 2})
    client.publish(queue, b"1", b"2", b"3")
    _, properties, body = client.get(dead)
    assert (properties.headers["x-death"][0]["reason"], body) == ("maxlen", b"1")
    assert client.bodies(queue) == [b"2", b"3"]


def test_a_dead_letter_waits_until_there_is_room_for_it(client: Client) -> None:
    """S1: a target that is full refuses it, which must not cost the letter."""
    queue, dead = fresh(), fresh("dead")
    client.channel.queue_declare(dead, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.channel.queue_declare(
        queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    )  # fmt: skip
    client.publish(queue, b"first", b"second")
    for _ in range(2):
        client.channel.basic_reject(client.get(queue, ack=False)[0].delivery_tag, requeue=False)
    assert [client.get(dead)[2], client.get(dead)[2]] == [b"first", b"second"]


def test_a_retry_queue_sends_messages_round_and_counts(client: Client) -> None:
    """S1: the usual pattern of delayed retries."""
    channel, work, wait = client.channel, fresh("work"), fresh("wait")
    dead_letter = {"x-dead-letter-exchange": ""}
    channel.queue_declare(work, arguments={**dead_letter, "x-dead-letter-routing-key": wait})
    channel.queue_declare(wait, arguments={**dead_letter, "x-dead-letter-routing-key": work, "x-message-ttl": 30})
    client.publish(work, b"again")
    for round_ in (1, 2):
        method, properties, _ = client.get(work, ack=False)
        assert [one["count"] for one in (properties.headers or {}).get("x-death", [])] == [round_ - 1] * 2 * (
            round_ > 1
        )
        channel.basic_reject(method.delivery_tag, requeue=False)
    _, properties, body = client.get(work)
    assert body == b"again"
    assert {(one["queue"], one["reason"], one["count"]) for one in properties.headers["x-death"]} == {
        (work, "rejected", 2), (wait, "expired", 2),
    }  # fmt: skip


def test_full_queues_drop_or_reject(client: Client) -> None:
    """S1."""
    channel, drops, rejects, letters = client.channel, fresh(), fresh(), fresh("dead")
    channel.queue_declare(drops, arguments={"x-max-length-bytes": 10})
    client.publish(drops, b"aaaa", b"bbbb", b"cccc")
    assert client.bodies(drops) == [b"bbbb", b"cccc"]
    channel.queue_declare(letters)
    channel.queue_declare(
        rejects, arguments={
            "x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": letters,
        },
    )  # fmt: skip
    client.publish(rejects, b"first")
    with pytest.raises(pika.exceptions.NackError):
        client.publish(rejects, b"second")
    assert client.get(letters)[2] == b"second"
    assert client.bodies(rejects) == [b"first"]


def test_priorities_count_only_where_the_queue_has_them(client: Client) -> None:
    """S1."""
    plain, ranked = fresh(), fresh()
    client.channel.queue_declare(plain)
    client.channel.queue_declare(ranked, arguments={"x-max-priority": 5})
    for queue in (plain, ranked):
        for priority in (0, 3, 200, 5):
            client.publish(queue, b"%d" % priority, priority=priority)
    assert client.bodies(plain) == [b"0", b"3", b"200", b"5"]
    assert client.bodies(ranked) == [b"200", b"5", b"3", b"0"]


def test_a_message_delivered_too_often_dies(client: Client) -> None:
    """S1."""
    queue, dead = _with_dead_letters(client, **{"x-queue-type": "quorum", "x-delivery-limit": 2})
    client.publish(queue, b"poison")
    seen = []
    channel = client.open()
    channel.basic_qos(prefetch_count=1)
    deadline = time.monotonic() + 60
    for method, properties, _ in channel.consume(queue, inactivity_timeout=0.1):
        if method is None:
            if client.waiting(dead):
                break
            assert time.monotonic() < deadline
            continue
        seen.append((properties.headers or {}).get("x-delivery-count"))
        channel.basic_nack(method.delivery_tag, requeue=True)
    channel.close()
    assert seen == [None, 1, 2]
    _, properties, body = client.get(dead)
    assert (body, properties.headers["x-death"][0]["reason"]) == (b"poison", "delivery_limit")


def test_copies_by_header(client: Client) -> None:
    """S1: CC and BCC."""
    queues = [fresh() for _ in range(3)]
    for queue in queues:
        client.channel.queue_declare(queue)
    client.publish(queues[0], b"copy", headers={"CC": [queues[1]], "BCC": [queues[2]]})
    for queue in queues:
        _, properties, body = client.get(queue)
        assert (body, properties.headers) == (b"copy", {"CC": [queues[1]]})
    assert client.refused(
        lambda ch: ch.basic_publish("", queues[0], b"x", pika.BasicProperties(headers={"CC": "one"}))
    )[0] == 406  # fmt: skip


def test_a_foreign_user_id_is_refused(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, b"mine", user_id="guest")
    code, text = client.refused(lambda ch: ch.basic_publish("", name, b"x", pika.BasicProperties(user_id="root")))
    assert code == 406
    assert text == "PRECONDITION_FAILED - user_id property set to 'root' but authenticated user was 'guest'"


def test_transactions(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, b"there")
    channel = client.open(confirms=False)
    channel.tx_select()
    channel.basic_publish("", name, b"dropped")
    method, _, _ = channel.basic_get(name)
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    assert client.waiting(name) == 0
    channel.basic_publish("", name, b"kept")
    assert client.waiting(name) == 0
    channel.basic_ack(method.delivery_tag)
    channel.tx_commit()
    assert client.bodies(name) == [b"kept"]
    assert client.refused(lambda ch: (ch.confirm_delivery(), ch.tx_select()))[0] == 406
    assert client.refused(lambda ch: ch.tx_commit()) == (406, "PRECONDITION_FAILED - channel is not transactional")


def test_recover_delivers_again(client: Client) -> None:
    """S1."""
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, b"1", b"2")
    channel = client.open()
    first = [channel.basic_get(name) for _ in range(2)]
    assert [body for _, _, body in first] == [b"1", b"2"]
    channel.basic_recover(requeue=True)
    again = [channel.basic_get(name, auto_ack=True) for _ in range(2)]
    assert [(body, method.redelivered) for method, _, body in again] == [(b"1", True), (b"2", True)]


def test_direct_replies(server: RunningServer, client: Client) -> None:
    """S1."""
    queue, replies = fresh(), []
    client.channel.queue_declare(queue)
    asking = client.open(confirms=False)
    asking.basic_consume("amq.rabbitmq.reply-to", lambda ch, m, p, body: replies.append((m, p, body)), auto_ack=True)
    asking.basic_publish(
        "", queue, b"question", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    )
    with Client(server.url) as answering:
        _, properties, body = answering.get(queue)
        assert properties.reply_to.startswith("amq.rabbitmq.reply-to.")
        answering.channel.queue_declare(properties.reply_to, passive=True)
        answering.publish(properties.reply_to, b"answer to " + body, correlation_id=properties.correlation_id)
        deadline = time.monotonic() + 60
        while not replies and time.monotonic() < deadline:
            client.connection.process_data_events(0.1)
        ((_, got, answer),) = replies
        assert (answer, got.correlation_id) == (b"answer to question", "7")
        asking.close()
        code, _ = answering.refused(lambda ch: ch.queue_declare(properties.reply_to, passive=True))
        assert code == 404
    assert client.refused(lambda ch: ch.basic_consume("amq.rabbitmq.reply-to", print, auto_ack=False))[0] == 406
    assert client.refused(
        lambda ch: ch.basic_publish("", queue, b"x", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    ) == (406, "PRECONDITION_FAILED - fast reply consumer does not exist")


def test_what_a_channel_publishes_to_several_exchanges_stays_in_order(server: RunningServer, client: Client) -> None:
    """S1: however it is cut up on its way, each is confirmed once, and what is returned is returned before that."""
    name, count = fresh(), 400
    client.channel.queue_declare(name)
    client.channel.queue_bind(name, "amq.direct", name)
    publisher = RawClient(server.url)
    publisher.ask(ConfirmSelect(), ConfirmSelectOk)
    frames: list[bytes] = []
    nowhere = set(range(0, count, 50))
    for row in range(count):
        method = BasicPublish(0, "amq.direct" if row // 7 % 2 else "", "nowhere" if row in nowhere else name, True)
        add_content(frames, method_frame(1, method), 1, encode_properties(Properties()), b"%d" % row)
    sent = b"".join(frames)
    pieces = random.Random(7)
    at = 0
    confirmed, returned = Confirmed(), []
    while at < len(sent):
        step = pieces.choice((1, 100, 1000, 5000))
        publisher.sock.sendall(sent[at : at + step])
        at += step
    while len(confirmed) < count:
        for event in publisher.read():
            if isinstance(event[1], BasicReturn):
                returned.append(int(event[3] or b""))
                assert returned[-1] >= len(confirmed)
            else:
                confirmed.add([event])
    publisher.close()
    assert (len(confirmed), returned) == (count, sorted(nowhere))
    bodies = [int(client.get(name)[2]) for _ in range(count - len(nowhere))]
    assert bodies == [row for row in range(count) if row not in nowhere]
