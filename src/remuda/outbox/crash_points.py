"""Named points at which tests kill the process, chosen by an environment variable, to prove what survives."""

from __future__ import annotations

import os
import signal
from typing import Final

_POINT: Final = os.environ.get("REMUDA_OUTBOX_CRASH_AT")


def point(name: str) -> None:
    if name == _POINT:
        os.kill(os.getpid(), signal.SIGKILL)
