"""Publications of all connections go to the broker together, so that one sync serves as many of them as it can.

What comes in while a commit runs waits for the next. A publisher that keeps a window open sends more as soon as it is
confirmed; a commit that began before that arrives would carry a part of the window only, and there would be twice as
many. So the next one waits for about as many as were just confirmed, but never idly for longer than the last commit
took.
"""

from __future__ import annotations

import asyncio
import contextlib
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
_WORKING: Final = 4
"""How many times as long it may take, if this thread is not idle meanwhile: large messages take time to be read."""

Work = Callable[[], Coroutine[Any, Any, None]]
"""Called when it begins, and then awaited."""


class Gathering:
    """Hands publications to the broker, all that have gathered at once."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Work, asyncio.Future[None]]] = []
        self._messages = 0
        self._expected = 0
        """With how many messages everybody who was confirmed last has answered."""
        self._patience = 0.0
        """Seconds for which they are waited for."""
        self._since = self._worked = 0.0
        """When the last commit ended, and what this thread had worked by then."""
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, work: Work, messages: int) -> asyncio.Future[None]:
        """Have this done with the next commit; the future is done when it is."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, done))
        self._messages += messages
        self._more.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return done

    def grow(self, messages: int) -> None:
        """What was added last, and has not begun yet, grew by this many."""
        self._messages += messages
        self._more.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                await self._wait_for_company(loop)
                waiting, self._waiting = self._waiting, []
                messages, self._messages = self._messages, 0
                began, worked = loop.time(), time.thread_time()
                tasks = [asyncio.ensure_future(_carried_out(work(), done)) for work, done in waiting]
                await asyncio.wait(tasks, timeout=_PATIENCE)
                self._since, self._worked = loop.time(), time.thread_time()
                # What more company would save is the wait for the disk, not the work for each message.
                saves = self._since - began - (self._worked - worked)
                self._expected = self._messages + messages
                self._patience = min(max(saves, _SHORTEST), _LONGEST)
        finally:
            self._task = None

    async def _wait_for_company(self, loop: asyncio.AbstractEventLoop) -> None:
        patience = self._patience
        while self._messages < self._expected:
            passed = loop.time() - self._since
            left = patience - passed + time.thread_time() - self._worked
            if left <= 0 or passed >= min(_WORKING * patience, _LONGEST):
                return
            self._more.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._more.wait()


async def _carried_out(work: Coroutine[Any, Any, None], done: asyncio.Future[None]) -> None:
    try:
        await work
    except Exception:
        _log.exception("publications could not be passed to the broker")
    finally:
        if not done.done():
            done.set_result(None)
