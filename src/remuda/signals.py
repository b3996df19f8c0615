"""Waiting on the main thread without missing a signal."""

from __future__ import annotations

import threading
from typing import Final

HEARING: Final = 0.5
"""Seconds. A signal may arrive when the main thread is about to sleep and no longer looks at its signals; Python then
runs the signal's handler only when that thread wakes up. So it never sleeps longer than this."""


def wait_hearing_signals(event: threading.Event) -> None:
    while not event.wait(HEARING):
        pass
