"""What to say when PySpark is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from remuda.model.errors import RemudaError
from remuda.model.values.extras import has_arrow


class SparkMissing(RemudaError, ImportError):
    """PySpark, or a part of it, is not installed."""


def need_pyspark() -> None:
    if find_spec("pyspark") is None or not has_arrow():
        raise SparkMissing("Spark is an extra: pip install 'remuda[spark]'")


def need_numpy() -> None:
    if find_spec("numpy") is None or not has_arrow():
        raise SparkMissing("the report needs NumPy and Arrow, which are an extra: pip install 'remuda[report]'")
