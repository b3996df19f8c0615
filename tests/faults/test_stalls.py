"""L7, B16: a disk that is full for a while, or handles that run out. The broker refuses while that lasts, says so in
its health, and goes on by itself: nothing accepted is lost, and nobody is told "nothing there" instead."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remuda import Message, Messages
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.options import BrokerOptions
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import StorageError
from tests.conformance.kit import eventually
from tests.faults.disks import input_output_error
from tests.faults.stalling import TROUBLES, StallingDisk
from tests.faults.test_disks import drained

pytestmark = pytest.mark.faults

LIMIT = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> StallingDisk:
    return StallingDisk(tmp_path / "log")


@pytest.fixture(params=["always", "os", "interval"])
def broker(request: pytest.FixtureRequest, disk: StallingDisk) -> Iterator[EmbeddedBroker]:
    made = EmbeddedBroker(Runtime(disk, BrokerOptions.parse(sync=request.param, sync_interval="50ms")))
    made.create_queue("q", type="pull")
    yield made
    disk.failing.clear()
    made.close()


@pytest.fixture(params=sorted(TROUBLES))
def trouble(request: pytest.FixtureRequest, disk: StallingDisk) -> type[StorageError]:
    disk.error = TROUBLES[request.param]
    return disk.error


def stall(broker: EmbeddedBroker, disk: StallingDisk, body: bytes = b"unconfirmed") -> None:
    """Have a publish run into the trouble."""
    disk.failing = {"write", "reserve", "open"}
    with pytest.raises(disk.error, match="not confirmed"):
        broker.publish(Message("q", body))


def mend(broker: EmbeddedBroker, disk: StallingDisk) -> None:
    disk.failing.clear()
    eventually(lambda: broker.health().ready, LIMIT)


def taken(broker: EmbeddedBroker, count: int = 1000) -> list[bytes]:
    delivery = broker.pull("q", count)
    if delivery is None:
        return []
    delivery.ack()
    return delivery.bodies


def test_l7_a_stalled_publish_is_kept_once_there_is_room(
    broker: EmbeddedBroker, disk: StallingDisk, trouble: type[StorageError]
) -> None:
    broker.publish(Message("q", b"before"))
    stall(broker, disk)
    health = broker.health()
    assert (health.live, health.ready) == (True, False)
    assert health.problems["disk"]
    for refused in (
        lambda: broker.publish(Message("q", b"refused")),
        lambda: broker.pull("q"),
        lambda: broker.subscribe("q"),
        lambda: broker.create_queue("other"),
        lambda: broker.clear("q"),
    ):
        with pytest.raises(trouble, match="nothing was changed"):
            refused()
    assert broker.queue("q").size == 2
    assert [info.name for info in broker.queues()] == ["q"]
    assert broker.message(0).queues
    mend(broker, disk)
    broker.publish(Message("q", b"after"))
    assert taken(broker) == [b"before", b"unconfirmed", b"after"]


def test_l7_what_was_kept_after_a_stall_survives_a_restart(tmp_path: Path, disk: StallingDisk) -> None:
    broker = EmbeddedBroker(Runtime(disk, BrokerOptions.parse()))
    broker.create_queue("q", type="pull")
    broker.publish(Message("q", b"before"))
    stall(broker, disk)
    mend(broker, disk)
    broker.publish(Message("q", b"after"))
    broker.close()
    assert drained(tmp_path / "log", "q") == [b"before", b"unconfirmed", b"after"]


def test_l7_everyone_who_waits_for_the_write_is_told(disk: StallingDisk, broker: EmbeddedBroker) -> None:
    disk.failing = {"write"}

    def publish(number: int) -> bool:
        try:
            broker.publish(Message("q", b"%d" % number))
        except disk.error:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(publish, range(40), timeout=LIMIT))
    assert not any(told)
    disk.failing.clear()
    eventually(lambda: broker.health().ready, LIMIT)
    kept = taken(broker)
    assert len(kept) == len(set(kept)) == len(broker.runtime.engine.log.fetch([(0, len(kept))]).messages)


def test_l7_a_pull_that_cannot_be_kept_puts_back_what_it_took(
    broker: EmbeddedBroker, disk: StallingDisk, trouble: type[StorageError]
) -> None:
    """In its place, and not counted; also where the queue drops what is not answered."""
    broker.configure_queue("q", put_back="no")
    broker.publish(Messages(bodies=[b"1", b"2", b"3"], name="q"))
    disk.failing = {"write", "sync"}
    with pytest.raises(trouble):
        broker.pull("q")
    mend(broker, disk)
    eventually(lambda: broker.queue("q").waiting == 3, LIMIT)
    delivery = broker.pull("q", 3)
    assert delivery is not None
    assert delivery.bodies == [b"1", b"2", b"3"]
    assert delivery.attempts == [1, 1, 1]


def test_l7_a_waiting_pull_is_told_instead_of_none(broker: EmbeddedBroker, disk: StallingDisk) -> None:
    """And one that has the time gets its message after all."""
    broker.create_queue("empty", type="pull")  # not by the pull, which would still be writing it when the disk fails
    with ThreadPoolExecutor(2) as pool:
        short = pool.submit(broker.pull, "q", timeout="2s")
        long = pool.submit(broker.pull, "empty", timeout="60s")
        eventually(lambda: len(broker.runtime._recipients.inboxes) == 2, LIMIT)
        disk.failing = {"write", "sync"}
        with pytest.raises(disk.error):
            broker.publish(Message("elsewhere", b"x"))
        with pytest.raises(disk.error):
            short.result(LIMIT)
        mend(broker, disk)
        broker.publish(Message("empty", b"late"))
        delivery = long.result(LIMIT)
        assert delivery is not None
        assert delivery.bodies == [b"late"]


def test_l7_subscriptions_outlive_a_stall(broker: EmbeddedBroker, disk: StallingDisk) -> None:
    broker.create_queue("pushed", type="round-robin", acknowledge_timeout="1h")
    with broker.subscribe("pushed", batch=10) as subscription:
        broker.publish(Message("pushed", b"1"))
        disk.failing = {"write", "sync"}
        with pytest.raises(disk.error):
            broker.publish(Message("pushed", b"2"))
        with pytest.raises(disk.error):
            subscription.receive(timeout="100ms")
        mend(broker, disk)
        broker.publish(Message("pushed", b"3"))
        got: list[bytes] = []

        def all_there() -> bool:
            delivery = subscription.receive(timeout="100ms")
            if delivery is not None:
                got.extend(delivery.bodies)
                delivery.ack()
            return {b"1", b"2", b"3"} <= set(got)

        eventually(all_there, LIMIT)


def test_l7_who_could_not_subscribe_gets_nothing(broker: EmbeddedBroker, disk: StallingDisk) -> None:
    """No consumer is left behind that nobody reads for."""
    disk.failing = {"write", "sync"}
    with pytest.raises(disk.error):
        broker.subscribe("pushed", consumer="ghost", options={"type": "round-robin"})
    mend(broker, disk)
    eventually(lambda: not broker.queue("pushed").consumers, LIMIT)
    broker.publish(Message("pushed", b"1"))
    assert broker.queue("pushed").waiting == 1


def test_l7_leaving_during_a_stall_is_done_after_it(broker: EmbeddedBroker, disk: StallingDisk) -> None:
    broker.create_queue("pushed", type="round-robin")
    subscription = broker.subscribe("pushed", consumer="c")
    stall(broker, disk)
    subscription.close()
    mend(broker, disk)
    eventually(lambda: not broker.queue("pushed").consumers, LIMIT)


def test_q5_what_time_demands_is_done_after_a_stall(broker: EmbeddedBroker, disk: StallingDisk) -> None:
    broker.create_queue("timed", type="pull", message_timeout="300ms")
    broker.publish(Messages(bodies=[b"1", b"2"], name="timed"))
    stall(broker, disk)
    threading.Event().wait(0.6)
    mend(broker, disk)
    eventually(lambda: broker.queue("timed").dead == 2, LIMIT)
    assert broker.pull("timed") is None


def test_l7_a_stall_is_no_hot_loop(
    broker: EmbeddedBroker, disk: StallingDisk, caplog: pytest.LogCaptureFixture
) -> None:
    stall(broker, disk)
    before, began = disk.failures, time.monotonic()
    threading.Event().wait(1.2)
    allowed = 40 * (time.monotonic() - began) / 1.2
    assert disk.failures - before <= allowed, "at most each probe and each sync that is due"
    assert len([record for record in caplog.records if record.name == "remuda.broker"]) <= 2


@pytest.mark.parametrize("operation", ["open", "reserve", "truncate", "sync", "atomic", "write"])
def test_l7_trouble_at_a_change_of_segments_passes(tmp_path: Path, operation: str) -> None:
    """Whichever operation it meets, and with a checkpoint and sealing under way."""
    disk = StallingDisk(tmp_path / "log", reserves=False)
    broker = EmbeddedBroker(Runtime(disk, BrokerOptions.parse(segment_bytes=1 << 16, checkpoint_bytes=100_000)))
    broker.create_queue("q", type="pull")
    accepted, doubtful = [], set()
    for number in range(300):
        if number % 50 == 20:
            disk.failing = {operation}
        if number % 50 == 40:
            disk.failing.clear()
            eventually(lambda: broker.health().ready, LIMIT)
        body = b"%d " % number + b"x" * 3000
        try:
            broker.publish(Message("q", body))
            accepted.append(body)
        except disk.error as error:
            if "not confirmed" in str(error):
                doubtful.add(body)
    disk.failing.clear()
    eventually(lambda: broker.health().ready, LIMIT)
    broker.close()
    kept = drained(tmp_path / "log", "q")
    assert set(accepted) <= set(kept)
    assert set(kept) - set(accepted) <= doubtful
    assert len(kept) == len(set(kept))
    assert len(accepted) >= 150


def test_l7_closing_during_a_stall_says_so_and_loses_nothing_confirmed(tmp_path: Path, disk: StallingDisk) -> None:
    broker = EmbeddedBroker(Runtime(disk, BrokerOptions.parse()))
    broker.create_queue("q", type="pull")
    broker.publish(Message("q", b"kept"))
    stall(broker, disk)
    with pytest.raises(disk.error):
        broker.close()
    assert drained(tmp_path / "log", "q")[:1] == [b"kept"]


def test_l7_an_error_that_does_not_pass_is_the_end_for_everyone(tmp_path: Path) -> None:
    disk = StallingDisk(tmp_path / "log")
    broker = EmbeddedBroker(Runtime(disk, BrokerOptions.parse()))
    broker.create_queue("q", type="pull")
    broker.create_queue("pushed")
    subscription = broker.subscribe("pushed")
    disk.error = lambda text: input_output_error()  # type: ignore[assignment]
    waiting: tuple[Callable[[], object], ...] = (
        lambda: broker.pull("q", timeout="60s"),
        lambda: subscription.receive(timeout="60s"),
    )
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(one) for one in waiting]
        eventually(lambda: len(broker.runtime._recipients.inboxes) == 2, LIMIT)
        disk.failing = {"write"}
        with pytest.raises(StorageError):
            broker.publish(Message("q", b"x"))
        for answer in answers:
            with pytest.raises(StorageError, match="stopped"):
                answer.result(LIMIT)
    health = broker.health()
    assert (health.live, health.ready) == (False, False)
    assert "stopped" in health.problems["broker"]
    disk.failing.clear()
    with pytest.raises(StorageError, match="open the broker again"):
        broker.publish(Message("q", b"y"))
    broker.close()


def test_l7_coroutines_are_told_and_go_on(tmp_path: Path) -> None:
    disk = StallingDisk(tmp_path / "log")
    broker = EmbeddedBroker(Runtime(disk, BrokerOptions.parse()))
    broker.create_queue("q", type="pull")

    async def play() -> None:
        aio = broker.aio
        await aio.publish(Message("q", b"1"))
        disk.failing = {"write", "sync"}
        with pytest.raises(disk.error):
            await aio.pull("q")
        with pytest.raises(disk.error):
            await aio.publish(Message("q", b"refused"))
        assert not (await aio.health()).ready
        disk.failing.clear()
        async with asyncio.timeout(LIMIT):
            while not (await aio.health()).ready:
                await asyncio.sleep(0.02)
            while (delivery := await aio.pull("q")) is None:
                await asyncio.sleep(0.02)
            assert delivery.bodies == [b"1"]
            await delivery.ack()
            disk.failing = {"write", "sync"}
            with pytest.raises(disk.error):
                await aio.subscribe("pushed", consumer="ghost", options={"type": "round-robin"})
            disk.failing.clear()
            while (await aio.queue("pushed")).consumers:
                await asyncio.sleep(0.02)

    asyncio.run(play())
    broker.close()
