"""One Spark session and one RabbitMQ for all tests of a process, started by the first that needs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from remuda.spark.java import JavaMissing
from tests.servers.fixtures import broker_url, clean_url, janitor, rabbit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["broker_url", "clean_url", "janitor", "rabbit"]


@pytest.fixture(scope="session")
def one_spark() -> Iterator[SparkSession]:
    from remuda.spark import session

    try:
        spark = session("remuda tests", master="local[2]", quick=True)
    except JavaMissing as missing:
        pytest.skip(str(missing))
    yield spark
    spark.stop()


@pytest.fixture
def spark(one_spark: SparkSession) -> SparkSession:
    """The session as it was begun: a query of an earlier test may have left a copy of it as the active one."""
    from pyspark_remuda import DefaultSource

    one_spark.createDataFrame([], "nothing string")  # which makes it the active one
    one_spark.dataSource.register(DefaultSource)
    return one_spark
