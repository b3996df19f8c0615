"""Waiting on the main thread without missing a signal."""

from __future__ import annotations

import threading
from typing import Final

SIGNAL_POLL: Final = 0.5
"""Seconds. A signal may arrive after the main thread has last checked for signals and before it sleeps; Python then
runs the signal's handler only when that thread wakes up. So it never sleeps longer than this."""


def wait_for_event(event: threading.Event) -> None:
    """Wait for an event; signal handlers run at most `SIGNAL_POLL` late."""
    while not event.wait(SIGNAL_POLL):
        pass
