"""B21: a queue's options stand where its handler does, and a type may carry its topic, queue and options."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from remuda import Bus, InvalidMessage, InvalidOption, QueueFull, handles, message
from tests.bus.kit import eventually


@message("order.placed", queue="orders", message_limit=2, put_back="priority", message_timeout="1h")
@dataclass
class Order:
    id: int


def test_b21_options_of_the_queue_stand_at_its_handler(tmp_path: Path) -> None:
    """Q6, Q9, Q12: they are the queue's, also for whoever publishes before it runs; changed code changes them."""
    with Bus(tmp_path / "d") as bus:

        @bus.subscribe("x", queue="q", message_limit=2, put_back="priority", unique_ids=True, message_timeout="1h")
        def handle(body: Any) -> None: ...

        bus.publish("x", 1, id="a")
        options = bus.broker.queue("q").options
        assert (options.message_limit, options.put_back, options.unique_ids) == (2, "priority", True)
        assert options.message_timeout == 3600 * 1_000_000
        bus.publish("x", 2)
        with pytest.raises(QueueFull):
            bus.publish("x", 3)
    with Bus(tmp_path / "d") as bus:

        @bus.subscribe("x", queue="q", message_limit=3, unique_ids=True)
        def handle_again(body: Any) -> None: ...

        bus.publish("x", 3)
        assert bus.broker.queue("q").options.message_limit == 3


def test_b21_impossible_options_are_refused_where_they_are_written() -> None:
    bus = Bus()
    for options in ({"message_limit": -1}, {"put_back": "sometimes"}, {"message_timeout": "5 parsecs"}):
        (name,) = options
        with pytest.raises(InvalidOption, match=name):
            bus.subscribe("x", **options)
    with pytest.raises(TypeError, match="unknown option 'type'"):
        bus.subscribe("x", type="push")  # type: ignore[call-arg]
    bus.subscribe("x", queue="q", message_limit=1)(lambda body: None)
    with pytest.raises(InvalidOption, match="differ in their options"):
        bus.subscribe("y", queue="q", message_limit=2)(lambda body: None)


def test_b21_a_type_carries_its_topic_queue_and_options() -> None:
    bus, got = Bus("memory://"), list[Order]()

    @bus.subscribe(Order)
    def ship(order: Order) -> None:
        got.append(order)

    with bus.testing() as test:
        number = bus.publish(Order(7))
        info = bus.broker.queue("orders")
        assert (info.options.message_limit, info.options.put_back) == (2, "priority")
        assert [(one.id, one.name) for one in test.published()] == [(number, "order.placed")]
        test.run(raise_errors=True)
        test.send(Order(8))
        bus.publish("order.placed", Order(9))
        assert len(bus.publish_many(Order, [Order(10)])) == 1
        test.run(raise_errors=True)
        with pytest.raises(InvalidMessage, match="a topic must be a string"):
            bus.publish_many(int, [1])
    assert got == [Order(7), Order(8), Order(9), Order(10)]


def test_b21_the_publisher_may_come_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Q13: the queue is there with its options before any handler, and whoever comes second finds them equal."""
    with Bus(tmp_path / "d", prefix="shop.") as bus:
        for number in range(2):
            bus.publish(Order(number))
        with pytest.raises(QueueFull):
            bus.publish(Order(2))
        assert bus.broker.queue("shop.orders").waiting == 2
    got: list[int] = []
    with Bus(tmp_path / "d", prefix="shop.") as bus:

        class Shop:
            @handles(Order)
            def ship(self, order: Order) -> None:
                got.append(order.id)

        bus.subscribe_class(Shop())
        bus.start()
        eventually(lambda: got == [0, 1])
    assert "other options" not in caplog.text


def test_b21_a_queue_that_exists_with_other_options_keeps_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Bus(tmp_path / "d") as bus:
        bus.broker.create_queue("orders", type="pull", message_limit=9)
        with caplog.at_level(logging.WARNING):
            bus.publish(Order(1))
            bus.publish(Order(2))
        assert bus.broker.queue("orders").options.message_limit == 9
        assert caplog.text.count("exists with other options") == 1
        assert "message_limit" in caplog.text


def test_b21_every_kind_of_type_can_carry_one() -> None:
    @message("a")
    class Struct(msgspec.Struct):
        n: int = 1

    @message("b")
    class Model(pydantic.BaseModel):
        n: int = 2

    @dataclass(slots=True)
    @message("c")
    class Slots:
        n: int = 3

    @message("d")
    class Text(str): ...

    class Heir(Struct):
        pass

    bus = Bus("memory://")
    with bus.testing() as test:
        for value in (Struct(), Model(), Slots(), Text("e")):
            bus.publish(value)
        bus.publish(Text("e"), 5)
        assert [(one.name, one.body) for one in test.published()] == [
            ("a", b'{"n":1}'), ("b", b'{"n":2}'), ("c", b'{"n":3}'), ("d", b'"e"'), ("e", b"5"),
        ]  # fmt: skip
        with pytest.raises(InvalidMessage, match="carries its topic with"):
            bus.publish(Heir())
        with pytest.raises(InvalidMessage, match="must be a string"):
            bus.publish(Struct(), 5)


def test_b21_nonsense_is_refused() -> None:
    bus = Bus()

    class Unmarked: ...

    with pytest.raises(InvalidOption, match="Unmarked carries no topic"):
        bus.subscribe(Unmarked)
    with pytest.raises(InvalidOption, match="marks a class"):
        message("x")(lambda: None)  # type: ignore[type-var]
    with pytest.raises(InvalidOption, match="wildcard"):
        message("x.*")
    with pytest.raises(InvalidOption, match="name it: queue="):
        message("x", message_limit=1)
    with pytest.raises(TypeError, match="unknown option 'colour'"):
        message("x", queue="q", colour="red")  # type: ignore[call-arg]
