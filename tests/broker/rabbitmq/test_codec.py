"""A message on the wire and back, without a server."""

from __future__ import annotations

import msgspec
import pytest

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.broker.rabbitmq.consuming.delivery_groups import as_messages, decode_all, read_groups
from remuda.broker.rabbitmq.publishing import codec
from remuda.model.errors import InvalidMessage
from remuda.model.message import Message
from remuda.model.messages import Messages

NOW = 1_794_808_608_451_544


def round_trip(messages: Messages) -> list[Message]:
    raw = codec.encode(messages, NOW)
    deliveries = [
        Delivery(at, 0, False, "", "q", properties, body)
        for at, (properties, body) in enumerate(zip(raw, messages.bodies, strict=True))
    ]
    alone = [codec.decode(delivery, NOW).message for delivery in deliveries]
    together = [incoming.message for incoming in decode_all(deliveries, NOW)]
    assert alone == together
    assert list(as_messages(read_groups(deliveries, NOW))) == together
    return together


@pytest.mark.parametrize(
    "ids", [range(5 << 40, (5 << 40) + 4 * 1024, 1024), ["a", "b", "ü", "0"], ["1", "11", "1", "2"]]
)
def test_m2_a_uniform_batch_comes_back_as_it_went(ids: range | list[str]) -> None:
    """M2: encoded at once, and decoded by likeness, with ids of any length, also where an id is part of other texts."""
    sent = Messages(
        bodies=[b"0", b"", b"2", b"3"], name="1.a.b", ids=ids, created=NOW, headers={"1": "a", "b": "11"}, key="1",
        object="b", priority=3,
    )  # fmt: skip
    assert round_trip(sent) == list(sent)


def test_m2_a_mixed_batch_comes_back_as_it_went() -> None:
    rows = [
        Message("a", b"0", "1", created=NOW),
        Message("b", b"1", "2", created=NOW, headers={"CC": "x", "": "empty", "n" * 300: "long"}),
        Message("b", b"2", "3", ("b", "c.d"), "o", "k", 5, "text/x", {"ü": "✓"}, 31, NOW, NOW + 10, NOW + 5),
    ]
    assert round_trip(Messages.of(rows)) == rows


def test_headers_that_fit_no_frame_are_refused() -> None:
    with pytest.raises(InvalidMessage, match=r"fit into a frame.*Nothing was stored"):
        codec.encode(Messages(bodies=[b""], name="a", ids=["1"], headers={"big": "x" * 200_000}), NOW)


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\xff\xff", b"\x20\x00\x00\x00\x00\x09", b"\x00\x00"])
def test_m3_bytes_that_are_no_message_are_told_as_such(raw: bytes) -> None:
    incoming = codec.decode(Delivery(1, 0, False, "", "q", raw, b"body"), NOW)
    assert incoming.invalid is not None
    assert incoming.message.body == b"body"
    again = codec.again(incoming, {"failed": 5}, {codec.REASON: "why", codec.STATE: "I"})
    parked = codec.decode(Delivery(1, 0, False, "", "q", again, b"body"), NOW)
    assert codec.state_of(parked) == ("I", "why", 5)


def test_attempts_and_history_travel() -> None:
    raw = codec.encode(Messages(bodies=[b""], name="a", ids=["1"], created=NOW), NOW)[0]
    item = codec.decode(Delivery(1, 0, False, "", "q", raw, b""), NOW)
    assert (item.attempt, item.redelivered, item.history) == (1, False, [])
    for attempt in range(1, 30):
        failed = codec.Attempt("me", attempt, attempt + 1, "no")
        properties = codec.again(item, {"attempts": item.attempt, "again": True}, codec.with_history(item, failed))
        item = codec.decode(msgspec.structs.replace(item.delivery, raw_properties=properties), NOW)
        assert (item.attempt, item.redelivered) == (attempt + 1, True)
    assert [one.fetched for one in item.history] == list(range(30 - codec.HISTORY_KEPT, 30))


def test_messages_published_one_by_one_are_decoded_together() -> None:
    """They differ in id and time alone; those that differ in more make a group of their own."""
    deliveries = []
    for at in range(10):
        columns = Messages(
            bodies=[b"%d" % at], name="a" if at < 8 else "b", ids=[str((5 << 40) + at)], created=NOW + at,
            headers={"who": "ann"},
        )  # fmt: skip
        (raw,) = codec.encode(columns, NOW + 1_000_003 * at)
        deliveries.append(Delivery(at, 0, False, "", "q", raw, b"%d" % at))
    groups = read_groups(deliveries, NOW)
    assert [len(group) for group in groups] == [8, 2]
    assert [item.message for group in groups for item in group.items()] == [
        codec.decode(one, NOW).message for one in deliveries
    ]
    assert [item.meta.created for item in groups[0].items()] == [NOW + at for at in range(8)]
    assert [item.number for item in groups[0].choose([2, 5]).items()] == [(5 << 40) + 2, (5 << 40) + 5]


@pytest.mark.parametrize("odd", [(), (0,), (9, 10), (8,), (30, 31, 149), (63, 64, 65), tuple(range(0, 60, 2))])
def test_m2_messages_that_differ_stand_between_those_that_are_alike(odd: tuple[int, ...]) -> None:
    """M2: runs of likeness begin and end anywhere, whatever it is that differs."""
    rows = []
    for row in range(150):
        message = Message("a.b", b"%d" % row, str((5 << 40) + row), created=NOW)
        if row in odd:
            changes = ({"name": "a.c"}, {"id": f"own-{row}"}, {"headers": {"h": "x"}}, {"id": "ü" * 6 + f"{row:07}"})
            message = msgspec.structs.replace(message, **changes[row % 4])
        rows.append(message)
    assert round_trip(Messages.of(rows)) == rows
