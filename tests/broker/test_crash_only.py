"""L10: an unexpected error inside the broker costs the command that met it, and nobody else anything."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remuda.broker.embedded import engine as engines
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.embedded.storing import durability
from remuda.broker.opening import open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.core import delivering
from remuda.core.publishing import Publishing
from remuda.core.queues.queue import Queue
from remuda.core.recorder import Recorder
from remuda.core.registry import Registry
from remuda.log.log import Log
from remuda.log.tail.writer import TailWriter, WriteBatch
from remuda.model.errors import DeliveryFailed, StorageError
from remuda.model.message import Message
from tests.conformance.kit import eventually

pytestmark = pytest.mark.source


class Planted(Exception):
    """A mistake of the broker's own."""


class Mine:
    """Raises at one of the next calls of a function, before or after it was carried out."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str, at: int = 1, *, after: bool = False) -> None:
        self._does = getattr(owner, name)
        self._left = at
        self._after = after
        self.went_off = False
        mine = self

        def struck(*args: Any, **options: Any) -> Any:
            return mine._call(*args, **options)

        patch.setattr(owner, name, struck)

    def _call(self, *args: Any, **options: Any) -> Any:
        self._left -= 1
        goes_off = self._left == 0
        if goes_off and not self._after:
            self._raise()
        result = self._does(*args, **options)
        if goes_off:
            self._raise()
        return result

    def _raise(self) -> None:
        self.went_off = True
        raise Planted("a planted error")


PLACES: dict[str, tuple[Any, str]] = {
    "append": (Recorder, "append"),
    "admit": (Queue, "admit"),
    "event": (Recorder, "event"),
    "evolve": (Queue, "evolve"),
    "completed": (Recorder, "completed"),
    "after": (Registry, "after"),
    "follow": (Registry, "follow"),
    "drain": (Recorder, "drain"),
    "revoke": (Queue, "revoke"),
    "grant": (Queue, "grant"),
    "decided": (engines.Engine, "decided"),
    "log append": (Log, "_append"),
    "log write": (Log, "write_now"),
    "log take": (Log, "take"),
    "batch write": (WriteBatch, "write"),
    "batch sync": (WriteBatch, "sync"),
    "writer": (TailWriter, "write"),
    "publish": (Publishing, "publish"),
    "conclude": (delivering, "conclude"),
    "to log": (durability.Durability, "_to_log"),
}


@pytest.fixture(params=["memory", "os", "always"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    if request.param == "memory":
        with open_broker("memory://") as broker:
            yield broker
        return
    with open_broker(tmp_path / "data", sync=request.param, shared=False) as broker:
        yield broker


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", PLACES)
def test_l10_a_command_is_undone_and_the_next_goes_on(broker: EmbeddedBroker, place: str, after: bool) -> None:
    broker.create_queue("jobs", type="pull", acknowledge_timeout="1h")
    broker.create_queue("kept", type="pull", persistence="memory")
    broker.create_queue("pushed", acknowledge_timeout="1h", commit_when="acknowledged")
    accepted, settled, came = set[bytes](), set[bytes](), dict[bytes, int]()
    perhaps_settled = set[bytes]()
    subscription = broker.subscribe("pushed", credit=10)
    waiting = list[Any]()
    puller = threading.Thread(target=lambda: waiting.append(broker.pull("later", timeout="60s")), daemon=True)
    broker.create_queue("later", type="pull")
    puller.start()
    outcome = list[BaseException | None]()

    def publish_and_wait() -> None:
        try:
            broker.publish(Message("x", b"waits"), queue="pushed", timeout="60s")
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    producer = threading.Thread(target=publish_and_wait, daemon=True)
    producer.start()
    delivery = subscription.receive("30s")
    assert delivery is not None
    broker.publish(Message("x", b"memory"), queue="kept")
    broker.publish([Message("x", b"old%d" % number) for number in range(3)], queue="jobs")
    accepted |= {b"old0", b"old1", b"old2"}
    held = broker.pull("jobs", 2)
    assert held is not None
    eventually(lambda: broker.queue("later").pulls == 1)

    def publish(number: int) -> None:
        body = b"new%d" % number
        broker.publish(Message("x", body), queue="jobs")
        accepted.add(body)

    def settle() -> None:
        perhaps_settled.add(held.bodies[0])
        assert held.ack([0]) == 1
        settled.add(held.bodies[0])

    def take() -> None:
        taken = broker.pull("jobs")
        assert taken is not None
        (body,) = taken.bodies
        came[body] = came.get(body, 0) + 1
        perhaps_settled.add(body)
        taken.ack()
        settled.add(body)

    def publish_much() -> None:
        bodies = {b"much%d" % number for number in range(3)}
        broker.publish([Message("x", body.ljust(20_000)) for body in sorted(bodies)], queue="much")
        broker.runtime.flush()

    broker.create_queue("much", type="pull")
    steps: list[Callable[[], None]] = [lambda: publish(1), settle, take, publish_much, lambda: publish(2)]
    failures = 0
    with pytest.MonkeyPatch.context() as patch:
        mine = Mine(patch, *PLACES[place], after=after)
        for step in steps:
            try:
                step()
            except Planted:
                failures += 1
    assert failures <= 1
    if mine.went_off:
        eventually(lambda: "restored once" in broker.health().problems.get("errors", ""))
    health = broker.health()
    assert health.live
    assert health.ready
    publish(3)
    # Whoever waited, or held something, goes on.
    broker.publish(Message("x", b"here"), queue="later")
    puller.join(30)
    assert waiting[0].bodies == [b"here"]
    assert delivery.ack() == 1
    producer.join(30)
    assert outcome == [None]
    assert held.ack([1]) == 1
    settled.add(held.bodies[1])
    while (taken := broker.pull("jobs")) is not None:
        (body,) = taken.bodies
        assert body not in settled, f"{body!r} was settled and came again"
        taken.ack()
        settled.add(body)
    if held.bodies[0] not in settled:
        assert held.ack([0]) == 1  # its answer failed: it may be given again
        settled.add(held.bodies[0])
    assert accepted <= settled | perhaps_settled
    kept = broker.pull("kept")
    assert kept is not None
    assert kept.bodies == [b"memory"]


@pytest.mark.parametrize("place", ["to log", "decided", "drain"])
def test_q16_l10_a_pull_that_was_served_by_what_is_undone_waits_on(broker: EmbeddedBroker, place: str) -> None:
    """Its delivery is lost with the error of the publish."""
    broker.create_queue("later", type="pull")
    found = list[Any]()
    puller = threading.Thread(target=lambda: found.append(broker.pull("later", timeout="60s")), daemon=True)
    puller.start()
    eventually(lambda: broker.queue("later").pulls == 1)
    with pytest.MonkeyPatch.context() as patch:
        owner, name = PLACES[place]
        mine = Mine(patch, owner, name, after=True)
        with contextlib.suppress(Planted):
            broker.publish([Message("x", b"1" * 9000), Message("x", b"2")], queue="later")
            broker.runtime.flush()
        assert mine.went_off
    broker.publish(Message("x", b"3"), queue="later")
    puller.join(30)
    assert found[0] is not None
    assert found[0].bodies[0] in (b"1" * 9000, b"3")


def test_q16_l10_a_pull_ends_whose_time_was_up_when_the_error_came(broker: EmbeddedBroker) -> None:
    broker.create_queue("later", type="pull")
    found = list[Any]()
    puller = threading.Thread(target=lambda: found.append(broker.pull("later", timeout="1s")), daemon=True)
    puller.start()
    eventually(lambda: broker.queue("later").pulls == 1)
    with pytest.MonkeyPatch.context() as patch:
        mine = Mine(patch, engines.Engine, "decided", after=True)
        eventually(lambda: mine.went_off)
    puller.join(30)
    assert found == [None]


def test_l10_an_error_in_the_middle_of_a_checkpoint(tmp_path: Path) -> None:
    """The checkpoint gives up what the rebuilding waits for."""
    with open_broker(tmp_path / "data", shared=False, sync="os") as broker:
        broker.publish(Message("jobs", b"1"))
        told = list[BaseException]()

        def checkpoint() -> None:
            try:
                broker.runtime.upkeep.checkpoint()
            except BaseException as error:
                told.append(error)

        with pytest.MonkeyPatch.context() as patch:
            mine = Mine(patch, WriteBatch, "write")
            upkeep = threading.Thread(target=checkpoint, daemon=True)
            upkeep.start()
            eventually(lambda: mine.went_off)
        broker.publish(Message("jobs", b"2"))
        upkeep.join(30)
        assert isinstance(told[0], StorageError)
        broker.runtime.upkeep.checkpoint()
        assert broker.queue("jobs").waiting == 2


def test_l10_an_error_while_the_timer_waits_for_a_write(tmp_path: Path) -> None:
    """It is the timer that rebuilds the queues: it must not wait for that itself."""
    with open_broker(tmp_path / "data", shared=False, sync="always") as broker, ThreadPoolExecutor(1) as pool:
        broker.create_queue("jobs", type="pull")
        runtime, wait, waits, torn = broker.runtime, Runtime.wait, threading.Event(), threading.Event()

        def late(runtime: Runtime, ticket: int) -> None:
            if ticket and threading.current_thread() is runtime._timer.thread and not waits.is_set():
                waits.set()
                assert torn.wait(30)
            wait(runtime, ticket)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Runtime, "wait", late)
            broker.publish(Message("jobs", b"1", expires=broker.now() + 50_000), queue="jobs")
            assert waits.wait(30)
            Mine(patch, Recorder, "append")
            with pytest.raises(Planted):
                broker.publish(Message("jobs", b"2"), queue="jobs")
            torn.set()
            pool.submit(broker.publish, Message("jobs", b"3"), queue="jobs").result(30)
        assert runtime.restoration.count == 1
        assert (broker.queue("jobs").waiting, broker.queue("jobs").dead) == (1, 1)


def test_l10_a_subscription_ends_with_a_queue_that_is_removed_when_the_error_comes(broker: EmbeddedBroker) -> None:
    broker.create_queue("gone")
    ended = threading.Event()
    subscription = broker.subscribe("gone")

    def receive() -> None:
        with contextlib.suppress(Exception):
            while subscription.receive() is not None:
                pass
        ended.set()

    threading.Thread(target=receive, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        Mine(patch, engines.Engine, "decided", after=True)
        with pytest.raises(Planted):
            broker.remove_queue("gone")
    eventually(ended.is_set)


def test_l10_errors_that_come_too_often_let_the_directory_go(tmp_path: Path) -> None:
    broker = open_broker(tmp_path / "data", sync="os")
    broker.create_queue("jobs", type="pull")
    broker.publish(Message("jobs", b"kept"))
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            Mine(patch, Queue, "admit")
            with pytest.raises((Planted, StorageError)):
                broker.publish(Message("jobs", b"undone"))
        eventually(lambda: broker.runtime.restoration.error is None or broker.runtime.failure is not None)
    with pytest.raises(StorageError, match="the broker stopped"):
        broker.publish(Message("jobs", b"refused"))
    assert not broker.health().live
    assert "a planted error" in str(broker.runtime.stopped.result(30))

    def opens() -> bool:
        try:
            opened.append(open_broker(tmp_path / "data", shared=False))
        except StorageError:
            return False
        return True

    opened = list[EmbeddedBroker]()
    eventually(opens)
    with opened[0] as again:
        taken = again.pull("jobs", 5)
        assert taken is not None
        assert taken.bodies == [b"kept"]
    broker.close()


def test_l10_a_broker_in_memory_goes_on_however_often_errors_come() -> None:
    with open_broker("memory://") as broker:
        broker.create_queue("jobs", type="pull")
        for number in range(3):
            broker.publish(Message("jobs", b"%d" % number))
            with pytest.MonkeyPatch.context() as patch:
                Mine(patch, Queue, "admit")
                with pytest.raises(Planted):
                    broker.publish(Message("jobs", b"undone"))
        taken = broker.pull("jobs", 5)
        assert taken is not None
        assert taken.bodies == [b"0", b"1", b"2"]
        assert "restored 3 times" in broker.health().problems["errors"]


def test_q4_l10_a_producer_learns_of_a_failure_that_came_with_the_error(tmp_path: Path) -> None:
    """The answer that ended its message was stored, but the error kept that from being told."""
    with open_broker(tmp_path / "data", shared=False, sync="os") as broker:
        broker.create_queue("jobs", type="pull", commit_when="acknowledged")
        told = list[BaseException]()

        def publish() -> None:
            try:
                broker.publish(Message("jobs", b"x"), timeout="60s")
            except BaseException as error:
                told.append(error)

        producer = threading.Thread(target=publish, daemon=True)
        producer.start()
        delivery = broker.pull("jobs", timeout="30s")
        assert delivery is not None
        runtime = broker.runtime
        with pytest.MonkeyPatch.context() as patch:
            Mine(patch, runtime, "_to_log", after=True)
            with pytest.raises(Planted):
                delivery.dead(reason="no use")
        producer.join(30)
        assert isinstance(told[0], DeliveryFailed)
        assert "no use" in str(told[0])
