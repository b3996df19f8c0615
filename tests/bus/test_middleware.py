"""B11: layers around publishing and handling."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remuda import Bus, Context, Handled, Message, Middleware, Retry
from remuda.bus.handlers.exceptions import HandlerDecision
from remuda.model.errors import RemudaError
from tests.bus.kit import state


class Layer(Middleware):
    """Writes down when it is asked."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.name = name
        self.diary = diary

    def before_publish(self, message: Message) -> Message:
        self.diary.append(f"{self.name} before publish")
        return message

    def after_publish(self, message: Message) -> None:
        self.diary.append(f"{self.name} after publish")

    def publish_error(self, message: Message, error: Exception) -> None:
        self.diary.append(f"{self.name} publish error {error}")

    def before_handle(self, context: Context) -> None:
        self.diary.append(f"{self.name} before handle")

    def after_handle(self, context: Context, result: Any) -> Any:
        self.diary.append(f"{self.name} after handle {result}")
        return result

    def handle_error(self, context: Context, error: BaseException) -> Handled | None:
        self.diary.append(f"{self.name} handle error {error}")
        return None


class Filter(Layer):
    """Marks errors as handled."""

    def handle_error(self, context: Context, error: BaseException) -> Handled | None:
        super().handle_error(context, error)
        return Handled("instead")


class Breaks(Layer):
    """Fails in one of its hooks."""

    def __init__(self, hook: str, diary: list[str]) -> None:
        super().__init__("breaks", diary)
        setattr(self, hook, self._fail)

    def _fail(self, *arguments: Any) -> Any:
        raise RuntimeError("broken hook")


def test_order(diary: list[str]) -> None:
    """B11: before-hooks in order, after-hooks in reverse."""
    bus = Bus(middleware=[Layer("outer", diary), Layer("inner", diary)])
    bus.subscribe("x", queue="x")(lambda body: body)
    with bus.testing() as test:
        test.publish("x", 1)
        test.run()
    assert diary == [
        "outer before publish", "inner before publish", "inner after publish", "outer after publish",
        "outer before handle", "inner before handle", "inner after handle 1", "outer after handle 1",
    ]  # fmt: skip


@pytest.fixture
def diary() -> list[str]:
    return []


def fail(body: Any) -> None:
    raise ValueError("no")


def test_error_hooks(diary: list[str]) -> None:
    """B11"""
    bus = Bus(middleware=[Layer("outer", diary), Layer("inner", diary)])
    bus.subscribe("x", retry="never", queue="q")(fail)
    with bus.testing() as test:
        message = test.publish("x", 1)
        del diary[:]
        test.run()
        assert state(bus, message, "q") == "E"
    assert diary == ["outer before handle", "inner before handle", "inner handle error no", "outer handle error no"]


def test_a_filter_marks_an_error_handled_and_replaces_the_result(diary: list[str]) -> None:
    """B11: the layers around it see a result."""
    taken: list[Any] = []
    bus = Bus(middleware=[Layer("outer", diary), Filter("filter", diary), Layer("inner", diary)])
    bus.subscribe("x", queue="q")(fail)
    bus.subscribe("answer", queue="answers")(lambda body: taken.append(body))
    with bus.testing() as test:
        message = test.publish("x", 1, callback="answer")
        del diary[:]
        test.run()
        assert state(bus, message, "q") == "X"
    assert diary[3:6] == ["inner handle error no", "filter handle error no", "outer after handle instead"]
    assert taken == ["instead"]


def test_a_filter_works_for_send_too(diary: list[str]) -> None:
    """B1, B11"""
    bus = Bus(middleware=[Filter("filter", diary)])
    bus.subscribe("x")(fail)
    assert bus.send("x") == ["instead"]


def test_the_result_may_be_replaced() -> None:
    """B11"""

    class Doubles(Middleware):
        def after_handle(self, context: Context, result: Any) -> Any:
            return 2 * result

    bus = Bus(middleware=[Doubles(), Doubles()])
    bus.subscribe("x", queue="x")(lambda body: body)
    assert bus.send("x", 1) == [4]


def test_a_message_may_be_changed_before_it_is_published() -> None:
    """B11"""

    class Stamps(Middleware):
        def before_publish(self, message: Message) -> Message:
            return msgspec.structs.replace(message, headers={**message.headers, "stamp": "1"})

    seen: list[str] = []
    bus = Bus(middleware=[Stamps()])

    @bus.subscribe("x")
    def handle(context: Context) -> None:
        seen.append(context.headers["stamp"])

    with bus.testing() as test:
        test.publish("x")
        bus.publish_many("x", [1, 2])
        test.run()
    assert seen == ["1"] * 3


def test_raising_before_a_publish_stops_it(diary: list[str]) -> None:
    """B11: nothing is stored, and those who have begun learn of it."""
    bus = Bus(middleware=[Layer("outer", diary), Breaks("before_publish", diary)])
    with bus.testing():
        with pytest.raises(RuntimeError, match="broken hook"):
            bus.publish("x")
        assert diary == ["outer before publish", "breaks publish error broken hook", "outer publish error broken hook"]
        assert all(info.size == 0 for info in bus.broker.queues())


def test_a_refused_publish_is_told(diary: list[str]) -> None:
    """B11"""
    bus = Bus(middleware=[Layer("one", diary)])
    bus.subscribe("x", queue="q")(fail)
    with bus.testing():
        bus.broker.set_status("q", "paused")
        with pytest.raises(RemudaError):
            bus.publish("x")
    assert diary[0] == "one before publish"
    assert diary[1].startswith("one publish error")


@pytest.mark.parametrize("hook", ["after_publish", "publish_error"])
def test_a_hook_that_fails_afterwards_does_not_lie_to_the_publisher(hook: str, diary: list[str]) -> None:
    """B11: the message is kept, or not, whatever the hook thinks."""
    bus = Bus(middleware=[Breaks(hook, diary), Layer("inner", diary)])
    bus.subscribe("x", queue="q")(fail)
    with bus.testing() as test:
        if hook == "after_publish":
            assert bus.publish("x")
            assert test.queue("q").size == 1
        else:
            bus.broker.set_status("q", "paused")
            with pytest.raises(RemudaError, match="paused"):
                bus.publish("x")


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ("before_handle", ["outer before handle", "outer handle error broken hook"]),
        ("after_handle", ["outer before handle", "breaks before handle", "outer handle error broken hook"]),
    ],
)
def test_a_hook_that_fails_is_the_handlers_failure(hook: str, told: list[str], diary: list[str]) -> None:
    """B11: only those that have begun are asked again."""
    bus = Bus(middleware=[Layer("outer", diary), Breaks(hook, diary)])
    bus.subscribe("x", queue="q", retry="never")(lambda body: None)
    with bus.testing() as test:
        message = test.publish("x")
        del diary[:]
        test.run()
        assert state(bus, message, "q") == "E"
    assert diary == told


def test_an_error_hook_that_fails_replaces_the_error(diary: list[str]) -> None:
    """B11"""
    bus = Bus(middleware=[Layer("outer", diary), Breaks("handle_error", diary)])
    bus.subscribe("x", queue="q", retry="never")(fail)
    with bus.testing() as test:
        test.publish("x")
        test.run()
        assert test.dead_letters("q")[0].reason == "RuntimeError: broken hook"
    assert diary[-1] == "outer handle error broken hook"


def test_an_error_hook_that_returns_something_else_is_named() -> None:
    """B11: the handler's own error stays in the traceback."""

    class Misled(Middleware):
        def handle_error(self, context: Context, error: BaseException) -> Any:
            return True

    bus = Bus(middleware=[Misled()])
    bus.subscribe("x", queue="q", retry="never")(fail)
    with bus.testing() as test:
        test.publish("x")
        test.run()
        letter = test.dead_letters("q")[0]
    assert letter.reason == "TypeError: handle_error of Misled must return Handled or None, not True"
    assert letter.history.detail is not None
    assert "in fail" in letter.history.detail


def test_answers_of_handlers_pass_through(diary: list[str]) -> None:
    """B11, B12"""
    kinds: list[bool] = []

    class Looks(Middleware):
        def handle_error(self, context: Context, error: BaseException) -> Handled | None:
            kinds.append(isinstance(error, HandlerDecision))
            return None

    bus = Bus(middleware=[Looks()])

    @bus.subscribe("x", queue="q", retry=1)
    def retry(context: Context) -> None:
        if context.attempt == 1:
            raise Retry("again")

    with bus.testing() as test:
        message = test.publish("x")
        assert test.run() == 2
        assert state(bus, message, "q") == "X"
    assert kinds == [True]
