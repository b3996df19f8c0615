"""A crew of coroutines: one event loop per queue, so that a coroutine that blocks its loop blocks no other queue."""

from __future__ import annotations

import asyncio
import logging
import threading

from remuda.broker.delivery import AsyncDelivery
from remuda.bus.crew import POLL, Pace, Work
from remuda.bus.invoke import Call
from remuda.bus.outcome import Outcome
from remuda.bus.watchdog import GRACE
from remuda.core.effects import Answer
from remuda.model.durations import SECOND, text
from remuda.model.errors import BrokerClosed, RemudaError

_log = logging.getLogger("remuda.bus")
_RENEW = 10.0


class CoroutineCrew:
    """As many workers as the queue's concurrency, all on one loop in a thread of its own."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"remuda-{work.queue}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.run(self._work_all())

    async def _work_all(self) -> None:
        await asyncio.gather(*(self._worker() for _ in range(self._work.settings.threads)))

    async def _worker(self) -> None:
        work, pace = self._work, Pace(self._work)
        try:
            while not self._stopping.is_set():
                delivery = await work.broker.aio.pull(work.queue, pace.count, timeout=POLL)
                if delivery is not None:
                    pace.begin()
                    pace.end(failed=not await self._handle(delivery))
        except BrokerClosed:
            return
        except RemudaError as error:
            _log.error("%s: a worker stops: %s", work.queue, error)

    async def _handle(self, delivery: AsyncDelivery) -> bool:
        ended: list[tuple[list[int], Outcome]] = []
        left = list(range(len(delivery)))
        keeper = asyncio.get_running_loop().create_task(self._keep(delivery))
        try:
            for rows, call in self._work.calls(delivery):
                if self._stopping.is_set():
                    break
                left = left[len(rows) :]
                ended.append((rows, call if isinstance(call, Outcome) else await self._call(call)))
        finally:
            keeper.cancel()
        await asyncio.gather(*self._work.conclude(delivery, ended))
        if left:
            await delivery.release(left)
        return all(outcome.answer is Answer.ACKNOWLEDGE for _, outcome in ended)

    async def _call(self, call: Call) -> Outcome:
        timeout = self._work.settings.timeout
        if timeout is None:
            return await call.run_async()
        task = asyncio.ensure_future(call.run_async())
        await asyncio.wait({task}, timeout=timeout / SECOND)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE)
            if not task.done():
                _log.error("%s: a handler ignores its timeout and is left behind; others go on", self._work.queue)
            return Outcome(Answer.NEGATIVE, f"timed out after {text(timeout)}")
        return task.result()

    async def _keep(self, delivery: AsyncDelivery) -> None:
        while True:
            await asyncio.sleep(_RENEW)
            await self._work.broker.aio.renew(delivery)
