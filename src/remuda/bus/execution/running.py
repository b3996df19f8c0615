"""Starts and stops a bus: hooks, the event loop, workers and companions, in order."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from remuda.bus.companions import Companion, wait_until_idle
from remuda.bus.execution.runner import Runner
from remuda.bus.execution.stop_signals import stopped_by_sigterm
from remuda.bus.handlers.call import current
from remuda.bus.handlers.loops import LoopHolder, LoopThread, loop_runs_here
from remuda.bus.hooks import Lifecycle
from remuda.bus.lazy_broker import OpeningAbandoned
from remuda.bus.observing.logs import configure_if_unset
from remuda.bus.observing.presence import Presence
from remuda.model.errors import RemudaError
from remuda.model.values.durations import SECOND, Duration
from remuda.model.values.option_reading import read_duration
from remuda.signals import SIGNAL_POLL

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger("remuda.bus")


class Running:
    """The running state of one bus."""

    def __init__(
        self,
        make_runner: Callable[[asyncio.AbstractEventLoop | None], Runner],
        loop_holder: LoopHolder,
        companions: Sequence[Companion],
        abandon_opening: Callable[[], None],
        make_presence: Callable[[Runner], Presence],
    ) -> None:
        self.lifecycle = Lifecycle()
        self.runner: Runner | None = None
        self._make_runner = make_runner
        self._loop_holder = loop_holder
        self._companions = companions
        self._abandon_opening = abandon_opening
        self._make_presence = make_presence
        self._presence: Presence | None = None
        self._waiting_runs = 0
        self._loop_thread: LoopThread | None = None
        self._process = os.getpid()
        self._ending: asyncio.Future[None] | None = None
        """A stop that a handler asked for, and did not wait for."""

    def leave_to_parent(self) -> None:
        """In a forked process, forget the parent's threads and loop: here nothing runs until it is started."""
        if self._process != (process := os.getpid()):
            self._process = process
            self.runner, self._loop_thread, self._loop_holder.loop, self._waiting_runs = None, None, None, 0

    @property
    def running(self) -> bool:
        self.leave_to_parent()
        return (runner := self.runner) is not None and runner.running

    @property
    def runs_on_this_loop(self) -> bool:
        if (runner := self.runner) is None or runner.loop is None or not loop_runs_here():
            return False
        import asyncio

        return asyncio.get_running_loop() is runner.loop

    def cancel(self, queue: str, offset: int, who: str) -> bool:
        """Cancel a message if it is handled here; tells whether it is."""
        return self.running and self.runner is not None and self.runner.cancel(queue, offset, who)

    def run(self, until_idle: bool, grace: Duration, timeout: Duration | None) -> None:
        seconds = read_duration("grace", grace) / SECOND
        limit = None if timeout is None else read_duration("timeout", timeout) / SECOND
        self._check_not_running()  # first, or the end of this run would be that of the other one
        if not until_idle:
            configure_if_unset()
        self._waiting_runs += 1
        try:
            with stopped_by_sigterm(self, grace):
                try:
                    runner = self.start()
                    if until_idle:
                        wait_until_idle(runner, self._companions, limit)
                    else:
                        runner.wait()
                except OpeningAbandoned as abandoned:
                    _log.info("%s", abandoned)
                except KeyboardInterrupt:
                    _log.info("stopping; handlers have %s to finish", grace)
                finally:
                    self.end(seconds)
        finally:
            self._waiting_runs -= 1

    async def run_async(
        self, until_idle: bool, grace: Duration, timeout: Duration | None, loop_per_queue: bool
    ) -> None:
        import asyncio

        seconds = read_duration("grace", grace) / SECOND
        limit = None if timeout is None else read_duration("timeout", timeout) / SECOND
        self._check_not_running()  # first, or the end of this run would be that of the other one
        if not until_idle:
            configure_if_unset()
        self._waiting_runs += 1
        try:
            with stopped_by_sigterm(self, grace):
                try:
                    runner = await self.start_async(loop_per_queue=loop_per_queue)
                    if until_idle:
                        await _on_thread(partial(wait_until_idle, runner, self._companions, limit))
                    else:
                        await _on_thread(runner.wait)
                except OpeningAbandoned as abandoned:
                    _log.info("%s", abandoned)
                except asyncio.CancelledError:
                    self.ask_to_stop()
                    raise
                finally:
                    await self.stop_async(seconds)
        finally:
            self._waiting_runs -= 1

    def start(self) -> Runner:
        self._check_not_running()
        if self.lifecycle.needs_loop and self._loop_thread is None:
            self._loop_thread = LoopThread()
            self._loop_holder.loop = self._loop_thread.loop
        try:
            self.lifecycle.start(self._loop_holder)
            try:
                return self._start_runner(self._loop_holder.loop)
            except BaseException:
                if self.runner is None:
                    self.lifecycle.stop(self._loop_holder)
                raise
        except BaseException:
            self._end_loop_thread()
            raise

    async def start_async(self, *, loop_per_queue: bool = False) -> Runner:
        import asyncio

        self._check_not_running()
        self._ending = None
        self._loop_holder.loop = asyncio.get_running_loop()
        try:
            await self.lifecycle.start_async()
            loop = None if loop_per_queue else self._loop_holder.loop
            starting = asyncio.ensure_future(asyncio.to_thread(self._start_runner, loop))
            try:
                return await asyncio.shield(starting)
            except BaseException:
                self._abandon_opening()
                await asyncio.wait({starting})  # cancelling does not stop the thread that starts the workers
                if self.runner is None:
                    await self.lifecycle.stop_async()
                else:
                    await self.stop_async(10)
                raise
        except BaseException:
            # Otherwise a later start without a loop would use this one, which may be closed by then.
            self._loop_holder.loop = None
            raise

    def ask_to_stop(self) -> None:
        if (runner := self.runner) is not None:
            runner.ask_to_stop()
        else:
            self._abandon_opening()

    def stop(self, grace: Duration) -> None:
        seconds = read_duration("grace", grace) / SECOND
        self.leave_to_parent()
        if self._waiting_runs:
            self.ask_to_stop()
        elif threading.current_thread().name.startswith("remuda-"):
            # Called by a handler: waiting for all handlers, it would wait for itself.
            self.ask_to_stop()
            threading.Thread(target=self.end, args=(seconds,), name="stop-bus", daemon=True).start()
        else:
            self.refuse_to_wait_on_own_loop("await bus.stop_async()")
            self.end(seconds)

    async def stop_async(self, grace: Duration) -> None:
        import asyncio

        seconds = read_duration("grace", grace) / SECOND
        if self._called_by_handler():
            # Waiting for all handlers, it would wait for itself, and its message would go back when the grace is over.
            self.ask_to_stop()
            if self._waiting_runs:
                return
            if self.runs_on_this_loop:
                self._ending = asyncio.ensure_future(self._end_async(seconds))
            else:
                threading.Thread(target=self.end, args=(seconds,), name="stop-bus", daemon=True).start()
            return
        if self._ending is not None:
            await asyncio.shield(self._ending)
        await self._end_async(seconds)

    async def _end_async(self, grace: float) -> None:
        import asyncio

        runner, self.runner = self.runner, None
        if runner is not None:
            ending = asyncio.to_thread(self._stop_runner, runner, grace)
            await asyncio.shield(asyncio.ensure_future(ending))
            await self.lifecycle.stop_async()
        self._loop_holder.loop = None

    def _called_by_handler(self) -> bool:
        """Whether the caller is a handler of this bus, which runs now."""
        context, runner = current.get(), self.runner
        return context is not None and runner is not None and runner.works_on(context.queue)

    def end(self, grace: float) -> None:
        """Stop, and wait until everything has stopped; `grace` is in seconds."""
        self.leave_to_parent()
        # Not under the bus's lock: handlers may need it to finish.
        runner, self.runner = self.runner, None
        if runner is not None:
            try:
                self._stop_runner(runner, grace)
                self.lifecycle.stop(self._loop_holder)
            finally:
                self._end_loop_thread()

    def refuse_to_wait_on_own_loop(self, instead: str) -> None:
        if self.runner is not None and loop_runs_here() and self._loop_holder.loop is not None:
            import asyncio

            if asyncio.get_running_loop() is self._loop_holder.loop:
                raise RemudaError(f"handlers run on this loop, so it must not block until they end; {instead}")

    def _check_not_running(self) -> None:
        if self.running:
            raise RemudaError("the bus is already running")

    def _start_runner(self, loop: asyncio.AbstractEventLoop | None) -> Runner:
        runner = self.runner = self._make_runner(loop)
        try:
            runner.start()
            for companion in self._companions:
                companion.start()
        except Exception:
            self.runner = None
            self._stop_runner(runner, 0)
            raise
        self._presence = self._make_presence(runner)
        self._presence.start()
        return runner

    def _stop_runner(self, runner: Runner, grace: float) -> None:
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.stopping()
        for companion in self._companions:
            companion.stop(grace)
        runner.stop(grace)
        if presence is not None:
            presence.close()

    def _end_loop_thread(self) -> None:
        thread, self._loop_thread = self._loop_thread, None
        if thread is not None:
            self._loop_holder.loop = None
            thread.close()


async def _on_thread(wait: Callable[[], object]) -> None:
    """Wait on another thread, while this loop wakes up often enough to run signal handlers."""
    import asyncio

    waiting = asyncio.ensure_future(asyncio.to_thread(wait))
    while not waiting.done():
        await asyncio.wait({waiting}, timeout=SIGNAL_POLL)
    await waiting
