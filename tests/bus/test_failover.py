"""B7: after the last retry, dead, or on to another queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remuda import Attempt, Bus, HandlerFailed, Message
from remuda.model.errors import InvalidOption
from remuda.model.state import State
from tests.bus.kit import state


def fail(body: Any) -> None:
    raise ValueError("no")


@pytest.fixture
def bus() -> Bus:
    return Bus()


def test_without_one_the_message_is_dead(bus: Bus) -> None:
    """B7"""
    bus.subscribe("x", queue="q", retry=["1s"])(fail)
    with bus.testing() as test:
        message = test.publish("x", 5)
        test.run()
        test.advance("1s")
        assert state(bus, message, "q") == "E"
        assert test.queue("q").dead == 1
        letter = test.dead_letters("q")[0]
    assert (letter.id, letter.topic, letter.reason, letter.attempts, letter.body) == (
        message, "x", "ValueError: no", 2, b"5",
    )  # fmt: skip
    assert "in fail" in str(letter.history.detail), "the traceback"


def test_the_message_goes_on_with_a_fresh_schedule(bus: Bus) -> None:
    """B7: attempts start at 1, and the retries are those of the other queue."""
    seen: list[tuple[int, int]] = []
    bus.subscribe("x", queue="q", retry=["1s"], failover="by-hand")(fail)

    @bus.subscribe("unused", queue="by-hand", retry=["1m", "1h"])
    def again(body: int, attempt: Attempt) -> None:
        seen.append((int(attempt), bus.now()))
        if attempt < 3:
            raise ValueError("not yet")

    with bus.testing() as test:
        message = test.publish("x", 5)
        test.run()
        test.advance("1d")
        assert [attempt for attempt, _ in seen] == [1, 2, 3]
        times = [time for _, time in seen]
        assert [times[1] - times[0], times[2] - times[1]] == [60_000_000, 3_600_000_000]
        assert state(bus, message, "q") == "E"
        assert state(bus, message, "by-hand") == "X"


def test_from_papertrails_property() -> None:
    """B3, B7"""
    bus = Bus(settings={"message.failover.q": "spare", "message.retry.max": 0})
    seen: list[str] = []
    bus.subscribe("x", queue="q")(fail)

    @bus.subscribe("unused", queue="spare")
    def spare(message: Message) -> None:
        seen.append(message.name)

    with bus.testing() as test:
        test.publish("x")
        test.run()
    assert seen == ["x"]


def test_a_queue_without_a_handler_keeps_the_messages_for_whoever_comes(bus: Bus) -> None:
    """B7: a person, or another process."""
    bus.subscribe("x", queue="q", retry="never", failover="by-hand")(fail)
    with bus.testing() as test:
        test.publish("x", 5)
        assert test.run() == 1
        assert test.queue("by-hand").waiting == 1
        assert test.queue("by-hand").options.type.value == "pull"
        delivery = bus.broker.pull("by-hand")
        assert delivery is not None
        assert (delivery.bodies, delivery.attempts) == ([b"5"], [1])


def test_the_settings_of_a_queue_that_another_process_works_on_are_left_alone(tmp_path: Path) -> None:
    """B7"""
    with Bus(tmp_path / "data") as other:
        other.subscribe("unused", queue="by-hand")(fail)
        other.publish("nothing")
    bus = Bus(tmp_path / "data")
    bus.subscribe("x", queue="q", retry="never", failover="by-hand")(fail)
    with bus:
        assert bus.broker.queue("by-hand").options.patterns == ("unused",)


def test_along_a_chain(bus: Bus) -> None:
    """B7"""
    bus.subscribe("x", queue="a", retry="never", failover="b")(fail)
    bus.subscribe("unused", queue="b", retry="never", failover="c")(fail)
    bus.subscribe("unused", queue="c", retry="never")(fail)
    with bus.testing() as test:
        message = test.publish("x")
        assert test.run() == 3
        states = {view.queue: view.state.value for view in test.message(message).queues}
    assert states == {"a": "E", "b": "E", "c": "E"}


def test_what_is_invalid_does_not_fail_over(bus: Bus) -> None:
    """B7, B12"""
    bus.subscribe("x", queue="q", retry="never", failover="by-hand")(number)
    with bus.testing() as test:
        message = test.publish("x", "text")
        test.run()
        assert state(bus, message, "q") == "I"
        assert test.queue("by-hand").size == 0


def number(body: int) -> None: ...


@pytest.mark.parametrize(
    ("links", "circle"),
    [
        ({"a": "a"}, "a → a"),
        ({"a": "b", "b": "a"}, "a → b → a"),
        ({"a": "b", "b": "c", "c": "b"}, "b → c → b"),
    ],
)
def test_a_cycle_is_refused_at_start(links: dict[str, str], circle: str) -> None:
    """B7"""
    bus = Bus(settings={f"message.failover.{source}": target for source, target in links.items()})
    for queue in links:
        bus.subscribe("x", queue=queue)(fail)
    with pytest.raises(InvalidOption, match="circle"):
        bus.start()
    with pytest.raises(InvalidOption) as refused:
        bus.publish("x")
    assert circle.split(" → ")[0] in str(refused.value)


@pytest.mark.parametrize("prefix", [None, "staging."])
def test_a_cycle_through_a_queue_of_another_process_is_refused_at_start(prefix: str | None) -> None:
    """B7: processes that share their settings each see half of it, and messages would go round for ever."""
    bus = Bus(settings={"message.failover.a": "b", "message.failover.b": "a"}, prefix=prefix)
    bus.subscribe("x", queue="a")(fail)
    with pytest.raises(InvalidOption, match="circle"):
        bus.start()
    ends = Bus(settings={"message.failover.a": "b", "message.failover.b": "c"}, prefix=prefix)
    ends.subscribe("x", queue="a")(fail)
    ends.start()
    ends.close()


def test_to_a_queue_that_cannot_be_pulled_is_refused_at_start(tmp_path: Path) -> None:
    """B7"""
    with Bus(tmp_path / "data") as before:
        before.broker.create_queue("robin")
    bus = Bus(tmp_path / "data")
    bus.subscribe("x", queue="q", failover="robin")(fail)
    with pytest.raises(InvalidOption, match=r"message\.failover\.q.*round-robin"):
        bus.publish("x")


def test_is_a_move(bus: Bus) -> None:
    """B7: it leaves no dead letter in its old queue, and reprocessing that one runs nothing twice."""
    seen: list[int] = []
    bus.subscribe("x", queue="q", retry="never", failover="spare")(fail)
    bus.subscribe("unused", queue="spare")(lambda body: seen.append(body))
    with bus.testing() as test:
        message = test.publish("x", 5)
        test.run()
        assert test.queue("q").dead == 0
        assert test.dead_letters("q") == []
        assert bus.reprocess("q") == 0
        test.run()
        status = bus.status(message)
        assert (status.done, status.failed, status.queues["q"].word) == (True, False, "moved")
        document = test.message(message)
        assert document.state is State.COMPLETED
        assert [view.moved_to for view in document.queues] == ["spare", None]
        assert State.DEAD not in test.queue("q").counts
    assert seen == [5]


def test_a_move_tells_whence_and_why(bus: Bus) -> None:
    """B7, M7: in the queue that it comes to."""
    bus.subscribe("x", queue="q", retry="never", failover="by-hand")(fail)
    with bus.testing() as test:
        message = test.publish("x", 5)
        test.run()
        there = test.message(message).queues[1]
        assert (there.queue, there.state, there.reason) == ("by-hand", State.QUEUED, "moved from q: ValueError: no")
        assert test.message(message).state is State.QUEUED


class TestOneStep:
    """B7: a move arrives, or the message has not left and says why."""

    @pytest.mark.parametrize(
        ("closed", "why"),
        [("paused", "queue 'spare' is paused"), ("full", "queue 'spare' is full by its message_limit")],
    )
    def test_b7_a_target_that_takes_nothing(self, bus: Bus, closed: str, why: str) -> None:
        """B7"""
        told: list[str] = []
        bus.subscribe("x", queue="q", retry="never", failover="spare")(fail)

        @bus.subscribe("failed")
        def note(message: Message) -> None:
            told.append(message.headers["cap-exception"])

        with bus.testing() as test:
            if closed == "paused":
                bus.broker.set_status("spare", "paused")
            else:
                bus.broker.configure_queue("spare", message_limit=1)
                bus.broker.publish(Message("spare", b""), queue="spare")
            message = test.publish("x", 5, failure_callback="failed")
            test.run()
            status = bus.status(message)
            assert (status.failed, status.queues["q"].word) == (True, "dead")
            assert list(status.queues) == ["q"]
            reason = status.queues["q"].reason or ""
            assert reason.startswith(f"ValueError: no; not moved to spare: {why}")
            assert test.dead_letters("q")[0].reason == reason
            with pytest.raises(HandlerFailed, match="ValueError: no"):
                test.call("x", 5)
        assert told == ["ValueError: no"]

    @pytest.mark.parametrize("first", ["the target", "the source"])
    def test_b7_a_target_with_a_subscription_of_its_own_gets_it_once(self, first: str) -> None:
        """B7: whichever of the two comes first."""
        bus = Bus()
        seen: list[int] = []

        def source() -> None:
            bus.subscribe("x", queue="q", retry="never", failover="spare")(fail)

        if first == "the source":
            source()
        bus.subscribe("x", queue="spare")(lambda body: seen.append(body))
        if first == "the target":
            source()
        with bus.testing() as test:
            message = test.publish("x", 5)
            test.run()
            queues = bus.status(message).queues
        assert seen == [5]
        assert (queues["q"].word, queues["spare"].word) == ("dead", "done")
        assert queues["q"].reason == "ValueError: no; not moved to spare: it has had the message already"

    def test_b7_two_queues_that_fail_over_to_one(self, bus: Bus) -> None:
        """B7"""
        seen: list[int] = []
        bus.subscribe("x", queue="a", retry="never", failover="spare")(fail)
        bus.subscribe("x", queue="b", retry=["1m"], failover="spare")(fail)
        bus.subscribe("unused", queue="spare")(lambda body: seen.append(body))
        with bus.testing() as test:
            message = test.publish("x", 5)
            test.run()
            test.advance("1h")
            queues = bus.status(message).queues
        assert seen == [5]
        assert [queues[name].word for name in ("a", "b", "spare")] == ["moved", "dead", "done"]

    def test_b7_handlers_that_do_not_take_the_topic_are_refused_at_start(self, bus: Bus) -> None:
        """B7"""
        bus.subscribe("x.*", queue="q", failover="spare")(fail)
        bus.subscribe("a", queue="spare")(number)
        bus.subscribe("b", queue="spare")(fail)
        with pytest.raises(InvalidOption, match=r"fail over to spare, but no handler there takes x\.\*"):
            bus.start()
