"""Consumers that vanish, brokers that close under their users' feet, and many of both."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from remuda import Message, Messages, open_broker
from remuda.model.errors import BrokerClosed, RemudaError
from tests.conformance.kit import eventually

pytestmark = pytest.mark.faults


def in_threads(works: list[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def test_b16_closing_wakes_everyone_who_waits(tmp_path: Path) -> None:
    """Receivers and pullers get None, producers that wait for an answer an error; nobody waits for ever."""
    broker = open_broker(tmp_path / "log", sync="os")
    broker.create_queue("pulled", type="pull")
    broker.create_queue("asking", type="pull", commit_when="acknowledged")
    subscription = broker.subscribe("robin", options={"type": "round-robin"})
    outcomes: list[object] = []

    def noting(verb: Callable[[], object]) -> Callable[[], None]:
        def work() -> None:
            try:
                outcomes.append(verb())
            except RemudaError as error:
                outcomes.append(type(error))

        return work

    threads = in_threads(
        [
            noting(subscription.receive),
            noting(lambda: broker.pull("pulled", timeout=60)),
            noting(lambda: broker.publish(Message("asking", b""))),
        ]
    )
    eventually(lambda: broker.queue("asking").size and broker.queue("pulled").pulls)
    broker.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert Counter(outcomes) == Counter([None, None, BrokerClosed])
    with pytest.raises(BrokerClosed, match="open it again"):
        broker.publish(Message("q", b""))


def test_q4_closing_while_the_message_ends_tells_the_producer_once(tmp_path: Path) -> None:
    """A message dropped by the close itself must not break it."""
    broker = open_broker(tmp_path / "log", sync="os")
    subscription = broker.subscribe("q", options={"put_back": "no", "commit_when": "acknowledged"})
    outcome: list[type[BaseException]] = []

    def publish() -> None:
        try:
            broker.publish(Message("q", b""))
        except RemudaError as error:
            outcome.append(type(error))

    (thread,) = in_threads([publish])
    assert subscription.receive(timeout=60) is not None
    broker.close()
    thread.join(60)
    assert outcome == [BrokerClosed]


def test_q3_a_consumer_thread_that_dies_gives_its_message_back_in_time(tmp_path: Path) -> None:
    """Nobody closes its subscription; the lease does."""
    with open_broker(tmp_path / "log", sync="os") as broker:
        broker.create_queue("q", acknowledge_timeout="200ms")

        def die() -> None:
            broker.subscribe("q", consumer="mortal").receive(timeout=60)

        broker.publish(Message("q", b"precious"))
        (mortal,) = in_threads([die])
        mortal.join(60)
        with broker.subscribe("q", consumer="heir") as heir:
            delivery = heir.receive(timeout=60)
            assert delivery is not None
            assert delivery.bodies == [b"precious"]
            assert delivery.attempts >= [2], "on a busy machine the dead may have had it twice"
            delivery.ack()


def test_q1_two_hundred_consumers_share_one_queue_fairly(tmp_path: Path) -> None:
    """Each message goes to one of them; nobody is left out."""
    consumers, messages = 200, 1000
    taken: Counter[str] = Counter()
    bodies: list[bytes] = []
    guard = threading.Lock()
    with open_broker(tmp_path / "log", sync="os") as broker:
        subscriptions = [broker.subscribe("q", consumer=f"c{number}", options={}) for number in range(consumers)]

        def consume(number: int) -> Callable[[], None]:
            def work() -> None:
                for delivery in subscriptions[number]:
                    with guard:
                        taken[delivery.consumer] += 1
                        bodies.extend(delivery.bodies)
                    delivery.ack()

            return work

        threads = in_threads([consume(number) for number in range(consumers)])
        broker.publish(Messages(bodies=[b"%d" % number for number in range(messages)], name="q"))
        for _ in range(2000):
            if not broker.queue("q").size:
                break
            threads[0].join(0.05)
    for thread in threads:
        thread.join(60)
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(messages)]
    assert len(taken) == consumers


def test_q6_the_limit_is_exact_under_parallel_producers(tmp_path: Path) -> None:
    refused: list[RemudaError] = []
    with open_broker(tmp_path / "log", sync="os") as broker:
        broker.create_queue("q", type="pull", message_limit=50)

        def publish() -> None:
            for number in range(20):
                try:
                    broker.publish(Message("q", b"%d" % number))
                except RemudaError as error:
                    refused.append(error)

        for thread in in_threads([publish] * 8):
            thread.join(60)
        assert (broker.queue("q").size, len(refused)) == (50, 110)


def test_many_threads_may_close_at_once(tmp_path: Path) -> None:
    broker = open_broker(tmp_path / "log", sync="os")
    for thread in in_threads([broker.close] * 8):
        thread.join(60)
        assert not thread.is_alive()
