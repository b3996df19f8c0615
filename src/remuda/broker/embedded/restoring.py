"""Crash-only (L10): an unexpected error costs the command that met it.

The queues are rebuilt from the log, in place and on the timer's thread, which no signal reaches; meanwhile everybody
else waits. If that cannot be done, or a second error comes within a minute, the broker stops and lets its directory go,
so that another process takes over.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from threading import get_ident
from typing import TYPE_CHECKING, Final

from remuda.broker.embedded.storing.group_commit import StepsAside
from remuda.model.errors import RemudaError, StorageError
from remuda.model.operations.commands import Command, HandOver, Pull, Settle, Subscribe

if TYPE_CHECKING:
    from remuda.broker.embedded.runtime import Runtime

_log = logging.getLogger("remuda.broker")
APART: Final = 60.0
"""Seconds that must lie between two errors."""
_PAUSE: Final = 0.2
_BREATH: Final = 0.001
_SHOWN: Final = 2000
"""How much of a command is logged."""
_REMEMBERED: Final = 3600.0
"""Seconds for which health tells of an error."""
_NOTE: Final = (
    "an unexpected error in the broker: this command is undone, unless it was stored already; the broker goes on. "
    "Its log has the details: please report them"
)


class BeingRestored(StepsAside):
    """The broker is being restored after an error; nothing was changed. Try again in a moment."""

    def __init__(self) -> None:
        super().__init__("the broker is being restored after an error; nothing was changed. Try again in a moment")


class LostAfterError(StorageError):
    """What was decided before an error is not in the log."""


def is_ours(error: BaseException) -> bool:
    """Whether an error is none that the disk or a caller is to blame for, nor an interrupt: a mistake in the broker."""
    return isinstance(error, Exception) and not isinstance(error, RemudaError | OSError)


class Restoration:
    """Waits for errors, and what is known of them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.error: BaseException | None = None
        """What left the queues half changed."""
        self.command: Command | None = None
        self.began = (0, 0)
        """The offset and position at which the command began that met it."""
        self.count = 0
        self._whole = threading.Event()
        self._stuck = False
        """Whether the disk is full, so that the log cannot be read again yet."""
        self._last = ""
        self._last_time = -_REMEMBERED

    def begin(self, error: BaseException, command: Command | None, began: tuple[int, int]) -> None:
        """Note the first error. Under the lock."""
        if self.error is None:
            self._whole.clear()
            self.command, self.began = command, began
            self.error = error
        if not any(_NOTE in note for note in getattr(error, "__notes__", ())):
            error.add_note(_NOTE)

    def forgotten(self, tag: int) -> bool:
        """Whether a subscription or pull ends with the command that met the error."""
        return isinstance(self.command, Subscribe | Pull) and self.command.tag == tag

    def wait(self) -> None:
        """Return when the queues are whole again, or the broker stopped; raise if that cannot be waited for."""
        runtime = self._runtime
        timer = runtime._timer
        if threading.current_thread() is timer.thread:
            self.run()
            return
        if get_ident() in runtime._waiting or runtime.upkeep.busy_here:
            raise BeingRestored
        while self.error is not None and runtime.failure is None and not runtime.closed:
            if self._stuck:
                raise runtime.refusal()
            timer.nudge(0)
            self._whole.wait(_PAUSE)

    def give_way(self, reached: int) -> int:
        """For a thread that would write now: the timer's thread is to lead next, once it waits for no write itself, and
        upkeep has let go of the log."""
        if self._stuck:
            raise self._runtime.refusal()
        timer = self._runtime._timer
        timer.nudge(0)
        if self._runtime.upkeep.busy_here or threading.current_thread() is timer.thread:
            raise BeingRestored
        time.sleep(_BREATH)
        return reached

    def run(self) -> None:
        """Rebuild the queues, on the timer's thread. What fails for good stops the broker."""
        runtime, error = self._runtime, self.error
        if error is None or runtime.closed or runtime.failure is not None:
            return
        begun = time.monotonic()
        try:
            self._report(error)
            if begun - self._last_time < APART and not runtime.volatile:
                raise error
            while not self._try():
                time.sleep(_PAUSE)
            with contextlib.suppress(BeingRestored):  # the next error is there already
                runtime.wait(runtime.last_ticket)
        except BaseException as failure:
            runtime.stop_after(failure)
        else:
            self.count += 1
            self._last_time, self._last = begun, f"{type(error).__name__}: {error}"
            _log.error("the broker goes on: its queues were rebuilt in %.2f s", time.monotonic() - begun)
        finally:
            self._stuck = False
            self._whole.set()

    def _try(self) -> bool:
        runtime = self._runtime
        try:
            with runtime.upkeep.turn:
                runtime._group.lead(runtime.begin_again)
        except StorageError as error:
            if not error.passing or runtime.closed:
                raise
            runtime._note_trouble(error)
            self._stuck = True
            self._whole.set()
            return False
        return True

    def over(self) -> None:
        """The queues are whole. Under the lock."""
        self.error, self.command = None, None

    @property
    def gave_up(self) -> bool:
        """Whether it stopped because of its own mistakes: another process can carry out what this one cannot."""
        failure = self._runtime.failure
        return failure is not None and (is_ours(failure) or isinstance(failure, LostAfterError))

    @property
    def problem(self) -> str | None:
        """For health: what happened within the last hour."""
        if not self.count or time.monotonic() - self._last_time > _REMEMBERED:
            return None
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"the broker was restored {times} after an unexpected error; the last was {self._last}"

    def _report(self, error: BaseException) -> None:
        """Log what is needed to find the mistake, and to make it happen again with a copy of the log."""
        runtime, command = self._runtime, self.command
        offset, position = self.began
        queue = getattr(command, "queue", None)
        known = runtime.engine.core.queues.get(queue) if isinstance(queue, str) else None
        about = "" if known is None else f"; queue {queue!r}: {known.options}, {known.status}, counts {known.counts}"
        lease = getattr(known, "leases", {}).get(command.lease) if isinstance(command, Settle | HandOver) else None
        _log.error(
            "an unexpected error in %s at offset %d, position %d, time %d%s%s; the queues are rebuilt from the log",
            "the broker's own work" if command is None else repr(command)[:_SHOWN], offset, position, runtime.clock(),
            about, "" if lease is None else f"; {lease}", exc_info=error,
        )  # fmt: skip
