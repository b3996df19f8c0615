"""M3: messages to and from other systems, with CAP's headers."""

from __future__ import annotations

from typing import Any

import pytest

from remuda import Bus, Message
from remuda.bus.publishing import foreign, headers
from remuda.bus.publishing.foreign import Invalid
from remuda.bus.publishing.system_queues import UNROUTED
from remuda.bus.testing import ManualClock

REQUIRED = {"cap-msg-id": "42", "cap-msg-name": "order.placed"}
OTHERS = {
    "cap-msg-type": "Shop.Order",
    "cap-msg-group": "cap.queue.shop.v1",
    "cap-callback-name": "order.shipped",
    "cap-corr-id": "41",
    "cap-corr-seq": "3",
    "cap-exception": "TimeoutException-->no",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


def test_the_names_are_caps() -> None:
    """M3"""
    assert set(headers.REQUIRED) == {"cap-msg-id", "cap-msg-name"}
    named = {value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str)}
    assert {*REQUIRED, *OTHERS, "cap-senttime"} <= named


def test_a_message_with_all_headers_is_understood() -> None:
    """M3"""
    message = foreign.read({**REQUIRED, **OTHERS, "cap-senttime": "2030-01-02T03:04:05+01:00", "own": "x"}, b"{}")
    assert isinstance(message, Message)
    assert (message.id, message.name, message.body) == ("42", "order.placed", b"{}")
    assert message.mime_type == "application/json"
    assert message.timestamp == 1_893_549_845_000_000
    assert message.headers == {**OTHERS, "own": "x"}


def test_there_and_back_it_is_the_same() -> None:
    """M3"""
    said = {**REQUIRED, **OTHERS, "cap-senttime": "2030-01-02T03:04:05+00:00"}
    message = foreign.read(said, b"{}")
    assert isinstance(message, Message)
    assert foreign.headers_of(message) == said


def test_what_the_bus_publishes_carries_them() -> None:
    """M3"""
    bus = Bus()
    with bus.testing(clock=ManualClock(1_800_000_000_000_000)) as test:
        message = test.message(test.publish("order.placed", {"a": 1}, callback="order.shipped")).message
        said = foreign.headers_of(message, group="shop", exception="ValueError-->no")
    assert said == {
        "cap-msg-id": message.id,
        "cap-msg-name": "order.placed",
        "cap-msg-type": "dict",
        "cap-callback-name": "order.shipped",
        "cap-senttime": "2027-01-15T08:00:00+00:00",
        "cap-msg-group": "shop",
        "cap-exception": "ValueError-->no",
    }


def test_times_that_cannot_be_read_are_kept_as_they_are() -> None:
    """M3: CAP writes them as its culture does."""
    message = foreign.read({**REQUIRED, "cap-senttime": "1/2/2030 3:04:05 AM"}, b"")
    assert isinstance(message, Message)
    assert (message.timestamp, message.headers) == (None, {"cap-senttime": "1/2/2030 3:04:05 AM"})


def test_header_values_may_be_anything_that_a_wire_carries() -> None:
    """M3"""
    message = foreign.read(
        {"cap-msg-id": 42, "cap-msg-name": b"order.placed", "n": 1.5, "t": True, "no": None, "l": [1], "bad": b"\xff"},
        b"",
    )
    assert isinstance(message, Message)
    assert (message.id, message.name) == ("42", "order.placed")
    assert message.headers == {"n": "1.5", "t": "true", "l": "[1]", "bad": "\\xff"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (None, "cap-msg-id and cap-msg-name is missing"),
        ({}, "cap-msg-id and cap-msg-name is missing"),
        ({"cap-msg-id": "1"}, "cap-msg-name is missing"),
        ({"cap-msg-name": "x"}, "cap-msg-id is missing"),
        ({"cap-msg-id": "", "cap-msg-name": "x"}, "cap-msg-id is missing"),
        ({"cap-msg-id": None, "cap-msg-name": "x"}, "cap-msg-id is missing"),
        ({"cap-msg-id": "1" * 300, "cap-msg-name": "x"}, "longer than 255"),
        ({"cap-msg-id": "1", "cap-msg-name": "order.*"}, "wildcard"),
        ({"cap-msg-id": "1", "cap-msg-name": ".x"}, "no root"),
    ],
)
def test_without_the_required_headers_it_is_invalid_once(said: dict[str, Any] | None, reason: str) -> None:
    """M3: set aside with the reason and all it said; never requeued for ever."""
    found = foreign.read(said, b"body")
    assert isinstance(found, Invalid)
    assert reason in found.reason
    bus = Bus()
    bus.subscribe("#", queue="all")(lambda body: None)
    with bus.testing() as test:
        foreign.take_in(bus, said, b"body")
        assert test.run() == 1
        assert test.advance("30d") == 0
        letter = test.dead_letters(UNROUTED)[0]
        assert (letter.state.value, letter.body) == ("I", b"body")
        assert reason in letter.reason
        assert test.queue("all").counts == {}
        bus.reprocess(UNROUTED)
        assert test.run() == 1
        assert test.queue(UNROUTED).invalid == 1


def test_a_foreign_message_is_handled_like_any_other() -> None:
    """M3, B9: and its callback is answered."""
    seen: list[tuple[Any, str, str]] = []
    bus = Bus()

    @bus.subscribe("order.placed")
    def place(order: dict[str, int]) -> int:
        return order["id"]

    @bus.subscribe("order.shipped")
    def shipped(body: int, message: Message) -> None:
        seen.append((body, message.headers["cap-corr-id"], message.headers["cap-corr-seq"]))

    with bus.testing() as test:
        assert foreign.take_in(bus, {**REQUIRED, **OTHERS}, b'{"id": 7}') == "42"
        test.run()
    assert seen == [(7, "42", "4")]
