"""B2, B10: who handles what, in which queue."""

from __future__ import annotations

import functools
import logging
from typing import Any

import pytest

from remuda import Attempt, Bus, Context, Headers, Message, Middleware, Response, handles
from remuda.bus.handlers import handler
from remuda.model.errors import InvalidOption, RemudaError
from tests.bus.kit import attempts, eventually, running, state


class Orders:
    """A class with handlers."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @handles("order.placed")
    def ship(self, body: Any) -> None:
        self.seen.append(("ship", body))

    @handles("order.placed")
    @handles("order.changed", queue="invoices")
    def invoice(self, body: Any) -> None:
        self.seen.append(("invoice", body))


class lower:  # noqa: N801 - a class is one in any spelling
    def method(self, body: Any) -> None: ...


def at_module_level(body: Any) -> None: ...


@pytest.fixture
def bus() -> Bus:
    return Bus()


class TestIds:
    def test_of_a_function_is_module_and_name(self, bus: Bus) -> None:
        """B2"""
        bus.subscribe("x")(at_module_level)
        assert bus.handlers[0].id == f"{__name__}.at_module_level"
        assert bus.handlers[0].queue == f"{__name__}.at_module_level"

    def test_of_a_method_is_class_and_name(self, bus: Bus) -> None:
        """B2"""
        orders = Orders()
        bus.subscribe_class(orders)
        bus.subscribe("x")(lower().method)
        assert sorted(handler.queue for handler in bus.handlers) == [
            "Orders.invoice", "Orders.ship", "invoices", "lower.method",
        ]  # fmt: skip
        with bus.testing() as test:
            test.publish("order.placed", 1)
            test.publish("order.changed", 2)
            test.run()
        assert sorted(orders.seen) == [("invoice", 1), ("invoice", 2), ("ship", 1)]

    def test_of_a_local_function_leaves_out_where_it_is(self, bus: Bus) -> None:
        """B2"""

        @bus.subscribe("x")
        def local(body: Any) -> None: ...

        assert bus.handlers[0].id == f"{__name__}.local"

    def test_may_be_given(self, bus: Bus) -> None:
        """B2"""
        bus.subscribe("x", queue="mine")(at_module_level)
        assert bus.handlers[0].queue == "mine"

    def test_of_the_main_module_is_its_name_for_others(self, bus: Bus) -> None:
        """B2"""

        def local(body: Any) -> None: ...

        local.__module__, local.__qualname__ = "__main__", "local"
        bus.subscribe("x")(local)
        assert bus.handlers[0].id == f"{handler.module_name('__main__')}.local"

    def test_two_of_one_name_are_refused_rather_than_made_to_compete(self, bus: Bus) -> None:
        """B2"""

        def twin() -> Any:
            def handle(body: Any) -> None: ...

            return handle

        bus.subscribe("x")(twin())
        with pytest.raises(InvalidOption, match=r"two handlers are called .*handle"):
            bus.subscribe("y")(twin())
        bus.subscribe("y", queue="other")(twin())

    def test_one_function_may_take_several_topics(self, bus: Bus) -> None:
        """B2"""
        bus.subscribe("x")(at_module_level)
        bus.subscribe("y")(at_module_level)
        with bus.testing() as test:
            test.publish("x")
            test.publish("y")
            assert test.run() == 2

    def test_what_is_no_function_is_refused(self, bus: Bus) -> None:
        """B2"""
        with pytest.raises(InvalidOption, match="a function or a method"):
            bus.subscribe("x")(functools.partial(at_module_level, 1))


def test_one_event_feeds_several_queues_which_fail_independently(bus: Bus) -> None:
    """B2"""
    calls: list[str] = []

    @bus.subscribe("order.placed", retry=["1m"])
    def fails(body: Any) -> None:
        calls.append("fails")
        raise ValueError("no")

    @bus.subscribe("order.placed", retry="never")
    def dies(body: Any) -> None:
        calls.append("dies")
        raise ValueError("no")

    @bus.subscribe("order.placed")
    def works(body: Any) -> None:
        calls.append("works")

    with bus.testing() as test:
        message = test.publish("order.placed", 1)
        test.run()
        assert sorted(calls) == ["dies", "fails", "works"]
        states = {view.queue.rpartition(".")[2]: view.state.value for view in test.message(message).queues}
        assert states == {"fails": "R", "dies": "E", "works": "X"}
        calls.clear()
        test.advance("1m")
        assert calls == ["fails"]


def test_several_queues_have_settings_of_their_own() -> None:
    """B2, B3"""
    bus = Bus(settings={"message.retry.max.one": 1, "message.retry.max.two": 2, "message.retry.intervals": "10"})

    def one(body: Any) -> None:
        raise ValueError("one")

    def two(body: Any) -> None:
        raise ValueError("two")

    bus.subscribe("x", queue="one")(one)
    bus.subscribe("x", queue="two")(two)
    with bus.testing() as test:
        message = test.publish("x")
        test.run()
        test.advance("1h")
        assert attempts(bus, message, "one") == 2
        assert attempts(bus, message, "two") == 3


class TestGroups:
    def test_one_topic_and_group_compete(self, bus: Bus) -> None:
        """B10"""
        seen: list[tuple[str, int]] = []

        @bus.subscribe("x", group="g")
        def left(body: int) -> None:
            seen.append(("left", body))

        @bus.subscribe("x", group="g")
        def right(body: int) -> None:
            seen.append(("right", body))

        with bus.testing() as test:
            bus.publish_many("x", range(10))
            assert test.run() == 10
        assert sorted(number for _, number in seen) == list(range(10))
        assert {name for name, _ in seen} == {"left", "right"}

    def test_different_groups_each_get_it(self, bus: Bus) -> None:
        """B10"""
        seen: list[tuple[str, int]] = []

        def left(body: int) -> None:
            seen.append(("left", body))

        def right(body: int) -> None:
            seen.append(("right", body))

        bus.subscribe("x", group="a")(left)
        bus.subscribe("x", group="b")(right)
        with bus.testing() as test:
            test.publish("x", 1)
            test.run()
        assert sorted(seen) == [("left", 1), ("right", 1)]

    def test_in_a_group_each_message_goes_to_a_handler_of_its_topic(self, bus: Bus) -> None:
        """B10"""
        seen: list[tuple[str, str]] = []

        @bus.subscribe("a.*", group="g")
        def of_a(message: Message) -> None:
            seen.append(("a", message.name))

        @bus.subscribe("b.#", group="g")
        def of_b(message: Message) -> None:
            seen.append(("b", message.name))

        with bus.testing() as test:
            for topic in ("a.1", "b.1", "b", "a.2"):
                test.publish(topic)
            test.run()
        assert sorted(seen) == [("a", "a.1"), ("a", "a.2"), ("b", "b"), ("b", "b.1")]

    @pytest.mark.parametrize(
        ("pattern", "topics"),
        [
            ("order.*", {"order.placed", "order.paid"}),
            ("order.#", {"order", "order.placed", "order.paid", "order.paid.late"}),
            ("*.paid", {"order.paid", "bill.paid"}),
            ("#.late", {"order.paid.late"}),
            ("order.*.late", {"order.paid.late"}),
            ("#", {"order", "order.placed", "order.paid", "order.paid.late", "bill.paid", "orders.x"}),
            ("order", {"order"}),
        ],
    )
    def test_wildcards(self, bus: Bus, pattern: str, topics: set[str]) -> None:
        """B10: `*` is one segment, `#` zero or more."""
        seen: set[str] = set()

        @bus.subscribe(pattern)
        def handle(message: Message) -> None:
            seen.add(message.name)

        with bus.testing() as test:
            for topic in ("order", "order.placed", "order.paid", "order.paid.late", "bill.paid", "orders.x"):
                test.publish(topic)
            test.run()
        assert seen == topics

    def test_a_message_that_fits_twice_comes_once(self, bus: Bus) -> None:
        """B10"""
        calls: list[str] = []

        @bus.subscribe("order.*", "order.placed", "#")
        def handle(message: Message) -> None:
            calls.append(message.name)

        with bus.testing() as test:
            test.publish("order.placed")
            test.run()
        assert calls == ["order.placed"]

    def test_members_must_agree_on_their_options(self, bus: Bus) -> None:
        """B10"""
        bus.subscribe("x", group="g", threads=2)(at_module_level)
        with pytest.raises(InvalidOption, match=r"share the queue g but differ"):
            bus.subscribe("x", group="g", threads=3)(Orders().ship)

    def test_a_group_and_another_queue_contradict(self, bus: Bus) -> None:
        """B10"""
        with pytest.raises(InvalidOption, match="not both"):
            bus.subscribe("x", group="g", queue="q")


class TestValues:
    def test_are_given_by_type(self, bus: Bus) -> None:
        """B2"""
        seen: dict[str, Any] = {}

        @bus.subscribe("x")
        def handle(
            body: int,
            message: Message,
            headers: Headers,
            attempt: Attempt,
            context: Context,
            response: Response,
            log: logging.Logger,
            optional: int = 7,
        ) -> None:
            seen.update(
                body=body, message=message.name, header=headers["h"], attempt=int(attempt), queue=context.queue,
                callback=response.callback, log=log, optional=optional,
            )  # fmt: skip

        with bus.testing() as test:
            test.publish("x", 5, headers={"h": "v"})
            test.run()
        log = seen.pop("log")
        assert seen == {
            "body": 5, "message": "x", "header": "v", "attempt": 1, "queue": f"{__name__}.handle", "callback": None,
            "optional": 7,
        }  # fmt: skip
        assert isinstance(log, logging.LoggerAdapter)
        assert log.extra is not None
        assert log.extra["topic"] == "x"

    def test_come_from_middleware_too(self) -> None:
        """B2, B11"""

        class Session:
            pass

        class Sessions(Middleware):
            provides = (Session,)

            def before_handle(self, context: Context) -> None:
                context.values[Session] = Session()

        seen: list[object] = []

        def handle(body: int, session: Any) -> None:
            seen.append(session)

        handle.__annotations__["session"] = Session
        bus = Bus(middleware=[Sessions()])
        bus.subscribe("x")(handle)
        bus.send("x", 1)
        assert isinstance(seen[0], Session)

    def test_nobody_provides_are_refused_at_once(self, bus: Bus) -> None:
        """B2"""

        def handle(body: int, session: Any) -> None: ...

        handle.__annotations__["session"] = Orders
        with pytest.raises(InvalidOption, match="body, session"):
            bus.subscribe("x")(handle)

    def test_a_handler_may_want_no_body_at_all(self, bus: Bus) -> None:
        """B2: then it does not matter what the body is."""
        calls: list[str] = []

        @bus.subscribe("x")
        def handle(message: Message) -> None:
            calls.append(message.mime_type)

        with bus.testing() as test:
            test.publish("x", b"{", mime_type="application/json")
            test.run()
        assert calls == ["application/json"]


class TestLists:
    def test_take_many_messages_at_once(self, bus: Bus) -> None:
        """B1, M1: a handler that takes a list."""
        calls: list[list[int]] = []

        @bus.subscribe("x", batch=4)
        def handle(numbers: list[int]) -> None:
            calls.append(numbers)

        with bus.testing() as test:
            bus.publish_many("x", range(10))
            test.run()
        assert calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_f6_may_have_messages_of_one_key_each(self, bus: Bus) -> None:
        """F6: what a key is, the queue says."""
        calls: list[list[int]] = []

        @bus.subscribe("x", batch=10, batch_by_key=True, queue="q", retry=0)
        def handle(numbers: list[int]) -> None:
            calls.append(numbers)
            if 2 in numbers:
                raise ValueError("unlucky")

        with bus.testing() as test:
            ids = [bus.publish("x", number, key="ab"[number % 2]) for number in range(5)]
            test.run()
            assert [state(bus, message, "q") for message in ids] == ["X", "X", "E", "X", "X"]
        assert calls == [[0, 2, 4], [1, 3], [0], [2], [4]], "the failure of one is not its neighbours'"

    @pytest.mark.parametrize("executor", ["threads", "asyncio"])
    def test_f6_may_wait_for_more_to_come(self, bus: Bus, executor: str) -> None:
        """F6: a list that is full does not wait."""
        calls: list[list[int]] = []

        def handle(numbers: list[int]) -> None:
            calls.append(numbers)

        async def handle_async(numbers: list[int]) -> None:
            calls.append(numbers)

        chosen = handle if executor == "threads" else handle_async
        bus.subscribe("x", queue="q", batch=4, batch_wait="400ms", executor=executor, threads=1)(chosen)
        bus.start()
        bus.publish_many("x", range(6))
        eventually(lambda: calls == [[0, 1, 2, 3]])
        bus.publish_many("x", [6])
        eventually(lambda: len(calls) == 2)
        assert calls[1] == [4, 5, 6]

    @pytest.mark.parametrize(
        "given", [{"batch_wait": "1s"}, {"batch_by_key": True}, {"batch": 2, "batch_wait": "soon"}]
    )
    def test_f6_what_makes_no_sense_is_refused(self, bus: Bus, given: dict[str, Any]) -> None:
        with pytest.raises(InvalidOption):
            bus.subscribe("x", **given)(lambda body: None)

    def test_one_that_cannot_be_decoded_does_not_take_the_others_along(self, bus: Bus) -> None:
        """B13"""
        calls: list[list[int]] = []

        @bus.subscribe("x", batch=10, queue="q")
        def handle(numbers: list[int]) -> None:
            calls.append(numbers)

        with bus.testing() as test:
            ids = bus.publish_many("x", [1, "two", 3])
            test.run()
            assert [state(bus, message, "q") for message in ids] == ["X", "I", "X"]
        assert calls == [[1, 3]]

    def test_that_failed_are_tried_again_one_by_one(self, bus: Bus) -> None:
        """B4: the message at fault then fails alone."""
        calls: list[list[int]] = []

        @bus.subscribe("x", batch=10, queue="q", retry=["1s", "1s"])
        def handle(numbers: list[int]) -> None:
            calls.append(numbers)
            if 13 in numbers:
                raise ValueError("unlucky")

        with bus.testing() as test:
            ids = bus.publish_many("x", [12, 13, 14])
            test.run()
            test.advance("1s")
            assert [state(bus, message, "q") for message in ids] == ["X", "R", "X"]
            test.advance("1s")
            assert [state(bus, message, "q") for message in ids] == ["X", "E", "X"]
        assert calls == [[12, 13, 14], [12], [13], [14], [13]]

    def test_answer_each_message_with_its_own_item(self, bus: Bus) -> None:
        """B9"""
        answers: list[tuple[str, int]] = []

        @bus.subscribe("x", batch=10)
        def double(numbers: list[int]) -> list[int]:
            return [2 * number for number in numbers]

        @bus.subscribe("answer.#", group="answers")
        def take(body: int, message: Message) -> None:
            answers.append((message.name, body))

        with bus.testing() as test:
            test.publish("x", 1, callback="answer.a")
            test.publish("x", 2)
            test.publish("x", 3, callback="answer.b")
            test.run()
        assert answers == [("answer.a", 2), ("answer.b", 6)]

    def test_need_an_annotation(self, bus: Bus) -> None:
        """B2"""
        with pytest.raises(InvalidOption, match=r"list\[Order\]"):
            bus.subscribe("x", batch=2)(at_module_level)

    def test_cannot_share_a_queue(self, bus: Bus) -> None:
        """B10"""

        def first(numbers: list[int]) -> None: ...
        def second(numbers: list[int]) -> None: ...

        bus.subscribe("x", batch=2, group="g")(first)
        with pytest.raises(InvalidOption, match="take lists"):
            bus.subscribe("y", batch=2, group="g")(second)


class TestRefusedWhereWritten:
    @pytest.mark.parametrize(
        ("arguments", "options", "text"),
        [
            ([], {}, "at least one topic"),
            ([""], {}, "no root"),
            ([3], {}, "must be a string"),
            ([at_module_level], {}, "@bus.subscribe"),
            (["x"], {"threads": 0}, "threads must be a whole number, 1 or more"),
            (["x"], {"threads": 10_001}, "threads must be at most 10000"),
            (["x"], {"batch": 0}, "batch must be a whole number, 1 or more"),
            (["x"], {"batch": 1 << 62}, "batch must be at most"),
            (["x"], {"timeout": 0}, "timeout must be longer"),
            (["x"], {"timeout": "soon"}, "soon"),
            (["x"], {"executor": "fibers"}, "asyncio, threads, processes"),
            (["x"], {"retry": "sometimes"}, "no retry policy is named"),
            (["x"], {"retry": -1}, "retry must be a whole number, 0 or more"),
            (["x"], {"retry": 1 << 62}, "retry must be at most"),
            (["x"], {"retry": b"5m"}, "retry must be a list of waits"),
            (["x"], {"retry": ["soon"]}, "soon"),
        ],
    )
    def test_options(self, bus: Bus, arguments: list[Any], options: dict[str, Any], text: str) -> None:
        """B3"""
        with pytest.raises(InvalidOption, match=text):
            bus.subscribe(*arguments, **options)

    def test_a_signature_that_cannot_be_called(self, bus: Bus) -> None:
        """B2"""

        def positional(body: int, /) -> None: ...
        def unknown(body: int) -> None: ...
        def union(body: int) -> None: ...

        unknown.__annotations__["body"] = "Nowhere"
        union.__annotations__["body"] = dict[int, int] | list[int] | tuple[int, int]
        for function, text in ((positional, "by position only"), (unknown, "Nowhere"), (union, "no body can become")):
            with pytest.raises(InvalidOption, match=text):
                bus.subscribe("x")(function)

    def test_the_buss_own_queues(self, bus: Bus) -> None:
        """B13"""
        with pytest.raises(InvalidOption, match=r"remuda\.unrouted"):
            bus.subscribe("x", queue="remuda.unrouted")(at_module_level)

    def test_after_the_start(self, bus: Bus) -> None:
        """B2"""
        with running(bus), pytest.raises(RemudaError, match="before it starts"):
            bus.subscribe("x")(at_module_level)


def test_parameters_that_a_decorator_hides_are_refused(bus: Bus) -> None:
    """B2: it would be called with nothing, and fail or, worse, succeed."""

    def hiding(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    for hidden in (hiding(at_module_level), print, lambda **_: None):
        with pytest.raises(InvalidOption, match=r"names no parameter for the body.*functools\.wraps"):
            bus.subscribe("x", queue="q")(hidden)
    bus.subscribe("x", queue="q")(functools.wraps(at_module_level)(hiding(at_module_level)))
    bus.subscribe("y", queue="more")(lambda body, *_, **__: body)
    bus.subscribe("z", queue="all")(lambda *_, body: body)
    assert (bus.send("x", 1), bus.send("y", 2), bus.send("z", 3)) == ([None], [2], [3])


def test_a_class_is_not_taken_for_a_handler(bus: Bus) -> None:
    """B2: to make an object of each message would handle none."""
    with pytest.raises(InvalidOption, match=r"not the class Orders; .* bus\.subscribe_class\(Orders\(\)\)"):
        bus.subscribe("x")(Orders)
