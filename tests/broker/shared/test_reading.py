"""Who reads a guest's answers (S5): the caller that waits, for itself and for others, or the guest's own thread."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda import Message, open_broker
from remuda.broker.shared.guest.guest import Guest
from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.host_link import join
from remuda.broker.shared.wire.wire_frames import Hello, Welcome
from remuda.broker.threads import EmbeddedBroker
from remuda.log.eventlog import EventLog
from remuda.model.errors import HostNotResponding
from remuda.model.settlement import Outcome, Settlement
from tests.broker.shared.kit import SOURCE
from tests.conformance.kit import eventually, quick_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as made:
        yield made / "d"


@pytest.fixture
def host(folder: Path) -> Iterator[EmbeddedBroker]:
    with open_broker(folder, sync="os") as broker:
        broker.create_queue("jobs", type="pull")
        yield broker


@pytest.fixture
def guest(host: EmbeddedBroker, folder: Path) -> Iterator[EmbeddedBroker]:
    with open_broker(folder, sync="os") as broker:
        assert broker.runtime.remote
        yield broker


def at_once(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a caller was left waiting"


def test_s5_a_caller_reads_its_own_answers(guest: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other thread wakes up for them, but for a look around each second."""
    reading = guest.runtime.guest._reading
    hear, heard = reading._receive, list[object]()

    def counted(*how: Any) -> bool:
        heard.append(how)
        return bool(hear(*how))

    monkeypatch.setattr(reading, "_receive", counted)
    for _ in range(200):
        guest.publish(Message("jobs", b"x"))
    assert len(heard) < 100


def test_s5_callers_read_for_each_other(host: EmbeddedBroker, guest: EmbeddedBroker) -> None:
    taken: list[bytes] = []

    def work(number: int) -> None:
        for row in range(40):
            guest.publish(Message("jobs", b"%d-%d" % (number, row)))
            delivery = guest.pull("jobs", 3)
            if delivery is not None:
                taken.extend(delivery.bodies)
                delivery.ack()

    at_once(8, work)
    while (delivery := guest.pull("jobs", 100)) is not None:
        taken += delivery.bodies
        delivery.ack()
    assert sorted(taken) == sorted(b"%d-%d" % (number, row) for number in range(8) for row in range(40))
    assert host.queue("jobs").size == 0


def test_s5_deliveries_come_while_others_publish(guest: EmbeddedBroker) -> None:
    guest.create_queue("pushed")
    subscription = guest.subscribe("pushed", credit=10)
    seen: list[bytes] = []

    def work(number: int) -> None:
        if number == 0:
            while len(seen) < 90:
                delivery = subscription.receive(60)
                assert delivery is not None
                seen.extend(delivery.bodies)
                delivery.answer(Settlement(Outcome.ACK), wait=False)
        else:
            for row in range(30):
                guest.publish(Message("pushed", b"%d-%d" % (number, row)))

    at_once(4, work)
    assert len(set(seen)) == 90


def test_s5_a_pull_that_waits_is_served_by_a_publish_of_the_same_guest(guest: EmbeddedBroker) -> None:
    found: list[list[bytes]] = []

    def work(number: int) -> None:
        if number == 0:
            delivery = guest.pull("jobs", timeout=60)
            assert delivery is not None
            found.append(delivery.bodies)
            delivery.ack()
        else:
            eventually(lambda: guest.queue("jobs").pulls == 1)
            guest.publish(Message("jobs", b"!"))

    at_once(2, work)
    assert found == [[b"!"]]


def test_s5_answers_that_nobody_waits_for_are_read_all_the_same(guest: EmbeddedBroker) -> None:
    guest.publish([Message("jobs", b"%d" % number) for number in range(50)])
    for _ in range(50):
        delivery = guest.pull("jobs")
        assert delivery is not None
        assert delivery.answer(Settlement(Outcome.ACK), wait=False) == 1
    line = guest.runtime.guest.line
    eventually(lambda: not line.requests)
    assert guest.runtime.guest.holdings.held == {}


def test_s5_an_idle_guest_becomes_the_host(host: EmbeddedBroker, guest: EmbeddedBroker) -> None:
    host.close()
    eventually(lambda: not guest.runtime.remote)
    guest.publish(Message("jobs", b"x"))
    assert guest.queue("jobs").waiting == 1


def test_s5_whoever_gives_up_leaves_the_reading_to_others(folder: Path) -> None:
    """A host that does not answer, and callers of different patience: each is told when its own is over."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guest = Guest(_Way(ours), patience=60)
        theirs.sendall(wire_frames.frame(wire_frames.WELCOME, Welcome(wire_frames.VERSION, 7, 1, 0)))
        guest.connect()
        listening = threading.Thread(target=guest.listen, daemon=True)
        listening.start()
        guest._patience = 0.2
        told: list[str] = []

        def work(number: int) -> None:
            with pytest.raises(HostNotResponding) as error:
                guest.ask("health")
            told.append(str(error.value))

        at_once(4, work)
        assert len(told) == 4
        theirs.close()
        listening.join(60)
        assert not listening.is_alive()
        guest.leave_line()


class _Way:
    """To a host that the test plays."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def connect(self) -> socket.socket:
        return self._peer

    def hello(self, token: str, epoch: int) -> Hello:
        return Hello(wire_frames.VERSION, token, os.getpid())

    def describe(self, pid: int) -> str:
        return f"process {pid}"

    @property
    def remedy(self) -> str:
        return ""

    def begin(self, lease: int, events: int) -> None:
        return None

    def reader(self, guest: Any) -> EventLog:
        raise NotImplementedError


def test_s5_what_comes_right_behind_the_welcome_is_not_lost() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        welcome = wire_frames.frame(wire_frames.WELCOME, Welcome(wire_frames.VERSION, 7, 1, 0))
        theirs.sendall(
            welcome + wire_frames.frame(wire_frames.CLOSED, (5, None)) + wire_frames.frame(wire_frames.MOVING, None)[:3]
        )
        link = join(ours, Hello(wire_frames.VERSION, "abc", 1), 30)
        assert link.welcome.pid == 7
        assert [kind for kind, _ in link.buffer.feed(b"")] == [wire_frames.CLOSED]
        assert len(link.buffer) == 3


INTERRUPTED = """
import signal, sys, threading
from remuda import Message, open_broker
broker = open_broker(sys.argv[1], sync="os")
assert broker.runtime.remote
beside, failures, stop = [], [], threading.Event()
def publish():
    try:
        while not stop.is_set():
            body = b"b-%d" % len(beside)
            broker.publish(Message("jobs", body))
            beside.append(body)
    except Exception as error:
        failures.append(error)
thread = threading.Thread(target=publish, daemon=True)
class Interrupt(BaseException):
    pass
def interrupt(*_):
    raise Interrupt
confirmed = []
thread.start()
signal.signal(signal.SIGALRM, interrupt)
number = 0
while number < 300 or len(confirmed) == number:
    number += 1
    body = b"a-%d" % number
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002 * (number % 7 + 1))
        broker.publish(Message("jobs", body))
        confirmed.append(body)
    except Interrupt:
        pass
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
stop.set()
thread.join(60)
assert not thread.is_alive(), "the other thread was left waiting"
assert not failures, failures
stored = [body for record in broker.spectate().messages() for body in record.messages.bodies]
assert len(stored) == len(set(stored)), "stored twice"
assert set(confirmed) | set(beside) <= set(stored), "lost"
broker.close()
print(len(confirmed) < number, len(beside) > 0)
"""


@pytest.mark.faults
def test_s5_ctrl_c_in_the_middle_of_an_answer_loses_and_doubles_nothing(host: EmbeddedBroker, folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", INTERRUPTED, str(folder)]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "True True\n"
