"""Q19: handlers hear what happens in queues, and cannot stop them."""

from __future__ import annotations

import threading

import pytest

from remuda.broker.port import Broker
from remuda.model.errors import InvalidOption
from remuda.model.message import Message
from remuda.model.queues.notices import Notice, NoticeKind
from tests.conformance.kit import SOON, Conformance, Notebook, bodies_of, eventually, numbered, pulled, received


class Events(Conformance):
    def test_q19_queue_created_and_removed(self, broker: Broker) -> None:
        notebook = Notebook(broker)
        broker.create_queue("orders")
        broker.publish(numbered(1, "more"))
        broker.remove_queue("orders")
        assert notebook.the(NoticeKind.QUEUE_CREATED, "more").time > 0
        notebook.the(NoticeKind.QUEUE_REMOVED, "orders")
        assert notebook.kinds("orders") == [NoticeKind.QUEUE_CREATED, NoticeKind.QUEUE_REMOVED]

    def test_q19_consumer_subscribed_and_unsubscribed(self, broker: Broker) -> None:
        notebook = Notebook(broker)
        broker.subscribe("orders", consumer="anna").close()
        assert notebook.the(NoticeKind.CONSUMER_SUBSCRIBED).consumer == "anna"
        assert notebook.the(NoticeKind.CONSUMER_UNSUBSCRIBED).consumer == "anna"

    def test_q14_q19_every_status_change_is_told(self, broker: Broker) -> None:
        notebook = Notebook(broker)
        broker.subscribe("orders")
        broker.publish(numbered(1))
        for status in ("paused", "paused", "only-publish", "only-consume", "running"):
            broker.set_status("orders", status)
        told = ["running", "paused", "only-publish", "only-consume", "running"]

        def changes() -> list[str | None]:
            return [one.detail for one in notebook.notices if one.kind is NoticeKind.STATUS_CHANGED]

        eventually(lambda: len(changes()) >= len(told))
        assert changes() == told

    def test_q19_produced_consumed_acknowledged(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        notebook = Notebook(broker)
        receipt = broker.publish(numbered(3))
        pulled(broker, count=2, consumer="anna").ack()
        produced = notebook.the(NoticeKind.PRODUCED)
        consumed = notebook.the(NoticeKind.CONSUMED)
        answered = notebook.the(NoticeKind.ACKNOWLEDGED)
        assert (produced.first, produced.count) == (receipt.first, 3)
        assert (consumed.first, consumed.count, consumed.consumer) == (receipt.first, 2, "anna")
        assert (answered.first, answered.count, answered.consumer) == (receipt.first, 2, "anna")
        assert answered.detail == "acknowledge"

    def test_q19_a_negative_answer_is_told_as_such(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        notebook = Notebook(broker)
        broker.publish(numbered(1))
        pulled(broker).nack()
        assert notebook.the(NoticeKind.ACKNOWLEDGED).detail == "negative"

    def test_q19_message_timed_out(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_timeout="20ms")
        notebook = Notebook(broker)
        receipt = broker.publish(numbered(2))
        notice = notebook.the(NoticeKind.TIMED_OUT)
        assert (notice.first, notice.count) == (receipt.first, 2)

    def test_q19_acknowledge_timed_out(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", acknowledge_timeout="20ms")
        notebook = Notebook(broker)
        receipt = broker.publish(numbered(1))
        pulled(broker)
        assert notebook.the(NoticeKind.ACKNOWLEDGE_TIMED_OUT).first == receipt.first

    def test_q19_a_failing_handler_stops_nothing(self, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
        def fail(notice: Notice) -> None:
            raise RuntimeError("boom")

        broker.on_notice(fail)
        notebook = Notebook(broker)
        consumer = broker.subscribe("orders")
        broker.publish(numbered(3))
        assert bodies_of(consumer, 3) == [b"0", b"1", b"2"]
        eventually(lambda: notebook.kinds().count(NoticeKind.ACKNOWLEDGED) == 3)
        assert "a handler failed on" in caplog.text

    def test_q19_a_slow_handler_stops_nothing(self, broker: Broker) -> None:
        go_on, entered = threading.Event(), threading.Event()

        def linger(notice: Notice) -> None:
            entered.set()
            go_on.wait(SOON)

        broker.on_notice(linger)
        try:
            consumer = broker.subscribe("orders")
            broker.publish(numbered(3))
            assert entered.wait(SOON)
            assert bodies_of(consumer, 3) == [b"0", b"1", b"2"]
            assert broker.queue("orders").size == 0
        finally:
            go_on.set()

    def test_q19_a_handler_may_use_the_broker(self, broker: Broker) -> None:
        def echo(notice: Notice) -> None:
            if notice.kind is NoticeKind.PRODUCED and notice.queue == "orders":
                broker.publish(numbered(1, "echo"))

        broker.on_notice(echo)
        consumer = broker.subscribe("echo")
        broker.publish(numbered(1))
        assert received(consumer).bodies == [b"0"]

    def test_q19_notices_come_in_order(self, broker: Broker) -> None:
        notebook = Notebook(broker)
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        pulled(broker).ack()
        eventually(lambda: len(notebook.notices) >= 4)
        assert notebook.kinds("orders") == [
            NoticeKind.QUEUE_CREATED,
            NoticeKind.PRODUCED,
            NoticeKind.CONSUMED,
            NoticeKind.ACKNOWLEDGED,
        ]

    def test_q19_a_handler_that_ends_itself_ends_nobody_else(self, broker: Broker) -> None:
        def leave(notice: Notice) -> None:
            raise SystemExit

        broker.on_notice(leave)
        notebook = Notebook(broker)
        broker.create_queue("orders", type="pull")
        broker.publish(Message("orders", b"0"))
        notebook.the(NoticeKind.PRODUCED, "orders")

    def test_q19_a_coroutine_cannot_be_told(self, broker: Broker) -> None:
        async def later(notice: Notice) -> None: ...

        class Later:
            async def __call__(self, notice: Notice) -> None: ...

        for handler in (later, Later(), None):
            with pytest.raises(InvalidOption, match="notice handler"):
                broker.on_notice(handler)  # type: ignore[arg-type]

    def test_q19_a_handler_can_be_taken_off(self, broker: Broker) -> None:
        heard: list[Notice] = []
        hear = heard.append
        broker.on_notice(hear)
        broker.off_notice(hear)
        notebook = Notebook(broker)
        broker.create_queue("orders", type="pull")
        notebook.the(NoticeKind.QUEUE_CREATED, "orders")
        assert heard == []
