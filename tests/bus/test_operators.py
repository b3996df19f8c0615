"""B15: dead letters: listed, reprocessed, let go; queues cleared. All of it is logged with who did it."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, NotInterested, NotNow, Reject
from remuda.bus.testing import TestBus
from remuda.model.errors import InvalidOption, NotFound
from tests.bus.kit import events, state


def shop() -> tuple[Bus, list[int]]:
    """A queue whose handler fails in different ways until it is mended."""
    bus, seen = Bus(), []
    broken = [True]

    @bus.subscribe("x", queue="q", retry="never")
    def handle(body: int) -> None:
        if broken[0]:
            raise {0: ValueError("zero"), 1: Reject("one"), 2: NotInterested("two"), 3: KeyError("three")}[body]
        seen.append(body)

    bus.mend = lambda: broken.__setitem__(0, False)  # type: ignore[attr-defined]
    return bus, seen


def four(test: TestBus) -> list[str]:
    """Four messages that end badly, a minute apart."""
    ids = []
    for number in range(4):
        ids.append(test.publish("x", number))
        test.run()
        test.clock.advance("1m")
    return ids


class TestDeadLetters:
    def test_are_listed_newest_first_with_all_that_is_known(self) -> None:
        """B15"""
        bus, _ = shop()
        with bus.testing() as test:
            began = test.clock.now
            ids = four(test)
            letters = bus.dead_letters("q")
            assert [letter.id for letter in letters] == ids[::-1]
            assert [letter.state.value for letter in letters] == ["E", "N", "I", "E"]
            assert [letter.reason for letter in letters] == ["KeyError: 'three'", "two", "one", "ValueError: zero"]
            assert [letter.time - began for letter in letters] == [180_000_000, 120_000_000, 60_000_000, 0]
            assert [letter.body for letter in letters] == [b"3", b"2", b"1", b"0"]
            assert {(letter.topic, letter.attempts) for letter in letters} == {("x", 1)}
            history = letters[-1].history
            assert 'raise {0: ValueError("zero")' in (history.detail or "")
            assert [consumption.fetched for consumption in history.consumed_by] == [began]

    def test_are_filtered(self) -> None:
        """B15: by reason, time and state."""
        bus, _ = shop()
        with bus.testing() as test:
            began = test.clock.now
            four(test)

            def bodies(**filters: Any) -> list[bytes]:
                return [letter.body for letter in bus.dead_letters("q", **filters)]

            assert bodies(reason="Error") == [b"3", b"0"]
            assert bodies(reason="nothing") == []
            assert bodies(since=began + 60_000_000) == [b"3", b"2", b"1"]
            assert bodies(until=began + 60_000_000) == [b"0"]
            assert bodies(since=datetime.fromtimestamp((began + 120_000_000) / 1e6, UTC)) == [b"3", b"2"]
            assert bodies(states="I") == [b"1"]
            assert bodies(states="IN") == [b"2", b"1"]
            assert bodies(limit=2) == [b"3", b"2"]
            assert bodies(limit=1, reason="zero") == [b"0"]

    def test_of_many_that_ended_alike(self) -> None:
        """B15: neighbours that the broker keeps as one are told apart."""
        bus = Bus()
        bus.subscribe("x", queue="q")(number)
        with bus.testing() as test:
            bus.publish_many("x", ["a", "b", "c", "d"])
            test.run()
            assert [letter.body for letter in bus.dead_letters("q", limit=3)] == [b'"d"', b'"c"', b'"b"']

    @pytest.mark.parametrize(
        "wrong", [{"limit": 0}, {"since": "yesterday"}, {"until": datetime(2030, 1, 1)}, {"since": True}]
    )
    def test_impossible_filters_are_refused(self, wrong: dict[str, Any]) -> None:
        """B15"""
        bus, _ = shop()
        with bus.testing(), pytest.raises(InvalidOption):
            bus.dead_letters("q", **wrong)

    def test_of_an_unknown_queue(self) -> None:
        """B15"""
        bus, _ = shop()
        with bus.testing(), pytest.raises(NotFound, match="nowhere"):
            bus.dead_letters("nowhere")


def number(body: int) -> None: ...


class TestReprocess:
    def test_sends_all_back(self) -> None:
        """B15"""
        bus, seen = shop()
        with bus.testing() as test:
            ids = four(test)
            bus.mend()  # type: ignore[attr-defined]
            assert bus.reprocess("q") == 4
            test.run()
            assert sorted(seen) == [0, 1, 2, 3]
            assert {state(bus, message, "q") for message in ids} == {"X"}
            assert bus.dead_letters("q") == []
            assert bus.reprocess("q") == 0

    def test_with_filters(self) -> None:
        """B15: by reason, time and state."""
        bus, seen = shop()
        with bus.testing() as test:
            began = test.clock.now
            four(test)
            bus.mend()  # type: ignore[attr-defined]
            assert bus.reprocess("q", reason="zero") == 1
            test.run()
            assert seen == [0]
            assert bus.reprocess("q", since=began + 180_000_000) == 1
            test.run()
            assert seen == [0, 3]
            assert bus.reprocess("q", states="N") == 1
            test.run()
            assert seen == [0, 3, 2]
            assert bus.reprocess("q", until=began) == 0

    def test_is_logged_with_who_did_it(self) -> None:
        """B15"""
        bus, _ = shop()
        with bus.testing() as test:
            four(test)
            bus.reprocess("q", who="ann", reason="zero")
            again = [event for event in events(bus, "q") if event.state.value == "Q"]
            assert [(event.who, event.reason, event.count) for event in again] == [("ann", "reprocessed", 1)]


class TestClear:
    def test_ends_all_that_waits_and_logs_who_did_it(self) -> None:
        """B15: delayed ones too; it can be undone."""
        bus, seen = shop()
        bus.mend()  # type: ignore[attr-defined]
        with bus.testing() as test:
            test.publish("x", 1)
            test.publish("x", 2, delay="1h")
            assert bus.clear("q", who="ben") == 2
            assert test.run() == 0
            assert {event.who for event in events(bus, "q") if event.reason == "cleared"} == {"ben"}
            assert {letter.reason for letter in bus.dead_letters("q")} == {"cleared"}
            assert bus.reprocess("q", reason="cleared") == 2
            test.advance("1h")
        assert sorted(seen) == [1, 2]

    def test_without_a_name_it_is_the_buss_user_or_who_runs_it(self) -> None:
        """B15"""
        bus, _ = shop()
        with bus.testing() as test:
            test.publish("x", 1)
            bus.clear("q")
            bus.user = "service"
            test.publish("x", 1)
            bus.clear("q")
            assert [event.who for event in events(bus, "q") if event.reason == "cleared"] == [
                getpass.getuser(), "service",
            ]  # fmt: skip


def test_forget_lets_dead_letters_go_for_good() -> None:
    """B15: with filters."""
    bus, _ = shop()
    with bus.testing() as test:
        four(test)
        assert bus.forget("q", who="ann", reason="Error") == 2
        assert [letter.body for letter in bus.dead_letters("q")] == [b"2", b"1"]
        assert bus.reprocess("q") == 2


class TestRetriesAndFilters:
    def test_reprocess_reaches_what_waits_for_a_retry(self) -> None:
        """B15: "Reprocess Failed/Dead" means both."""
        bus = Bus()
        tries: list[int] = []

        @bus.subscribe("x", queue="q", retry=["1h", "1h"])
        def handle(body: int) -> None:
            tries.append(body)
            if len(tries) < 3:
                raise ValueError("no" if body else "zero")

        with bus.testing() as test:
            test.publish("x", 0)
            test.publish("x", 1)
            test.run()
            assert tries == [0, 1]
            assert bus.reprocess("q", waiting=False) == 0
            assert bus.reprocess("q", reason="zero", who="ann") == 1
            test.run()
            assert tries == [0, 1, 0]
            assert bus.reprocess("q") == 1
            test.run()
            assert tries == [0, 1, 0, 1]
            again = [event for event in events(bus, "q") if event.reason == "reprocessed"]
            assert [event.who for event in again] == ["ann", getpass.getuser()]

    def test_clear_takes_filters(self) -> None:
        """B15"""
        bus = Bus()
        bus.subscribe("a", "b", queue="q")(lambda body: None)
        with bus.testing() as test:
            test.publish("a", 1)
            test.publish("b", 2)
            test.clock.advance("1m")
            later = test.clock.now
            test.publish("a", 3, delay="1h")
            assert bus.clear("q", topic="b", who="ann") == 1
            assert bus.clear("q", since=later) == 1
            assert bus.clear("q", reason="nothing has it") == 0
            assert test.queue("q").size == 1
            assert bus.clear("q") == 1

    @pytest.mark.parametrize("place", ["memory://", "directory"])
    def test_clear_chooses_among_many_at_once(self, place: str, tmp_path: Path) -> None:
        """B15: the log is read once, not for each message, and the same are found."""
        bus = Bus(place if "://" in place else tmp_path / place)
        failing = {1, 2, 500}

        @bus.subscribe("a", "b", queue="q", retry=["1h"])
        def handle(body: int) -> None:
            if body in failing:
                raise KeyError("odd" if body % 2 else "even")
            raise NotNow("later", after="1h")

        with bus:
            bus.publish_many("a", range(400))
            bus.publish_many("b", range(400, 800))
            bus.run(until_idle=True, timeout="60s")
            assert bus.broker.queue("q").delayed == 800
            calls: list[Any] = []
            ask = bus.broker.message
            bus.broker.message = calls.append  # type: ignore[method-assign, assignment]
            assert bus.clear("q", topic="a", reason="odd") == 1
            assert bus.clear("q", reason="even") == 2
            assert bus.clear("q", topic="b", reason="even") == 0
            assert bus.clear("q", topic="b") == 399
            assert calls == []
            bus.broker.message = ask  # type: ignore[method-assign]
            assert bus.clear("q", reason="later") == 398
            assert sorted(letter.body for letter in bus.dead_letters("q", reason="cleared", limit=3)) != []

    @pytest.mark.parametrize("filters", [{"topic": 5}, {"reason": 5}, {"since": "now"}, {"until": "now"}])
    def test_clear_refuses_wrong_filters(self, filters: Any) -> None:
        """B15"""
        with Bus() as bus, pytest.raises(InvalidOption, match=next(iter(filters))):
            bus.clear("q", **filters)

    @pytest.mark.parametrize("filters", [{"reason": 5}, {"since": "now"}, {"states": "Z"}, {"states": 5}])
    def test_wrong_filters_are_refused(self, filters: Any) -> None:
        """B15"""
        bus = Bus()
        bus.subscribe("x", queue="q")(lambda body: None)
        with bus.testing(), pytest.raises(InvalidOption):
            bus.reprocess("q", **filters)
