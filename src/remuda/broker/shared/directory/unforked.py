"""A lock that keeps this process from being forked.

A file that is opened just before a fork would stay open in the child, which knows nothing of it: a lock that outlives
its holder, or a socket at which nobody answers.
"""

from __future__ import annotations

import os
import threading
from typing import Final

unforked: Final = threading.RLock()
"""Held only for a moment; a fork by another thread waits for it."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=unforked.acquire, after_in_parent=unforked.release, after_in_child=unforked.release)
