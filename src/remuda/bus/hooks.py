"""The application's startup and shutdown hooks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from remuda.bus.handlers.loops import LoopHolder

_log = logging.getLogger("remuda.bus")


class Lifecycle:
    """Startup hooks in order, shutdown hooks in reverse. A startup hook that raises keeps the bus from starting."""

    def __init__(self) -> None:
        self.startup: list[Callable[[], Any]] = []
        self.shutdown: list[Callable[[], Any]] = []

    @property
    def needs_loop(self) -> bool:
        """Whether a hook is a coroutine, which must run on the loop that handlers run on too."""
        return any(map(inspect.iscoroutinefunction, [*self.startup, *self.shutdown]))

    def start(self, holder: LoopHolder) -> None:
        for hook in self.startup:
            made = hook()
            if inspect.isawaitable(made):
                holder.complete(made)

    async def start_async(self) -> None:
        for hook in self.startup:
            made = hook()
            if inspect.isawaitable(made):
                await made

    def stop(self, holder: LoopHolder) -> None:
        for hook in reversed(self.shutdown):
            try:
                made = hook()
                if inspect.isawaitable(made):
                    holder.complete(made)
            except Exception:
                _log.exception("the shutdown hook %s failed", getattr(hook, "__qualname__", hook))

    async def stop_async(self) -> None:
        for hook in reversed(self.shutdown):
            try:
                made = hook()
                if inspect.isawaitable(made):
                    await made
            except Exception:
                _log.exception("the shutdown hook %s failed", getattr(hook, "__qualname__", hook))
