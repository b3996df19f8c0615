"""Group commit: publications of all connections go to the broker together, so that they share one sync.

What arrives while a commit runs waits for the next. A publisher with a window of unconfirmed messages sends more as
soon as some are confirmed; a commit that began before these arrive would carry only part of the window, and there would
be twice as many commits. So the next one waits for about as many messages as were just confirmed, but never idly for
longer than the last commit took.
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
"""Seconds to wait for a commit before the next begins: some queues confirm only when a consumer has answered."""
_LONGEST: Final = 0.02
_SHORTEST: Final = 0.001
"""About the work of one commit in seconds, however few messages it carries: to wait this long for more always pays."""
_WORKING: Final = 4
"""How many times as long to wait while this thread is busy: large messages take time to read."""

Work = Callable[[], Coroutine[Any, Any, None]]
"""Called when the commit begins, and then awaited."""


class CommitGroup:
    """Collects publications and hands them to the broker in one go."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Work, asyncio.Future[None]]] = []
        self._messages = 0
        self._expected = 0
        """How many messages to wait for: by then, every publisher that was just confirmed has sent more."""
        self._patience = 0.0
        """How many seconds to wait for them."""
        self._since = self._worked = 0.0
        """When the last commit ended, and this thread's CPU time at that moment."""
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, work: Work, messages: int) -> asyncio.Future[None]:
        """Add work to the next commit; the future is done when the work is."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, done))
        self._messages += messages
        self._more.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return done

    def grow(self, messages: int) -> None:
        """Work that was added and has not begun has this many more messages."""
        self._messages += messages
        self._more.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                await self._wait_for_more(loop)
                waiting, self._waiting = self._waiting, []
                messages, self._messages = self._messages, 0
                began, worked = loop.time(), time.thread_time()
                tasks = [asyncio.ensure_future(_carried_out(work(), done)) for work, done in waiting]
                await asyncio.wait(tasks, timeout=_PATIENCE)
                self._since, self._worked = loop.time(), time.thread_time()
                # Sharing a commit saves the wait for the disk, not the work for each message.
                saves = self._since - began - (self._worked - worked)
                self._expected = self._messages + messages
                self._patience = min(max(saves, _SHORTEST), _LONGEST)
        finally:
            self._task = None

    async def _wait_for_more(self, loop: asyncio.AbstractEventLoop) -> None:
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
        _log.exception("published messages could not be handed to the broker")
    finally:
        if not done.done():
            done.set_result(None)
