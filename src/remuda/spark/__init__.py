"""Spark reads the trail: a data source and a sink named `remuda`, and pipelines over them.

Importing this needs nothing but Remuda; the first call that needs PySpark says how to install it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remuda.spark.reading import read as read
    from remuda.spark.session import session as session

__all__ = ["read", "session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from remuda.spark.extra import need_pyspark

    need_pyspark()
    from remuda.spark import reading, session

    return {"read": reading.read, "session": session.session}[name]
