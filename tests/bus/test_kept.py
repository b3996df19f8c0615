"""B13: what nobody can handle is kept with the reason, visible and reprocessable; never lost, never a hot loop."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from remuda import Bus, Message
from remuda.model.queues.system_queues import UNROUTED
from tests.bus.kit import eventually, running, state


class Order(msgspec.Struct):
    number: int


@pytest.fixture
def bus() -> Bus:
    return Bus()


class TestNoSubscriber:
    def test_is_kept_with_the_reason(self, bus: Bus) -> None:
        """B13"""
        with bus.testing() as test:
            message = test.publish("lonely", {"a": 1})
            test.run()
            letter = test.dead_letters(UNROUTED)[0]
            assert (letter.id, letter.topic, letter.body) == (message, "lonely", b'{"a":1}')
            assert letter.reason == "nobody is subscribed to lonely"
            assert state(bus, message, UNROUTED) == "E"

    def test_is_handled_once_and_left_alone(self, bus: Bus) -> None:
        """B13: never a hot loop."""
        with bus.testing() as test:
            test.publish("lonely")
            assert test.run() == 1
            assert test.advance("14d") == 0

    def test_goes_to_those_who_subscribed_since_when_it_is_reprocessed(self, bus: Bus) -> None:
        """B13"""
        seen: list[tuple[str, int]] = []
        with bus.testing() as test:
            message = test.publish("lonely", 1, headers={"h": "v"})
            test.run()

            @bus.subscribe("lonely", queue="a")
            def first(body: int, message: Message) -> None:
                seen.append((message.id + message.headers["h"], body))

            @bus.subscribe("*", queue="b")
            def second(body: int) -> None:
                seen.append(("second", body))

            assert bus.reprocess(UNROUTED) == 1
            test.run()
        assert sorted(seen) == sorted([(message + "v", 1), ("second", 1)])

    def test_reprocessed_without_a_subscriber_it_is_kept_again(self, bus: Bus) -> None:
        """B13"""
        with bus.testing() as test:
            test.publish("lonely")
            test.run()
            bus.reprocess(UNROUTED)
            assert test.run() == 1
            assert test.queue(UNROUTED).dead == 1

    def test_it_is_told_once_for_each_topic(self, bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
        """B13"""
        with caplog.at_level(logging.WARNING, "remuda.bus"), bus.testing() as test:
            bus.publish_many("lonely", range(50))
            test.publish("other")
            test.run()
        assert [record.getMessage().split(";")[0] for record in caplog.records] == [
            "nobody is subscribed to lonely", "nobody is subscribed to other",
        ]  # fmt: skip

    def test_a_body_that_cannot_be_decoded_does_not_matter_there(self, bus: Bus) -> None:
        """B13"""
        with bus.testing() as test:
            test.publish("lonely", b"{", mime_type="application/json")
            test.run()
            assert test.dead_letters(UNROUTED)[0].reason == "nobody is subscribed to lonely"

    def test_a_queue_removed_meanwhile_makes_no_circle(self, bus: Bus) -> None:
        """B13: never a hot loop."""
        bus.subscribe("x", queue="q")(lambda body: None)
        with bus.testing() as test:
            bus.broker.remove_queue("q")
            test.publish("x")
            assert test.bus.broker.queue(UNROUTED).waiting == 1
            processors = [processor for processor in bus.processors() if processor.queue == UNROUTED]
            assert test._round(processors[0]) == 1
            assert test._round(processors[0]) == 0

    def test_while_running(self, bus: Bus) -> None:
        """B13"""
        with running(bus):
            bus.publish_many("lonely", range(100))
            eventually(lambda: bus.broker.queue(UNROUTED).dead == 100)


class TestUndecodable:
    @pytest.mark.parametrize(
        ("body", "mime_type"),
        [
            (b"{", "application/json"),
            (b'{"number": "one"}', "application/json"),
            (b"\xc1", "application/msgpack"),
            (b"", "application/json"),
            (b"\x08\x96\x01", "application/x-protobuf"),
            (b"\x89PNG", "image/png"),
        ],
    )
    def test_is_invalid_and_kept(self, bus: Bus, body: bytes, mime_type: str) -> None:
        """B13: also where the type is unknown."""
        calls: list[Any] = []

        @bus.subscribe("x", queue="q")
        def handle(order: Order) -> None:
            calls.append(order)

        with bus.testing() as test:
            message = test.publish("x", body, mime_type=mime_type)
            assert test.run() == 1
            assert test.advance("14d") == 0
            assert state(bus, message, "q") == "I"
            letter = test.dead_letters("q")[0]
            assert letter.body == body
            assert letter.reason.startswith(f"undecodable: the {mime_type} body of {len(body)} bytes is not an Order")
        assert calls == []

    def test_is_handled_when_reprocessed_by_one_who_understands_it(self, bus: Bus) -> None:
        """B13"""
        bus.subscribe("x", queue="q")(takes_order)
        with bus.testing() as test:
            test.publish("x", "text")
            test.run()
            del bus.handlers[:]
            seen: list[str] = []
            bus.subscribe("x", queue="q")(lambda body: seen.append(body))
            assert bus.reprocess("q") == 1
            test.run()
        assert seen == ["text"]

    def test_its_neighbours_go_on(self, bus: Bus) -> None:
        """B13"""
        seen: list[int] = []

        @bus.subscribe("x", queue="q")
        def handle(order: Order) -> None:
            seen.append(order.number)

        with running(bus):
            bus.publish_messages([Message("x", b'{"number": 1}'), Message("x", b"?"), Message("x", b'{"number": 3}')])
            eventually(lambda: seen == [1, 3])
            eventually(lambda: bus.broker.queue("q").invalid == 1)


def takes_order(order: Order) -> None: ...


def test_a_message_that_no_handler_of_its_queue_takes_is_dead_with_the_reason(bus: Bus) -> None:
    """B13: such as one that was put there by hand."""
    bus.subscribe("a", group="g")(lambda body: None)
    bus.subscribe("b", group="g")(takes_order)
    with bus.testing() as test:
        bus.broker.publish(Message("c", b"1"), queue="g")
        test.run()
        assert test.dead_letters("g")[0].reason == "no handler of g takes c"
