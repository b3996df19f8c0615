"""C versions of the hot path for single messages, used where they could be built.

Everything works without them, more slowly. `REMUDA_PURE=1` in the environment turns them off.
"""

from __future__ import annotations

import os

__all__ = ["columns", "mutex", "tail", "wire"]

try:
    if os.environ.get("REMUDA_PURE", "0") != "0":
        raise ImportError("REMUDA_PURE asks for Python alone")
    from remuda.native import _columns as columns
    from remuda.native import _mutex as mutex
    from remuda.native import _tail as tail
    from remuda.native import _wire as wire
except ImportError:
    columns = mutex = tail = wire = None  # type: ignore[assignment]
