"""The bus on RabbitMQ, from its user's side: nothing in the code changes but the URL."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from remuda import Attempt, Bus, Context, HandlerFailed, NotNow, Reject, Retry
from remuda.model.message import Message
from tests.bus.kit import eventually
from tests.bus.rabbitmq.conftest import MakeBus

SOON = 60.0


@pytest.fixture
def bus(make_bus_here: MakeBus) -> Bus:
    return make_bus_here()


def test_b1_publish_send_and_call_from_threads(bus: Bus) -> None:
    """B1"""
    seen: list[int] = []

    @bus.subscribe("sum")
    def add(numbers: list[int]) -> int:
        seen.append(sum(numbers))
        return seen[-1]

    bus.start()
    bus.publish("sum", [1, 2])
    eventually(lambda: seen == [3], SOON)
    assert bus.send("sum", [3, 4]) == [7]
    assert bus.call("sum", [5, 6], timeout=SOON, result=int) == 11


def test_b1_publish_and_call_from_coroutines(bus: Bus) -> None:
    """B1"""

    @bus.subscribe("sum")
    async def add(numbers: list[int]) -> int:
        await asyncio.sleep(0)
        return sum(numbers)

    async def scene() -> list[Any]:
        async with bus:
            await bus.publish_async("sum", [0])
            asked = (bus.call_async("sum", [number, 1], timeout=SOON) for number in range(20))
            return await asyncio.gather(*asked)

    assert asyncio.run(scene()) == list(range(1, 21))


def test_b2_b10_one_event_feeds_several_queues_and_workers_of_a_group_compete(make_bus_here: MakeBus) -> None:
    """B2, B10"""
    seen: dict[str, list[int]] = {"mail": [], "stock": [], "all": []}
    guard = threading.Lock()
    workers = [make_bus_here() for _ in range(2)]
    for worker in workers:

        @worker.subscribe("orders.*", group="mail")
        def mail(number: int) -> None:
            with guard:
                seen["mail"].append(number)

        @worker.subscribe("orders.#", group="stock")
        def stock(number: int) -> None:
            with guard:
                seen["stock"].append(number)

    @workers[0].subscribe("#", queue="everything")
    def everything(number: int) -> None:
        with guard:
            seen["all"].append(number)

    for worker in workers:
        worker.start()
    workers[0].publish_many("orders.new", range(50))
    workers[1].publish("orders.new.eu", 50)
    eventually(lambda: len(seen["stock"]) == 51 and len(seen["mail"]) == 50 and len(seen["all"]) == 51, SOON)
    assert sorted(seen["mail"]) == list(range(50))
    assert sorted(seen["stock"]) == sorted(seen["all"]) == list(range(51))


def test_b4_retries_come_by_schedule_and_count(bus: Bus) -> None:
    """B4: attempt n waits entry n; never before its time."""
    times: list[tuple[int, float]] = []

    @bus.subscribe("x", retry=["200ms", "400ms"])
    def fail(body: int, attempt: Attempt) -> None:
        times.append((int(attempt), time.monotonic()))
        raise ValueError("no")

    bus.start()
    bus.publish("x", 1)
    queue = bus.handlers[0].queue
    eventually(lambda: bus.broker.queue(queue).dead == 1, SOON)
    assert [attempt for attempt, _ in times] == [1, 2, 3]
    assert times[1][1] - times[0][1] >= 0.2
    assert times[2][1] - times[1][1] >= 0.4
    (letter,) = bus.dead_letters(queue)
    assert (letter.reason, letter.attempts, letter.body) == ("ValueError: no", 3, b"1")
    assert "ValueError: no" in (letter.history.detail or "")
    assert len(letter.history.consumed_by) == 3


def test_b4_a_long_retry_blocks_nobody_behind_it(bus: Bus) -> None:
    """B4: one message that waits for an hour holds up none that waits for a moment."""
    seen: list[int] = []

    @bus.subscribe("x")
    def handle(body: int, attempt: Attempt) -> None:
        if attempt == 1:
            raise Retry(after="1h" if body == 0 else "100ms")
        seen.append(body)

    bus.start()
    bus.publish_many("x", range(5))
    eventually(lambda: sorted(seen) == [1, 2, 3, 4], SOON)


def test_b5_the_threshold_is_told_once(make_bus_here: MakeBus) -> None:
    """B5"""
    told: list[tuple[str, str]] = []
    bus = make_bus_here(on_threshold=lambda queue, message, reason: told.append((message, reason)))

    @bus.subscribe("x", queue="q", retry=["10ms", "10ms"])
    def fail(body: int) -> None:
        raise ValueError("no")

    bus.start()
    message = bus.publish("x", 1)
    eventually(lambda: bus.broker.queue("q").dead == 1, SOON)
    assert told in ([], [(message, "ValueError: no")])


def test_b6_a_handler_past_its_time_fails_and_others_go_on(bus: Bus) -> None:
    """B6"""
    seen: list[str] = []

    @bus.subscribe("slow", queue="slow", timeout="300ms", retry=0)
    async def slow(body: int) -> None:
        await asyncio.sleep(60)

    @bus.subscribe("quick", queue="quick")
    def quick(body: int) -> None:
        seen.append("quick")

    bus.start()
    bus.publish("slow", 1)
    bus.publish("quick", 1)
    eventually(lambda: bus.broker.queue("slow").dead == 1 and seen == ["quick"], SOON)
    assert "timed out" in bus.dead_letters("slow")[0].reason


def test_b7_failover_moves_the_message_with_a_fresh_schedule(bus: Bus) -> None:
    """B7"""
    seen: list[int] = []

    @bus.subscribe("x", queue="first", retry=["50ms"], failover="second")
    def fail(body: int) -> None:
        raise ValueError("no")

    @bus.subscribe("unused", queue="second")
    def rescue(body: int, attempt: Attempt) -> None:
        seen.append(int(attempt))

    bus.start()
    message = bus.publish("x", 7)
    eventually(lambda: seen == [1], SOON)
    eventually(lambda: bus.status(message).queues["second"].word == "done", SOON)
    assert bus.status(message).queues["first"].word == "moved"
    assert bus.broker.queue("first").dead == 0


def test_b8_concurrency_and_processes(bus: Bus) -> None:
    """B8: as many at once as the queue may have."""
    running, most = 0, 0
    guard = threading.Lock()
    done: list[int] = []

    @bus.subscribe("x", threads=4)
    def handle(body: int) -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.1)
        with guard:
            running -= 1
            done.append(body)

    bus.publish_many("x", range(12))
    bus.start()
    eventually(lambda: len(done) == 12, SOON)
    assert sorted(done) == list(range(12))
    assert 2 <= most <= 4


def test_b9_callbacks_carry_the_parent(bus: Bus) -> None:
    """B9"""
    answers: list[tuple[Any, str | None, str | None]] = []

    @bus.subscribe("order")
    def order(body: int) -> int:
        return body + 1

    @bus.subscribe("ordered")
    def ordered(body: int, context: Context) -> None:
        headers = context.message.headers
        answers.append((body, headers.get("cap-corr-id"), headers.get("cap-corr-seq")))

    bus.start()
    parent = bus.publish("order", 1, callback="ordered")
    eventually(lambda: answers, SOON)
    assert answers == [(2, parent, "1")]


def test_b12_a_handler_can_retry_reject_and_put_off(bus: Bus) -> None:
    """B12"""
    seen: list[tuple[str, int]] = []

    @bus.subscribe("x", queue="q")
    def handle(word: str, attempt: Attempt) -> None:
        seen.append((word, int(attempt)))
        if word == "bad":
            raise Reject("not for me")
        if word == "later" and sum(one == "later" for one, _ in seen) < 3:
            raise NotNow(after="50ms")

    bus.start()
    bus.publish("x", "bad")
    bus.publish("x", "later")
    eventually(lambda: len([one for one in seen if one[0] == "later"]) == 3, SOON)
    assert [attempt for word, attempt in seen if word == "later"] == [1, 1, 1], "not now does not count"
    eventually(lambda: bus.broker.queue("q").dead == 1, SOON)
    (letter,) = bus.dead_letters("q")
    assert (letter.state.value, letter.reason) == ("I", "not for me")


def test_b13_what_nobody_wants_is_kept_and_can_be_routed_anew(make_bus_here: MakeBus) -> None:
    """B13: with the reason, visible, reprocessable."""
    early = make_bus_here()
    early.start()
    early.publish("nobody.cares", {"a": 1})
    eventually(lambda: early.broker.queue("remuda.unrouted").dead == 1, SOON)
    assert "nobody is subscribed" in early.dead_letters("remuda.unrouted")[0].reason
    early.close()
    late, seen = make_bus_here(), []

    @late.subscribe("nobody.*")
    def care(body: dict[str, int]) -> None:
        seen.append(body)

    late.start()
    assert late.reprocess("remuda.unrouted") == 1
    eventually(lambda: seen == [{"a": 1}], SOON)


def test_b13_a_body_that_cannot_be_decoded_is_kept_with_the_reason(bus: Bus) -> None:
    """B13"""

    @bus.subscribe("x", queue="q")
    def handle(body: int) -> None:
        raise AssertionError("it must not come here")

    bus.start()
    bus.publish("x", b"{broken", mime_type="application/json")
    eventually(lambda: bus.broker.queue("q").dead == 1, SOON)
    assert bus.dead_letters("q")[0].state.value == "I"


def test_b14_delayed_and_scheduled_messages_come_at_their_time(bus: Bus) -> None:
    """B14"""
    came: dict[str, float] = {}

    @bus.subscribe("x", queue="q")
    def handle(word: str) -> None:
        came[word] = time.monotonic()

    bus.start()
    begun = time.monotonic()
    bus.publish("x", "hour", delay="1h")
    bus.publish("x", "late", delay="730ms")
    bus.publish("x", "soon", delay="120ms")
    bus.publish("x", "now")
    eventually(lambda: {"late", "soon", "now"} <= set(came), SOON)
    assert came["late"] - begun >= 0.73
    assert came["soon"] - begun >= 0.12
    assert "hour" not in came


def test_b14_what_expired_is_not_handled_and_is_kept(bus: Bus) -> None:
    """B14: expiry per message, natively and by whoever consumes."""
    seen: list[str] = []

    @bus.subscribe("x", queue="q")
    def handle(word: str) -> None:
        seen.append(word)

    bus.publish("x", "gone", expires="50ms")
    bus.publish("x", "stays", expires="1h")
    time.sleep(0.2)
    bus.start()
    eventually(lambda: seen == ["stays"], SOON)
    eventually(lambda: bus.broker.queue("q").dead == 1, SOON)
    assert bus.dead_letters("q")[0].reason == "expired"


def test_b15_dead_letters_are_reprocessed_forgotten_and_cleared_by_filter(bus: Bus) -> None:
    """B15"""
    broken = True
    seen: list[str] = []

    @bus.subscribe("x", queue="q", retry=0)
    def handle(word: str) -> None:
        if broken:
            raise ValueError(f"no {word}")
        seen.append(word)

    bus.start()
    bus.publish_many("x", ["stock", "address", "money"])
    eventually(lambda: bus.broker.queue("q").dead == 3, SOON)
    assert [letter.reason for letter in bus.dead_letters("q", reason="stock")] == ["ValueError: no stock"]
    broken = False
    assert bus.reprocess("q", reason="stock", who="ann") == 1
    eventually(lambda: seen == ["stock"], SOON)
    assert bus.forget("q", reason="money", who="ann") == 1
    assert [letter.reason for letter in bus.dead_letters("q")] == ["ValueError: no address"]
    bus.stop()
    bus.publish_many("x", ["a", "b"])
    assert bus.clear("q", who="ben") == 2
    assert bus.broker.queue("q").waiting == 0
    assert {letter.reason for letter in bus.dead_letters("q")} == {"ValueError: no address", "cleared"}


def test_b16_a_stop_lets_handlers_finish_and_gives_back_the_rest(make_bus_here: MakeBus) -> None:
    """B16: nothing is lost, and what had not begun counts no attempt."""
    bus, begun, done = make_bus_here(), threading.Event(), []

    @bus.subscribe("x", queue="q")
    def handle(number: int, attempt: Attempt) -> None:
        begun.set()
        time.sleep(0.05)
        done.append((number, int(attempt)))

    bus.publish_many("x", range(30))
    bus.start()
    assert begun.wait(SOON)
    assert bus.health() == {"live": True, "ready": True}
    bus.stop()
    assert bus.health()["ready"] is False
    bus.close()
    other = make_bus_here()
    other.subscribe("x", queue="q")(handle)
    other.start()
    eventually(lambda: len(done) >= 30, SOON)
    assert sorted(number for number, _ in done) == list(range(30))
    assert {attempt for _, attempt in done} == {1}


def test_b17_who_caused_it_travels(bus: Bus) -> None:
    """B17"""
    seen: list[Any] = []

    @bus.subscribe("x")
    def handle(body: int, context: Context) -> None:
        seen.append(context.user)

    bus.start()
    bus.publish("x", 1, user="ann")
    eventually(lambda: seen == ["ann"], SOON)


def test_b20_status_result_and_error_by_id(bus: Bus) -> None:
    """B20: from the event log, which all processes share."""

    @bus.subscribe("good", queue="good")
    def good(body: int) -> int:
        return body * 2

    @bus.subscribe("bad", queue="bad", retry=0)
    def bad(body: int) -> int:
        raise ValueError("no")

    bus.start()
    fine, broken = bus.publish("good", 4, keep_result=True), bus.publish("bad", 4)
    assert bus.result(fine, int, timeout=SOON) == 8
    with pytest.raises(HandlerFailed, match="ValueError: no"):
        bus.result(broken, timeout=SOON)
    with pytest.raises(HandlerFailed, match="ValueError: no"):
        bus.call("bad", 1, timeout=SOON)


def test_b20_a_message_that_waits_can_be_cancelled(bus: Bus) -> None:
    """B20"""
    bus.subscribe("x", queue="q")(lambda body: None)
    kept, gone = bus.publish("x", 1), bus.publish("x", 2)
    assert bus.cancel(gone, who="ann")
    assert bus.broker.queue("q").waiting == 1
    assert bus.dead_letters("q")[0].id == gone
    assert bus.status(kept).word == "waiting"


def test_m2_m4_messages_made_by_hand_keep_all_fields(bus: Bus) -> None:
    """M2, M4"""
    seen: list[Message] = []

    @bus.subscribe("x.#")
    def handle(body: bytes, context: Context) -> None:
        seen.append(context.message)

    sent = Message(
        "x.a", b"\x00\xff", id="my own ✓", topics=("x.a", "x.b"), object="o", key="k", timestamp=1_700_000_000_000_123,
        headers={"CC": "not an address", "x-death": "no", "remuda": "mine", "ü" * 200: "✓"}, priority=7,
    )  # fmt: skip
    bus.start()
    bus.publish_messages([sent])
    eventually(lambda: seen, SOON)
    assert len(seen) == 1, "one copy, however many of its topics fit"
    for field in Message.__struct_fields__:
        if field != "created":
            assert getattr(seen[0], field) == getattr(sent, field), field
