"""What a user hands to a bus is checked where it is written: by an error that names it, before anything is kept."""

import asyncio
import datetime
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remuda import (
    Attempt,
    Bus,
    InvalidMessage,
    InvalidOption,
    ManualClock,
    Message,
    Messages,
    Middleware,
    NotNow,
    Priority,
    RemudaError,
    Retry,
    RetryPolicy,
    handles,
)


def test_a_message_takes_every_priority_and_the_highest_goes_first() -> None:
    """M2: the bus takes 0 to 31 like the broker below it, not the two named priorities alone."""
    bus = Bus()
    handled: list[str] = []

    @bus.subscribe("a")
    def take(name: str) -> None:
        handled.append(name)

    with bus.testing() as test:
        for priority in (0, 5, 31, "high", "normal", Priority.HIGH):
            test.publish("a", repr(priority), priority=priority)
        test.run()
    assert handled == ["31", "'high'", repr(Priority.HIGH), "5", "0", "'normal'"]


@pytest.mark.parametrize("priority", [-1, 32, 1.5, "urgent", None, True])
def test_any_other_priority_is_refused(priority: Any) -> None:
    """M2"""
    with Bus() as bus, pytest.raises(InvalidMessage, match="priority must be 0 to 31"):
        bus.publish("a", 1, priority=priority)


class Ambiguous:
    """As an array of numbers: neither true nor false, and equal to nothing."""

    def __bool__(self) -> bool:
        raise ValueError("the truth of this is ambiguous")

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("id", [Ambiguous(), 5, b"5"])
def test_m4_an_id_that_is_no_text_is_refused_by_its_name(id: Any) -> None:
    with Bus() as bus:
        with pytest.raises(InvalidMessage, match="id"):
            bus.publish("a", 1, id=id)
        for messages in Message("a", b"", id=id), [Message("a", b""), Message("a", b"", id=id)]:
            with pytest.raises(InvalidMessage, match="id"):
                bus.publish_messages(messages)
        assert not any(info.size for info in bus.broker.queues())


@pytest.mark.parametrize("option", ["delay", "expires"])
@pytest.mark.parametrize("value", ["soon", -1, float("nan"), True])
def test_a_wrong_duration_is_refused_by_its_name(option: str, value: Any) -> None:
    """B14"""
    with Bus() as bus, pytest.raises(InvalidOption, match=f"{option}: "):
        bus.publish("a", 1, **{option: value})


def test_durations_are_refused_by_name_wherever_they_are_given() -> None:
    """B14, B16, B19, B20"""
    bus = Bus()
    for name, wrong in (
        ("timeout", lambda: bus.call("a", 1, timeout="soon")),
        ("timeout", lambda: bus.result("a", timeout="soon")),
        ("timeout", lambda: bus.run(timeout="soon")),
        ("grace", lambda: bus.run(grace="soon")),
        ("grace", lambda: bus.stop("soon")),
        ("timeout", lambda: bus.subscribe("a", timeout="soon")),
        ("retry", lambda: bus.subscribe("a", retry=["1s", "soon"])),
        ("interval", lambda: bus.every("soon")),
        ("after", lambda: Retry("later", after="soon")),
        ("after", lambda: NotNow("later", after="soon")),
    ):
        with pytest.raises(InvalidOption, match=f"^{name}: 'soon' is not a duration"):
            wrong()
    bus.close()


@pytest.mark.parametrize("wanted", ["int", 5, "list[str]"])
def test_a_result_that_is_no_type_is_refused_before_anything_is_published(wanted: Any) -> None:
    """B1, B20"""
    with Bus().testing() as test:
        for ask in (test.call, test.bus.call):
            with pytest.raises(InvalidOption, match="result must be a type"):
                ask("a", 1, result=wanted)
        with pytest.raises(InvalidOption, match="result must be a type"):
            test.bus.result("a", wanted)
        assert test.published("#") == []


def test_keep_result_is_true_or_false() -> None:
    """B20"""
    with Bus() as bus, pytest.raises(InvalidOption, match="keep_result must be true or false, not 'yes'"):
        bus.publish("a", 1, keep_result="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [0, "", [], "a=b"])
def test_headers_are_a_mapping(headers: Any) -> None:
    """M2: also where nothing is in them."""
    with Bus() as bus, pytest.raises(InvalidMessage, match="headers"):
        bus.publish("a", 1, headers=headers)


def test_operators_arguments_are_refused_by_name() -> None:
    """B15: `waiting="no"` sends back what shall stay, and a filter with a typing error selects everything."""
    with Bus().testing() as test:
        bus: Any = test.bus
        bus.broker.create_queue("q")
        with pytest.raises(InvalidOption, match="waiting must be true or false, not 'no'"):
            bus.reprocess("q", waiting="no")
        for verb in (bus.reprocess, bus.forget, bus.clear):
            with pytest.raises(InvalidOption, match="who must be a string, not 0"):
                verb("q", who=0)
        for verb in (bus.reprocess, bus.forget, bus.dead_letters):
            with pytest.raises(TypeError, match="dead letters: unknown filter 'reasn'; did you mean 'reason'"):
                verb("q", reasn="no stock")


@pytest.mark.parametrize("bodies", ["abc", b"abc", {"id": 1}, 5, None])
def test_one_body_in_place_of_many_is_refused(bodies: Any) -> None:
    """B1: a text is not published letter by letter."""
    with Bus().testing() as test:
        with pytest.raises(InvalidMessage, match="bodies must be a list of bodies"):
            test.bus.publish_many("a", bodies)
        assert test.published("#") == []


def test_a_body_of_many_that_cannot_be_encoded_is_told_by_its_row() -> None:
    """M1"""
    with Bus().testing() as test:
        with pytest.raises(InvalidMessage, match="row 2: an object cannot be encoded"):
            test.bus.publish_many("a", [1, 2, object()])
        assert test.published("#") == []


def test_messages_made_by_hand_come_one_by_one_or_together() -> None:
    """B1"""
    with Bus().testing() as test:
        message = Message("a", b"1")
        assert len(test.bus.publish_messages(message)) == 1
        assert len(test.bus.publish_messages([message, message])) == 2
        assert len(test.bus.publish_messages(Messages(bodies=[b"1"] * 3, name="a"))) == 3
        for wrong in (5, None, [message, 5], "a"):
            with pytest.raises(InvalidMessage, match=r"row \d: publish_messages takes Messages"):
                test.bus.publish_messages(wrong)  # type: ignore[arg-type]
        assert len(test.published("#")) == 6


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"settings": 5}, "settings must map"),
        ({"settings": {5: 1}}, "unknown setting 5"),
        ({"config": 5}, "config must be the path"),
        ({"middleware": 5}, "middleware must be a list"),
        ({"middleware": [5]}, "5 in middleware has no before_publish"),
        ({"middleware": [Middleware]}, r"write Middleware\(…\), not the class"),
        ({"user": 5}, "user must be a string"),
        ({"on_threshold": 5}, "on_threshold must be a function"),
        ({"clock": 5}, "clock must be a function"),
        ({"setings": {}}, "unknown broker option 'setings'"),
        ({"synk": "os"}, "did you mean 'sync'"),
        ({"sync": "never"}, "sync must be one of"),
    ],
)
def test_a_bus_refuses_what_it_cannot_be_where_it_is_made(options: dict[str, Any], named: str) -> None:
    """B3: an unknown or impossible option is refused by its name, not when the first message is published."""
    with pytest.raises(InvalidOption, match=named):
        Bus("memory://", **options)


def test_a_url_that_no_broker_speaks_is_refused_where_it_is_written(tmp_path: Path) -> None:
    """B3"""
    for url in ("redis://localhost", 5, ""):
        with pytest.raises(InvalidOption):
            Bus(url)  # type: ignore[arg-type]
    Bus(tmp_path / "data")
    assert not (tmp_path / "data").exists(), "a bus opens nothing before it is used"


def test_a_generator_is_no_handler() -> None:
    """B2: its body would never run, and every message would count as handled."""
    bus = Bus()

    def numbers(order: int) -> Any:
        yield order

    async def later(order: int) -> Any:
        yield order

    for generator in (numbers, later):
        with pytest.raises(InvalidOption, match="is a generator"):
            bus.subscribe("a")(generator)
        with pytest.raises(InvalidOption, match="is a generator"):
            bus.on_startup(generator)


def test_a_hook_is_a_function() -> None:
    """B16"""
    with pytest.raises(InvalidOption, match="on_startup takes a function"):
        Bus().on_startup(5)  # type: ignore[type-var]
    with pytest.raises(InvalidOption, match="on_shutdown takes a function"):
        Bus().on_shutdown(None)  # type: ignore[type-var]
    with pytest.raises(InvalidOption, match=r"on_startup calls .* without arguments: missing a required argument: 'x'"):
        Bus().on_startup(lambda x: None)
    assert callable(Bus().on_startup(lambda x=5: None))


def test_a_decorator_without_its_argument_is_refused() -> None:
    """B2: a method under a bare @handles would silently handle nothing."""
    bus = Bus()

    def ship(order: int) -> None: ...

    bare: list[tuple[Callable[[], object], str]] = [
        (lambda: bus.subscribe(ship), "@bus.subscribe('topic')"),  # type: ignore[arg-type]
        (lambda: handles(ship), "@handles('topic')"),  # type: ignore[arg-type]
        (lambda: bus.provide(ship), "@bus.provide(Session)"),
    ]
    for decorate, written in bare:
        with pytest.raises(InvalidOption, match=re.escape(written)):
            decorate()
    with pytest.raises(InvalidOption, match="handles needs at least one topic"):
        handles()
    with pytest.raises(InvalidOption, match="timeout: 'soon'"):
        handles("a", timeout="soon")


def test_a_class_in_place_of_its_instance_is_told() -> None:
    """B2"""

    class Warehouse:
        @handles("a")
        def reserve(self, order: int) -> None: ...

    with pytest.raises(InvalidOption, match=re.escape("subscribe_class takes an instance: write Warehouse(…)")):
        Bus().subscribe_class(Warehouse)


def test_a_second_run_is_refused_and_does_not_end_the_first() -> None:
    """B16: handlers that an application has started go on when something else tries to run them too."""
    with Bus() as bus:
        bus.subscribe("a", queue="a")(lambda body: body)
        bus.start()
        with pytest.raises(RemudaError, match="already running"):
            bus.run(until_idle=True)
        with pytest.raises(RemudaError, match="already running"):
            asyncio.run(bus.run_async(until_idle=True))
        assert bus.running
        assert bus.call("a", 1, timeout="30s") == 1
        with pytest.raises(RemudaError, match="the bus is running"):
            bus.testing()
        bus.stop()
        assert not bus.running


def test_a_call_that_nobody_can_answer_here_says_so() -> None:
    """B1"""
    with Bus() as bus:
        bus.subscribe("a", queue="a")(lambda body: 1)
        with pytest.raises(TimeoutError, match=r"No handlers run in this process; start them with bus\.start\(\)"):
            bus.call("a", 1, timeout="20ms")
        bus.start()
        assert bus.call("a", 1, timeout="30s") == 1


def test_a_wildcard_inside_a_word_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """B10"""
    bus = Bus()
    with caplog.at_level(logging.WARNING):
        bus.subscribe("order.*", "#", queue="a")(lambda body: None)
        assert caplog.text == ""
        bus.subscribe("order*", queue="b")(lambda body: None)
    assert "'order*' has * or # inside a word" in caplog.text


def test_a_test_takes_a_clock_it_can_move_and_leaves_the_bus_as_it_was() -> None:
    """B18"""
    bus = Bus()
    with pytest.raises(InvalidOption, match="clock must be a ManualClock"):
        bus.testing(clock=5)  # type: ignore[arg-type]
    bus.publish("a", 1)
    bus.close()
    for wrong in ("now", 1.5, True):
        with pytest.raises(InvalidOption, match="now must be microseconds"):
            ManualClock(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_retries": "3"}, "max_retries"),
        ({"max_retries": -1}, "max_retries"),
        ({"intervals": ["1s"]}, r"intervals.*retry=\['1s', '1m'\]"),
        ({"intervals": 5}, "intervals"),
        ({"intervals": (-1,)}, "intervals"),
        ({"min_interval": "1s"}, "min_interval"),
        ({"jitter": "much"}, "jitter"),
        ({"jitter": float("nan")}, "jitter"),
        ({"threshold": 0}, "threshold"),
        ({"retry_on": "ValueError"}, "retry_on"),
    ],
)
def test_a_retry_policy_refuses_what_it_cannot_follow(options: dict[str, Any], named: str) -> None:
    """B4"""
    with pytest.raises(InvalidOption, match=named):
        RetryPolicy(**options)


def test_named_policies_take_other_numbers() -> None:
    """B5: `failed_retry_count` is the number of attempts in all, after which the threshold callback fires."""
    told: list[tuple[str, str, str]] = []
    bus = Bus(on_threshold=lambda *what: told.append(what))
    attempts: list[int] = []

    @bus.subscribe("a", queue="a", retry=RetryPolicy.cap(failed_retry_count=4))
    def fail(attempt: Attempt) -> None:
        attempts.append(int(attempt))
        raise ValueError("no")

    with bus.testing() as test:
        id = test.publish("a")
        test.run()
        test.advance("1h")
    assert (attempts, told) == ([1, 2, 3, 4], [("a", id, "ValueError: no")])
    assert RetryPolicy.exponential("1s", factor=3, longest="5s", retries=3).intervals == (
        1_000_000,
        3_000_000,
        5_000_000,
    )
    for wrong in (0, -1, "5", True):
        with pytest.raises(InvalidOption, match="failed_retry_count"):
            RetryPolicy.cap(wrong)  # type: ignore[arg-type]
    for option, value in (("first", "soon"), ("factor", 0.5), ("factor", "2"), ("retries", -1), ("longest", -1)):
        with pytest.raises(InvalidOption, match=option):
            RetryPolicy.exponential(**{option: value})  # type: ignore[arg-type]


def test_a_retry_policy_takes_lists_of_intervals_and_of_errors() -> None:
    """B4"""
    bus = Bus()
    attempts: list[int] = []

    @bus.subscribe("a", retry=RetryPolicy(max_retries=2, intervals=[1_000_000], retry_on=[ValueError]))  # type: ignore[arg-type]
    def fail(attempt: Attempt) -> None:
        attempts.append(int(attempt))
        raise ValueError

    with bus.testing() as test:
        test.publish("a")
        test.run()
        test.advance(datetime.timedelta(seconds=3))
    assert attempts == [1, 2, 3]


class Nameless:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize("wrong", ["x" * 300_000, Nameless(), {1, 2}], ids=["long", "nameless", "unhashable"])
def test_an_error_stays_readable_whatever_was_passed(wrong: Any) -> None:
    """B3: it names the argument, and does not repeat megabytes."""
    with Bus() as bus:
        bus.subscribe("x", queue="q")(lambda body: body)
        message = bus.publish("x", 1)
        verbs: list[Callable[[], Any]] = [
            lambda: bus.publish("x", 1, headers=wrong),
            lambda: bus.publish("x", 1, at=wrong),
            lambda: bus.result(message, wrong),
            lambda: bus.result(message, queue=wrong),
            lambda: bus.clear("q", since=wrong),
            lambda: bus.dead_letters("q", states=wrong),
            lambda: bus.subscribe("y", queue=wrong),
            lambda: bus.subscribe("y", threads=wrong),
            lambda: bus.subscribe("y", retry_on=wrong),
            lambda: bus.cron("* * * * *", tz=wrong),
            lambda: Bus(encoding=wrong),
            lambda: Bus(worker=wrong),
        ]
        for verb in verbs:
            with pytest.raises(RemudaError) as refused:
                verb()
            assert len(str(refused.value)) < 600


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_a_path_that_no_file_can_have_is_refused(path: str) -> None:
    """B3"""
    with pytest.raises(InvalidOption, match="config must be the path of a TOML file"):
        Bus(config=path)
