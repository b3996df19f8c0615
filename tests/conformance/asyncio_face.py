"""What only coroutines can do to a broker: wait together, and be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from remuda.broker.port import AsyncBroker
from remuda.model.errors import BrokerClosed, CommitTimeout, QueueFull
from remuda.model.message import Message
from tests.conformance.kit import SOON, Backend, numbered


def play(backend: Backend, scene: Callable[[AsyncBroker], Awaitable[None]]) -> None:
    """Run a scene on a broker of its own."""

    async def whole() -> None:
        async with asyncio.timeout(30), await backend.open_async() as broker:
            await scene(broker)

    asyncio.run(whole())


class AsyncFace:
    def test_publish_and_consume(self, backend: Backend) -> None:
        async def scene(broker: AsyncBroker) -> None:
            async with await broker.subscribe("orders") as subscription:
                await broker.publish(numbered(3))
                found = []
                async for delivery in subscription:
                    found += delivery.bodies
                    assert await delivery.ack() == 1
                    if len(found) == 3:
                        break
            assert found == [b"0", b"1", b"2"]

        play(backend, scene)

    def test_many_publish_at_once(self, backend: Backend) -> None:
        async def scene(broker: AsyncBroker) -> None:
            await broker.create_queue("orders", type="pull")
            receipts = await asyncio.gather(*(broker.publish(one) for one in numbered(300)))
            assert len({receipt.id for receipt in receipts}) == 300
            delivery = await broker.pull("orders", 1000)
            assert delivery is not None
            assert delivery.bodies == [b"%d" % number for number in range(300)]

        play(backend, scene)

    def test_q6_errors_are_raised_where_they_are_awaited(self, backend: Backend) -> None:
        async def scene(broker: AsyncBroker) -> None:
            await broker.create_queue("orders", type="pull", message_limit=5)
            results = await asyncio.gather(*(broker.publish(one) for one in numbered(20)), return_exceptions=True)
            assert sum(isinstance(result, QueueFull) for result in results) == 15

        play(backend, scene)

    def test_a_cancelled_receive_loses_nothing(self, backend: Backend) -> None:
        async def scene(broker: AsyncBroker) -> None:
            await broker.create_queue("orders", acknowledge="just-request")
            subscription = await broker.subscribe("orders")
            found: list[bytes] = []

            async def receive() -> None:
                delivery = await subscription.receive()
                assert delivery is not None
                found.extend(delivery.bodies)

            for number in range(60):
                waiting = asyncio.create_task(receive())
                await asyncio.sleep(0)
                publishing = asyncio.create_task(broker.publish(numbered(1, start=number)))
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                await publishing
            while len(found) < 60:
                delivery = await subscription.receive(SOON)
                assert delivery is not None, f"only {len(found)} of 60 came"
                found.extend(delivery.bodies)
            assert found == [b"%d" % number for number in range(60)]

        play(backend, scene)

    def test_a_receive_that_times_out_loses_nothing(self, backend: Backend) -> None:
        async def scene(broker: AsyncBroker) -> None:
            subscription = await broker.subscribe("orders")
            assert await subscription.receive("5ms") is None
            await broker.publish(numbered(1))
            delivery = await subscription.receive(SOON)
            assert delivery is not None
            assert delivery.bodies == [b"0"]

        play(backend, scene)

    def test_a_cancelled_pull_loses_nothing(self, backend: Backend) -> None:
        async def scene(broker: AsyncBroker) -> None:
            await broker.create_queue("orders", type="pull")
            taken = 0
            for number in range(60):
                asking = asyncio.create_task(broker.pull("orders", timeout=SOON))
                for _ in range(number % 5):
                    await asyncio.sleep(0)
                publishing = asyncio.create_task(broker.publish(numbered(1, start=number)))
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                asking.cancel()
                (answer,) = await asyncio.gather(asking, return_exceptions=True)
                await publishing
                if not isinstance(answer, BaseException) and answer is not None:
                    taken += await answer.ack()
            async with asyncio.timeout(SOON):
                while (await broker.queue("orders")).waiting < 60 - taken:
                    await asyncio.sleep(0.002)
            assert (await broker.queue("orders")).in_flight == 0

        play(backend, scene)

    def test_a_cancelled_publish_is_kept_all_the_same(self, backend: Backend) -> None:
        async def scene(broker: AsyncBroker) -> None:
            await broker.create_queue("orders", type="pull", commit_when="acknowledged")
            publishing = asyncio.create_task(broker.publish(numbered(1)))
            while not (await broker.queue("orders")).waiting:
                await asyncio.sleep(0.001)
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
            delivery = await broker.pull("orders")
            assert delivery is not None
            assert await delivery.ack() == 1

        play(backend, scene)

    def test_q4_the_wait_for_a_consumer_can_be_limited(self, backend: Backend) -> None:
        async def scene(broker: AsyncBroker) -> None:
            await broker.create_queue("orders", type="pull", commit_when="acknowledged")
            with pytest.raises(CommitTimeout, match="the message is kept"):
                await broker.publish(numbered(1), timeout="20ms")
            assert (await broker.queue("orders")).waiting == 1

        play(backend, scene)

    def test_closing_wakes_whoever_waits(self, backend: Backend) -> None:
        async def scene(broker: AsyncBroker) -> None:
            subscription = await broker.subscribe("orders")
            await broker.create_queue("asked", type="pull", commit_when="acknowledged")
            waiting = [
                asyncio.create_task(subscription.receive()),
                asyncio.create_task(broker.pull("other", timeout=60)),
            ]
            publishing = asyncio.create_task(broker.publish(Message("asked", b"")))
            while not (await broker.queue("asked")).waiting:
                await asyncio.sleep(0.001)
            await broker.close()
            assert await asyncio.gather(*waiting) == [None, None]
            with pytest.raises(BrokerClosed):
                await publishing
            with pytest.raises(BrokerClosed):
                await broker.publish(numbered(1))

        play(backend, scene)

    def test_several_consumers_share_a_queue(self, backend: Backend) -> None:
        async def scene(broker: AsyncBroker) -> None:
            await broker.create_queue("orders")
            found: list[int] = []

            async def work() -> None:
                async with await broker.subscribe("orders", batch=3) as subscription:
                    async for delivery in subscription:
                        await delivery.ack()
                        found.extend(int(body) for body in delivery.bodies)
                        if len(found) == 100:
                            done.set()

            done = asyncio.Event()
            workers = [asyncio.create_task(work()) for _ in range(4)]
            for start in range(0, 100, 10):
                await broker.publish(numbered(10, start=start))
            await asyncio.wait_for(done.wait(), SOON)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            assert sorted(found) == list(range(100))

        play(backend, scene)
