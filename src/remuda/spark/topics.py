"""Topics in Spark's terms."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.topics import stem_of


def topics_of() -> Column:
    """A message's topics: its name, where it lists none."""
    return F.when(F.size("topics") > 0, F.col("topics")).otherwise(F.array("name"))


def any_covered(topics: Column, prefixes: Iterable[str]) -> Column:
    """Whether one of the topics is one of the prefixes or lies below one."""
    stems = tuple(prefixes)
    return F.exists(topics, lambda topic: covered(topic, stems))


def covered(topic: Column, prefixes: Iterable[str]) -> Column:
    """Whether a topic is one of the prefixes or lies below one."""
    found = F.lit(False)
    for prefix in prefixes:
        stem = stem_of(prefix)
        found = found | (((topic == stem) | topic.startswith(f"{stem}.")) if stem else F.lit(True))
    return found
