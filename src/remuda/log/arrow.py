"""Arrow, for what reads and writes sealed files: one place that says what to install where it is missing."""

from __future__ import annotations

from remuda.model.extras import MissingExtra, has_arrow

if not has_arrow():
    raise MissingExtra("Reading the log, sealed files and the search index", "arrow")

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["pa", "pc"]
