"""C versions of the hot path for single messages, used where they could be built.

Everything works without them, more slowly. `REMUDA_PURE=1` in the environment turns them off.
"""

from __future__ import annotations

import os

__all__ = ["columns", "deliveries", "in_flight", "lanes", "ranges", "stores", "submission", "tail", "wire"]

try:
    if os.environ.get("REMUDA_PURE", "0") != "0":
        raise ImportError("REMUDA_PURE asks for Python alone")
    from remuda.native import _columns as columns
    from remuda.native import _deliveries as deliveries
    from remuda.native import _in_flight as in_flight
    from remuda.native import _lanes as lanes
    from remuda.native import _ranges as ranges
    from remuda.native import _stores as stores
    from remuda.native import _submission as submission
    from remuda.native import _tail as tail
    from remuda.native import _wire as wire
except ImportError:
    in_flight = columns = deliveries = submission = lanes = ranges = stores = tail = wire = None  # type: ignore[assignment]
