"""One Spark session and one RabbitMQ for all tests of a process, started by the first that needs them; and tests that
want a process to themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

from remuda.spark.java import JavaMissing
from tests.servers.fixtures import broker_url, clean_url, janitor, rabbit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["broker_url", "clean_url", "janitor", "rabbit"]

_LONGEST: Final = (
    "tests/spark/test_connect.py", "tests/faults/test_rabbitmq_cluster.py", "tests/spark/test_cluster.py",
    "tests/index/test_kill.py", "tests/spark/", "tests/simulation/", "tests/worker/", "tests/core/test_machine.py",
)  # fmt: skip
_SHORTEST: Final = ("tests/bus/test_", "tests/core/", "tests/model/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest come first and those of seconds last, so that no process is left alone at the end."""

    def place(item: pytest.Item) -> int:
        among = (rank for rank, name in enumerate(_LONGEST) if item.nodeid.startswith(name))
        return next(among, len(_LONGEST) + item.nodeid.startswith(_SHORTEST))

    items.sort(key=place)


@pytest.fixture(scope="session")
def one_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from remuda.spark import session
    from tests.spark.forking import forking_python

    # To compile a plan takes longer than to work through a few rows; the cluster and the Connect server compile theirs.
    config = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    with forking_python(tmp_path_factory.mktemp("python")) as python:
        try:
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("PYSPARK_PYTHON", str(python))
                spark = session("remuda tests", master="local[2]", quick=True, config=config)
        except JavaMissing as missing:
            pytest.skip(str(missing))
        yield spark
        spark.stop()


@pytest.fixture
def spark(one_spark: SparkSession) -> SparkSession:
    """The session as it was begun: a query of an earlier test may have left a copy of it as the active one."""
    from pyspark_remuda import DefaultSource
    from remuda.spark.starting import make_active

    type(one_spark)._activeSession = one_spark  # for Python
    make_active(one_spark)  # for Java
    one_spark.dataSource.register(DefaultSource)
    return one_spark


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test marked `alone` runs in a process of its own: one that counts calls crashes Python where threads and
    greenlets of other libraries are about."""
    if pyfuncitem.get_closest_marker("alone") is None or "REMUDA_ALONE" in os.environ:
        return None
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "pytest_timeout",
        pyfuncitem.nodeid,
    ]
    done = subprocess.run(
        command,
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, "REMUDA_ALONE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # which would cost seconds
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return True
