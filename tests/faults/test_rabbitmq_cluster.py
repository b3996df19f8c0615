"""A RabbitMQ cluster of three under load: what was confirmed is not lost, whatever one node does (L1, L2, W2)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from remuda import Bus, RemudaError
from remuda.amqp.client.connection import Connection
from remuda.amqp.errors import AmqpError
from remuda.log.streams.stream_log import StreamLog
from remuda.log.streams.stream_numbers import reference
from remuda.log.streams.stream_writer import StreamWriter
from remuda.model.messages import Messages
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State
from tests.log.eventlogs import now
from tests.servers.rabbitmq_cluster import TICK, Cluster, cluster

__all__ = ["cluster"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
_BATCH = 20


class NoLeader(Exception):
    """Nothing was taken for two minutes."""


def stands_still(story: str) -> None:
    """RabbitMQ 3.10 on a busy machine may take minutes to choose a leader. Then nothing can be said here of Remuda."""
    pytest.skip(f"the cluster took nothing for more than a minute: {story}")


class Load:
    """A publisher that sends again what was not confirmed, a consumer, and a log of both, over all nodes."""

    def __init__(self, url: str, queue: str) -> None:
        self.queue = queue
        self.confirmed: set[str] = set()
        self.consumed: Counter[str] = Counter()
        self.failures = 0
        self._last = ""
        self.errors: list[BaseException] = []
        self._url = url
        self._stop = threading.Event()
        self._done = threading.Event()
        self._moved = threading.Condition()
        with Connection(url) as connection:
            connection.channel().declare_queue(queue, arguments={"x-queue-type": "quorum"})
        self.log = f"{url}&log=log-{queue}"
        self._writer = StreamWriter(self.log, timeout=120)
        self._threads = [threading.Thread(target=self._guarded, args=[run], daemon=True) for run in (
            self._publish, self._consume,
        )]  # fmt: skip

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.wait_for(3 * _BATCH)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._done.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for(self, more: int) -> None:
        """Until so many messages more were consumed."""
        with self._moved:
            goal = len(self.consumed) + more
            moved = self._moved.wait_for(lambda: len(self.consumed) >= goal or self.errors, 120)
        self._check(bool(moved))

    def finish(self) -> None:
        """Publish no more, and wait until everything that was confirmed is consumed and logged."""
        self._stop.set()
        self._threads[0].join(150)
        self._check(not self._threads[0].is_alive())
        with self._moved:
            assert self._moved.wait_for(lambda: self.confirmed <= self.consumed.keys() or self.errors, 120), self.story
        self._check(True)
        self._done.set()
        self._threads[1].join(60)
        self._writer.flush(120)
        self._writer.close()

    def _check(self, moved: bool) -> None:
        if not moved or any(isinstance(error, NoLeader) for error in self.errors):
            stands_still(self.story)
        assert not self.errors, self.errors

    @property
    def story(self) -> str:
        lost = self.confirmed - self.consumed.keys()
        counts = f"{len(self.confirmed)} confirmed, {len(self.consumed)} consumed, {len(lost)} lost"
        return f"{counts}, {self.failures} failures{self._last and f', the last one: {self._last}'}"

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self.errors.append(error)
            with self._moved:
                self._moved.notify_all()

    def _publish(self) -> None:
        from remuda.amqp.client.confirms import Outgoing
        from remuda.amqp.codec.properties import Properties, encode_properties

        kept = encode_properties(Properties(delivery_mode=2))
        with Connection(self._url) as connection:
            channel = connection.channel(confirms=True)
            number = 0
            while not self._stop.is_set():
                names = [f"{self.queue}-{number + row}" for row in range(_BATCH)]
                columns = Messages(bodies=[b""] * _BATCH, name=self.queue, ids=names, created=now())
                self._writer.append([Appended(0, now(), columns, (self.queue,))])
                deadline = time.monotonic() + 120
                while True:
                    try:
                        channel.publish_many(
                            [Outgoing("", self.queue, kept, name.encode()) for name in names], mandatory=True
                        ).wait(60)
                        break
                    except AmqpError as error:
                        self.failures += 1
                        self._last = f"{type(error).__name__}: {error}"
                        if time.monotonic() > deadline:
                            raise NoLeader from None
                        time.sleep(0.2)
                self.confirmed.update(names)
                number += _BATCH

    def _consume(self) -> None:
        with Connection(self._url) as connection:
            channel = connection.channel(prefetch=100)
            consumer = channel.consume(self.queue)
            while not self._done.is_set():
                try:
                    taken = consumer.get(100, timeout=0.2)
                except AmqpError:
                    time.sleep(0.2)
                    with contextlib.suppress(AmqpError):
                        consumer = channel.consume(self.queue)
                    continue
                names = [delivery.body.decode() for delivery in taken]
                if names:
                    rows = [Event(self.queue, State.FETCHED, reference(name), consumer="c") for name in names]
                    self._writer.append([Events(0, now(), rows)])
                    consumer.ack(taken)
                with self._moved:
                    self.consumed.update(names)
                    self._moved.notify_all()


@pytest.fixture
def load(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Load]:
    with Load(cluster.url, request.node.name.removeprefix("test_").partition("_")[2][:20]) as made:
        yield made


def check(load: Load) -> None:
    """Nothing lost, in the queue or in the log; the log holds every message once."""
    load.finish()
    assert load.confirmed <= load.consumed.keys(), load.story
    log = StreamLog(load.log)
    logged = Counter(record.messages.id(row) for record in log.messages() for row in range(len(record)))
    assert load.confirmed <= logged.keys()
    assert set(logged.values()) == {1}
    offsets = {record.messages.id(row): record.first + row for record in log.messages() for row in range(len(record))}
    told = Counter(row.first for record in log.events() for row in record.rows)
    assert sum(told.values()) == sum(load.consumed.values())
    assert set(told) == {offsets[name] for name in load.consumed}
    log.close()


def test_b16_the_bus_goes_on_when_a_node_ends(cluster: Cluster, cluster_bus: Bus) -> None:
    """Handlers, publishers and the event log over the cluster, while the node that leads the queue is killed."""
    handled: Counter[int] = Counter()

    @cluster_bus.subscribe("cluster.orders", queue="cluster-orders")
    def take(number: int) -> None:
        handled[number] += 1

    kept: dict[int, str] = {}
    stop = threading.Event()
    errors: list[BaseException] = []

    def publish() -> None:
        number = 0
        while not stop.is_set():
            try:
                kept[number] = cluster_bus.publish("cluster.orders", number)
            except RemudaError:
                time.sleep(0.2)
            except BaseException as error:
                errors.append(error)
                return
            number += 1

    def go_on(more: int) -> None:
        goal, deadline = len(handled) + more, time.monotonic() + 90
        while len(handled) < goal:
            assert not errors, errors
            if time.monotonic() > deadline:
                assert len(kept) < goal, f"RabbitMQ took {len(kept)} messages, of which {len(handled)} were handled"
                stands_still(f"{len(kept)} published, {len(handled)} handled")
            time.sleep(0.05)

    cluster_bus.start()
    publisher = threading.Thread(target=publish, daemon=True)
    publisher.start()
    try:
        go_on(50)
        leader = cluster.leader("cluster-orders")
        leader.kill()
        try:
            go_on(200)
        finally:
            leader.start()
        go_on(50)
    finally:
        stop.set()
    publisher.join(120)
    assert not publisher.is_alive()
    assert not errors, errors
    deadline = time.monotonic() + 120
    while not kept.keys() <= handled.keys():
        assert time.monotonic() < deadline, f"{len(kept.keys() - handled.keys())} of {len(kept)} lost"
        time.sleep(0.1)
    first, last = kept[0], kept[max(kept)]
    while any((told := cluster_bus.broker.message(id)).state is not State.COMPLETED for id in (first, last)):
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
    log = StreamLog(f"{cluster.url}&log=log-bus")
    logged = Counter(record.messages.id(row) for record in log.messages() for row in range(len(record)))
    assert set(kept.values()) <= logged.keys()
    assert set(logged.values()) == {1}
    log.close()


def test_w2_killed_leader_loses_nothing(cluster: Cluster, load: Load) -> None:
    """The node that leads the queue ends as if it lost power, under load, and comes back."""
    load.wait_for(100 * _BATCH)  # RabbitMQ 3.10 may find no other leader for a queue that was made a moment ago
    leader = cluster.leader(load.queue)
    leader.kill()
    try:
        load.wait_for(10 * _BATCH)
    finally:
        leader.start()
    load.wait_for(5 * _BATCH)
    check(load)


def test_w2_moved_leader_loses_nothing(cluster: Cluster, load: Load) -> None:
    """The lead goes to another node under load."""
    cluster.move_leader(load.queue)
    load.wait_for(10 * _BATCH)
    check(load)


def test_w2_paused_follower_holds_nobody_up(cluster: Cluster, load: Load) -> None:
    """A minority stands still with its sockets open; the others go on without it, and it wakes up again."""
    leader = cluster.leader(load.queue)
    follower = next(node for node in cluster.nodes if node is not leader)
    follower.pause()
    try:
        load.wait_for(10 * _BATCH)
    finally:
        follower.resume()
    load.wait_for(5 * _BATCH)
    check(load)


def test_w2_paused_leader_loses_nothing(cluster: Cluster, load: Load) -> None:
    """The leader stands still for longer than the others wait for it, is voted out, and wakes up again.

    Meanwhile this RabbitMQ refuses publishers that connect anew, since it looks for the queue where it was: they are
    told so, and publish again.
    """
    leader = cluster.leader(load.queue)
    leader.pause()
    try:
        time.sleep(1.5 * TICK)
    finally:
        leader.resume()
    load.wait_for(10 * _BATCH)
    check(load)


@pytest.fixture
def cluster_bus(cluster: Cluster) -> Iterator[Bus]:
    if not cluster.settles():
        stands_still("nodes that were paused do not find back to the others")
    bus = Bus(f"{cluster.url}&log=log-bus")
    try:
        yield bus
    finally:
        bus.close()
