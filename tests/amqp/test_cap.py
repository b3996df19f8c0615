"""M3: messages as .NET CAP sends and takes them, on a real RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from remuda.amqp import cap
from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.connection import Connection
from remuda.amqp.codec.properties import Properties, encode_properties
from remuda.amqp.codec.tables import Int64, RawText
from remuda.amqp.errors import ChannelClosed
from remuda.model.errors import InvalidMessage, InvalidOption


@pytest.fixture
def channel(broker_url: str) -> Iterator[Channel]:
    with Connection(broker_url) as connection:
        yield connection.channel(confirms=True)


def delivery(headers: dict[str, Any], body: bytes = b"{}") -> Delivery:
    return Delivery(1, 0, False, "cap.default.router", "key", encode_properties(Properties(headers=headers)), body)


def test_a_cap_service_finds_what_it_would_have_made(channel: Channel) -> None:
    """M3: the same declarations again, as CAP sends them, are no conflict; others are."""
    queue = cap.bind(channel, "cap.queue.shop", ["order.placed", "stock.#"])
    assert queue == "cap.queue.shop.v1"
    channel.declare_exchange("cap.default.router", "topic", durable=True)
    channel.declare_queue(queue, arguments={"x-message-ttl": 864000000})
    with pytest.raises(ChannelClosed, match="x-message-ttl"):
        channel.declare_queue(queue, arguments={"x-message-ttl": 5})
    for key in ("order.placed", "stock.left.berlin"):
        channel.publish("cap.default.router", key, b"{}", cap.properties("1", key), mandatory=True).wait(60)
    found = [channel.get(queue, no_ack=True) for _ in range(2)]
    assert [cap.read(one).name for one in found if one is not None] == ["order.placed", "stock.left.berlin"]
    assert cap.bind(channel, "cap.queue.shop", ["order.placed"]) == queue
    channel.delete_queue(queue)


def test_another_version_has_its_own_exchange(channel: Channel) -> None:
    queue = cap.bind(channel, "g", ["a"], version="v2", queue_type="quorum")
    assert (queue, cap.exchange_name("v2")) == ("g.v2", "cap.default.router.v2")
    channel.declare_queue(queue, arguments={"x-message-ttl": Int64(864000000), "x-queue-type": "quorum"})
    channel.delete_queue(queue)


def test_what_is_sent_is_all_texts() -> None:
    """M3: CAP casts every header to a text."""
    sent = datetime(2026, 5, 1, 12, tzinfo=UTC)
    raw = cap.properties("42", "order.placed", {cap.TYPE: "Order", "own": "x"}, sent=sent)
    found = delivery({}).__class__(1, 0, False, "", "", raw, b"").properties
    assert found.headers == {
        "cap-msg-id": "42", "cap-msg-name": "order.placed", "cap-senttime": "2026-05-01T12:00:00+00:00",
        "cap-msg-type": "Order", "own": "x",
    }  # fmt: skip
    assert (found.message_id, found.delivery_mode) == ("42", 2)
    for wrong in ({"own": 5}, {"own": None}):
        with pytest.raises(InvalidMessage, match="own must be a string"):
            cap.properties("1", "n", wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="cap-msg-id"):
        cap.properties("", "n")


def test_what_comes_in() -> None:
    """M3: also from clients that write numbers or bytes."""
    message = cap.read(
        delivery({"cap-msg-id": 7, "cap-msg-name": RawText(b"caf\xe9"), "cap-corr-seq": "3", "cap-callback-name": "cb"})
    )
    assert (message.id, message.name, message.correlation_sequence, message.callback) == ("7", "caf\ufffd", 3, "cb")


@pytest.mark.parametrize(
    "headers", [{}, {"cap-msg-id": "1"}, {"cap-msg-name": "n"}, {"cap-msg-id": "", "cap-msg-name": "n"}]
)
def test_the_two_required_headers(headers: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="is missing"):
        cap.read(delivery(headers))


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("05/01/2026 14:03:02", datetime(2026, 5, 1, 14, 3, 2, tzinfo=UTC)),
        ("5/1/2026 2:03:02 PM", datetime(2026, 5, 1, 14, 3, 2, tzinfo=UTC)),
        ("2026-05-01T14:03:02+00:00", datetime(2026, 5, 1, 14, 3, 2, tzinfo=UTC)),
        ("soon", None),
        ("", None),
    ],
)
def test_times_as_cap_writes_them(text: str, time: datetime | None) -> None:
    message = cap.read(delivery({"cap-msg-id": "1", "cap-msg-name": "n", "cap-senttime": text}))
    assert message.sent == time


@pytest.mark.parametrize("sequence", ["", "x", "-1", "٣", "9" * 50])
def test_a_sequence_that_makes_no_sense_is_the_first(sequence: str) -> None:
    message = cap.read(delivery({"cap-msg-id": "1", "cap-msg-name": "n", "cap-corr-seq": sequence}))
    assert message.correlation_sequence == 0


def test_wrong_arguments(channel: Channel) -> None:
    for group, names in (("", ["a"]), (5, ["a"]), ("g", "a")):
        with pytest.raises(InvalidOption):
            cap.bind(channel, group, names)  # type: ignore[arg-type]
