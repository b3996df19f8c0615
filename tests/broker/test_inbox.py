"""Deliveries wait in an inbox for a thread or a coroutine, and none is lost."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from remuda.broker.coroutines import receive
from remuda.broker.embedded.delivering.inbox import Inbox
from remuda.core.effects import Dispatch


def sending(number: int) -> Dispatch:
    return Dispatch("orders", "anna", 1, number, [(number, 1)], [1], 0)


def lease(found: Dispatch | None) -> int | None:
    return None if found is None else found.lease


def test_first_in_first_out() -> None:
    inbox = Inbox()
    for number in range(3):
        inbox.put(sending(number))
    assert [lease(inbox.get(0)) for _ in range(4)] == [0, 1, 2, None]


def test_time_runs_out() -> None:
    assert Inbox().get(0.01) is None


def test_a_waiting_thread_is_woken() -> None:
    inbox = Inbox()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(inbox.get, None)
        inbox.put(sending(7))
        assert lease(waiting.result(60)) == 7


def test_closing_wakes_all_threads() -> None:
    inbox = Inbox()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(inbox.get, None) for _ in range(3)]
        inbox.close()
        assert [one.result(60) for one in waiting] == [None] * 3


def test_q2_nothing_is_handed_out_after_closing() -> None:
    inbox = Inbox()
    inbox.put(sending(1))
    inbox.close()
    assert inbox.get(None) is None


def test_a_coroutine_is_woken_from_a_thread() -> None:
    async def scene() -> int | None:
        inbox = Inbox()
        waiting = asyncio.create_task(receive(inbox, None))
        await asyncio.sleep(0)
        threading.Thread(target=inbox.put, args=(sending(7),)).start()
        return lease(await asyncio.wait_for(waiting, 60))

    assert asyncio.run(scene()) == 7


def test_coroutines_are_served_in_the_order_of_asking() -> None:
    async def scene() -> list[int | None]:
        inbox = Inbox()
        waiting = [asyncio.create_task(receive(inbox, 5)) for _ in range(4)]
        await asyncio.sleep(0)
        for number in range(4):
            inbox.put(sending(number))
        return [lease(one) for one in await asyncio.gather(*waiting)]

    assert asyncio.run(scene()) == [0, 1, 2, 3]


def test_a_coroutines_time_runs_out() -> None:
    assert asyncio.run(receive(Inbox(), 0.01)) is None


def test_closing_wakes_all_coroutines() -> None:
    async def scene() -> list[Dispatch | None]:
        inbox = Inbox()
        waiting = [asyncio.create_task(receive(inbox, None)) for _ in range(3)]
        await asyncio.sleep(0)
        inbox.close()
        return await asyncio.gather(*waiting)

    assert asyncio.run(scene()) == [None] * 3


def test_a_coroutine_cancelled_in_the_moment_it_is_woken_passes_it_on() -> None:
    async def scene() -> int | None:
        inbox = Inbox()
        first = asyncio.create_task(receive(inbox, None))
        second = asyncio.create_task(receive(inbox, 5))
        await asyncio.sleep(0)
        inbox.put(sending(7))
        first.cancel()
        return lease(await second)

    assert asyncio.run(scene()) == 7


def test_cancelling_before_anything_comes_loses_nothing() -> None:
    async def scene() -> int | None:
        inbox = Inbox()
        first = asyncio.create_task(receive(inbox, None))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        inbox.put(sending(7))
        return lease(await receive(inbox, 5))

    assert asyncio.run(scene()) == 7


def test_nothing_is_lost_between_threads_and_cancelled_coroutines() -> None:
    async def scene() -> list[int | None]:
        inbox = Inbox()
        found: list[int | None] = []

        async def take() -> None:
            found.append(lease(await receive(inbox, None)))

        def produce() -> None:
            for number in range(200):
                inbox.put(sending(number))

        thread = threading.Thread(target=produce)
        thread.start()
        while thread.is_alive():
            tasks = [asyncio.create_task(take()) for _ in range(3)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            tasks[2].cancel()
            await asyncio.gather(tasks[0], tasks[2], return_exceptions=True)
            tasks[1].cancel()
            await asyncio.gather(tasks[1], return_exceptions=True)
        thread.join()
        while (left := inbox.get(0)) is not None:
            found.append(left.lease)
        return found

    assert asyncio.run(scene()) == list(range(200))


def test_a_delivery_can_be_put_back_in_front() -> None:
    inbox = Inbox()
    inbox.put(sending(0))
    inbox.put(sending(1))
    taken = inbox.get(0)
    assert taken is not None
    inbox.put_back(taken)
    assert [lease(inbox.get(0)) for _ in range(2)] == [0, 1]


def test_an_inbox_nobody_comes_to_is_diverted() -> None:
    inbox, elsewhere = Inbox(), list[Dispatch]()
    inbox.put(sending(0))
    inbox.divert(elsewhere.append)
    inbox.put(sending(1))
    assert [one.lease for one in elsewhere] == [0, 1]
    assert inbox.get(0) is None


def test_what_is_offered_to_an_inbox_that_nobody_looks_into_is_not_taken() -> None:
    inbox, given = Inbox(), list[int | None]()
    assert inbox.offer(sending(1))
    inbox.divert(lambda dispatch: given.append(dispatch.lease))
    assert not inbox.offer(sending(2))
    inbox.put(sending(3))
    assert given == [1, 3]
