"""What two features of a bus do to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, Context, HandlerFailed, Message, NotInterested, NotNow, Reject, Response
from remuda.model.errors import InvalidMessage
from tests.bus import jobs
from tests.bus.kit import attempts, eventually, running


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.mark.parametrize(("error", "ended"), [(Reject, "I"), (NotInterested, "N"), (ValueError, "E")])
def test_b12_one_bad_message_does_not_end_its_list(bus: Bus, error: type[Exception], ended: str) -> None:
    """B12, F6: the others of the list are tried one by one."""
    seen: list[list[int]] = []

    @bus.subscribe("x", queue="q", batch=10, retry="never")
    def handle(bodies: list[int]) -> None:
        seen.append(bodies)
        if 3 in bodies:
            raise error("bad")

    with bus.testing() as test:
        ids = bus.publish_many("x", range(5))
        test.run()
        assert seen == [[0, 1, 2, 3, 4], [0], [1], [2], [3], [4]]
        assert [bus.status(one).queues["q"].state.value for one in ids] == ["X", "X", "X", ended, "X"]
        assert [attempts(bus, one, "q") for one in ids] == [1] * 5


@pytest.mark.parametrize("what", ["rewrite", "headers", "remove"])
def test_b9_a_response_to_a_list_is_for_each_of_its_messages(bus: Bus, what: str) -> None:
    """B9, F6"""
    got: list[tuple[str, Any, str | None]] = []

    @bus.subscribe("x", queue="q", batch=10)
    def handle(bodies: list[int], response: Response) -> list[int]:
        if what == "rewrite":
            response.rewrite("other")
        elif what == "headers":
            response.headers["own"] = "yes"
        else:
            response.remove()
        return bodies

    @bus.subscribe("answer", "other", queue="answers")
    def answered(body: int, message: Message) -> None:
        got.append((message.name, body, message.headers.get("own")))

    with bus.testing() as test:
        bus.publish_many("x", range(3), callback="answer")
        test.run()
    expected = {
        "rewrite": [("other", 0, None), ("other", 1, None), ("other", 2, None)],
        "headers": [("answer", 0, "yes"), ("answer", 1, "yes"), ("answer", 2, "yes")],
        "remove": [],
    }
    assert got == expected[what]


@pytest.mark.parametrize(("what", "why"), [("remove", "removed it"), ("rewrite", "sends it to other instead")])
def test_b1_a_caller_is_told_that_no_reply_comes(bus: Bus, what: str, why: str) -> None:
    """B1, B9"""
    got: list[int] = []

    @bus.subscribe("x", queue="q")
    def handle(body: int, response: Response) -> int:
        if what == "remove":
            response.remove()
        else:
            response.rewrite("other")
        return body

    bus.subscribe("other", queue="others")(lambda body: got.append(body))
    with bus.testing() as test:
        with pytest.raises(HandlerFailed, match=why):
            test.call("x", 5)
        test.run()
    assert got == ([5] if what == "rewrite" else [])


def test_b12_status_counts_what_counts(bus: Bus) -> None:
    """B12, M7: a message that came back with NotNow has not been attempted."""

    @bus.subscribe("x", queue="q", retry=["1m", "1m"])
    def handle(context: Context) -> None:
        if context.message.body == b"1":
            raise NotNow(after="1h")
        raise ValueError

    with bus.testing() as test:
        later, failed = test.publish("x", 1), test.publish("x", 2)
        test.run()
        assert [bus.status(one).queues["q"].attempts for one in (later, failed)] == [0, 1]
        test.advance("1m")
        assert bus.status(failed).queues["q"].attempts == 2


def test_b11_a_middleware_cannot_change_the_id_that_a_message_has(bus: Bus) -> None:
    """B11, B20"""
    from msgspec.structs import replace

    from remuda import Middleware

    class Renaming(Middleware):
        def before_publish(self, message: Message) -> Message:
            return replace(message, id="mine")

    bus = Bus(middleware=[Renaming()])
    bus.subscribe("x", queue="q")(lambda body: body)
    with bus.testing() as test:
        for options in ({"unique": "a"}, {"idempotency_key": "a"}, {"id": "a"}):
            with pytest.raises(InvalidMessage, match="Renaming changed the id 'a' to 'mine'"):
                test.publish("x", 1, **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="a call that waits"):
            test.call("x", 1)
        assert test.publish("x", 1) == "mine"
        assert test.queue("q").waiting == 1


@pytest.mark.parametrize("executor", ["threads", "asyncio", "processes"])
@pytest.mark.parametrize("there_before", [False, True])
def test_b4_a_message_that_is_moved_to_a_queue_with_fewer_attempts_is_tried_there(
    tmp_path: Path, executor: str, there_before: bool
) -> None:
    """B4, B22: its attempts go with it, but it does not end without one in its new queue."""
    bus = Bus(tmp_path / "d", sync="os")
    bus.subscribe("x", queue="q", retry=["1s"] * 5)(jobs.fail)
    double = jobs.double_async if executor == "asyncio" else jobs.double
    bus.subscribe("y", queue="second", retry="never", executor=executor)(double)
    message = bus.publish("x", 5, topics=["x", "y"] if there_before else ["x"], keep_result=True)
    with running(bus):
        eventually(lambda: bus.status(message).queues["q"].word == "waiting for a retry")
        if there_before:
            eventually(lambda: bus.status(message).queues["second"].word == "done")
        bus.broker.move("q", "second")
        eventually(lambda: bus.status(message).ended)
        assert bus.status(message).queues["second"].word == "done"
        assert bus.result(message, queue="second") == 10


def test_f1_a_dead_message_says_that_its_key_goes_on(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """F1"""
    got: list[int] = []

    @bus.subscribe("x", queue="q", ordered=True, retry="never")
    def handle(body: int) -> None:
        got.append(body)
        if body == 0:
            raise ValueError("no")

    with bus.testing() as test:
        for body in range(2):
            bus.publish("x", body, key="ann")
        test.run()
    assert got == [0, 1]
    assert "the next of its key goes on" in caplog.text
