"""The bus while RabbitMQ or the network fails: nothing confirmed is lost, doubles are counted, it goes on by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from remuda import Attempt, Bus, Message, RemudaError
from remuda.amqp.client.connection import Connection
from remuda.amqp.connection_options import parse_url
from remuda.amqp.errors import AmqpError
from remuda.broker.rabbitmq import rabbit_runtime, url_settings
from remuda.broker.rabbitmq.rabbit_broker import RabbitBroker
from remuda.broker.rabbitmq.shared_state.definitions_journal import CHANGES
from remuda.model.errors import Conflict
from tests.bus.kit import eventually
from tests.servers.faultproxy import FaultProxy
from tests.servers.rabbitmq import RabbitNode, end_node, start_node

SOON = 60.0
pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
MakeBus = Callable[..., Bus]


@pytest.fixture
def make_bus() -> Iterator[MakeBus]:
    made: list[Bus] = []

    def make(url: str, **options: Any) -> Bus:
        settings = {"message.retry.min.interval": "50ms", "message.retry.intervals": "100ms"}
        bus = Bus(url, settings=settings, **options)
        made.append(bus)
        return bus

    yield make
    for bus in made:
        bus.close()


class Tally:
    """Counts what handlers saw."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()
        self._guard = threading.Lock()

    def __call__(self, number: int) -> None:
        with self._guard:
            self.seen[number] += 1

    @property
    def doubles(self) -> int:
        return sum(self.seen.values()) - len(self.seen)


class Publisher(threading.Thread):
    """Publishes one number after the other until it is told to end; those confirmed are in `kept`."""

    def __init__(self, bus: Bus, topic: str) -> None:
        super().__init__(daemon=True)
        self._bus, self._topic = bus, topic
        self.kept: list[int] = []
        self.refused = 0
        self._end = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._end.is_set():
            try:
                self._bus.publish(self._topic, number)
                self.kept.append(number)
            except RemudaError:
                self.refused += 1
            number += 1
            time.sleep(0.002)

    def __enter__(self) -> Publisher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """However the test ends: a thread that goes on would disturb the tests after it."""
        self._end.set()
        self.join(SOON)
        assert not self.is_alive()


def counting(bus: Bus, topic: str = "x", queue: str = "q", **options: Any) -> Tally:
    tally = Tally()

    def count(number: int) -> None:
        tally(number)

    bus.subscribe(topic, queue=queue, **options)(count)
    return tally


def all_came(tally: Tally, kept: list[int]) -> Callable[[], bool]:
    return lambda: set(kept) <= set(tally.seen)


@pytest.fixture(scope="module")
def own_rabbit() -> Iterator[RabbitNode]:
    """A node that may be killed, so that other tests keep theirs."""
    node = start_node("mortal")
    yield node
    end_node(node)


def publishes(bus: Bus, number: int) -> bool:
    try:
        bus.publish("x", number)
    except RemudaError:
        return False
    return True


def _is_back(url: str, queue: str) -> bool:
    """Whether RabbitMQ itself serves a queue."""
    with Connection(url.partition("?")[0]) as connection:
        try:
            connection.channel().consume(queue)
        except AmqpError:
            return False
    return True


@contextmanager
def unless_rabbitmq_fails(url: str, queue: str) -> Iterator[None]:
    """RabbitMQ 3.10 may not bring all quorum queues of a young node back: then it is not ours to serve them."""
    try:
        yield
    except (AssertionError, RemudaError):
        needed = (CHANGES, queue, "remuda.unrouted", "remuda.callbacks", "remuda.results")
        if not all(_is_back(url, queue) for queue in needed):
            pytest.skip("RabbitMQ 3.10 did not bring all quorum queues of a young node back")
        raise


def test_rabbitmq_is_killed_soon_after_it_was_made(own_rabbit: RabbitNode, make_bus: MakeBus) -> None:
    """L2, B16: a young node of RabbitMQ 3.10 may not bring its streams back. The bus goes on without them: it publishes
    and handles, another opens, and the log is a line in `health`."""
    url = own_rabbit.url + "?reply_timeout=5s&backoff_max=500ms"  # a queue made right before may not answer for long
    bus = make_bus(url)
    tally = counting(bus)
    bus.start()
    bus.publish_many("x", range(20))
    eventually(all_came(tally, list(range(20))), SOON)
    own_rabbit.kill()
    own_rabbit.start()
    with unless_rabbitmq_fails(url, "q"):
        eventually(lambda: publishes(bus, 20), SOON)
        eventually(lambda: tally.seen[20], SOON)
        other = make_bus(url)
        others = counting(other, "y", "another")
        other.start()
        other.publish("y", 21)
        eventually(lambda: others.seen[21], SOON)
        assert "q" in {info.name for info in other.broker.queues()}, "definitions outlive the node"
        eventually(lambda: bus.health()["live"] and other.health()["live"], SOON)
        eventually(lambda: not {"publishing", "consuming", "definitions"} & set(bus.health().get("problems", {})), SOON)
    bus.publish("x", 22)
    eventually(lambda: tally.seen[22], SOON)
    for queue in ("q", "another"):
        other.broker.remove_queue(queue)


def test_rabbitmq_is_restarted_in_mid_load(own_rabbit: RabbitNode, make_bus: MakeBus) -> None:
    """B16, L2: what was confirmed is handled, publishers wait or are told, consumers come back."""
    url = own_rabbit.url + "?reply_timeout=5s&backoff_max=500ms&log=no"
    bus = make_bus(url)
    tally = counting(bus, threads=2)
    bus.start()
    with unless_rabbitmq_fails(url, "q"):
        with Publisher(bus, "x") as publisher:
            eventually(lambda: len(publisher.kept) > 50, SOON)
            own_rabbit.stop()
            own_rabbit.start()
            before = len(publisher.kept)
            eventually(lambda: len(publisher.kept) > before + 50, SOON)
        eventually(all_came(tally, publisher.kept), SOON)
    assert tally.doubles < len(publisher.kept)


def test_connections_closed_by_rabbitmq(rabbit: RabbitNode, clean_url: str, make_bus: MakeBus) -> None:
    """Nothing is lost when an operator closes all connections."""
    bus = make_bus(clean_url)
    tally = counting(bus)
    bus.start()
    with Publisher(bus, "x") as publisher:
        eventually(lambda: len(publisher.kept) > 30, SOON)
        rabbit.close_connections("by a test")
        before = len(publisher.kept)
        eventually(lambda: len(publisher.kept) > before + 30, SOON)
    eventually(all_came(tally, publisher.kept), SOON)


def test_a_queue_that_went_away_is_made_again(clean_url: str, make_bus: MakeBus) -> None:
    """A consumer is cancelled because somebody deleted its queue: it comes back by itself, and so does the binding."""
    bus = make_bus(clean_url)
    tally = counting(bus)
    bus.start()
    bus.publish("x", 1)
    eventually(lambda: tally.seen[1], SOON)
    with Connection(clean_url) as connection:
        connection.channel().delete_queue("q")
    eventually(lambda: _published_and_seen(bus, tally), SOON)


def _published_and_seen(bus: Bus, tally: Tally) -> bool:
    number = 1000 + len(tally.seen)
    bus.publish("x", number)
    time.sleep(0.2)
    return number in tally.seen


def test_a_subscriber_of_a_deleted_queue_comes_back(clean_url: str, make_bus: MakeBus) -> None:
    broker = make_bus(clean_url).broker
    broker.create_queue("orders")
    with broker.subscribe("orders") as subscription:
        with Connection(clean_url) as connection:
            connection.channel().delete_queue("orders")
        broker.publish(Message("orders", b"1"), queue="orders")
        delivery = subscription.receive(SOON)
        assert delivery is not None
        assert delivery.bodies == [b"1"]
        delivery.ack()


def test_a_memory_alarm_stops_publishers_and_not_consumers(
    rabbit: RabbitNode, clean_url: str, make_bus: MakeBus
) -> None:
    """connection.blocked: publishers wait and go on afterwards; what was stored is handled meanwhile."""
    bus = make_bus(clean_url)
    tally = counting(bus)
    bus.publish_many("x", range(20))
    rabbit.limit_memory(0.00001)
    try:
        stuck: list[str] = []
        publisher = threading.Thread(target=lambda: stuck.append(bus.publish("x", 100)), daemon=True)
        publisher.start()
        bus.start()
        eventually(all_came(tally, list(range(20))), SOON)
        assert 100 not in tally.seen
    finally:
        rabbit.limit_memory(0.4)
    publisher.join(SOON)
    assert len(stuck) == 1
    eventually(lambda: tally.seen[100] == 1, SOON)


def test_a_half_open_link_is_noticed_and_left(
    rabbit: RabbitNode, clean_url: str, make_bus: MakeBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats tell that nobody is there any more, also while handlers run for longer than a heartbeat. The next
    connection asks for nothing that RabbitMQ still holds for the last one."""
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        bus = make_bus(f"amqp://guest:guest@127.0.0.1:{proxy.port}/?heartbeat=1s")
        tally = Tally()

        @bus.subscribe("x", queue="q")
        def slow(number: int) -> None:
            if number == 0:
                time.sleep(3)
            tally(number)

        bus.start()
        bus.publish_many("x", range(10))
        eventually(all_came(tally, list(range(10))), SOON)
        assert tally.doubles == 0, "a handler slower than the heartbeat does not starve it"
        proxy.silent = True
        broker = bus.broker
        assert isinstance(broker, RabbitBroker)
        eventually(lambda: not broker.runtime.consuming_connection.up, SOON)
        proxy.silent = False  # RabbitMQ has the old connections until it misses their heartbeats
        eventually(lambda: broker.runtime.consuming_connection.up and broker.runtime.publishing_connection.up, SOON)
        eventually(lambda: broker.runtime.definitions.trouble is None, SOON)
        assert "consume" not in str(broker.runtime.consuming_connection.last_error), "nothing was asked for in vain"
        assert not [one.message for one in caplog.records if "LOCKED" in one.message or "consumed" in one.message]
        bus.publish_many("x", range(10, 20))
        eventually(all_came(tally, list(range(20))), SOON)


def test_closing_does_not_wait_for_answers(
    rabbit: RabbitNode, clean_url: str, make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ does not answer any more: what was fetched goes back with the connection, and nobody waits for more."""
    monkeypatch.setattr(rabbit_runtime, "_FAREWELL", 0.5)
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        bus = make_bus(f"amqp://guest:guest@127.0.0.1:{proxy.port}/?log=no")
        tallies = [counting(bus, f"x{number}", f"q{number}") for number in range(5)]
        bus.start()
        for number, tally in enumerate(tallies):
            bus.publish(f"x{number}", 1)
            eventually(all_came(tally, [1]), SOON)
        proxy.silent = True
        began = time.monotonic()
        bus.close()
        assert time.monotonic() - began < parse_url(clean_url).reply_timeout


def test_over_tls(rabbit: RabbitNode, clean_url: str, make_bus: MakeBus) -> None:
    """With the server's certificate checked; without it nothing is sent."""
    bus = make_bus(f"amqps://guest:guest@localhost:{rabbit.tls_port}/?cafile={rabbit.certificate}")
    tally = counting(bus)
    bus.start()
    bus.publish_many("x", range(100))
    eventually(all_came(tally, list(range(100))), SOON)


def test_several_hosts_are_tried_in_turn(rabbit: RabbitNode, clean_url: str, make_bus: MakeBus) -> None:
    with FaultProxy("127.0.0.1", rabbit.port) as one, FaultProxy("127.0.0.1", rabbit.port) as two:
        one.refuse = True
        bus = make_bus(f"amqp://guest:guest@127.0.0.1:{one.port},127.0.0.1:{two.port}/")
        tally = counting(bus)
        bus.start()
        bus.publish("x", 1)
        eventually(lambda: tally.seen[1], SOON)
        one.refuse, two.refuse = False, True
        two.cut()
        bus.publish("x", 2)
        eventually(lambda: tally.seen[2], SOON)


_WORKER = """
import sys, time
from remuda import Bus

bus = Bus(sys.argv[1])

@bus.subscribe("x", queue="q")
def count(number: int) -> None:
    print("begun", number, flush=True)
    time.sleep(0.02 if number else 60)

bus.run()
"""


def test_a_worker_is_killed(clean_url: str, make_bus: MakeBus, tmp_path: Path) -> None:
    """B4: what it held comes again, the attempt that it had begun counts, and nothing is lost."""
    script = tmp_path / "worker.py"
    script.write_text(_WORKER)
    bus = make_bus(clean_url)
    counting(bus)
    bus.publish_many("x", [*range(1, 20), 0, *range(20, 40)])
    source = str(Path(__file__).parents[3] / "src")
    worker = subprocess.Popen(
        [sys.executable, str(script), clean_url],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    begun: set[int] = set()
    try:
        assert worker.stdout is not None
        guard = threading.Timer(SOON, worker.kill)
        guard.start()
        for line in worker.stdout:
            begun.add(int(line.split()[1]))
            if 0 in begun:
                break
        guard.cancel()
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait(SOON)
        if worker.stdout is not None:
            worker.stdout.close()
    attempts: dict[int, int] = {}
    other = make_bus(clean_url)

    @other.subscribe("x", queue="q")
    def count(number: int, attempt: Attempt) -> None:
        attempts[number] = int(attempt)

    other.start()
    eventually(lambda: set(range(20, 40)) | {0} <= set(attempts), SOON)
    assert attempts[0] == 2
    assert begun | set(attempts) == set(range(40))


def test_a_queue_of_another_type_is_not_touched(clean_url: str, make_bus: MakeBus) -> None:
    """The bus does not start, and says in one line what is in its way."""
    with Connection(clean_url) as connection:
        channel = connection.channel()
        channel.declare_queue("q", arguments={"x-queue-type": "classic"})
        bus = make_bus(clean_url)
        counting(bus)
        with pytest.raises(Conflict, match=r"queue 'q' is in RabbitMQ with other arguments: .*Nothing was changed"):
            bus.publish("x", 1)
        assert channel.declare_queue("q", passive=True).message_count == 0
        channel.delete_queue("q")


def test_nobody_there_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the place, without the password."""
    monkeypatch.setattr(url_settings, "OPEN", 1.0)
    bus = Bus("amqp://guest:secret@127.0.0.1:9/")
    with pytest.raises(RemudaError, match=r"no connection to amqp://guest@127.0.0.1:9/ within 1 s") as caught:
        bus.publish("x", 1)
    assert "secret" not in str(caught.value)
    health = bus.health()
    assert (health["live"], health["ready"]) == (False, False)
    assert "127.0.0.1:9: Connection refused" in health["problems"]["broker"]
    assert "secret" not in str(health)
