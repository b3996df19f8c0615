"""B18: the bus in a user's own test, in two lines, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus
from remuda.model.errors import InvalidOption, NotFound, RemudaError
from tests.bus.kit import running


def shop(url: str | Path = "memory://") -> tuple[Bus, list[str]]:
    """As an application would have it: handlers that publish through their bus."""
    bus = Bus(url)
    shipped: list[str] = []

    @bus.subscribe("order.placed", retry=["1m"])
    def ship(order: str) -> None:
        if order == "late" and not shipped:
            shipped.append("tried")
            raise ConnectionError("no truck")
        bus.publish("order.shipped", order)

    @bus.subscribe("order.shipped")
    async def note(order: str) -> None:
        shipped.append(order)

    return bus, shipped


def test_in_two_lines(tmp_path: Path) -> None:
    """B18: in memory, although the application keeps its messages in a directory."""
    bus, shipped = shop(tmp_path / "data")
    with bus.testing() as test:
        test.publish("order.placed", "a")
        assert test.run() == 2
    assert shipped == ["a"]
    assert not (tmp_path / "data").exists()


def test_time_passes_when_the_test_says_so() -> None:
    """B18"""
    bus, shipped = shop()
    with bus.testing() as test:
        test.publish("order.placed", "late")
        test.run()
        assert test.advance("59s") == 0
        assert test.advance("1s") == 2
    assert shipped == ["tried", "late"]


def test_what_falls_due_on_the_way_happens_at_its_time() -> None:
    """B18: however far the clock is moved at once."""
    bus = Bus()
    times: list[int] = []

    @bus.subscribe("tick")
    def tick(body: Any) -> None:
        times.append(bus.now())
        bus.publish("tick", delay="10m")

    with bus.testing() as test:
        began = test.clock.now
        test.publish("tick")
        test.advance("1h")
        assert [(time - began) // 60_000_000 for time in times] == [0, 10, 20, 30, 40, 50, 60]
        assert test.clock.now == began + 3_600_000_000


def test_each_test_begins_anew_and_the_bus_is_given_back() -> None:
    """B18"""
    bus, shipped = shop()
    bus.publish("order.placed", "real")
    for _ in range(2):
        with bus.testing() as test:
            assert test.run() == 0
            test.publish("order.placed", "test")
            test.run()
    assert shipped == ["test", "test"]
    bus.run(until_idle=True)
    assert shipped == ["test", "test", "real"]
    bus.close()


def test_without_a_block() -> None:
    """B18"""
    bus, shipped = shop()
    test = bus.testing()
    test.publish("order.placed", "a")
    test.run()
    test.close()
    assert shipped == ["a"]


def test_inside_a_coroutine() -> None:
    """B18: in tests that are coroutines themselves."""
    bus, shipped = shop()

    async def main() -> None:
        with bus.testing() as test:
            await bus.publish_async("order.placed", "a")
            test.run()

    asyncio.run(main())
    assert shipped == ["a"]


def test_errors_show_in_queues_messages_and_dead_letters() -> None:
    """B18"""
    bus = Bus()

    @bus.subscribe("x", queue="q", retry="never")
    def fail(body: Any) -> None:
        raise ValueError("no")

    with bus.testing() as test:
        message = test.publish("x")
        test.run()
        assert test.queue("q").dead == 1
        assert test.message(message).state.value == "E"
        assert test.dead_letters("q")[0].id == message


def test_a_bus_that_feeds_itself_for_ever_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """B18"""
    monkeypatch.setattr("remuda.bus.testing._PLENTY", 100)
    bus = Bus()
    bus.subscribe("x", queue="x")(lambda body: bus.publish("x") and None)
    with bus.testing() as test:
        test.publish("x")
        with pytest.raises(RuntimeError, match="still work"):
            test.run()


def test_a_running_bus_is_left_alone() -> None:
    """B18"""
    bus = Bus()
    with running(bus), pytest.raises(RemudaError, match="running"):
        bus.testing()


def test_send_and_call() -> None:
    """B1, B18"""
    bus = Bus()
    bus.subscribe("double", queue="double")(lambda body: 2 * body)
    with bus.testing() as test:
        assert test.send("double", 2) == [4]
        assert test.call("double", 3) == 6


def test_l6_retention_runs_on_the_tests_clock() -> None:
    """B18: what is past its retention is gone when the clock has moved, not a moment later."""
    bus = Bus("memory://")

    @bus.subscribe("x", queue="x", retry="never")
    def fail(body: int) -> None:
        raise ValueError

    with bus.testing() as test:
        test.publish("x", 1)
        test.run()
        test.advance("14d")
        assert test.queue("x").dead == 1
        test.advance("2d")
        assert test.queue("x").dead == 0


def test_b18_the_rules_of_the_buss_broker_hold_in_its_tests(tmp_path: Path) -> None:
    """T1, T3, L6: what says what becomes of messages; not where and how they are kept."""
    rules: Any = {"infer_types": "{object}.{key}", "queue_defaults": {"message_limit": 1}, "default_queue": "rest",
                  "auto_queue_creation": False, "dead_retention": "1h"}  # fmt: skip
    bus = Bus(tmp_path / "data", sync="interval", segment_bytes=100_000, **rules)
    handled: list[int] = []
    bus.subscribe("price.*", queue="prices")(lambda body: handled.append(body))

    @bus.subscribe("bad", queue="bad", retry="never")
    def fail() -> None:
        raise ValueError

    with bus.testing() as test:
        test.publish("price.tea", 5)
        test.run()
        test.publish("price.tea", 5)
        test.publish("bad")
        test.run()
        assert handled == [5], "the second is no news"
        assert test.queue("prices").options.message_limit == 1
        with pytest.raises(NotFound):
            bus.broker.subscribe("nowhere")
        test.advance("2h")
        assert test.queue("bad").dead == 0
    assert not (tmp_path / "data").exists()


def test_b2_a_lambda_needs_a_queue_of_its_own() -> None:
    bus = Bus("memory://")
    with pytest.raises(InvalidOption, match="a lambda has no name"):
        bus.subscribe("x")(lambda body: None)
    with pytest.raises(InvalidOption, match="a lambda has no name"):
        bus.every("5m")(lambda: None)
    bus.subscribe("x", queue="x")(lambda body: None)


def test_m1_a_set_is_published_in_order() -> None:
    """Its own order differs from process to process, and so would its hash: the same set would look changed (T3)."""
    bus = Bus("memory://")
    with bus.testing() as test:
        test.publish("x", {"pear", "apple", "fig"})
        test.publish("x", frozenset((3, 1, 2)))
        test.publish("x", {"to": [{"names": {"pear", "apple", "fig"}}], "at": 1})
        test.publish("x", {"to": [1, "[", 2.5], "at": 1})
        assert [message.body for message in test.published()] == [
            b'["apple","fig","pear"]', b"[1,2,3]", b'{"at":1,"to":[{"names":["apple","fig","pear"]}]}',
            b'{"to":[1,"[",2.5],"at":1}',
        ]  # fmt: skip
