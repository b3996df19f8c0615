"""What is there in C as well, where it could be built: the short way of a single record to the log.

Everything works without it, at a higher price. `REMUDA_PURE=1` in the environment does without it.
"""

from __future__ import annotations

import os

__all__ = ["tail"]

try:
    if os.environ.get("REMUDA_PURE", "0") != "0":
        raise ImportError("REMUDA_PURE asks for Python alone")
    from remuda.native import _tail as tail
except ImportError:
    tail = None  # type: ignore[assignment]
