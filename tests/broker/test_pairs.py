"""What two features of a queue do to each other, and to a restart."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remuda import Binding, Message, open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import DeliveryFailed, Duplicate, NotFound, QueueFull
from tests.broker.kit import SECOND, ManualClock, open_at, pass_time
from tests.broker.shared.kit import other
from tests.conformance.kit import eventually, pulled


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with open_at(tmp_path / "d", clock) as broker:
        yield broker


def moved(broker: EmbeddedBroker) -> None:
    assert broker.move("a", "b") == 1


def given_up(broker: EmbeddedBroker) -> None:
    pulled(broker, "a").dead(to="b")


def dead_lettered(broker: EmbeddedBroker) -> None:
    broker.configure_queue("a", dead_letter_queue="b", put_back="no")
    pulled(broker, "a").nack()


@pytest.mark.parametrize("send_on", [moved, given_up, dead_lettered])
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("of", ["the message", "its queue"])
def test_q5_a_deadline_goes_with_its_message(
    tmp_path: Path, clock: ManualClock, send_on: Callable[[EmbeddedBroker], None], reopened: bool, of: str
) -> None:
    """Q5: never delivered after its deadline, in whatever queue."""
    broker = open_at(tmp_path / "d", clock)
    broker.create_queue("a", type="pull", message_timeout="10s" if of == "its queue" else 0)
    broker.create_queue("b", type="pull")
    expires = clock.now + 10 * SECOND if of == "the message" else None
    broker.publish(Message("a", b"short", expires=expires), queue="a")
    send_on(broker)
    if reopened:
        broker.close()
        broker = open_at(tmp_path / "d", clock)
    pass_time(broker, clock, 10 * SECOND - 1)
    assert broker.queue("b").waiting == 1
    pass_time(broker, clock, 1)
    assert broker.pull("b") is None
    assert (broker.queue("b").size, broker.queue("b").dead) == (0, 1)
    broker.close()


def test_q5_what_expired_waits_in_its_new_queue_without_a_deadline(broker: EmbeddedBroker, clock: ManualClock) -> None:
    """Q5"""
    broker.create_queue("a", type="pull", expired_queue="b")
    broker.create_queue("b", type="pull")
    broker.publish(Message("a", b"", expires=clock.now + SECOND), queue="a")
    pass_time(broker, clock, 100 * SECOND)
    pulled(broker, "b").ack()


def test_q6_bytes_are_counted_by_the_log_after_a_kill(tmp_path: Path) -> None:
    """Q6: every time."""
    for _ in range(2):
        with other(tmp_path / "d") as process:
            process.does("broker.create_queue('jobs', type='pull', byte_limit=100).created")
            process.does("broker.publish([Message('jobs', b'x' * 45)] * 2, raise_refusals=False).accepted")
            process.kill()
        with open_at(tmp_path / "d", ManualClock()) as broker:
            assert broker.queue("jobs").waiting == 2
            with pytest.raises(QueueFull, match="holds 90 bytes of its byte_limit of 100"):
                broker.publish(Message("jobs", b"x" * 45))


@pytest.mark.parametrize("reopened", [False, True])
def test_q12_unique_ids_switched_on_later_knows_what_waits(tmp_path: Path, reopened: bool) -> None:
    """Q12, Q6"""
    clock = ManualClock()
    broker = open_at(tmp_path / "d", clock)
    broker.create_queue("a", type="pull")
    broker.publish([Message("a", b"12345", id="one"), Message("a", b"12345", id="two")])
    held = pulled(broker, "a")
    broker.configure_queue("a", unique_ids=True, byte_limit=10)
    if reopened:
        broker.close()
        broker = open_at(tmp_path / "d", clock)
    for own in ("one", "two"):
        with pytest.raises(Duplicate):
            broker.publish(Message("a", b"", id=own))
    with pytest.raises(QueueFull):
        broker.publish(Message("a", b"1", id="three"))
    if not reopened:
        held.ack()
        broker.publish(Message("a", b"12345", id="one"))
    broker.close()


def test_q11_given_up_to_a_queue_that_nobody_may_create(tmp_path: Path) -> None:
    """Q11: nothing changes, and the consumer still has the message."""
    with open_at(tmp_path / "d", ManualClock(), auto_queue_creation=False) as broker:
        broker.create_queue("a", type="pull")
        broker.publish(Message("a", b""), queue="a")
        delivery = pulled(broker, "a")
        with pytest.raises(NotFound, match="no queue 'nowhere'"):
            delivery.dead(to="nowhere")
        assert broker.queue("a").in_flight == 1
        assert delivery.ack() == 1


@pytest.mark.parametrize("outcome", ["handled", "given up"])
def test_q4_a_publisher_that_waits_follows_its_message_to_another_queue(tmp_path: Path, outcome: str) -> None:
    """Q4, B22"""
    with open_broker(tmp_path / "d", sync="os") as broker, ThreadPoolExecutor(1) as pool:
        broker.create_queue("a", type="pull", commit_when="acknowledged")
        broker.create_queue("b", type="pull")
        waiting = pool.submit(broker.publish, Message("a", b""), queue="a")
        eventually(lambda: broker.queue("a").waiting == 1)
        assert broker.move("a", "b") == 1
        delivery = pulled(broker, "b")
        assert not waiting.done()
        if outcome == "handled":
            delivery.ack()
            assert waiting.result(30).accepted == 1
        else:
            delivery.dead(reason="no use")
            with pytest.raises(DeliveryFailed, match="no use"):
                waiting.result(30)


@pytest.mark.faults
@pytest.mark.parametrize("outcome", ["handled", "given up"])
def test_q4_s5_a_publisher_that_waits_follows_its_message_over_a_takeover(tmp_path: Path, outcome: str) -> None:
    """Q4, S5, B22: also where it was moved twice."""
    with other(tmp_path / "d") as host, open_broker(tmp_path / "d", sync="os") as broker, ThreadPoolExecutor(1) as pool:
        broker.create_queue("a", type="pull", commit_when="acknowledged")
        for name in "bc":
            broker.create_queue(name, type="pull")
        waiting = pool.submit(broker.publish, Message("a", b""), queue="a", timeout="60s")
        eventually(lambda: broker.queue("a").waiting == 1)
        assert (broker.move("a", "b"), broker.move("b", "c")) == (1, 1)
        host.kill()
        eventually(lambda: bool(broker.runtime.hosts))
        assert broker.queue("c").waiting == 1
        delivery = pulled(broker, "c")
        assert not waiting.done()
        if outcome == "handled":
            delivery.ack()
            assert waiting.result(30).accepted == 1
        else:
            delivery.dead(reason="moved to Mars")  # what it says decides nothing
            with pytest.raises(DeliveryFailed, match=r"moved to Mars\. It is kept"):
                waiting.result(30)


def test_q4_a_publisher_is_told_that_its_message_goes_on_elsewhere(tmp_path: Path) -> None:
    """Q4: its queue gave it up, to another."""
    with open_broker(tmp_path / "d", sync="os") as broker, ThreadPoolExecutor(1) as pool:
        broker.create_queue("a", type="pull", commit_when="acknowledged")
        waiting = pool.submit(broker.publish, Message("a", b""), queue="a")
        pulled(broker, "a", timeout="30s").dead(reason="no use", to="b")
        with pytest.raises(DeliveryFailed, match=r"success: moved to b: no use\. It goes on there"):
            waiting.result(30)


def test_q4_q18_copies_that_are_sent_one_after_another_are_waited_for_together() -> None:
    """Q16: the first may be sent before the next is published."""
    with open_broker("memory://") as broker, ThreadPoolExecutor(2) as pool:
        broker.create_queue("one", type="pull", commit_when="sent")
        broker.create_router("first", "first", [Binding(queue="one")])
        pull = pool.submit(broker.pull, "one", timeout="30s")
        eventually(lambda: broker.queue("one").pulls)
        routed = pool.submit(broker.route, "first", [Message("m", b"1"), Message("m", b"2")])
        first, second = pull.result(30), broker.pull("one", timeout="30s")
        assert first is not None
        assert second is not None
        assert (first.bodies, second.bodies) == ([b"1"], [b"2"])
        assert routed.result(30).first == 0


@pytest.mark.parametrize("killed", [False, True])
def test_q18_the_turn_of_a_router_outlives_its_broker(tmp_path: Path, killed: bool) -> None:
    """Q18"""
    clock = ManualClock()
    broker = open_at(tmp_path / "d", clock)
    for name in "abc":
        broker.create_queue(name, type="pull")
    broker.create_router("r", "round-robin", [Binding(queue=name) for name in "abc"])
    broker.route("r", [Message("x", b""), Message("x", b"")])
    if killed:
        broker.runtime.sync()
        shutil.copytree(tmp_path / "d", tmp_path / "e", ignore=shutil.ignore_patterns("socket"))
    broker.close()
    with open_at(tmp_path / ("e" if killed else "d"), clock) as broker:
        broker.route("r", Message("x", b""))
        assert [broker.queue(name).waiting for name in "abc"] == [1, 1, 1]
        broker.route("r", Message("x", b""))
        assert broker.queue("a").waiting == 2


def test_q18_the_compacter_looks_at_a_message_once(broker: EmbeddedBroker) -> None:
    """Q18, T3: each topic of a router gets its copy, and the next with the same body comes to none."""
    for name in ("a", "b"):
        broker.create_queue(name, type="pull")
    broker.create_router("r", "distribute", [Binding(topic="a.news"), Binding(topic="b.news")])
    for _ in range(2):
        broker.route("r", Message("x", b"body", object="order", key="1"))
    assert [broker.queue(name).waiting for name in ("a", "b")] == [1, 1]


def test_q18_route_waits_as_publish_does(tmp_path: Path) -> None:
    """Q18, Q4"""
    with open_broker(tmp_path / "d", sync="os") as broker, ThreadPoolExecutor(1) as pool:
        for name in ("a", "b"):
            broker.create_queue(name, type="pull", commit_when="acknowledged")
        broker.create_router("r", "distribute", [Binding(queue="a"), Binding(topic="b.copy")])
        waiting = pool.submit(broker.route, "r", Message("x", b""))
        eventually(lambda: broker.queue("a").waiting and broker.queue("b").waiting)
        pulled(broker, "a").ack()
        delivery = pulled(broker, "b")
        assert not waiting.done()
        delivery.ack()
        assert waiting.result(30).accepted == 1


@pytest.mark.parametrize("circle", ["ab", "abc"])
def test_q5_expired_queues_in_a_circle_send_a_message_on_once(
    broker: EmbeddedBroker, clock: ManualClock, circle: str
) -> None:
    """Q5"""
    for at, name in enumerate(circle):
        following = circle[(at + 1) % len(circle)]
        broker.create_queue(name, type="pull", message_timeout="1s", expired_queue=following)
    broker.publish(Message("a", b""), queue="a")
    for _ in range(10):
        pass_time(broker, clock, SECOND)
    infos = [broker.queue(name) for name in circle]
    assert [info.size for info in infos] == [0] * len(circle)
    assert [info.dead for info in infos] == [0, 1, *[0] * (len(circle) - 2)]


def test_t3_a_repeat_takes_no_room_and_is_not_refused(broker: EmbeddedBroker) -> None:
    """T3, Q6"""
    broker.create_queue("a", type="pull", message_limit=1)
    message = Message("a.x", b"body", object="order", key="1")
    broker.publish(message)
    assert broker.publish(message).unchanged == (0,)
    with pytest.raises(QueueFull):
        broker.publish(Message("a.x", b"other", object="order", key="1"))
    assert broker.queue("a").waiting == 1
