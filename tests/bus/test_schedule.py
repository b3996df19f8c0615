"""B14: delayed and scheduled messages, and those that expire; priorities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, Priority
from remuda.bus.testing import ManualClock
from remuda.model.errors import InvalidMessage, InvalidOption
from tests.bus.kit import state


def seeing(bus: Bus) -> list[Any]:
    seen: list[Any] = []
    bus.subscribe("x", queue="q", retry=["1h"])(lambda body: seen.append(body))
    return seen


@pytest.fixture
def bus() -> Bus:
    return Bus()


class TestDelay:
    def test_is_kept_until_due(self, bus: Bus) -> None:
        """B14"""
        seen = seeing(bus)
        with bus.testing() as test:
            test.publish("x", 1, delay="1h")
            assert test.run() == 0
            assert test.queue("q").delayed == 1
            test.advance("3599s")
            assert seen == []
            test.advance("1s")
            assert seen == [1]

    def test_until_a_time(self, bus: Bus) -> None:
        """B14: microseconds since the epoch, or a datetime."""
        seen = seeing(bus)
        with bus.testing() as test:
            noon = datetime.fromtimestamp(test.clock.now / 1e6, UTC) + timedelta(hours=2)
            test.publish("x", "datetime", at=noon)
            test.publish("x", "number", at=test.clock.now + 3_600_000_000)
            test.advance("1h")
            assert seen == ["number"]
            test.advance("1h")
            assert seen == ["number", "datetime"]

    def test_a_time_that_has_passed_is_now(self, bus: Bus) -> None:
        """B14"""
        seen = seeing(bus)
        with bus.testing() as test:
            test.publish("x", 1, at=test.clock.now - 1)
            test.run()
            assert seen == [1]

    def test_order_is_that_of_time(self, bus: Bus) -> None:
        """B14"""
        seen = seeing(bus)
        with bus.testing() as test:
            for seconds in (3, 1, 2):
                test.publish("x", seconds, delay=seconds)
            test.advance("1m")
        assert seen == [1, 2, 3]

    def test_survives_a_restart(self, tmp_path: Path) -> None:
        """B14"""
        clock = ManualClock()
        bus = Bus()
        seen = seeing(bus)
        with bus.testing(tmp_path / "data", clock=clock) as test:
            test.publish("x", 1, delay="1h")
        clock.advance("30m")
        with bus.testing(tmp_path / "data", clock=clock) as test:
            test.advance("29m")
            assert seen == []
            test.advance("1m")
            assert seen == [1]

    def test_of_many(self, bus: Bus) -> None:
        """B14"""
        seen = seeing(bus)
        with bus.testing() as test:
            bus.publish_many("x", range(5), delay="1m")
            test.run()
            assert seen == []
            test.advance("1m")
        assert seen == [0, 1, 2, 3, 4]


class TestExpiry:
    def test_is_never_delivered_after_it(self, bus: Bus) -> None:
        """B14"""
        seen = seeing(bus)
        with bus.testing() as test:
            message = test.publish("x", 1, expires="1m")
            test.clock.advance("1m")
            test.run()
            assert seen == []
            assert state(bus, message, "q") == "E"
            assert test.dead_letters("q")[0].reason == "expired"

    def test_just_in_time(self, bus: Bus) -> None:
        """B14"""
        seen = seeing(bus)
        with bus.testing() as test:
            test.publish("x", 1, expires="1m")
            test.clock.advance("59s")
            test.run()
        assert seen == [1]

    def test_between_two_attempts(self, bus: Bus) -> None:
        """B14"""
        calls: list[int] = []

        @bus.subscribe("x", queue="q", retry=["1h"])
        def fail(body: int) -> None:
            calls.append(body)
            raise ValueError("no")

        with bus.testing() as test:
            message = test.publish("x", 1, expires="30m")
            test.run()
            test.advance("2h")
            assert calls == [1]
            assert state(bus, message, "q") == "E"


def test_priority_goes_first(bus: Bus) -> None:
    """B14: and may be written as a word."""
    seen = seeing(bus)
    with bus.testing() as test:
        test.publish("x", "normal")
        test.publish("x", "high", priority=Priority.HIGH)
        test.publish("x", "word", priority="high")
        test.run()
    assert seen == ["high", "word", "normal"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delay": 1, "at": 5}, "not both"),
        ({"delay": "1h", "expires": "1m"}, "expire before it is due"),
        ({"delay": "soon"}, "soon"),
        ({"delay": -1}, "negative"),
        ({"at": datetime(2030, 1, 1)}, "no time zone"),
        ({"at": 1.5}, "microseconds"),
        ({"priority": "urgent"}, "0 to 31"),
        ({"headers": {"number": 5}}, "headers must be strings"),
        ({"headers": {5: "number"}}, "headers must be strings"),
        ({"callback": "answer.*"}, "wildcard"),
        ({"callback": ""}, "no root"),
        ({"id": 5}, "id"),
        ({"id": "x" * 300}, "300 bytes"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_stored(bus: Bus, options: dict[str, Any], text: str) -> None:
    """B14"""
    with bus.testing():
        with pytest.raises((InvalidMessage, InvalidOption), match=text):
            bus.publish("x", 1, **options)
        assert all(info.size == 0 for info in bus.broker.queues())


@pytest.mark.parametrize("topic", ["", ".x", "order.*", "#", "a.#.b", 5, "x" * 300, "a\nb"])
def test_a_topic_to_which_nothing_can_be_published_is_refused(bus: Bus, topic: Any) -> None:
    """B10"""
    with bus.testing(), pytest.raises(InvalidMessage):
        bus.publish(topic, 1)


def test_one_id_for_many_messages_is_refused(bus: Bus) -> None:
    """B1"""
    with pytest.raises(InvalidMessage, match="takes no id"):
        bus.publish_many("x", [1, 2], id="a")  # type: ignore[call-arg]


def test_an_unknown_option_is_refused_with_its_name(bus: Bus) -> None:
    """B14"""
    with pytest.raises(TypeError, match="delays"):
        bus.publish_many("x", [1], delays="1s")  # type: ignore[call-arg]
