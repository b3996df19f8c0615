"""B9: a handler's return value goes to the callback, linked to what caused it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from remuda import Bus, Context, Headers, Message, Middleware, Response
from remuda.model.queues.system_queues import CALLBACKS
from tests.bus.kit import attempts, state


@dataclasses.dataclass
class Deduction:
    order: int
    done: bool


@pytest.fixture
def bus() -> Bus:
    return Bus()


def taking(bus: Bus, *topics: str) -> list[tuple[Any, Headers]]:
    """A handler that takes answers, and what it took."""
    taken: list[tuple[Any, Headers]] = []

    def take(body: Any, headers: Headers) -> None:
        taken.append((body, headers))

    bus.subscribe(*topics, queue="answers")(take)
    return taken


def test_the_return_value_is_sent_there(bus: Bus) -> None:
    """B9: with the direct parent's id, and its sequence plus one."""
    taken = taking(bus, "answer")

    @bus.subscribe("question")
    def double(body: int) -> int:
        return 2 * body

    with bus.testing() as test:
        message = test.publish("question", 4, callback="answer")
        test.run()
    [(body, headers)] = taken
    assert body == 8
    assert headers["cap-corr-id"] == message
    assert headers["cap-corr-seq"] == "1"
    assert "cap-callback-name" not in headers


def test_along_a_chain_each_names_its_direct_parent(bus: Bus) -> None:
    """B9"""
    links: list[tuple[str, str, str, str]] = []

    def note(message: Message) -> str:
        headers = message.headers
        links.append((message.name, message.id, headers.get("cap-corr-id", ""), headers.get("cap-corr-seq", "")))
        return "x"

    @bus.subscribe("first")
    def first(message: Message, response: Response) -> str:
        return note(message)

    @bus.subscribe("second")
    def second(message: Message) -> None:
        note(message)
        bus.publish("third", callback="fourth")

    @bus.subscribe("third")
    def third(message: Message) -> str:
        return note(message)

    @bus.subscribe("fourth")
    def fourth(message: Message) -> None:
        note(message)

    with bus.testing() as test:
        test.publish("first", callback="second")
        test.run()
    assert [(name, sequence) for name, _, _, sequence in links] == [
        ("first", ""), ("second", "1"), ("third", "2"), ("fourth", "3"),
    ]  # fmt: skip
    ids = [own for _, own, _, _ in links]
    assert [parent for _, _, parent, _ in links] == ["", *ids[:-1]]


def test_a_foreign_sequence_goes_on(bus: Bus) -> None:
    """B9, M3: and nonsense in its place counts as none."""
    taken = taking(bus, "answer")
    bus.subscribe("question", queue="question")(lambda: None)
    with bus.testing() as test:
        test.publish("question", callback="answer", headers={"cap-corr-seq": "41"})
        test.publish("question", callback="answer", headers={"cap-corr-seq": "many"})
        test.run()
    assert [headers["cap-corr-seq"] for _, headers in taken] == ["42", "1"]


def test_without_a_callback_nothing_is_sent(bus: Bus) -> None:
    """B9"""
    bus.subscribe("question", queue="question")(lambda body: 5)
    with bus.testing() as test:
        test.publish("question", 4)
        assert test.run() == 1
        assert all(info.size == 0 for info in bus.broker.queues())


def test_none_is_an_answer_too(bus: Bus) -> None:
    """B9"""
    taken = taking(bus, "answer")
    bus.subscribe("question", queue="question")(lambda body: None)
    with bus.testing() as test:
        test.publish("question", 4, callback="answer")
        test.run()
    assert [body for body, _ in taken] == [None]


def test_a_failed_handler_sends_nothing_and_a_later_success_does(bus: Bus) -> None:
    """B9"""
    taken = taking(bus, "answer")

    @bus.subscribe("question", retry=["1s"])
    def second_time(context: Context) -> str:
        if context.attempt == 1:
            raise ValueError("no")
        return "done"

    with bus.testing() as test:
        test.publish("question", callback="answer")
        test.run()
        assert taken == []
        test.advance("1s")
    assert [body for body, _ in taken] == ["done"]


class TestResponse:
    def test_headers_may_be_added(self, bus: Bus) -> None:
        """B9"""
        taken = taking(bus, "answer")

        @bus.subscribe("question")
        def handle(response: Response) -> int:
            response.headers["shop"] = "north"
            return 1

        with bus.testing() as test:
            test.publish("question", callback="answer")
            test.run()
        assert taken[0][1]["shop"] == "north"
        assert taken[0][1]["cap-corr-seq"] == "1"

    def test_the_callback_may_be_rewritten(self, bus: Bus) -> None:
        """B9"""
        taken = taking(bus, "other")

        @bus.subscribe("question")
        def handle(response: Response) -> int:
            assert response.callback == "answer"
            response.rewrite("other")
            return 1

        with bus.testing() as test:
            test.publish("question", callback="answer")
            test.run()
        assert [body for body, _ in taken] == [1]

    def test_one_may_be_made_where_none_was_asked_for(self, bus: Bus) -> None:
        """B9"""
        taken = taking(bus, "other")

        @bus.subscribe("question")
        def handle(response: Response) -> int:
            response.rewrite("other")
            return 1

        with bus.testing() as test:
            test.publish("question")
            test.run()
        assert len(taken) == 1

    def test_the_callback_may_be_removed(self, bus: Bus) -> None:
        """B9"""
        taken = taking(bus, "answer")

        @bus.subscribe("question")
        def handle(response: Response) -> int:
            response.remove()
            return 1

        with bus.testing() as test:
            test.publish("question", callback="answer")
            test.run()
        assert taken == []


class Fragile(Middleware):
    """Refuses to publish answers as long as it is broken."""

    def __init__(self) -> None:
        self.broken = True
        self.tries = 0

    def before_publish(self, message: Message) -> Message:
        if message.name == "answer":
            self.tries += 1
            if self.broken:
                raise RuntimeError("no way out")
        return message


class TestFailedPublish:
    def test_is_retried_by_itself_and_the_handler_not_run_again(self) -> None:
        """B9"""
        fragile = Fragile()
        bus = Bus(middleware=[fragile])
        calls: list[int] = []
        taken = taking(bus, "answer")

        @bus.subscribe("question", queue="q")
        def handle(body: int) -> int:
            calls.append(body)
            return body + 1

        with bus.testing() as test:
            message = test.publish("question", 1, callback="answer")
            test.run()
            assert (calls, taken) == ([1], [])
            assert state(bus, message, "q") == "X"
            test.advance("10s")
            assert fragile.tries >= 3
            fragile.broken = False
            test.advance("1m")
            assert [body for body, _ in taken] == [2]
            assert taken[0][1]["cap-corr-id"] == message
        assert calls == [1]

    def test_of_a_full_queue(self, bus: Bus) -> None:
        """B9"""
        taken = taking(bus, "answer")
        calls: list[int] = []

        @bus.subscribe("question", queue="q")
        def handle(body: int) -> int:
            calls.append(body)
            return body

        with bus.testing() as test:
            bus.broker.configure_queue("answers", message_limit=1)
            bus.broker.set_status("answers", "only-publish")
            test.publish("answer", 0)
            test.publish("question", 1, callback="answer")
            test.run()
            assert calls == [1]
            assert test.queue(CALLBACKS).size == 1
            bus.broker.set_status("answers", "running")
            test.run()
            test.advance("1m")
        assert [body for body, _ in taken] == [0, 1]
        assert calls == [1]

    def test_for_ever_ends_in_a_dead_letter_of_its_own(self) -> None:
        """B9, B13: visible, with the reason, and it can be reprocessed."""
        fragile = Fragile()
        bus = Bus(middleware=[fragile])
        taken = taking(bus, "answer")
        bus.subscribe("question", queue="q")(lambda body: body)
        with bus.testing() as test:
            message = test.publish("question", 1, callback="answer")
            test.run()
            test.advance("2h")
            letter = test.dead_letters(CALLBACKS)[0]
            assert (letter.topic, letter.reason) == ("answer", "RuntimeError: no way out")
            assert (attempts(bus, message, "q"), state(bus, message, "q")) == (1, "X")
            fragile.broken = False
            assert bus.reprocess(CALLBACKS) == 1
            test.run()
        assert [body for body, _ in taken] == [1]

    def test_what_cannot_be_encoded_is_the_handlers_failure(self, bus: Bus) -> None:
        """B9, M1"""
        bus.subscribe("question", queue="q", retry="never")(lambda body: object())
        with bus.testing() as test:
            test.publish("question", 1, callback="answer")
            test.run()
            assert "cannot be encoded" in test.dead_letters("q")[0].reason


def test_compensation(bus: Bus) -> None:
    """B9: CAP's example. An order is pending until the answer to its deduction says how it went."""
    status = {1: "pending", 2: "pending"}
    stock = {"pear": 1}

    @bus.subscribe("place.order.qty.deducted")
    def deduct(order: int) -> Deduction:
        if not stock["pear"]:
            return Deduction(order, done=False)
        stock["pear"] -= 1
        return Deduction(order, done=True)

    @bus.subscribe("place.order.mark.status")
    def mark(deduction: Deduction) -> None:
        status[deduction.order] = "succeeded" if deduction.done else "failed"

    with bus.testing() as test:
        for order in status:
            test.publish("place.order.qty.deducted", order, callback="place.order.mark.status")
        test.run()
    assert status == {1: "succeeded", 2: "failed"}
