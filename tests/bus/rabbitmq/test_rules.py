"""Settings, middleware, tests in memory, and filters of operators: the same on RabbitMQ as in a directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from remuda import Bus, Context, InvalidOption, Middleware, Refused, Unsupported, message
from tests.bus.kit import eventually
from tests.bus.rabbitmq.conftest import MakeBus

SOON = 60.0


def test_b3_the_more_specific_setting_wins(make_bus_here: MakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """B3: from code, properties and the environment, whatever broker carries the messages."""
    monkeypatch.setenv("REMUDA_MESSAGE_RETRY_MAX", "3")
    tries: dict[str, int] = {"named": 0, "coded": 0}
    bus = make_bus_here(settings={"message.retry.max.named": 1})

    @bus.subscribe("named", queue="named")
    def named(body: int) -> None:
        tries["named"] += 1
        raise ValueError("no")

    @bus.subscribe("coded", queue="coded", retry=["50ms", "50ms"])
    def coded(body: int) -> None:
        tries["coded"] += 1
        raise ValueError("no")

    bus.start()
    bus.publish("named", 1)
    bus.publish("coded", 1)
    eventually(lambda: bus.broker.queue("named").dead == bus.broker.queue("coded").dead == 1, SOON)
    assert tries == {"named": 2, "coded": 3}


def test_b3_an_impossible_setting_is_refused_at_start(clean_url: str) -> None:
    """B3: with its name, before anything is made in RabbitMQ."""
    with pytest.raises(InvalidOption, match=r"message\.retry\.max"):
        Bus(clean_url, settings={"message.retry.max": "many"})


class _Notes(Middleware):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def before_handle(self, context: Context) -> None:
        self.notes.append(f"{self.name} before")

    def after_handle(self, context: Context, result: Any) -> Any:
        self.notes.append(f"{self.name} after {result}")
        return result

    def handle_error(self, context: Context, error: BaseException) -> Any:
        self.notes.append(f"{self.name} error {error}")


def test_b11_middleware_stands_around_handlers_in_order(make_bus_here: MakeBus) -> None:
    """B11"""
    notes: list[str] = []
    bus = make_bus_here(middleware=[_Notes("outer", notes), _Notes("inner", notes)])

    @bus.subscribe("x", queue="q", retry=0)
    def handle(body: int) -> int:
        if body == 2:
            raise ValueError("no")
        return body

    bus.start()
    bus.publish("x", 1)
    eventually(lambda: len(notes) == 4, SOON)
    bus.publish("x", 2)
    eventually(lambda: bus.broker.queue("q").dead == 1, SOON)
    assert notes == [
        "outer before", "inner before", "inner after 1", "outer after 1",
        "outer before", "inner before", "inner error no", "outer error no",
    ]  # fmt: skip


def test_b18_an_application_for_rabbitmq_is_tested_in_memory() -> None:
    """B18: in two lines, with no server at all: nobody listens at its URL."""
    bus = Bus("amqp://guest:guest@127.0.0.1:9/")
    seen: list[int] = []

    @bus.subscribe("x", retry=["1h"])
    def handle(body: int, context: Context) -> None:
        seen.append(context.attempt)
        if context.attempt == 1:
            raise ValueError("no")

    with bus.testing() as test:
        test.publish("x", 1)
        test.run()
        test.advance("2h")
    assert seen == [1, 2]


def test_b15_what_waits_is_cleared_by_filter(make_bus_here: MakeBus) -> None:
    """B15: RabbitMQ shows what waits only by delivering it; what stays keeps its place and its attempts."""
    bus = make_bus_here()
    seen: list[tuple[str, int]] = []

    @bus.subscribe("keep", "drop", queue="q")
    def handle(body: str, context: Context) -> None:
        seen.append((body, context.attempt))

    for number in range(3):
        bus.publish("keep", f"keep {number}")
        bus.publish("drop", f"drop {number}", id=f"own {number}")
    assert len(bus.broker.waiting("q")) == 6
    assert bus.clear("q", topic="drop", who="ann") == 3
    assert {letter.reason for letter in bus.dead_letters("q")} == {"cleared"}
    bus.start()
    eventually(lambda: len(seen) == 3, SOON)
    assert seen == [("keep 0", 1), ("keep 1", 1), ("keep 2", 1)]


@message("order.typed", queue="typed", message_limit=2, message_timeout="1h")
@dataclass
class Typed:
    number: int


def test_b21_a_type_carries_its_queue_and_options(make_bus_here: MakeBus) -> None:
    """B21: the publisher creates the queue with them, and its handler finds it so."""
    got: list[int] = []
    bus = make_bus_here()
    for number in range(2):
        bus.publish(Typed(number))

    def overfill() -> None:
        for number in range(2, 50):  # a quorum queue's limit is not exact
            bus.publish(Typed(number))

    with pytest.raises(Refused):
        overfill()

    @bus.subscribe(Typed)
    def handle(body: Typed) -> None:
        got.append(body.number)

    assert bus.broker.queue("typed").options.message_limit == 2
    bus.start()
    eventually(lambda: got[:2] == [0, 1], SOON)


def test_b21_what_rabbitmq_cannot_do_is_refused_by_name(make_bus_here: MakeBus) -> None:
    bus = make_bus_here()
    bus.subscribe("x", queue="odd", delay_between_messages="1s")(lambda body: None)
    with pytest.raises(Unsupported, match="delay_between_messages"):
        bus.start()
