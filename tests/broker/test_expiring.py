"""Messages that expire beside a pull that waits: neither stops the broker, for whomever it serves (Q5, Q16, S5)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from remuda import Bus, Message, open_broker
from remuda.broker.port import Broker
from tests.broker.shared.kit import other
from tests.conformance.kit import eventually

BRIEF = 3_000
"""Microseconds that a message has left."""
ROUNDS = 25


def now() -> int:
    return time.time_ns() // 1000


def serve_two(broker: Broker) -> None:
    """Two pulls wait: one gets a message with a deadline, the other, at the moment that passes, one without."""
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.extend(pull_one(broker))) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    deadline = now() + BRIEF
    broker.publish(Message("jobs", b"brief", expires=deadline), queue="jobs")
    while now() < deadline:
        pass
    broker.publish(Message("jobs", b"plain"), queue="jobs")
    for thread in threads:
        thread.join(5)
    assert b"plain" in found  # the other may have come to its deadline before a pull was there


@pytest.mark.parametrize("place", ["directory", "memory"])
def test_q5_a_message_that_left_before_its_deadline_expires_no_more(place: str, tmp_path: Path) -> None:
    with open_broker("memory://" if place == "memory" else tmp_path / "d", sync="os") as broker:
        broker.create_queue("jobs", type="pull")
        for _ in range(ROUNDS):
            serve_two(broker)


def test_q5_messages_that_expire_and_others_beside_pulls_that_wait(tmp_path: Path) -> None:
    """Pulls wait while messages that live two milliseconds come between others: every other one arrives."""
    found: list[bytes] = []
    with open_broker(tmp_path / "d", sync="os") as broker:
        broker.create_queue("jobs", type="pull")
        ends = threading.Event()

        def take() -> None:
            while not ends.is_set():
                found.extend(pull_one(broker, "200ms"))

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(400):
            expires = now() + 2_000 if number % 2 else None
            broker.publish(Message("jobs", b"%d" % number, expires=expires), queue="jobs")
            time.sleep(0.002 if number % 8 == 0 else 0)
        eventually(lambda: {b"%d" % number for number in range(0, 400, 2)} <= set(found))
        ends.set()
        for thread in threads:
            thread.join(5)


def test_q5_a_handler_beside_messages_that_expire(tmp_path: Path) -> None:
    """What a handler takes in time leaves no deadline behind that stops the bus later."""
    seen: list[int] = []
    with Bus(tmp_path / "d", sync="os") as bus:

        @bus.subscribe("jobs", queue="jobs", threads=2)
        def take(number: int) -> None:
            seen.append(number)

        bus.start()
        for number in range(60):
            bus.publish("jobs", number, expires="40ms" if number % 3 == 0 else None)
            time.sleep(0.005)
        eventually(lambda: {number for number in range(60) if number % 3} <= set(seen))
        bus.publish("jobs", 60)
        eventually(lambda: 60 in seen)


def test_s5_a_guest_publishes_beside_messages_that_expire(tmp_path: Path) -> None:
    """A guest's publish does not stop the host, which may do nothing of its own."""
    with other(tmp_path / "d") as host, open_broker(tmp_path / "d", sync="os") as guest:
        host.does("broker.create_queue('jobs', type='pull') and None")
        for _ in range(ROUNDS):
            serve_two(guest)
        assert host.does("broker.queue('jobs').in_flight") == 0


def pull_one(broker: Broker, timeout: str = "5s") -> list[bytes]:
    delivery = broker.pull("jobs", timeout=timeout)
    if delivery is None:
        return []
    delivery.ack()
    return delivery.bodies
