"""The event loop never waits for a disk, coroutines share commits, and cancelling loses nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from remuda.broker.coroutines import AsyncEmbeddedBroker
from remuda.broker.embedded.storing.committer import Committer
from remuda.broker.opening import open_async_broker
from remuda.model.errors import DiskFull
from tests.broker.kit import WatchedDisk, hosted_on
from tests.conformance.kit import numbered


class Ticker:
    """Ticks every few milliseconds, as long as the loop lets it."""

    def __init__(self) -> None:
        self.ticks = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.005)
            self.ticks += 1


def test_a_slow_sync_does_not_stop_the_loop(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = WatchedDisk(tmp_path / "broker")
        ticker = Ticker()
        broker = AsyncEmbeddedBroker(await asyncio.to_thread(hosted_on, disk, sync="always"))
        async with broker:
            await broker.create_queue("orders", type="pull")
            disk.sync_takes = 0.2
            ticking = asyncio.create_task(ticker.run())
            before, started = disk.syncs, asyncio.get_running_loop().time()
            await broker.publish(numbered(3))
            delivery = await broker.pull("orders", 3)
            assert delivery is not None
            await delivery.ack()
            assert disk.syncs >= before + 2
            assert asyncio.get_running_loop().time() - started >= 0.4
            ticking.cancel()
            disk.sync_takes = 0
        assert ticker.ticks >= 10, "also on a machine that lets it tick only now and then"

    asyncio.run(scene())


def test_concurrent_publishes_share_commits(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = WatchedDisk(tmp_path / "broker")
        async with AsyncEmbeddedBroker(hosted_on(disk, sync="always")) as broker:
            await broker.create_queue("orders", type="pull")
            disk.sync_takes = 0.005
            before = disk.syncs
            await asyncio.gather(*(broker.publish(one) for one in numbered(500)))
            assert disk.syncs - before < 50

    asyncio.run(scene())


def test_a_publish_cancelled_during_the_sync_is_kept(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = WatchedDisk(tmp_path / "broker")
        async with AsyncEmbeddedBroker(hosted_on(disk, sync="always")) as broker:
            await broker.create_queue("orders", type="pull")
            disk.sync_takes = 1.0
            publishing = asyncio.create_task(broker.publish(numbered(1)))
            await asyncio.sleep(0.01)
            publishing.cancel()
            disk.sync_takes = 0
            await asyncio.gather(publishing, return_exceptions=True)
            assert publishing.cancelled()
            delivery = await broker.pull("orders", timeout=60)
            assert delivery is not None
            assert delivery.bodies == [b"0"]

    asyncio.run(scene())


def test_cancelled_while_reading_the_log_loses_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with await open_async_broker(tmp_path / "broker", sync="os") as broker:
            await broker.create_queue("orders", queue_size=1)
            await broker.publish(numbered(30))
            subscription = await broker.subscribe("orders")
            found: list[bytes] = []
            for attempt in range(2000):
                receiving = asyncio.create_task(subscription.receive(60))
                for _ in range(attempt % 4):
                    await asyncio.sleep(0)
                receiving.cancel()
                (delivery,) = await asyncio.gather(receiving, return_exceptions=True)
                if not isinstance(delivery, BaseException) and delivery is not None:
                    found += delivery.bodies
                    await delivery.ack()
                if len(found) == 30:
                    break
                if attempt % 10 == 9:
                    late = await subscription.receive(60)
                    assert late is not None
                    found += late.bodies
                    await late.ack()
            assert found == [b"%d" % number for number in range(len(found))]
            assert len(found) == 30

    asyncio.run(scene())


def test_a_pull_cancelled_while_reading_the_log_gives_back_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with await open_async_broker(tmp_path / "broker", sync="os") as broker:
            await broker.create_queue("orders", type="pull", queue_size=1)
            await broker.publish(numbered(30))
            for attempt in range(60):
                asking = asyncio.create_task(broker.pull("orders", 2))
                for _ in range(attempt % 6):
                    await asyncio.sleep(0)
                asking.cancel()
                (answer,) = await asyncio.gather(asking, return_exceptions=True)
                if not isinstance(answer, BaseException) and answer is not None:
                    await answer.release()
            async with asyncio.timeout(60):
                while (await broker.queue("orders")).waiting < 30:
                    await asyncio.sleep(0.002)

    asyncio.run(scene())


def test_l7_of_a_commit_that_fails_those_are_told_so_who_were_not_kept_before() -> None:
    begun, goes_on, kept = threading.Event(), threading.Event(), [0]

    def wait(ticket: int) -> None:
        if not begun.is_set():
            begun.set()
            goes_on.wait(60)
            kept[0] = 2
        elif ticket > kept[0]:
            raise DiskFull("no room on the disk")

    committer = Committer(wait, lambda: kept[0])
    try:
        committer.kept(1)
        begun.wait(60)
        second, third = committer.kept(2), committer.kept(3)  # both along with the next
        goes_on.set()
        second.result(60)
        with pytest.raises(DiskFull):
            third.result(60)
    finally:
        committer.close()
