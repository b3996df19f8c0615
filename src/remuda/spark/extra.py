"""What to say when PySpark is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from remuda.model.errors import RemudaError


class SparkMissing(RemudaError, ImportError):
    """PySpark, or a part of it, is not installed."""


def need_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise SparkMissing("Spark is an extra: pip install 'remuda[spark]'")


def need_numpy() -> None:
    if find_spec("numpy") is None:
        raise SparkMissing("the report needs NumPy, which is an extra: pip install 'remuda[report]'")
