"""Publications of all connections go to the broker together, so that one sync serves as many of them as it can.

What comes in while a commit runs waits for the next. A publisher that keeps a window open sends more as soon as it is
confirmed; a commit that began before that arrives would carry a part of the window only, and there would be twice as
many. So the next one waits for about as many as were just confirmed, but never longer than the last commit took.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

_log = logging.getLogger("remuda.amqp")
_PATIENCE: Final = 0.25
"""How long a commit is waited for before the next begins: a queue may confirm when a consumer has answered."""
_LONGEST: Final = 0.02
_SHORTEST: Final = 0.001
"""About what each commit costs in work, however few messages it carries: waiting as long for company is never wrong."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Gathering:
    """Hands publications to the broker, all that have gathered at once."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Work, int, asyncio.Future[None]]] = []
        self._messages = 0
        self._expected = 0
        """With how many messages everybody who was confirmed last has answered."""
        self._until = 0.0
        """Until when they are waited for."""
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, work: Work, messages: int) -> asyncio.Future[None]:
        """Have this done with the next commit; the future is done when it is."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, messages, done))
        self._messages += messages
        self._more.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return done

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                await self._wait_for_company(loop)
                waiting, self._waiting = self._waiting, []
                messages, self._messages = self._messages, 0
                began, worked = loop.time(), time.thread_time()
                tasks = [asyncio.ensure_future(_carried_out(work, done)) for work, _, done in waiting]
                await asyncio.wait(tasks, timeout=_PATIENCE)
                now = loop.time()
                # What more company would save is the wait for the disk, not the work for each message.
                saves = now - began - (time.thread_time() - worked)
                self._expected = self._messages + messages
                self._until = now + min(max(saves, _SHORTEST), _LONGEST)
        finally:
            self._task = None

    async def _wait_for_company(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._messages < self._expected and (left := self._until - loop.time()) > 0:
            self._more.clear()
            try:
                async with asyncio.timeout(left):
                    await self._more.wait()
            except TimeoutError:
                return


async def _carried_out(work: Work, done: asyncio.Future[None]) -> None:
    try:
        await work()
    except Exception:
        _log.exception("publications could not be handed to the broker")
    finally:
        if not done.done():
            done.set_result(None)
