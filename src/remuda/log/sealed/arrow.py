"""Arrow, for what reads and writes sealed files: one place that says what to install where it is missing."""

from __future__ import annotations

from remuda.model.values.extras import MissingExtra, has_arrow

if not has_arrow():
    raise MissingExtra("Reading the log, sealed files and the search index", "arrow")

import pyarrow as pa
import pyarrow.compute as pc

from remuda.log.sealed.lazy_pandas import defer_pandas

defer_pandas()

__all__ = ["pa", "pc"]
