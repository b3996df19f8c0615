"""Topics in Spark's terms."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812


def covered(topic: Column, prefixes: Iterable[str]) -> Column:
    """Whether a topic is one of the prefixes or lies below one."""
    found = F.lit(False)
    for prefix in prefixes:
        stem = prefix.removesuffix(".*").removesuffix("*").rstrip(".")
        found = found | (((topic == stem) | topic.startswith(f"{stem}.")) if stem else F.lit(True))
    return found
