"""The event loop that coroutines of handlers, middleware and hooks run on, and ways to reach it from threads."""

from __future__ import annotations

import contextvars
import inspect
import sys
import threading
from collections.abc import Awaitable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from remuda.model.errors import RemudaError
from remuda.steps import drive as take_steps
from remuda.steps import drive_async as take_steps_async

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

T = TypeVar("T")


class LoopHolder:
    """Holds the application's loop while that runs the bus. It is empty in another process."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None

    def complete(self, awaitable: Awaitable[T]) -> T:
        """Wait in this thread for an awaitable, which runs on the application's loop or else on a new one."""
        import asyncio

        coroutine = awaitable if inspect.iscoroutine(awaitable) else _awaited(awaitable)
        if loop_runs_here():
            coroutine.close()
            raise RemudaError(
                "a loop is running in this thread, and a coroutine has to be awaited; await send_async or publish_async"
            )
        loop = self.loop
        if loop is not None and loop.is_running():
            waiting: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, loop)
            return waiting.result()
        result: T = asyncio.run(coroutine)
        return result

    def __reduce__(self) -> tuple[type[LoopHolder], tuple[()]]:
        return LoopHolder, ()


class LoopThread:
    """An event loop in a thread of its own, for a bus that is not run by an application's loop."""

    def __init__(self) -> None:
        import asyncio

        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="remuda-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        import asyncio

        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self.loop.close()


def drive(steps: Generator[Any, Any, T], holder: LoopHolder) -> T:
    """Run a generator that may yield awaitables, in a thread."""
    return take_steps(steps, lambda value: holder.complete(value) if inspect.isawaitable(value) else value)


async def drive_async(steps: Generator[Any, Any, T]) -> T:
    """Run a generator that may yield awaitables, in a coroutine."""
    return await take_steps_async(steps, _complete)


async def _complete(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def loop_runs_here() -> bool:
    # Where nobody has imported asyncio, no loop can run.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def run_on_new_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop of its own, whether or not one is running here."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(context.run, asyncio.run, coroutine).result()


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable
