"""Moments in which this process is not forked.

Whatever is open in the middle of one would stay open in the fork, which knows nothing of it: a lock that outlives its
holder, or a socket at which nobody answers.
"""

from __future__ import annotations

import os
import threading
from typing import Final

unforked: Final = threading.RLock()
"""Held for a moment; a fork by another thread waits for its end."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=unforked.acquire, after_in_parent=unforked.release, after_in_child=unforked.release)
